"""The operators, on a few lines of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.operators import mutants_of, mutated

SOURCE = '''
from x import Send, Now, WaitBell

def loop(a, b):
    """A docstring is no statement."""
    local = 1
    if a < b:
        yield Send("outbox", [a])
        yield Put("queue", b)
    try:
        yield WaitBell("bell", a + 2)
    except ValueError:
        raise RuntimeError
    finally:
        self.close()
    return a and b


class Thing:
    def inside(self):
        self.count += 1
'''


@pytest.fixture
def made(tmp_path: Path) -> dict[tuple[str, int], set[str]]:
    (tmp_path / "file.py").write_text(SOURCE)
    found: dict[tuple[str, int], set[str]] = {}
    for mutant in mutants_of("file.py", tmp_path):
        text = mutated(SOURCE.encode(), mutant).decode().splitlines()[mutant.line - 1].strip()
        found.setdefault((mutant.operator, mutant.line), set()).add(text)
    return found


@pytest.mark.parametrize(("operator", "line", "text"), [
    ("condition-turned", 7, "if not (a < b):"),
    ("branch-never-taken", 7, "if False:"),
    ("off-by-one", 7, "if a <= b:"),
    ("statement-gone", 8, "pass"),
    ("sent-twice", 8, 'yield Send("outbox", [a]); yield Send("outbox", [a])'),
    ("effects-swapped", 8, 'yield Put("queue", b); yield Send("outbox", [a])'),
    ("no-deadline", 11, 'yield WaitBell("bell", None)'),
    ("off-by-one", 11, 'yield WaitBell("bell", a + 3)'),
    ("exception-swallowed", 13, "pass"),
    ("clean-up-left-out", 15, "pass"),
    ("statement-gone", 16, "return None"),
    ("condition-turned", 16, "return ((a) or (b))"),
    ("statement-gone", 21, "pass"),
])
def test_each_operator_makes_its_bug(made: dict[tuple[str, int], set[str]], operator: str, line: int,
                                     text: str) -> None:
    assert text in made[operator, line]


def test_a_docstring_and_a_local_name_stay(made: dict[tuple[str, int], set[str]]) -> None:
    assert not [line for operator, line in made if line in (5, 6) and operator == "statement-gone"]


def test_the_same_file_gives_the_same_mutants(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(SOURCE)
    assert mutants_of("file.py", tmp_path) == mutants_of("file.py", tmp_path)
    assert len({mutant.id for mutant in mutants_of("file.py", tmp_path)}) == len(mutants_of("file.py", tmp_path))

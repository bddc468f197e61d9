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


DEEP = '''
from __future__ import annotations


class Outer:
    class Inner:
        @property
        async def deep(self):
            super().deep()
            def own():
                nonlocal self
                self = 1
                return self
            await own()
            x = """a
text""" or self
            return x

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
    for place in (tmp_path / "one", tmp_path / "other"):
        place.mkdir()
        (place / "file.py").write_text(SOURCE)
    found = mutants_of("file.py", tmp_path / "one")
    assert found == mutants_of("file.py", tmp_path / "other")
    assert len({mutant.id for mutant in found}) == len(found) > 0


def test_a_mutant_compiles_and_so_does_the_whole_file_with_it(tmp_path: Path) -> None:
    """It is tried in its function alone, where a loop, a class and another function may lie around it."""
    (tmp_path / "file.py").write_text(DEEP)
    found = mutants_of("file.py", tmp_path)
    for mutant in found:
        compile(mutated(DEEP.encode(), mutant), mutant.id, "exec")
    assert {(mutant.line, mutant.new) for mutant in found if mutant.operator == "statement-gone"} == {
        (9, "pass"), (13, "return None"), (14, "pass"), (17, "return None")}

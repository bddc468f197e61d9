"""Edits of functions by name: what is changed, what is left, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scenarios.worlds.vllm.edits.copy import make_copy
from scenarios.worlds.vllm.edits.edit import (
    Change,
    Edit,
    EditError,
    begins,
    both,
    called_by,
    does,
    edited,
    passes,
    reads,
    rescues,
)
from scenarios.worlds.vllm.edits.registry import EDITS, edits_of

SOURCE = '''
class Core:
    def stop(self, timeout=5):
        """Says so, and stops."""
        said.append("stopping")
        return ask(self, how=SIGNALS.DEFAULT, timeout=timeout)

    async def rest(self):
        return 0

def stop():
    return "alone"
'''


def of(change: Change, function: str = "Core.stop") -> Any:
    """The module with this edit, run. Its `ask` gives back what it is asked."""
    said: list[str] = []
    module = {"said": said, "SIGNALS": SimpleNamespace(DEFAULT="default", IGNORED="ignored"),
              "ask": lambda core, **named: named}
    exec(edited(SOURCE, [Edit("somewhere", function, change)]), module)
    return module


def test_a_function_does_something_else_and_its_namesake_does_not() -> None:
    module = of(does("return 7"))
    assert module["Core"]().stop() == 7 and module["stop"]() == "alone" and module["said"] == []
    assert of(does("return 7"), "stop")["stop"]() == 7


def test_a_function_begins_otherwise_and_goes_on() -> None:
    module = of(begins("said.append('first')\ntimeout = 1"))
    assert module["Core"]().stop() == {"how": "default", "timeout": 1}
    assert module["said"] == ["first", "stopping"] and module["Core"].stop.__doc__ == "Says so, and stops."


def test_an_attribute_and_an_argument_are_other_ones() -> None:
    assert of(reads("DEFAULT", "IGNORED"))["Core"]().stop() == {"how": "ignored", "timeout": 5}
    assert of(passes("timeout", "None"))["Core"]().stop() == {"how": "default", "timeout": None}


def test_what_raises_is_rescued_and_what_is_called_is_another() -> None:
    module = of(rescues("ask", "return ['rescued', str(_error)]"))
    assert module["Core"]().stop() == {"how": "default", "timeout": 5}
    module["ask"] = None
    assert module["Core"]().stop()[0] == "rescued"
    other = of(both(called_by("said.append", "twice"), begins("def twice(of, word):\n    of += [word, word]")))
    other["Core"]().stop()
    assert other["said"] == ["stopping", "stopping"]


@pytest.mark.parametrize(("function", "change", "why"), [
    ("Core.stop", rescues("tell", "pass"), "nothing that the edit would change"),
    ("Core.stop", both(does("tell()"), rescues("ask", "pass")), "nothing that the edit would change"),
    ("Core.start", does("pass"), "no function Core.start"), ("Other.stop", does("pass"), "no function Other.stop"),
    ("Core.stop", reads("DEFALT", "IGNORED"), "nothing that the edit would change"),
    ("Core.rest", passes("timeout", "None"), "nothing that the edit would change")],
    ids=["no handler", "no call", "no function", "no class", "no name", "no argument"])
def test_what_is_not_there_is_refused(function: str, change: Change, why: str) -> None:
    with pytest.raises(EditError, match=why):
        edited(SOURCE, [Edit("somewhere", function, change)])


def installed(folder: Path) -> Path:
    for path, text in (("box/__init__.py", ""), ("box/other.py", "VALUE = 1\n"), ("box/deep/__init__.py", ""),
                       ("box/deep/core.py", "def value():\n    return 1\n"), ("box/deep/near.py", "VALUE = 2\n")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def told(*path: Path) -> str:
    code = ("import box.other, box.deep.core, box.deep.near as near;"
            "print(box.other.VALUE, box.deep.core.value(), near.VALUE)")
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env={
        "PYTHONPATH": ":".join(map(str, path))}).stdout.strip()


def test_a_copy_has_its_edits_and_leaves_what_is_installed_alone(tmp_path: Path) -> None:
    source = installed(tmp_path / "installed")
    assert told(source) == "1 1 2"  # and compiles it there
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    copy = make_copy(source, tmp_path / "copy", [Edit("box.deep.core", "value", does("return 9"))])
    assert told(copy, source) == "1 9 2"
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    own = [path for path in (copy / "box").rglob("*.py") if not path.is_symlink() and path.resolve().is_relative_to(
        copy.resolve())]
    assert [path.name for path in own] == ["core.py"]
    assert told(source) == "1 1 2"


def test_a_copy_of_a_module_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EditError, match="no such module"):
        make_copy(installed(tmp_path / "installed"), tmp_path / "copy", [Edit("box.deep.cores", "value", does("pass"))])


def test_edits_are_known_by_name() -> None:
    assert edits_of(["always-healthy", "core-unwatched"]) == [*EDITS["always-healthy"], *EDITS["core-unwatched"]]
    with pytest.raises(EditError, match="no edit of vLLM is called 'nonsense'"):
        edits_of(["nonsense"])

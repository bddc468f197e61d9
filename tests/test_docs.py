"""What the documents say exists: commands, options, paths and names; what they show as code runs."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from faults.plan import plan_from_json
from scenarios.command.cli import cli
from scenarios.guarantees.document import document
from scenarios.lab.catalogue import scenarios_of
from scenarios.lab.player import Settings, Worlds, play
from scenarios.pytest_plugin import pytest_addoption

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES["README.md"]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language; one that is indented below a list counts, too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found]


def commands() -> list[list[str]]:
    """Every command of the README, as words: those in blocks, and those in the text."""
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    lines += re.findall(r"`((?:ringtwin|make|pytest) [^`]+)`", README)
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def of(program: str) -> list[list[str]]:
    return [words for words in commands() if words[0] == program]


@pytest.mark.parametrize("words", of("ringtwin"), ids=" ".join)
def test_a_command_of_the_readme_is_understood(words):
    command = cli.get_command(None, words[1])
    assert command is not None, words
    if words[2:]:  # in the text a command is often named without its arguments
        command.make_context(words[1], words[2:]).close()


@pytest.mark.parametrize("words", of("make"), ids=" ".join)
def test_a_make_target_of_the_readme_exists(words):
    makefile = (ROOT / "Makefile").read_text()
    for word in words[1:]:
        variable, is_variable, _ = word.partition("=")
        assert re.search(rf"^{variable} \?=" if is_variable else rf"^{word}:", makefile, re.MULTILINE), word


@pytest.mark.parametrize("words", of("pytest"), ids=" ".join)
def test_a_pytest_option_of_the_readme_exists(words):
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    names = {name for group in parser._groups for option in group.options for name in option.names()}
    assert {word for word in words if word.startswith("--")} <= names


@pytest.mark.parametrize("page", PAGES)
def test_a_path_that_a_page_names_exists(page):
    text = PAGES[page]
    named = set(re.findall(r"`([\w./-]+/[\w./*-]*)`", text)) | set(re.findall(r"\]\(([\w./-]+)\)", text))
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"out"}
    ours = {name for name in named if "/" not in name or name.split("/")[0] in folders | {".ci", ".github"}}
    places = (ROOT, ROOT / "docs")
    assert [name for name in sorted(ours) if not any(list(place.glob(name.rstrip("/"))) for place in places)] == []


def defined_in(text: str) -> set[str]:
    """What a module defines: classes, functions and constants, and what is in its classes as `Class.name`."""
    found: set[str] = set()

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(before + node.name)
                look(node.body if isinstance(node, ast.ClassDef) else [], f"{before}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(before + target.id for target in targets if isinstance(target, ast.Name))

    look(ast.parse(text).body, "")
    return found


#: `engine/core/life.py: CoreLife.run` says where something stands.
PLACE = re.compile(r"`([\w./]+\.py): ([\w.]+)`")


@pytest.mark.parametrize(("page", "path", "name"), sorted(
    {(page, *place) for page, text in PAGES.items() for place in PLACE.findall(text)}))
def test_what_a_page_says_to_stand_in_a_file_stands_there(page, path, name):
    assert name in defined_in((ROOT / path).read_text())


def lives() -> dict[str, list[str]]:
    """The lives that the architecture tells: their titles, and their steps in order."""
    [told] = re.findall(r"^## Three lives\n(.*?)^## ", PAGES["ARCHITECTURE.md"], re.MULTILINE | re.DOTALL)
    titles_and_texts = re.split(r"^### (.*)\n", told, flags=re.MULTILINE)[1:]
    return {title: re.findall(r"^\d+\. .*(?:\n   .*)*", text, re.MULTILINE)
            for title, text in zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True)}


def test_the_architecture_tells_three_lives():
    assert [title.split(",")[0] for title in lives()] == ["A request", "A fault", "A KV event"]


@pytest.mark.parametrize(("number", "step"), [
    pytest.param(number, step, id=f"{title.split(',')[0]}, {number}")
    for title, steps in lives().items() for number, step in enumerate(steps, 1)])
def test_each_step_of_a_life_has_its_number_and_its_file(number, step):
    assert step.startswith(f"{number}. ")
    assert PLACE.search(step), "a step names where it stands: `path/of/file.py: name`"


def observations(text: str) -> set[str]:
    """Names of what this source tells the judges: of Observe(...), Describe(...), tell(...) and some.observe(...)."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    return {call.args[0].value for call in calls
            if getattr(call.func, "id", "") in ("Observe", "Describe", "tell")
            or getattr(call.func, "attr", "") == "observe"
            if isinstance(call.args[0], ast.Constant)}


def test_the_architecture_lists_what_the_processes_tell_the_judges():
    run = ("engine", "faults", "sim", "scenarios/workloads", "scenarios/worlds")
    told = {name for folder in run for path in (ROOT / folder).rglob("*.py") for name in observations(path.read_text())}
    [table] = re.findall(r"^\| node \| name \| data \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGES["ARCHITECTURE.md"],
                         re.MULTILINE)
    listed = {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[2])}
    assert listed == told


@pytest.mark.parametrize("block", [block for page in PAGES.values() for block in blocks(page, "python")],
                         ids=lambda block: block.strip().splitlines()[-1].strip()[:40])
def test_a_block_of_python_compiles_and_imports_what_exists(block):
    compile(block, "block", "exec")
    for module, names in re.findall(r"^from ([\w.]+) import ([\w, ]+)$", block, re.MULTILINE):
        for name in names.split(","):
            assert getattr(importlib.import_module(module), name.strip()) is not None


def test_the_scenario_of_the_readme_is_played_as_it_promises(tmp_path):
    [block] = [block for block in blocks(README, "python") if "def test_" in block]
    names: dict = {"__name__": "readme"}
    exec(block, names)  # noqa: S102
    [scenario] = scenarios_of(next(value for name, value in names.items() if name.startswith("test_")))
    worlds = Worlds(Settings(out=tmp_path))
    outcome = play(scenario, worlds.open("sim", scenario))
    assert (outcome.failure, outcome.broken) == (None, None)


def test_the_plan_of_the_readme_can_be_played():
    from engine.topology import tensor_parallel

    [block] = blocks(README, "json")
    plan_from_json(block).check(tensor_parallel(2))


def test_the_page_of_guarantees_is_the_registry_s():
    assert PAGES["GUARANTEES.md"] == document(), "python -m scenarios.guarantees.document > docs/GUARANTEES.md"

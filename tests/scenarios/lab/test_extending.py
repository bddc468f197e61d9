"""Scenarios and guarantees of a user's own: the example of docs/EXTENDING.md, and what can be wrong with one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from faults.plan import kill, plan, plan_to_json
from tests.scenarios.command.console import ROOT

PAGE = (ROOT / "docs" / "EXTENDING.md").read_text()
PROGRAMS = {"ringtwin": ["-m", "scenarios.command"], "pytest": ["-m", "pytest"]}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _own() -> dict[str, str]:
    """Our environment, without what pytest was told outside."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


class Folder:
    """A user's folder: the files of the page, and the package that brings its guarantees as an installer leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for block in blocks("python"):
            self.write(block.partition("\n")[0].removeprefix("# "), block)
        [point] = re.findall(r"^mine = .*$", blocks("toml")[0], re.MULTILINE)
        self.bring(point)
        self.write("plan.json", plan_to_json(plan(kill("worker.1", at="worker.1/mark:executing", nth=8))).decode())

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def bring(self, point: str) -> None:
        self.write("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        self.write("mine-1.0.dist-info/entry_points.txt",
                   f"[ringtwin.guarantees]\n{point.replace(chr(34), '')}\n")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *PROGRAMS[words[0]], *words[1:]], cwd=self.path, capture_output=True, text=True,
            timeout=120, check=False,
            env={**_own(), "PYTHONPATH": f"{ROOT}{os.pathsep}{self.path}", "PYTHONSAFEPATH": "1"})

    def results(self) -> list[dict]:
        return json.loads((self.path / "out" / "results.json").read_text())["scenarios"]


@pytest.fixture
def mine(tmp_path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("command", [line for block in blocks("sh") for line in block.splitlines()])
def test_a_command_of_the_page_does_what_it_says(mine, command):
    done = mine.call(*shlex.split(command))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_scenario_of_one_s_own_is_in_the_report(mine):
    assert mine.call("ringtwin", "run", "--scenarios", "mine", "--world", "sim").returncode == 0
    [entry] = mine.results()
    assert (entry["name"], entry["faults"][0]["fired"]) == ("test_my_worker_dies_late", True)
    own = [cell for cell in entry["verdicts"] if cell["guarantee"] == "nobody-waits-for-ever"]
    assert [(cell["verdict"], cell["expected"]) for cell in own] == [("HELD", None)]


def test_a_guarantee_of_one_s_own_can_be_promised_and_breaks(mine):
    mine.write("my_promises.py", (mine.path / "my_promises.py").read_text().replace("LONGEST_S = 30.0",
                                                                                   "LONGEST_S = 0.0001"))
    file = mine.path / "mine" / "test_mine.py"
    file.write_text(file.read_text().replace("import death_is_told, ends_once", "import nobody_waits_for_ever")
                    .replace("run.holds(ends_once, death_is_told)", "run.holds(nobody_waits_for_ever)"))
    done = mine.call("pytest", "mine", "--world", "sim")
    assert done.returncode == 1
    assert "nobody-waits-for-ever" in done.stdout and "a word of 'r" in done.stdout


@pytest.mark.parametrize(("point", "said"), [
    ("mine = nowhere:GUARANTEES", "cannot be loaded (ModuleNotFoundError"),
    ("mine = my_promises:LONGEST_S", "cannot be loaded (TypeError"),
    ("mine = my_promises:__name__", "holds 'm', which is no Guarantee"),
    ("mine = scenarios.guarantees.chapters.text:GUARANTEES\nagain = twice:GUARANTEES", "is a guarantee 'text-"),
])
def test_an_entry_point_that_is_wrong_is_told_in_a_line(mine, point, said):
    mine.write("twice.py", "import copy\nfrom scenarios.guarantees.chapters.text import GUARANTEES as G\n"
                           "GUARANTEES = [copy.copy(entry) for entry in G]\n")
    mine.bring(point)
    done = mine.call("ringtwin", "list", "guarantees")
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert line.startswith("ringtwin: mine, ringtwin.guarantees: ") and said in line
    tested = mine.call("pytest", "mine", "--world", "sim")
    assert tested.returncode == 3 and said in tested.stdout + tested.stderr


@pytest.mark.parametrize(("given", "said"), [
    ("nowhere", "no such folder or file"), ("plan.json", "cannot be imported"), ("empty", "no scenario in it"),
    ("broken", "cannot be imported (ZeroDivisionError"), ("twice", "two scenarios are called so"),
])
def test_a_folder_that_cannot_be_played_is_told_in_a_line(mine, given, said):
    text = (mine.path / "mine" / "test_mine.py").read_text()
    mine.write("empty/other.py", "")
    mine.write("broken/test_broken.py", "1 / 0\n")
    mine.write("twice/test_one.py", text)
    mine.write("twice/test_two.py", text)
    done = mine.call("ringtwin", "run", "--scenarios", given, "--world", "sim")
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert said in line


def test_what_lies_beside_a_scenario_can_be_imported_by_it(mine):
    mine.write("mine/beside.py", "TIMES = 10\n")
    file = mine.path / "mine" / "test_mine.py"
    file.write_text(f"import beside\n{file.read_text()}".replace("nth=10", "nth=beside.TIMES"))
    for command in (("ringtwin", "run", "--scenarios", "mine", "--world", "sim"), ("pytest", "mine", "--world", "sim")):
        assert mine.call(*command).returncode == 0


def test_a_fixture_of_somebody_else_that_is_called_world_is_left_alone(mine):
    mine.write("other/test_other.py", "import sys\nimport pytest\n\n@pytest.fixture\ndef world():\n    return 3\n\n"
                                      "def test_it(world):\n    assert world == 3\n"
                                      "    assert not [name for name in ('engine', 'faults') if name in sys.modules]\n")
    done = mine.call("pytest", "other")
    assert done.returncode == 0, done.stdout


def test_last_failed_works_on_scenarios(mine):
    mine.write("mine/test_more.py", "def test_red(world):\n    '''It is red.'''\n    raise ValueError('planted')\n")
    assert mine.call("pytest", "mine", "--world", "sim").returncode == 1
    again = mine.call("pytest", "mine", "--world", "sim", "--lf")
    assert "1 failed" in again.stdout and "passed" not in again.stdout


# -- a folder that hides ours


@pytest.fixture
def hiding(mine) -> Folder:
    mine.write("engine/__init__.py", "")
    return mine


def _hidden(folder: Folder, *words: str) -> subprocess.CompletedProcess[str]:
    """Started in that folder, which stands first on Python's path."""
    return subprocess.run([sys.executable, *PROGRAMS[words[0]], *words[1:]], cwd=folder.path, capture_output=True,
                          text=True, timeout=60, check=False, env={**_own(), "PYTHONPATH": str(ROOT)})


def test_a_folder_that_hides_ours_is_told_in_a_line(hiding):
    for words in (("ringtwin", "doctor"), ("ringtwin", "run", "--world", "sim")):
        done = _hidden(hiding, *words)
        assert done.returncode == 3
        [line] = done.stderr.splitlines()
        assert line.startswith(f"ringtwin: {hiding.path / 'engine'} hides Ringtwin's own package 'engine' (")


def test_pytest_tells_what_hides_ours_where_a_scenario_cannot_be_imported(mine):
    mine.write("engine.py", "")
    done = _hidden(mine, "pytest", "mine")
    assert done.returncode == 2
    assert f"{mine.path / 'engine.py'} hides Ringtwin's own package 'engine'" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_doctor_sees_what_would_hide_ours_from_programs_that_start_here(hiding):
    assert "engine hides Ringtwin's package" in hiding.call("ringtwin", "doctor").stdout
    (hiding.path / "engine" / "__init__.py").unlink()
    assert "hides" not in hiding.call("ringtwin", "doctor").stdout

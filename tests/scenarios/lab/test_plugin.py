"""Scenarios under pytest: worlds as parameters, failures that end in the command that repeats them, a report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.command.claim import claimed
from tests.scenarios.command.console import ROOT


def run_pytest(*arguments: object) -> subprocess.CompletedProcess:
    alone = {name: value for name, value in os.environ.items()
             if not name.startswith("PYTEST_XDIST") and name != "PYTEST_ADDOPTS"}
    return subprocess.run([sys.executable, "-m", "pytest", *map(str, arguments)], cwd=ROOT, capture_output=True,
                          text=True, timeout=120, check=False, env=alone)


@pytest.fixture
def examples(tmp_path) -> Path:
    """The example scenarios as a file that pytest collects."""
    path = tmp_path / "test_examples.py"
    path.write_text((ROOT / "tests/scenarios/examples.py").read_text())
    return path


def play(examples: Path, tmp_path: Path, *more: object) -> subprocess.CompletedProcess:
    return run_pytest(examples, "--rootdir", ROOT, "-c", ROOT / "pyproject.toml",
                      "--world", "sim", "--out", tmp_path / "out", *more)


def failure_of(done: subprocess.CompletedProcess) -> list[str]:
    """The lines of its one failure, without pytest's rulers."""
    section = re.split("=+ (?:FAILURES|short test summary info) =+", done.stdout)[1]
    return [line for line in section.splitlines() if line.strip()]


def test_a_failure_ends_in_the_command_that_repeats_it(examples, tmp_path):
    done = play(examples, tmp_path, "-k", "test_breaks")
    assert done.returncode == 1
    assert failure_of(done)[-1] == f"ringtwin replay {tmp_path / 'out' / 'runs' / 'test_breaks-sim'}"


def test_a_scenario_that_left_no_run_ends_in_the_command_that_plays_it(examples, tmp_path):
    done = play(examples, tmp_path, "-k", "test_raises")
    assert any("ZeroDivisionError: planted" in line for line in failure_of(done))
    assert failure_of(done)[-1] == "ringtwin run --scenario test_raises --world sim"


def test_what_a_world_or_a_topology_cannot_play_is_skipped_with_its_reason(examples, tmp_path):
    done = play(examples, tmp_path, "--tp", 1, "-rs", "-k", "test_elsewhere or test_needs_two")
    assert done.returncode == 0, done.stdout
    assert "the twin has no disk" in done.stdout
    assert "does not fit a topology of 1 ranks" in done.stdout
    assert "2 skipped" in done.stdout


def test_nothing_but_runs_is_written(examples, tmp_path):
    play(examples, tmp_path, "-k", "test_holds")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["runs"]


def test_a_folder_into_which_another_run_writes_is_refused(examples, tmp_path):
    (tmp_path / "out").mkdir()
    with claimed(tmp_path / "out"):
        done = play(examples, tmp_path, "-k", "test_holds")
    assert done.returncode == 3
    assert "another run" in done.stdout and not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["in one process", "in two workers"])
def test_the_report_of_a_session_has_all_its_runs(examples, tmp_path, workers):
    chosen = "test_holds or test_breaks or test_unknown"
    done = play(examples, tmp_path, "-k", chosen, "--report", tmp_path / "r", *workers)
    assert done.returncode == 1, done.stdout
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    assert {entry["name"] for entry in results["scenarios"]} == {"test_holds", "test_breaks", "test_unknown"}
    assert (tmp_path / "r" / "report" / "index.html").exists()


def test_workers_keep_their_runs_apart(examples, tmp_path):
    play(examples, tmp_path, "-k", "test_holds", "-n", 2, "--dist", "each", "--tx", "2*popen")
    assert sorted(str(path.parent.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("play.json")) == [
        "gw0/runs/test_holds-sim", "gw1/runs/test_holds-sim"]


def test_the_folder_of_scenarios_holds_nothing_but_scenarios():
    done = run_pytest("scenarios", "--collect-only", "--world", "sim")
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names
    assert all("[sim" in name or "-sim]" in name for name in names)


def test_a_world_that_cannot_be_played_here_is_said_so_at_once(tmp_path):
    program = "import sys; sys.modules['torch'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", program, "scenarios", "--world", "engine"], cwd=ROOT, text=True,
                          capture_output=True, timeout=60, check=False)
    assert done.returncode == 4
    assert "the engine world cannot be played here: torch not installed" in done.stderr

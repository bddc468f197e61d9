"""Ctrl-C, SIGTERM and SIGKILL in mid-play: no process, segment or socket file stays."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from scenarios.lab.settings import MODEL
from scenarios.worlds.registry import can_play
from tests.scenarios.command.console import Answer, Bench, bench

pytestmark = pytest.mark.skipif(can_play("engine") is not None, reason=f"needs the real engine: {can_play('engine')}")

LONG = ("run", "--world", "engine", "--scenario", "core_is_stopped", "--scenario", "nothing_goes_wrong*", "--out")
BOUND_S = 30.0


@pytest.fixture
def place():
    with bench() as made:
        yield made
        for pid in made.processes().values():
            os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Wait for what the lab does; its own end wakes the wait, too."""
    deadline = time.monotonic() + BOUND_S
    fd = os.pidfd_open(process.pid)
    try:
        while not condition():
            gone = select.select([fd], [], [], 0.02)[0]
            assert not gone, f"the lab ended early: {process.communicate()}"
            assert time.monotonic() < deadline, "it took too long"
    finally:
        os.close(fd)


def end(process: subprocess.Popen) -> Answer:
    out, err = process.communicate(timeout=BOUND_S)
    return Answer(process.returncode, out, err)


def kill(process: subprocess.Popen) -> None:
    """SIGKILL, without waiting for the ends of pipes that a stopped process still holds."""
    process.kill()
    process.wait(BOUND_S)
    process.stdout.close()
    process.stderr.close()


MOMENTS = {
    "importing": lambda place: bool(place.processes()),
    "starting": lambda place: "EngineCore_DP0" in place.processes(),
    "playing": lambda place: "VllmWorker-1" in place.processes(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_everything_with_one_line(place: Bench, tmp_path, moment):
    process = place.start(*LONG, tmp_path, "--jobs", 1)
    until(lambda: MOMENTS[moment](place), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    answer = end(process)
    assert answer.code == 130
    assert answer.line == "ringtwin: interrupted; whatever was started is gone"
    assert place.left() == []


def test_ctrl_c_ends_all_plays_that_go_on_at_once(place: Bench, tmp_path):
    process = place.start(*LONG, tmp_path, "--jobs", 3)
    until(lambda: MOMENTS["playing"](place), process)
    os.killpg(process.pid, signal.SIGINT)
    answer = end(process)
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "ringtwin: interrupted; whatever was started is gone"
    assert place.left() == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_was_played_before_a_ctrl_c_is_reported(place: Bench, tmp_path, jobs):
    process = place.start(*LONG, tmp_path, "--jobs", jobs)
    until(lambda: len(list((tmp_path / "runs").glob("*/verdicts.json"))) > jobs, process)
    os.killpg(process.pid, signal.SIGINT)
    answer = end(process)
    whole = len(list((tmp_path / "runs").glob("*/verdicts.json")))
    assert answer.code == 130
    assert "report of these: " in answer.err and answer.err.splitlines()[-1].startswith("ringtwin: interrupted")
    found = json.loads((tmp_path / "results.json").read_text())
    # Each that plays may have judged one play and not yet told of it.
    assert found["unplayed"] > 0 and whole - jobs <= len(found["scenarios"]) <= whole
    assert "Interrupted: " in (tmp_path / "report" / "index.html").read_text()
    assert place.left() == []


def test_a_second_ctrl_c_does_not_disturb_the_end(place: Bench, tmp_path):
    process = place.start(*LONG, tmp_path)
    until(lambda: MOMENTS["playing"](place), process)
    for _ in range(3):
        os.killpg(process.pid, signal.SIGINT)
    assert end(process).code == 130
    assert place.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_of_the_lab_ends_everything(place: Bench, tmp_path, number):
    process = place.start(*LONG, tmp_path)
    until(lambda: MOMENTS["playing"](place), process)
    process.send_signal(number)
    assert end(process).code == 143
    assert place.left() == []


@pytest.mark.parametrize("stopped", ["nothing", "frontend-0", "EngineCore_DP0"])
def test_after_sigkill_of_the_lab_the_next_start_finds_and_ends_what_is_left(place: Bench, tmp_path, stopped):
    process = place.start(*LONG, tmp_path)
    until(lambda: MOMENTS["playing"](place), process)
    if stopped != "nothing":
        os.kill(place.processes()[stopped], signal.SIGSTOP)  # cannot see that its parent is gone
    kill(process)
    answer = place.run("run", "--world", "engine", "--scenario", "nothing_goes_wrong_on_one_rank", "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert place.left() == []


def test_doctor_shows_and_removes_what_a_killed_lab_left(place: Bench, tmp_path):
    process = place.start(*LONG, tmp_path)
    until(lambda: MOMENTS["playing"](place), process)
    os.kill(place.processes()["frontend-0"], signal.SIGSTOP)
    kill(process)
    assert "ringtwin doctor --clean" in place.run("doctor").out
    place.run("doctor", "--clean")
    assert place.left() == []
    assert "leftovers      none" in place.run("doctor").out


def test_doctor_leaves_a_living_lab_alone(place: Bench, tmp_path):
    process = place.start(*LONG, tmp_path)
    until(lambda: MOMENTS["playing"](place), process)
    place.run("doctor", "--clean")
    assert place.processes()
    process.send_signal(signal.SIGINT)
    assert end(process).code == 130


@pytest.mark.parametrize("moment", ["before the engine", "while it starts", "while it speaks"])
def test_ctrl_c_ends_generate(place: Bench, moment):
    process = place.start("generate", "--model", MODEL, "--tp", 2, "--prompt", "the core", "--max-tokens", 900)
    if moment == "while it starts":
        until(lambda: any(path.name.startswith("ringtwin-") for path in place.folder.iterdir()), process)
    elif moment == "while it speaks":
        assert process.stdout.read(1)
    else:
        until(lambda: process.poll() is None, process)
    os.killpg(process.pid, signal.SIGINT)
    answer = end(process)
    # Before our first line runs it is Python that is interrupted; while it sets itself up that has a code of its own.
    assert answer.code in (130, -signal.SIGINT) or (answer.code == 1 and "Fatal Python error: init_" in answer.err)
    assert place.left() == []

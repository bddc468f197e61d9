"""Several plays at once: the same results as in turn, and a lane that dies takes only its own play along."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from scenarios.command import cli as command
from scenarios.command import conclusion
from scenarios.command.playing.lanes import Lanes, Task
from scenarios.command.playing.run import quick_last, spread, usual_jobs
from scenarios.lab.catalogue import scenarios_of
from scenarios.lab.player import Settings
from tests.scenarios import examples
from tests.scenarios.command.console import ringtwin

FUNCTIONS = (examples.test_holds, examples.test_breaks, examples.test_raises, examples.test_unknown,
             examples.test_elsewhere, examples.test_plays_nothing)


def tasks(*functions) -> list[Task]:
    return [Task(scenario, "sim") for function in functions for scenario in scenarios_of(function)]


@pytest.mark.parametrize("jobs", [2, 4])
def test_what_is_played_at_once_ends_as_one_after_the_other(capsys, tmp_path, monkeypatch, jobs):
    found = [scenario for function in FUNCTIONS for scenario in scenarios_of(function)]
    monkeypatch.setattr(command, "catalogue", lambda: found)
    answers = {}
    for count in (1, jobs):
        out = tmp_path / str(count)
        answer = ringtwin(capsys, "run", "--world", "sim", "--jobs", count, "--out", out)
        told = json.loads((out / "results.json").read_text())
        answers[count] = answer.code, [(one["name"], one.get("failure"), one.get("verdicts"))
                                      for one in told["scenarios"]]
    assert answers[1] == answers[jobs] and len(answers[1][1]) == 5


def test_a_lane_that_dies_is_a_failure_of_what_it_played_and_of_nothing_else(tmp_path):
    asked = tasks(examples.test_ends_its_process, *[examples.test_holds] * 6)
    with Lanes(asked, Settings(out=tmp_path), 2, conclusion.verdict_of) as lanes, closing(
            lanes.played(lambda task: None)) as played:
        found = dict(played)
    assert found[0][1:] == ("harness failed", ["the process that played it ended with -9"])
    assert [found[number][1] for number in range(1, 7)] == ["as declared"] * 6


def test_where_every_lane_died_nothing_is_waited_for(tmp_path):
    """What nobody is left to play is a failure, too."""
    asked = tasks(*[examples.test_ends_its_process] * 2, *[examples.test_holds] * 3)
    with Lanes(asked, Settings(out=tmp_path), 2, conclusion.verdict_of) as lanes, closing(
            lanes.played(lambda task: None)) as played:
        found = dict(played)
    assert [found[number][1] for number in range(5)] == ["harness failed"] * 5


@pytest.mark.parametrize(("names", "gpu", "jobs"), [
    (("sim",), False, 4), (("sim", "engine"), False, 6), (("engine",), True, 1), (("sim",), True, 4),
    (("vllm",), False, 2)])
def test_as_many_are_played_at_once_as_there_is_room_for(monkeypatch, names, gpu, jobs):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))
    monkeypatch.setattr("scenarios.worlds.fork_server.has_gpu", lambda device: gpu)
    assert usual_jobs(names, "auto") == jobs


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 60, 683, 1368, 1440])
def test_tasks_are_spread_and_each_is_played_once(count):
    order = spread(count)
    assert sorted(order) == list(range(count))
    if count > 8:
        assert min(abs(one - other) for one, other in zip(order, order[1:], strict=False)) > count / 4


def test_at_the_end_are_the_quick_ones_and_no_more_of_them_than_fill_it():
    order, quick = spread(60), [number % 2 == 0 for number in range(60)]
    sorted_so = quick_last(order, quick)
    assert sorted(sorted_so) == list(range(60)) and [quick[number] for number in sorted_so[-10:]] == [True] * 10
    assert not all(quick[number] for number in sorted_so[-12:]) and sum(quick[number] for number in sorted_so) == 30
    assert quick_last([2, 0, 1], [True] * 3) == [2, 0, 1] and quick_last(order, [False] * 60) == order

"""Several plays at once: the same results as in turn, and a lane that dies takes only its own play along."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from scenarios.command import cli as command
from scenarios.command import conclusion
from scenarios.command.playing import lanes as playing
from scenarios.command.playing.lanes import Lanes, Part, Task
from scenarios.command.playing.rest import LOOK_S
from scenarios.command.playing.run import spread, usual_jobs, usual_more
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
    (("sim",), False, 4), (("sim", "engine"), False, 7), (("engine",), True, 1), (("sim",), True, 4),
    (("vllm",), False, 2)])
def test_as_many_are_played_at_once_as_there_is_room_for(monkeypatch, names, gpu, jobs):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))
    monkeypatch.setattr("scenarios.worlds.forking.fork_server.has_gpu", lambda device: gpu)
    assert usual_jobs(names, "auto") == jobs


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 60, 683, 1368, 1440])
def test_tasks_are_spread_and_each_is_played_once(count):
    order = spread(count)
    assert sorted(order) == list(range(count))
    if count > 8:
        assert min(abs(one - other) for one, other in zip(order, order[1:], strict=False)) > count / 4


@pytest.mark.parametrize(("names", "gpu", "more"), [
    (("sim", "engine"), False, 2), (("sim",), False, 0), (("engine",), False, 0), (("sim", "engine"), True, 0),
    (("sim", "vllm"), False, 0)])
def test_more_are_played_where_real_processes_and_the_twin_have_the_same_cores(monkeypatch, names, gpu, more):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4))
    monkeypatch.setattr("scenarios.worlds.forking.fork_server.has_gpu", lambda device: gpu)
    assert usual_more(names, "auto") == more


def mixed(*worlds: str) -> list[Task]:
    holds, = scenarios_of(examples.test_holds)
    return [Task(holds, world) for world in worlds]


class Overheard:
    """Lanes that only tell who was given what, in processes that there are not."""

    def __init__(self, monkeypatch, left: float, lasting: dict[int, float] | None = None) -> None:
        """`lasting`: what each of the twin's plays lasted there."""
        self.given: list[tuple[Part, int]] = []
        given = self.given

        class Lane:
            def __init__(self, tasks, settings, verdict_of, others, part) -> None:
                self.part, self.task, self.connection, self.lasted = part, None, self, None

            def give(self, number: int) -> bool:
                self.task = number
                given.append((self.part, number))
                return True

            def told(self):
                self.lasted = (lasting or {}).get(self.task)
                return "result", "as declared", []

            def leave(self, *, at_once: bool) -> None: ...

            def join(self) -> None: ...

        monkeypatch.setattr(playing, "_Lane", Lane)
        monkeypatch.setattr(playing.Rest, "share", lambda self: left)
        monkeypatch.setattr(playing, "wait", self.ready)

    def ready(self, lanes, timeout):
        """The first that was given something is done first. Who waits for a moment to begin does not wait for ever."""
        self.timeout = timeout
        return lanes[:1]


def test_aside_is_the_twin_alone_and_others_play_it_when_nothing_real_is_left(monkeypatch, tmp_path):
    heard = Overheard(monkeypatch, left=0.0)
    asked = mixed("sim", "engine", "sim", "engine", "sim", "engine", "sim")
    lanes = Lanes(asked, Settings(out=tmp_path), 2, conclusion.verdict_of, aside=1, spare=1)
    assert sorted(number for number, _ in lanes.played(lambda task: None)) == list(range(7))
    assert {number for part, number in heard.given if part is Part.ASIDE} <= {0, 2, 4, 6}
    assert [number for part, number in heard.given if part is Part.STEADY][:3] == [1, 3, 5]
    assert not any(part is Part.SPARE for part, _ in heard.given)


def test_of_the_last_ones_that_is_begun_first_which_the_twin_found_to_last_longest(monkeypatch, tmp_path):
    """What no twin has played comes before them; while many are left they go in their order."""
    one, other, third, fourth = [scenario for function in FUNCTIONS[:4] for scenario in scenarios_of(function)]
    monkeypatch.setattr(playing, "LAST", 4)
    heard = Overheard(monkeypatch, left=0.0, lasting={0: 1.0, 1: 3.0, 2: 2.0})
    monkeypatch.setattr(playing, "wait", lambda lanes, timeout: lanes)
    asked = [*[Task(each, "sim") for each in (one, other, third)],
             *[Task(each, "engine") for each in (*[one] * 5, other, third, fourth)]]
    lanes = Lanes(asked, Settings(out=tmp_path), 1, conclusion.verdict_of, aside=1)
    assert len(list(lanes.played(lambda task: None))) == len(asked)
    assert [number for _, number in heard.given if number > 2] == [3, 4, 5, 6, 10, 8, 9, 7]


def test_a_spare_lane_begins_while_much_is_left_and_looks_again_soon(monkeypatch, tmp_path):
    heard = Overheard(monkeypatch, left=0.5)
    asked = mixed(*["engine"] * 6)
    lanes = Lanes(asked, Settings(out=tmp_path), 1, conclusion.verdict_of, aside=1, spare=1)
    played = lanes.played(lambda task: None)
    next(played)
    assert heard.timeout == LOOK_S
    assert sorted(number for number, _ in played) == list(range(1, 6))
    assert {part for part, _ in heard.given} == {Part.STEADY, Part.SPARE}


def test_what_lanes_aside_play_ends_as_with_any_other(tmp_path):
    asked = tasks(*FUNCTIONS)
    ends, = scenarios_of(examples.test_ends_its_process)
    found, alone = {}, {}
    for answers, those, steady, aside in ((found, [*asked, Task(ends, "engine")], 1, 2), (alone, asked, 2, 0)):
        with Lanes(those, Settings(out=tmp_path), steady, conclusion.verdict_of, aside) as lanes, closing(
                lanes.played(lambda task: None)) as played:
            answers.update(played)
    assert [found[number][1:] for number in range(len(asked))] == [alone[number][1:] for number in range(len(asked))]

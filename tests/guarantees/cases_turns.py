"""Histories of what ranks that step together do, by what they were told."""

from __future__ import annotations

from typing import Any

from engine.config import DataParallelConfig
from engine.topology import data_parallel, offline
from tests.guarantees.build import TICK_S, Builder, history
from tests.guarantees.cases import accepts, rejects, silent

TURN = "dp-rank-in-turn"
CORE, HUB = "core.0", "coordinator.0"
OPTIONS = DataParallelConfig(coordinator=True, lockstep=True, sync_interval=4, changed_s=0.1)


def group(world: str = "sim") -> Builder:
    return history(world, tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2, data_parallel=OPTIONS)


def sends(h: Builder, **said: int) -> Builder:
    return h.crosses(f"{CORE}->{HUB}/report:send", **said)


def asked(h: Builder, wave: int = 0) -> Builder:
    return h.observes(CORE, "request", request="a", action="add", reason="", wave=wave)


def reports(h: Builder, wave: int = 0) -> Builder:
    return sends(h.observes(CORE, "start-wave", wave=wave), start_wave=wave)


def heard(h: Builder, wave: int = 0, *, exclude: int | None = None, at: int = 0, runs: bool = False) -> Builder:
    return h.observes(CORE, "start-heard", wave=wave, exclude=exclude, at=at, runs=runs)


def steps(h: Builder, first: int, last: int, wave: int = 0, *, dummy: bool = False) -> Builder:
    """Forwards from `first` to `last`."""
    for step in range(first, last + 1):
        if dummy:
            h.crosses(f"{CORE}/mark:dummy", wave=wave, step=step)
        else:
            h.crosses(f"{CORE}/mark:scheduled", step=step, tokens=1)
        h.crosses(f"{CORE}/collective:enter", operation="keep_step", wave=wave, step=step)
    return h


def adds_up(h: Builder, step: int, left: int = 1, wave: int = 0, *, pausing: int = 0, votes: list[int] | None = None,
            **other: Any) -> Builder:
    """Behind so many steps all say what is left to do, and whether they are to pause."""
    h.crosses(f"{CORE}/consensus:enter", group="dp", operation="sum")
    said = {"votes": votes or [min(left, 1), min(pausing, 1)], "answer": [left, pausing],
            "running": left > 0 or pausing % 2 != 0}
    return h.observes(CORE, "consensus", wave=wave, step=step, **{**said, **other})


def over(h: Builder, wave: int = 0) -> Builder:
    """As rank 0 tells of the end of a wave."""
    h.crosses(f"{CORE}/mark:wave-done", wave=wave).observes(CORE, "wave-complete", wave=wave)
    return sends(h, wave_complete=wave)


def begun(world: str = "sim") -> Builder:
    """A request woke it, all say behind the first step that there is work, and it says so again."""
    return reports(adds_up(steps(heard(reports(asked(group(world))), exclude=0), 0, 0), 1))


def rests(h: Builder, why: str = "pause", *, pausing: bool = True, paused: bool = False) -> Builder:
    return h.observes(CORE, "rest", why=why, pausing=pausing, paused=paused)


def paused() -> Builder:
    """All ranks pause at the end of wave 0."""
    h = adds_up(steps(rests(begun()), 1, 3, dummy=True), 4, 0, pausing=2, votes=[0, 1])
    return over(h).crosses(f"{CORE}/mark:paused", wave=1)


@accepts(TURN)
def a_rank_adds_up_behind_its_first_step_and_each_fourth_one() -> Builder:
    h = adds_up(steps(begun(), 1, 3), 4)
    return over(adds_up(steps(h, 4, 7, dummy=True), 8, 0))


@accepts(TURN)
def a_start_of_another_wave_is_none_to_run_by() -> Builder:
    return heard(over(adds_up(steps(begun(), 1, 3), 4, 0)), 0, at=1)


@accepts(TURN)
def what_nobody_has_heard_is_sent_again() -> Builder:
    h = sends(reports(asked(group())).wait(0.15), start_wave=0)
    return heard(h, exclude=0)


def _sent_again(seconds: float) -> Builder:
    """So long after it was reported, in the lab's time."""
    return heard(sends(reports(asked(group())).wait(seconds - 2 * TICK_S), start_wave=0), exclude=0)


@accepts(TURN)
def what_nobody_has_heard_is_sent_again_to_the_moment() -> Builder:
    return _sent_again(OPTIONS.changed_s - 1e-9)


@accepts(TURN)
def what_nobody_had_heard_is_sent_again_behind_the_next_report() -> Builder:
    """The thread that sends had it in its hands as the all-reduce ended."""
    h = heard(reports(asked(group("engine"))).wait(0.15), exclude=0)
    return sends(reports(adds_up(steps(h, 0, 0), 1)), start_wave=0)


@accepts(TURN)
def ranks_pause_and_go_on_in_one_all_reduce_each() -> Builder:
    h = asked(paused(), 1).observes(CORE, "go-on", why="resume", unfinished=True)
    h = adds_up(h, 0, 1, 1, votes=[1, 0]).observes(CORE, "start-wave", wave=1)
    return sends(h, start_wave=1).crosses(f"{CORE}/mark:resumed", wave=1)


@silent(TURN)
def nothing_came_that_it_had_no_reason_to_run_by() -> Builder:
    return reports(asked(group()))


@rejects(TURN)
def a_rank_adds_up_behind_each_step() -> Builder:
    return adds_up(steps(begun(), 1, 1), 2)


@rejects(TURN)
def an_all_reduce_is_left_out() -> Builder:
    return steps(begun(), 1, 4)


@rejects(TURN)
def a_rank_that_runs_reports_each_request() -> Builder:
    return reports(asked(begun()))


@rejects(TURN)
def a_rank_at_rest_does_not_report_that_it_has_work() -> Builder:
    return steps(asked(group()), 0, 0)


@rejects(TURN)
def what_was_heard_is_sent_again() -> Builder:
    return sends(heard(begun(), exclude=0).wait(0.15), start_wave=0)


@rejects(TURN)
def what_nobody_has_heard_is_sent_again_at_once() -> Builder:
    return heard(sends(reports(asked(group())), start_wave=0), exclude=0)


@rejects(TURN)
def what_nobody_had_heard_is_sent_twice_more_behind_the_next_report() -> Builder:
    h = reports(adds_up(steps(reports(asked(group("engine"))).wait(0.15), 0, 0), 1))
    return sends(sends(h, start_wave=0), start_wave=0)


@rejects(TURN)
def what_nobody_has_heard_is_sent_again_too_early() -> Builder:
    return _sent_again(OPTIONS.changed_s - 1e-4)


@rejects(TURN)
def what_nobody_has_heard_is_sent_again_too_late() -> Builder:
    return heard(sends(reports(asked(group())).wait(0.3), start_wave=0), exclude=0)


@rejects(TURN)
def a_client_believes_in_a_wave_that_its_core_has_not_told_of() -> Builder:
    return asked(history(tp=1, topology=offline(2), data_parallel_size=2), 1)


@rejects(TURN)
def a_report_is_never_sent() -> Builder:
    h = asked(group()).observes(CORE, "start-wave", wave=0)
    return heard(h, exclude=0).wait(5)


@rejects(TURN)
def a_report_is_sent_that_it_did_not_speak_of() -> Builder:
    return sends(heard(group(), exclude=0, runs=False), start_wave=0)


@rejects(TURN)
def a_rank_says_that_it_runs_by_a_start_of_another_wave() -> Builder:
    return heard(group(), 3, at=3, runs=True)


@rejects(TURN)
def a_dummy_batch_is_executed_at_rest() -> Builder:
    return steps(group(), 0, 0, dummy=True)


@rejects(TURN)
def a_forward_is_of_another_step() -> Builder:
    return steps(begun(), 2, 2)


@rejects(TURN)
def an_answer_is_taken_at_another_step() -> Builder:
    return adds_up(steps(begun(), 1, 3), 5)


@rejects(TURN)
def a_rank_that_is_to_pause_asks_for_more_steps() -> Builder:
    return adds_up(steps(rests(begun()), 1, 3), 4, 2, pausing=1, votes=[1, 1])


@rejects(TURN)
def a_rank_says_nothing_of_the_pause_that_it_was_asked_for() -> Builder:
    return adds_up(steps(rests(begun()), 1, 3), 4, votes=[0, 0])


@rejects(TURN)
def a_rank_rests_though_there_is_work() -> Builder:
    return adds_up(steps(begun(), 1, 3), 4, running=False)


@rejects(TURN)
def a_wave_is_over_and_another_one_is_told_of() -> Builder:
    return over(adds_up(steps(begun(), 1, 3), 4, 0), 1)


@rejects(TURN)
def the_end_of_a_wave_is_not_marked() -> Builder:
    h = adds_up(steps(begun(), 1, 3), 4, 0).observes(CORE, "wave-complete", wave=0)
    return asked(sends(h, wave_complete=0), 1)


@rejects(TURN)
def a_rank_takes_itself_for_paused_too_soon() -> Builder:
    return rests(begun(), pausing=False, paused=True)


@rejects(TURN)
def a_rank_is_marked_as_paused_and_is_not() -> Builder:
    return begun().crosses(f"{CORE}/mark:paused", wave=0)


@rejects(TURN)
def a_second_pause_begins_amid_the_first() -> Builder:
    return rests(rests(begun()))


@rejects(TURN)
def a_rank_goes_on_amid_a_pause() -> Builder:
    return rests(begun()).observes(CORE, "go-on", why="resume", unfinished=True)


@rejects(TURN)
def a_rank_runs_steps_out_of_no_pause() -> Builder:
    return begun().observes(CORE, "go-on", why="steps", unfinished=True)


@rejects(TURN)
def ranks_go_on_without_an_all_reduce() -> Builder:
    return steps(paused().observes(CORE, "go-on", why="resume", unfinished=True), 0, 0, 1)

"""Histories of what a coordinator says, by what it was told."""

from __future__ import annotations

from engine.config import DataParallelConfig
from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

TURN = "dp-coordinator-in-turn"
HUB = "coordinator.0"
OPTIONS = DataParallelConfig(coordinator=True, lockstep=True, changed_s=0.1, unchanged_s=1.0, settle_s=0.05)
NOBODY = [[0, 0, 0.0], [0, 0, 0.0]]


def hub(world: str = "sim") -> Builder:
    """Ready at this moment, with two cores at rest."""
    h = history(world, tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2, data_parallel=OPTIONS)
    return h.crosses(f"{HUB}/mark:ready")


def counts(h: Builder, core: int, waiting: int, step: int, **struck: str) -> Builder:
    return h.crosses(f"core.{core}->{HUB}/report:receive", scheduler_stats=[0, waiting, 8, 8], counted_at=[0, step],
                     **struck)


def wakes(h: Builder, core: int, wave: int = 0) -> Builder:
    return h.crosses(f"core.{core}->{HUB}/report:receive", start_wave=wave)


def starts(h: Builder, wave: int = 0, exclude: int | None = None) -> Builder:
    return h.observes(HUB, "start", wave=wave, exclude=exclude, cause="")


def tells(h: Builder, told: list[list[float]] | None, wave: int = 0, *, running: bool = False) -> Builder:
    return h.observes(HUB, "notice", counts=told, wave=wave, running=running, cause="")


def of(*waiting: int) -> list[list[float]]:
    return [[count, 0, 0.0] for count in waiting]


def woken() -> Builder:
    return tells(starts(wakes(hub(), 1), 0, 1), None, running=True)


@accepts(TURN)
def counts_that_have_changed_are_told_soon_and_those_that_have_not_in_time() -> Builder:
    h = tells(counts(hub(), 0, 3, 0).wait(0.097), of(3, 0))
    return tells(h.wait(0.998), of(3, 0))


@accepts(TURN)
def a_step_that_all_have_told_of_is_told_when_one_has_gone_on() -> Builder:
    h = counts(counts(counts(hub(), 0, 3, 1), 1, 2, 1), 0, 4, 2).wait(0.096)
    return tells(tells(h, of(3, 2)).wait(0.098), of(4, 2))


@accepts(TURN)
def a_wave_starts_once_and_its_start_is_repeated_in_time() -> Builder:
    h = wakes(woken(), 0).wait(0.995)
    return starts(tells(h, NOBODY, running=True))


@accepts(TURN)
def a_report_that_is_lost_is_nothing_that_it_was_told() -> Builder:
    h = counts(counts(hub(), 1, 9, 0, fate="drop"), 0, 3, 0)
    return tells(h.wait(0.096), of(3, 0))


def over() -> Builder:
    """The group rests behind its first wave."""
    return tells(woken().crosses(f"core.0->{HUB}/report:receive", wave_complete=0), None, 1)


@accepts(TURN)
def a_start_of_a_wave_that_seems_over_is_passed_on() -> Builder:
    return starts(wakes(over(), 1, 0), 0, 1)


@rejects(TURN)
def a_start_of_a_wave_that_seems_over_is_kept() -> Builder:
    return counts(wakes(over(), 1, 0), 0, 1, 0)


@rejects(TURN)
def a_wave_that_seems_over_is_said_to_run() -> Builder:
    return tells(starts(wakes(over(), 1, 0), 0, 1), None, 0, running=True)


@rejects(TURN)
def a_wave_that_runs_is_started_again() -> Builder:
    return starts(wakes(woken(), 0), 0, 0)


@rejects(TURN)
def a_start_is_not_said() -> Builder:
    return counts(wakes(hub(), 1), 0, 1, 0)


@rejects(TURN)
def a_start_goes_to_the_one_that_has_asked_for_it() -> Builder:
    return starts(wakes(hub(), 1), 0, None)


@rejects(TURN)
def a_start_that_may_have_been_lost_is_not_repeated() -> Builder:
    return counts(tells(woken().wait(0.996), NOBODY, running=True), 0, 1, 0)


@rejects(TURN)
def clients_are_not_told_that_a_wave_is_over() -> Builder:
    h = woken().crosses(f"core.0->{HUB}/report:receive", wave_complete=0)
    return tells(h, None, 1, running=True)


@rejects(TURN)
def counts_of_two_steps_are_told_as_one() -> Builder:
    h = counts(counts(counts(hub(), 0, 3, 1), 1, 2, 1), 0, 4, 2)
    return tells(h.wait(0.096), of(4, 2))


@rejects(TURN)
def counts_that_have_changed_are_told_as_late_as_others() -> Builder:
    return tells(counts(hub(), 0, 3, 0).wait(1.0), of(3, 0))


@rejects(TURN)
def counts_are_of_no_step() -> Builder:
    h = hub().crosses(f"core.0->{HUB}/report:receive", scheduler_stats=[0, 3, 8, 8])
    return tells(h.wait(0.097), of(3, 0))


@rejects(TURN)
def counts_are_told_all_the_time() -> Builder:
    return tells(counts(hub(), 0, 3, 0).wait(0.02), of(3, 0))


@silent(TURN)
def nobody_tells_it_anything() -> Builder:
    return tells(hub().wait(0.998), NOBODY)


@silent(TURN)
def what_it_is_told_comes_late_and_it_may_know_it_by_then() -> Builder:
    return starts(counts(hub(), 0, 3, 0, fate="reorder"), 5)


def late() -> Builder:
    """The end of a wave is told, held back, and let go when the next one runs."""
    at = f"core.0->{HUB}/report:receive"
    h = wakes(woken(), 1).crosses(at, wave_complete=0, fate="delay").fires("delay", at, node=HUB)
    return tells(starts(wakes(h, 1, 1), 1, 1), None, 1, running=True).wait(0.05).releases()


@accepts(TURN)
def the_end_of_a_wave_comes_when_the_next_one_runs() -> Builder:
    return starts(tells(late().wait(0.94), NOBODY, 1, running=True), 1)


@rejects(TURN)
def a_wave_ends_by_the_late_word_of_another_one() -> Builder:
    return tells(late(), None, 1, running=False)


@rejects(TURN)
def it_goes_by_what_is_still_to_come() -> Builder:
    return tells(woken().crosses(f"core.0->{HUB}/report:receive", wave_complete=0, fate="delay"), None, 1)


def let_go_between_its_words() -> Builder:
    """The end of a wave is held back until its start is half said."""
    at = f"core.0->{HUB}/report:receive"
    h = hub().crosses(at, wave_complete=0, fate="delay").fires("delay", at, node=HUB)
    return tells(starts(wakes(h, 1), 0, 1).releases(), None, running=True)


@accepts(TURN)
def it_hears_behind_its_words_what_is_let_go_between_them() -> Builder:
    return tells(counts(tells(let_go_between_its_words(), None, 1), 0, 3, 0).wait(0.091), of(3, 0), 1)


@rejects(TURN)
def it_does_not_hear_what_is_let_go_between_its_words() -> Builder:
    return counts(let_go_between_its_words(), 0, 1, 0)

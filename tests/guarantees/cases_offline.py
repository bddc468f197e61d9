"""Histories of cores that step together, and that nobody wakes."""

from engine.topology import offline
from tests.guarantees.build import Builder, bounds, history
from tests.guarantees.cases import accepts, rejects, silent

ENDS, ISOLATED = "dp-offline-ends", "bad-frame-isolated"
LATE = "worker.0 failed in execute_model: CollectiveError: core.1 did not enter within 0.8 s"
GONE = "core.0, which it steps together with, is gone"


def up(count: int = 2) -> Builder:
    return history(tp=1, topology=offline(count), data_parallel_size=count, bounds=bounds(collective_s=0.8))


def ranks(count: int = 2, *, asked: tuple[int, ...] = (0,), h: Builder | None = None) -> Builder:
    """These ranks have come to the first forward of a wave, by what their clients ask."""
    h = h or up(count)
    for rank in asked:
        h.called("a", node=f"frontend.{rank}")
        h.crosses(f"core.{rank}/collective:enter", operation="keep_step", wave=0, step=0)
    return h


def told(h: Builder, rank: int, reason: str) -> Builder:
    h.observes(f"frontend.{rank}", "engine-dead", reason=f"core.{rank} said that it is leaving: {reason}", core=rank)
    return h.dies("a", node=f"frontend.{rank}", reason=reason)


@accepts(ENDS)
def a_client_is_told_who_was_missed() -> Builder:
    return told(ranks().wait(0.8), 0, LATE)


@accepts(ENDS)
def of_three_the_first_one_says_who_was_missed_and_the_second_one_who_left() -> Builder:
    h = told(ranks(3, asked=(0, 2)).wait(0.8), 0, LATE)
    return told(h.wait(0.05), 2, GONE)


@rejects(ENDS)
def a_client_is_told_that_its_own_worker_is_late() -> Builder:
    return told(ranks().wait(1.0), 0, "worker.0 has not answered execute_model in 1 s")


@rejects(ENDS)
def a_client_is_told_late() -> Builder:
    return told(ranks().wait(9.0), 0, LATE)


@rejects(ENDS)
def a_client_is_told_nothing() -> Builder:
    return ranks().wait(9.0).observes("frontend.0", "bye")


@rejects(ENDS)
def of_three_nobody_says_who_was_missed() -> Builder:
    h = told(ranks(3, asked=(0, 2)).wait(0.8), 0, "core.2 has not answered")
    return told(h.wait(0.05), 2, GONE)


def _rests(*, unfinished: bool, asked: bool = False, h: Builder | None = None) -> Builder:
    """A client of one that has told it so closes a while later."""
    h = (h or up()).request("a", node="frontend.0").observes("core.0", "wave-complete", wave=0).wait(0.1)
    h = h.request("b", node="frontend.0") if asked else h
    return h.wait(1.0).observes("frontend.0", "closing", kept={"requests": 0}, unfinished=unfinished, errors=[])


@silent("dp-quiet-when-idle")
def a_client_has_heard_that_all_rest() -> Builder:
    return _rests(unfinished=False)


@silent("dp-quiet-when-idle")
def a_client_has_asked_again_since_all_rested() -> Builder:
    return _rests(unfinished=True, asked=True)


@rejects("dp-quiet-when-idle")
def a_client_has_not_heard_that_all_rest() -> Builder:
    return _rests(unfinished=True)


@silent(ENDS)
def the_other_one_is_asked_before_it_is_too_late() -> Builder:
    h = ranks().wait(0.5).called("a", node="frontend.1")
    return told(h.wait(8.0), 0, "core.1 died")


@silent(ENDS)
def the_other_one_has_died() -> Builder:
    return told(ranks().fires("kill", "core.1/mark:step", node="core.1").wait(9.0), 0, "core.1 died")


@silent(ENDS)
def its_client_leaves_before_it_is_too_late() -> Builder:
    return ranks().wait(0.5).observes("frontend.0", "closing", kept={}).wait(9.0)


def _bad_frame_then_a_wave(*, both: bool) -> Builder:
    """A frame that is none is dropped, and what is asked behind it served. Then one rank begins a wave, or both do, and
    the engine of the first one ends.
    """
    h = up().started().fires("corrupt", "core.0->frontend.0/outputs:receive", node="frontend.0")
    h.observes("frontend.0", "bad-frame", edge="outputs", error="x").request("b", tokens=[[1], [2, 3]])
    return told(ranks(asked=(0, 1)[:1 + both], h=h).wait(0.8), 0, LATE)


@accepts(ISOLATED)
def behind_a_bad_frame_a_rank_misses_another_one_that_was_asked_nothing() -> Builder:
    return _bad_frame_then_a_wave(both=False)


@rejects(ISOLATED)
def behind_a_bad_frame_an_engine_ends_whose_ranks_are_all_there() -> Builder:
    return _bad_frame_then_a_wave(both=True)


def _asked_to_leave(*, alone: bool) -> Builder:
    """The other one has ended before it, or ends behind it."""
    h = ranks(asked=(0, 1), h=up().started())
    h.fires("terminate", "core.0/mark:step", node="core.0").wait(0.05)
    if alone:
        h.ends("core.1")
    h.wait(0.05).observes("core.0", "dying", reason="core.1 is gone" if alone else "SIGTERM", queued=0)
    if not alone:
        h.wait(0.01).ends("core.1")
    return told(h.wait(0.01), 0, "core.1 is gone").ends("core.0")


@silent("drain")
def who_is_to_leave_has_lost_whom_it_steps_with() -> Builder:
    return _asked_to_leave(alone=True)


@rejects("drain")
def who_is_to_leave_takes_along_whom_it_steps_with() -> Builder:
    return _asked_to_leave(alone=False)

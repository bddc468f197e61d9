"""Histories of cores that step together, and that nobody wakes."""

from engine.topology import offline
from tests.guarantees.build import Builder, bounds, history
from tests.guarantees.cases import accepts, rejects, silent

ENDS = "dp-offline-ends"
LATE = "worker.0 failed in execute_model: CollectiveError: core.1 did not enter within 0.8 s"
GONE = "core.0, which it steps together with, is gone"


def ranks(count: int = 2, *, asked: tuple[int, ...] = (0,)) -> Builder:
    """These ranks have come to the first forward of a wave, by what their clients ask."""
    h = history(tp=1, topology=offline(count), data_parallel_size=count, bounds=bounds(collective_s=0.8))
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

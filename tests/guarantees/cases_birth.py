"""Histories about words at birth: lost, late, doubled, damaged."""

from __future__ import annotations

from engine.topology import data_parallel
from faults.plan import Until
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

READY, WORKERS, RECIPE = "worker.1->core.0/birth", "core.0->frontend.0/birth", "core.0->worker.1/birth"


def _hit(fate: str, edge: str = READY, word: str = "ready", until: Until | None = None) -> Builder:
    """A start, in which a word is sent and meets its fate."""
    h = history().observes("frontend.0", "starting").crosses(f"{edge}:send", "w", word=word)
    if fate == "cut":
        return h.crosses(f"{edge}:wire").fires(fate, f"{edge}:wire")
    return h.crosses(f"{edge}:receive", "w", word=word).fires(fate, f"{edge}:receive", until=until)


def _fails(h: Builder, reason: str, after_s: float = 1.0) -> Builder:
    return h.wait(after_s).observes("frontend.0", "start-failed", error="StartupError", reason=reason)


def _serves(h: Builder) -> Builder:
    return h.observes("frontend.0", "ready", num_gpu_blocks=8, parallel_config={})


@accepts("birth-told")
def a_start_says_whose_ready_is_missing() -> Builder:
    return _fails(_hit("drop"), "worker.1 did not report READY in time")


@rejects("birth-told")
def a_start_says_that_the_core_is_late_for_its_worker() -> Builder:
    return _fails(_hit("drop"), "core.0 did not report READY in time")


@accepts("birth-told")
def a_child_whose_pipe_is_cut_is_gone() -> Builder:
    return _fails(_hit("cut", WORKERS, "workers"), "core.0 died while starting (exit code 0)")


@rejects("birth-told")
def a_start_goes_on_without_a_child_whose_pipe_is_cut() -> Builder:
    return _serves(_hit("cut", WORKERS, "workers"))


@rejects("birth-told")
def a_start_does_without_a_recipe() -> Builder:
    return _serves(_hit("drop", RECIPE, "worker"))


@accepts("birth-told")
def a_word_that_is_late_is_waited_for() -> Builder:
    return _serves(_hit("delay", until=Until(seconds=.5)).wait(.5).releases())


@rejects("birth-told")
def a_word_that_is_late_is_not_waited_for() -> Builder:
    h = _hit("delay", until=Until(seconds=.5)).wait(.5).releases()
    return _fails(h, "worker.1 did not report READY in time", .1)


@accepts("birth-told")
def a_word_that_comes_twice_counts_once() -> Builder:
    return _serves(_hit("duplicate"))


@rejects("birth-told")
def a_start_falls_over_a_word_that_comes_twice() -> Builder:
    return _fails(_hit("duplicate"), "worker.1 said READY twice")


@accepts("birth-told")
def what_is_damaged_is_told_of() -> Builder:
    h = _hit("truncate").observes("core.0", "bad-frame", edge="birth", error="its checksum is wrong")
    return _fails(h, "what worker.1 says cannot be read: its checksum is wrong")


@rejects("birth-told")
def what_is_damaged_is_passed_over() -> Builder:
    return _fails(_hit("corrupt"), "worker.1 did not report READY in time")


@accepts("birth-told")
def nobody_needs_to_know_the_workers_of_a_core_that_ends_them() -> Builder:
    h = _serves(history().observes("frontend.0", "starting").crosses(f"{WORKERS}:send", "w", word="workers"))
    return h.wait(1).crosses(f"{WORKERS}:receive", "w", word="workers").fires("drop", f"{WORKERS}:receive")


def _leaves(told: str, struck: str = "core.0/mark:step") -> Builder:
    h = history().started().fires("raise", struck).crosses(f"{WORKERS}:send", "l", word="leaving")
    h.crosses(f"{WORKERS}:receive", "l", word="leaving").fires("drop", f"{WORKERS}:receive")
    return h.observes("frontend.0", "engine-dead", reason=told, core=0)


@accepts("birth-told")
def who_leaves_without_a_reason_is_named() -> Builder:
    return _leaves("core.0 said that it is leaving (ENGINE_CORE_DEAD)")


@accepts("birth-told")
def who_leaves_without_a_reason_leaves_by_another_one_that_is_named() -> Builder:
    return _leaves("worker.1 failed in execute_model", "worker.1/mark:executing")


@rejects("birth-told")
def who_leaves_without_a_reason_leaves_by_another_one_and_a_third_one_is_named() -> Builder:
    return _leaves("worker.0 failed in execute_model", "worker.1/mark:executing")


@accepts("birth-told")
def who_fails_behind_another_one_that_was_heard_need_not_be_named() -> Builder:
    return _both_fail("core.1: it cannot start")


@rejects("birth-told")
def who_fails_behind_another_one_that_was_heard_is_told_by_a_third_one() -> Builder:
    return _both_fail("core.2: it cannot start")


def _both_fail(told: str) -> Builder:
    """One is killed, two say that they cannot go on, and the later one's word is damaged."""
    h = history(topology=data_parallel(4)).observes("frontend.0", "starting").fires("kill", "core.3/mark:born")
    h.crosses("core.1->frontend.0/birth:receive", "f", word="failed")
    h.crosses(f"{WORKERS}:send", "l", word="failed").crosses(f"{WORKERS}:receive", "l", word="failed")
    h.fires("corrupt", f"{WORKERS}:receive")
    return _fails(h.observes("frontend.0", "bad-frame", edge="birth", error="its checksum is wrong"), told)


def _attaches(told: str) -> Builder:
    """A coordinator's last word to its launcher is damaged, and a client looks for their engines."""
    h = history(topology=data_parallel(2, clients=2, coordinated=True)).fires("raise", "coordinator.0/mark:ready")
    h.crosses("coordinator.0->launcher.0/birth:send", "l", word="leaving")
    h.crosses("coordinator.0->launcher.0/birth:receive", "l", word="leaving")
    h.fires("truncate", "coordinator.0->launcher.0/birth:receive")
    h.observes("launcher.0", "bad-frame", edge="birth", error="its checksum is wrong")
    return h.observes("frontend.1", "start-failed", error="StartupError", reason=told)


@accepts("birth-told")
def who_attaches_says_whom_it_has_found_gone() -> Builder:
    return _attaches("core.0 has ended: its engines are to be started again")


@rejects("birth-told")
def who_attaches_does_not_say_whom_it_has_found_gone() -> Builder:
    return _attaches("the engines are to be started again")


@rejects("birth-told")
def who_leaves_without_a_reason_is_not_named() -> Builder:
    return _leaves("the engine is dead")


@silent("birth-told")
def a_word_is_lost_when_all_is_told() -> Builder:
    h = _fails(history().observes("frontend.0", "starting"), "core.1 died while starting (exit code -9)")
    h.wait(.1).crosses(f"{WORKERS}:send", "l", word="leaving").crosses(f"{WORKERS}:receive", "l", word="leaving")
    return h.fires("drop", f"{WORKERS}:receive")


@silent("birth-told")
def no_word_at_birth_is_hit() -> Builder:
    return history().started()


@silent("birth-told")
def something_else_befalls_a_start_beside() -> Builder:
    h = history().observes("frontend.0", "starting").fires("kill", "worker.0/mark:loading")
    h.crosses(f"{READY}:receive", "w", word="ready").fires("drop", f"{READY}:receive")
    return _fails(h, "worker.0 died while starting (exit code -9)")

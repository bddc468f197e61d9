"""Histories about who is named by a start that fails."""

from engine.topology import hybrid
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects

HANDSHAKE = "core.0->frontend.0/handshake:receive"


def _failed(fate: str, site: str, reason: str) -> Builder:
    h = history().observes("frontend.0", "starting").observes("worker.1", "born", pid=3).fires(fate, site)
    return h.wait(.1).observes("frontend.0", "start-failed", error="StartupError", reason=reason)


@accepts("start-ends")
def a_start_names_the_worker_that_died() -> Builder:
    return _failed("kill", "worker.1/mark:loading", "worker.1 died while starting")


@rejects("start-ends")
def a_start_names_another_worker() -> Builder:
    return _failed("kill", "worker.1/mark:loading", "worker.0 died while starting")


def _core_gives_up(*, after: bool) -> Builder:
    """HELLO is not answered; a worker is gone before, or `after`, the core has said so and fails on its way out."""
    why = "StartupError: the frontend did not answer the core's HELLO in time"
    h = history().observes("frontend.0", "starting").fires("reorder", "frontend.0->core.0/handshake:receive")
    if not after:
        h.ends("worker.0", exitcode=0)
    h.wait(1).observes("core.0", "dying", reason=why, queued=0).fires("raise", "core.0/mark:dying")
    if after:
        h.ends("worker.0", exitcode=0)
    return h.ends("core.0", exitcode=0).observes("frontend.0", "start-failed", error="StartupError", reason=why)


@accepts("start-ends")
def a_worker_goes_behind_its_core() -> Builder:
    return _core_gives_up(after=True)


@rejects("start-ends")
def a_core_does_not_see_that_its_worker_is_gone() -> Builder:
    return _core_gives_up(after=False)


@accepts("start-ends")
def a_start_says_that_the_core_died() -> Builder:
    return _failed("kill", "core.0/mark:ready", "core.0 died while starting (exit code -9)")


@rejects("start-ends")
def a_start_takes_a_death_for_a_silence() -> Builder:
    return _failed("kill", "core.0/mark:ready", "core.0 did not report READY in time")


@accepts("start-ends")
def a_start_says_who_was_not_heard() -> Builder:
    return _failed("drop", HANDSHAKE, "core.0 did not say HELLO in time")


@rejects("start-ends")
def a_start_does_not_say_who_was_not_heard() -> Builder:
    return _failed("drop", HANDSHAKE, "somebody was late")


def _waits_for_all(whom: str) -> Builder:
    """HELLO of a core is lost, and another one that the same client has started gives up first."""
    h = history(tp=1, topology=hybrid(2, 2), data_parallel_size=4).observes("coordinator.0", "born", pid=3)
    h.observes("frontend.1", "starting")
    h.fires("drop", "core.3->frontend.0/handshake:receive", node="frontend.0").wait(.1)
    why = f"{whom} did not say READY in time: not all cores have subscribed to it, or a message was lost"
    h.observes("core.2", "dying", reason=f"StartupError: {why}", queued=0)
    return h.observes("frontend.1", "start-failed", error="StartupError", reason=f"core.2: {why}")


@accepts("start-ends")
def a_start_says_who_waits_for_all_of_them() -> Builder:
    return _waits_for_all("coordinator.0")


@rejects("start-ends")
def a_start_does_not_say_who_waits_for_all_of_them() -> Builder:
    return _waits_for_all("somebody")

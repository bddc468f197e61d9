"""Histories about who is named by a start that fails."""

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

"""Histories about programs that use parts of the engine by themselves."""

from scenarios.history.play import Options
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent


def _asks(answer: object, wanted: object) -> Builder:
    h = history().promised(options=Options(program="events"))
    return h.observes("frontend.0", "asked", words="what comes in a while", answer=answer, wanted=wanted)


@accepts("programs-are-answered")
def a_program_is_answered_as_documented() -> Builder:
    return _asks([1, "x"], [1, "x"]).observes("frontend.0", "bye", reason="done")


@rejects("programs-are-answered")
def a_program_is_answered_otherwise() -> Builder:
    return _asks([1], []).observes("frontend.0", "bye", reason="done")


@rejects("programs-are-answered")
def a_program_that_never_leaves_was_answered_otherwise() -> Builder:
    return _asks(None, 0)


@accepts("programs-are-answered")
def a_program_is_woken_in_time() -> Builder:
    return _asks(0, 0).observes("frontend.0", "took", words="waking it", measured=0.06, bound=0.06).observes(
        "frontend.0", "bye", reason="done")


@rejects("programs-are-answered")
def a_program_is_woken_late() -> Builder:
    return _asks(0, 0).observes("frontend.0", "took", words="waking it", measured=0.1, bound=0.06).observes(
        "frontend.0", "bye", reason="done")


@silent("programs-are-answered")
def a_program_does_not_come_to_its_end() -> Builder:
    return _asks(0, 0)

"""Histories about programs that use parts of the engine by themselves."""

from scenarios.history.play import BOOKS, Options
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


# -- books


def _looks(*found: str, named: str = "counts 3 holders") -> Builder:
    h = history().promised(options=Options(program=BOOKS))
    return h.observes("frontend.0", "self-check", of="a core", state="a block counts one holder too many", named=named,
                      found=list(found))


@accepts("self-checks-see")
def a_self_check_says_what_is_wrong() -> Builder:
    return _looks("block 0 counts 3 holders, but 2 requests hold it")


@accepts("self-checks-see")
def a_self_check_says_what_follows_from_it_too() -> Builder:
    return _looks("block 0 is used", "block 0 counts 3 holders, but 2 requests hold it")


@rejects("self-checks-see")
def a_self_check_finds_nothing() -> Builder:
    return _looks()


@rejects("self-checks-see")
def a_self_check_says_something_else() -> Builder:
    return _looks("block 0 counts 2 holders, but 3 requests hold it")


@rejects("self-checks-see")
def a_self_check_finds_what_nobody_has_done() -> Builder:
    return _looks("block 0 counts 3 holders, but 2 requests hold it", named="")


@silent("self-checks-see")
def books_are_in_order_and_nothing_is_found() -> Builder:
    return _looks(named="")

"""Histories of several clients that share a core."""

from engine.config import LimitsConfig
from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

ROUTED, ISOLATED, NOTICE = "client-routed", "client-isolated", "notice-to-all"
RETURNS = "client-returns"
FIRST, SECOND = "frontend.0", "frontend.1"
AGAIN = "frontend.1@1"


def two() -> Builder:
    h = history(tp=1, topology=data_parallel(1, tp=1, clients=2), data_parallel_size=1)
    for client in (FIRST, SECOND):
        h.observes(client, "starting").observes(client, "ready", num_gpu_blocks=8)
    return h


def asks(h: Builder, client: str, request: str = "a") -> Builder:
    """It is called by that client, accepted, and taken in by the core."""
    internal = f"{request}-{client[-1]}"
    h.observes(client, "call", request=request, index=0, prompt=2, max_tokens=3)
    h.observes(client, "accepted", request=request, internal=internal, core=0)
    h.sends(f"{client}->core.0/requests", internal)
    return h.observes("core.0", "request", request=internal, action="add", reason="")


def freed(h: Builder, client: str, request: str = "a") -> Builder:
    return h.observes("core.0", "freed", request=f"{request}-{client[-1]}")


def served(h: Builder, client: str, request: str = "a") -> Builder:
    freed(h, client, request).observes(client, "tokens", request=request, internal=f"{request}-{client[-1]}", offset=0,
                                       tokens=[7, 8, 9])
    return h.ended(request, node=client)


def both() -> Builder:
    return asks(asks(two(), FIRST), SECOND)


@accepts(ROUTED)
def two_ask_by_one_name_and_each_gets_its_own() -> Builder:
    return served(served(both(), FIRST), SECOND)


@rejects(ROUTED)
def one_is_sent_what_the_other_has_asked_for() -> Builder:
    h = served(both(), FIRST).observes(FIRST, "stray", request="a-1", core=0)
    return served(h, SECOND)


@rejects(ROUTED)
def what_one_has_asked_for_never_comes() -> Builder:
    h = freed(served(both(), FIRST), SECOND).wait(5.0)
    return h.ended("a", "failed", node=SECOND, error="RequestTimeoutError")


@silent(ROUTED)
def one_asks_when_the_other_is_served() -> Builder:
    return served(asks(served(asks(two(), FIRST), FIRST), SECOND), SECOND)


def second_dies(h: Builder) -> Builder:
    return h.fires("kill", "core.0->frontend.1/outputs:receive", node=SECOND).wait(.01)


@accepts(ISOLATED)
def one_is_gone_and_the_other_goes_on() -> Builder:
    return served(freed(second_dies(both()), SECOND), FIRST)


def _taken_in(*, late: bool) -> Builder:
    """The second one asks and dies; the core takes that in, and then sees that it is gone, or the other way round."""
    h = asks(two(), FIRST).observes(SECOND, "call", request="a", index=0, prompt=2, max_tokens=3)
    h = second_dies(h.observes(SECOND, "accepted", request="a", internal="a-1", core=0))
    for what in ("gone", "taken") if late else ("taken", "gone"):
        if what == "gone":
            h.observes("core.0", "client-gone", client=1, requests=not late)
        else:
            h.observes("core.0", "request", request="a-1", action="add", reason="")
    return served(freed(h, SECOND), FIRST)


@accepts(ISOLATED)
def what_one_had_asked_for_is_taken_in_and_given_up() -> Builder:
    return _taken_in(late=False)


@accepts(ISOLATED)
def what_one_had_asked_for_is_held_back_until_it_is_gone() -> Builder:
    return _taken_in(late=True).fires("delay", f"{SECOND}->core.0/requests:receive", node="core.0")


@rejects(ISOLATED)
def what_one_had_asked_for_is_taken_in_behind_its_end() -> Builder:
    return _taken_in(late=True)


@rejects(ISOLATED)
def what_one_has_asked_for_is_computed_on() -> Builder:
    return served(second_dies(both()).wait(2.0), FIRST)


@rejects(ISOLATED)
def the_end_of_one_ends_what_the_other_has_asked_for() -> Builder:
    return freed(freed(second_dies(both()), SECOND), FIRST).ended("a", "failed", node=FIRST, error="RequestError")


@silent(ISOLATED)
def one_is_gone_that_had_asked_for_nothing() -> Builder:
    return served(second_dies(asks(two(), FIRST)), FIRST)


def limited() -> Builder:
    h = history(tp=1, topology=data_parallel(1, tp=1, clients=2), data_parallel_size=1,
                limits=LimitsConfig(max_requests=1))
    for client in (FIRST, SECOND):
        h.observes(client, "starting").observes(client, "ready", num_gpu_blocks=8)
    return asks(h, FIRST)


@accepts(ISOLATED)
def each_has_as_much_as_it_may() -> Builder:
    return served(served(asks(limited(), SECOND), FIRST), SECOND)


@rejects(ISOLATED)
def one_is_refused_because_of_what_the_other_one_has() -> Builder:
    h = limited().observes(SECOND, "call", request="a", index=0, prompt=2, max_tokens=3)
    h.observes(SECOND, "accepted", request="a", internal="a-1", core=0)
    h.observes("core.0", "request", request="a-1", action="refused", reason="1 requests are in flight already")
    return served(h.ended("a", "refused", node=SECOND), FIRST)


def comes_again(h: Builder) -> Builder:
    return h.wait(.05).observes(AGAIN, "starting")


def taken_in(h: Builder) -> Builder:
    return comes_again(h).observes(AGAIN, "ready", num_gpu_blocks=8)


def asks_again(h: Builder, prompt: int = 2) -> Builder:
    h.observes(AGAIN, "call", request="a", index=0, prompt=prompt, max_tokens=3)
    return h.observes(AGAIN, "accepted", request="a", internal="a-1-again", core=0)


@accepts(RETURNS)
def one_comes_back_and_is_served() -> Builder:
    h = asks_again(taken_in(freed(second_dies(both()), SECOND)))
    h.observes(AGAIN, "tokens", request="a", internal="a-1-again", offset=0, tokens=[7, 8, 9])
    return served(h.ended("a", node=AGAIN), FIRST)


@rejects(RETURNS)
def one_comes_back_and_is_not_taken_in() -> Builder:
    h = comes_again(freed(second_dies(both()), SECOND)).wait(8.0)
    return h.observes(AGAIN, "start-failed", error="StartupError", reason="core.0 did not announce itself")


@rejects(RETURNS)
def one_comes_back_and_is_let_wait() -> Builder:
    return served(comes_again(freed(second_dies(both()), SECOND)).wait(60.0), FIRST)


@rejects(RETURNS)
def one_comes_back_and_nothing_is_done_for_it() -> Builder:
    h = asks_again(taken_in(freed(second_dies(both()), SECOND))).wait(5.0)
    return h.ended("a", "failed", node=AGAIN, error="RequestTimeoutError").wait(1.0)


@silent(RETURNS)
def one_comes_back_and_asks_for_more_than_the_cache_holds() -> Builder:
    h = asks_again(taken_in(freed(second_dies(both()), SECOND)), prompt=4096).wait(.1)
    return served(h.ended("a", "failed", node=AGAIN, error="BadRequestError"), FIRST)


@silent(RETURNS)
def one_comes_back_and_asks_for_nothing() -> Builder:
    return served(taken_in(freed(second_dies(both()), SECOND)), FIRST)


def core_dies(h: Builder) -> Builder:
    return h.fires("kill", "core.0/mark:executed").wait(.01)


def told(h: Builder, client: str) -> Builder:
    h.observes(client, "engine-dead", reason="core.0 died", core=0)
    return h.ended("a", "engine-dead", node=client, error="EngineDeadError", reason="core.0 died")


@accepts(NOTICE)
def both_are_told() -> Builder:
    return told(told(core_dies(both()), FIRST), SECOND)


@rejects(NOTICE)
def one_is_told_too_late() -> Builder:
    return told(told(core_dies(both()), FIRST).wait(2.0), SECOND)


@rejects(NOTICE)
def one_is_not_told() -> Builder:
    return told(core_dies(both()), FIRST).wait(3.0).ended("a", "failed", node=SECOND, error="RequestTimeoutError")


@silent(NOTICE)
def one_alone_was_there_to_be_told() -> Builder:
    return told(core_dies(second_dies(both())), FIRST)


SAYS, LAUNCHER = "launcher-says", "launcher.0"


def launched(*, lockstep: bool = False, ready: tuple[str, ...] = ("core.0", "core.1")) -> Builder:
    """Two cores of two clients, by a launcher that is ready."""
    h = history(tp=1, topology=data_parallel(2, tp=1, clients=2, lockstep=lockstep), data_parallel_size=2)
    for core in ready:
        h.observes(core, "ready", num_gpu_blocks=8, parallel_config={})
    return h.crosses(f"{LAUNCHER}/mark:ready").wait(.1)


def says(h: Builder, core: int, reason: str) -> Builder:
    return h.observes(LAUNCHER, "engine-dead", reason=reason, core=core)


def the_second_dies(h: Builder) -> Builder:
    return h.fires("kill", "core.1/mark:step", node="core.1").ends("core.1", exitcode=-9).wait(.02)


def none_left(h: Builder, reason: str = "core.1 died (exit code -9)") -> Builder:
    return h.observes(LAUNCHER, "none-left", reason=reason)


def both_die() -> Builder:
    h = says(the_second_dies(launched(lockstep=True)), 1, "core.1 died (exit code -9)")
    return h.wait(.01).ends("core.0", exitcode=-9)


@accepts(SAYS)
def a_launcher_says_that_a_core_has_died() -> Builder:
    return says(the_second_dies(launched()), 1, "core.1 died (exit code -9)").wait(3)


@accepts(SAYS)
def a_launcher_ends_the_other_core() -> Builder:
    return none_left(both_die()).wait(3)


@accepts(SAYS)
def a_launcher_says_that_a_core_stands_still() -> Builder:
    h = launched().fires("stall", "core.1/mark:step", node="core.1")
    h = says(h.wait(h.history().bounds.stall_s), 1, "core.1 has made no progress")
    return h.ends("core.1", exitcode=-9).wait(3)


@silent(SAYS)
def all_live() -> Builder:
    return launched().wait(3)


@silent(SAYS)
def a_core_dies_as_its_launcher_is_closed() -> Builder:
    return the_second_dies(launched()).observes(LAUNCHER, "closing", kept={}, errors=[]).wait(3)


@rejects(SAYS)
def a_launcher_says_nothing_of_a_core_that_has_died() -> Builder:
    return the_second_dies(launched()).wait(3)


@rejects(SAYS)
def a_launcher_says_so_late() -> Builder:
    return says(the_second_dies(launched()).wait(2), 1, "core.1 died (exit code -9)").wait(1)


@rejects(SAYS)
def a_launcher_says_that_of_a_core_that_lives() -> Builder:
    return says(launched(), 1, "core.1 died (exit code -9)").wait(3)


@rejects(SAYS)
def a_launcher_says_that_of_one_and_means_another_one() -> Builder:
    return says(the_second_dies(launched()), 1, "core.0 died (exit code -9)").wait(3)


@rejects(SAYS)
def a_launcher_is_ready_before_its_cores() -> Builder:
    return launched(ready=("core.0",)).observes("core.1", "ready", num_gpu_blocks=8, parallel_config={}).wait(3)


@rejects(SAYS)
def a_launcher_is_ready_long_after_its_cores() -> Builder:
    h = history(tp=1, topology=data_parallel(2, tp=1, clients=2), data_parallel_size=2)
    for core in ("core.0", "core.1"):
        h.observes(core, "ready", num_gpu_blocks=8, parallel_config={})
    return h.wait(5).crosses(f"{LAUNCHER}/mark:ready").wait(3)


def launching(*ready: str) -> Builder:
    """Two cores of two clients, of which these serve."""
    h = history(tp=1, topology=data_parallel(2, tp=1, clients=2), data_parallel_size=2).observes(LAUNCHER, "starting")
    for core in ready:
        h.observes(core, "ready", num_gpu_blocks=8, parallel_config={})
    return h


@rejects(SAYS)
def a_launcher_is_never_ready() -> Builder:
    return launching("core.0", "core.1").wait(3)


@silent(SAYS)
def a_launcher_waits_for_its_last_core() -> Builder:
    return launching("core.0").wait(3)


@silent(SAYS)
def a_launcher_is_closed_as_its_last_core_serves() -> Builder:
    return launching("core.0", "core.1").observes(LAUNCHER, "closing", kept={}, errors=[]).wait(3)


@rejects(SAYS)
def a_launcher_does_not_say_that_none_is_left() -> Builder:
    return both_die().wait(3)


@rejects(SAYS)
def a_launcher_says_that_none_is_left_and_not_why() -> Builder:
    return none_left(both_die(), "all is over").wait(3)


@rejects(SAYS)
def a_launcher_says_that_none_is_left_and_one_lives() -> Builder:
    return none_left(says(the_second_dies(launched()), 1, "core.1 died (exit code -9)")).wait(3)


@rejects(SAYS)
def a_launcher_leaves_the_other_core_to_itself() -> Builder:
    return says(the_second_dies(launched(lockstep=True)), 1, "core.1 died (exit code -9)").wait(3)

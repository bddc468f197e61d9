"""Histories of several cores that one client spreads its requests over."""

from engine.topology import data_parallel
from tests.guarantees.build import REQUESTS, Builder, history
from tests.guarantees.cases import accepts, rejects, silent

DEAD, GROUP = "dp-dead-never-chosen", "dp-death-ends-group"
TO = {0: REQUESTS, 1: "frontend.0->core.1/requests"}


def two() -> Builder:
    return history(tp=1, topology=data_parallel(2), data_parallel_size=2)


def asks(h: Builder, request: str, core: int, rank: int | None = None) -> Builder:
    """It is called, accepted, and sent to that core."""
    told = {} if rank is None else {"rank": rank}
    h.observes("frontend.0", "call", request=request, index=0, prompt=2, max_tokens=3, **told)
    h.observes("frontend.0", "accepted", request=request, internal=f"{request}-0", core=core)
    return h.sends(TO[core], request)


def ends_by(h: Builder, request: str, core: int) -> Builder:
    return h.dies(request, reason=f"core.{core} died (exit code -9)")


def one_dies(*later: str) -> Builder:
    """"a" is at core 0, "b" at core 1, and that one dies; then more is asked, of core 0."""
    h = asks(asks(two(), "a", 0), "b", 1).fires("kill", "core.1/mark:executed").wait(.01)
    h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=1)
    h = ends_by(h, "b", 1)
    for request in later:
        asks(h, request, 0).ended(request)
    return h


@accepts(DEAD)
def what_is_asked_later_goes_to_who_lives() -> Builder:
    return one_dies("c").ended("a")


@rejects(DEAD)
def a_dead_core_is_sent_something() -> Builder:
    return one_dies("c").sends(TO[1], "again").ended("a")


@silent(DEAD)
def nothing_is_asked_later() -> Builder:
    return one_dies().ended("a")


@accepts(GROUP)
def who_is_elsewhere_is_served_to_its_end() -> Builder:
    return one_dies().ended("a")


@rejects(GROUP)
def who_is_elsewhere_ends_with_it() -> Builder:
    return ends_by(one_dies(), "a", 1)


@rejects(GROUP)
def the_wrong_core_is_named() -> Builder:
    h = asks(asks(two(), "a", 0), "b", 1).fires("kill", "core.1/mark:executed").wait(.01)
    h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=1)
    return ends_by(h, "b", 0).ended("a")


@silent(GROUP)
def nobody_is_elsewhere() -> Builder:
    h = asks(two(), "b", 1).fires("kill", "core.1/mark:executed").wait(.01)
    h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=1)
    return ends_by(h, "b", 1)


def in_step() -> Builder:
    """"a" is at core 0, "b" at core 1, which step together, and that one dies."""
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)
    h.observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    return asks(asks(h, "a", 0), "b", 1).fires("kill", "core.1/mark:executed").wait(.01)


def group_ends(h: Builder, reason: str = "core.1 died (exit code -9)") -> Builder:
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason=reason, core=core)
    return h.dies("a", reason=reason).dies("b", reason=reason)


@accepts(GROUP)
def those_that_step_together_end_together() -> Builder:
    return group_ends(in_step())


def one_is_asked(core: int, fate: str = "kill") -> Builder:
    """Of two that step together, and core 1 ends. Core 0 has missed it, and is dying, before the client is told."""
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)
    h.observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    h = asks(h, "a", core).fires(fate, "core.1/mark:dummy").wait(.01)
    if fate == "terminate":
        h.observes("core.1", "dying", reason="SIGTERM", queued=0).wait(.01)
        h.ends("coordinator.0", exitcode=-9).ends("core.1")
    h.observes("core.0", "dying", reason="core.1 died before it entered", queued=0).wait(.01)
    for told in (0, 1):
        h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=told)
    return ends_by(h, "a", 1)


@accepts(GROUP)
def who_follows_another_one_is_dying_before_that_is_told() -> Builder:
    return one_is_asked(0)


@silent(GROUP)
def who_dies_alone_is_asked() -> Builder:
    return one_is_asked(1)


@accepts(GROUP)
def who_follows_one_that_was_asked_to_leave_is_dying_before_that_is_told() -> Builder:
    return one_is_asked(0, "terminate")


@silent(GROUP)
def who_is_asked_to_leave_alone_is_asked() -> Builder:
    return one_is_asked(1, "terminate")


@accepts(GROUP)
def who_was_silent_for_long_is_named_beside_whoever_died() -> Builder:
    return group_ends(in_step(), "core.1 died (exit code -9); core.0 has been silent for 0.62 s")


@rejects(GROUP)
def who_lives_is_said_to_have_died_too() -> Builder:
    return group_ends(in_step(), "core.1 died (exit code -9); core.0 died, too").wait(5.0)


@rejects(GROUP)
def who_was_heard_just_now_is_called_silent() -> Builder:
    return group_ends(in_step(), "core.1 died (exit code -9); core.0 has been silent for 0.01 s")


@rejects(GROUP)
def a_group_ends_and_nobody_is_named() -> Builder:
    return group_ends(in_step(), "an engine core died")


@rejects(GROUP)
def one_of_a_group_goes_on() -> Builder:
    h = in_step().observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=1)
    return ends_by(h, "b", 1).wait(1.0).ended("a")


@rejects(GROUP)
def a_request_ends_well_though_its_group_is_dead() -> Builder:
    h = in_step()
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=core)
    return ends_by(h, "b", 1).ended("a")


@accepts(GROUP)
def a_request_was_refused_just_before_its_group_ended() -> Builder:
    h = in_step().observes("core.0", "request", request="a-0", action="refused", reason="")
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=core)
    return ends_by(h, "b", 1).ended("a", outcome="refused")


@accepts(GROUP)
def a_request_found_nobody_just_before_its_group_ended() -> Builder:
    h = in_step()
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=core)
    return ends_by(h, "b", 1).ended("a", outcome="failed", error="UnroutableError")


@rejects(GROUP)
def a_group_hears_of_an_end_too_late() -> Builder:
    return group_ends(in_step().wait(5.0))


@rejects(GROUP)
def nobody_is_told_that_a_coordinator_is_gone() -> Builder:
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)
    h.observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    h = asks(h, "a", 0).fires("kill", "coordinator.0/mark:ready").wait(5.0)
    return h.ended("a")


@silent(GROUP)
def nothing_of_a_group_was_under_way() -> Builder:
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)
    h.fires("kill", "core.1/mark:idle").wait(.01)
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason="core.1 died (exit code -9)", core=core)
    return h


def both_are_ready(**told: object) -> Builder:
    """Two cores, the second of which has fewer blocks, and what their client says of them."""
    config = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 2}
    h = two().observes("frontend.0", "starting")
    for core, blocks in (("core.0", 9), ("core.1", 8)):
        up, down = f"{core}->frontend.0/handshake", f"frontend.0->{core}/handshake"
        announces = f"{core}->frontend.0/requests"
        for edge, digest in ((up, ""), (up, "hello"), (down, "metadata"), (up, "ready"), (announces, "")):
            h.crosses(f"{edge}:send", digest).crosses(f"{edge}:receive", digest)
        h.observes(core, "ready", num_gpu_blocks=blocks, parallel_config=config)
    return h.observes("frontend.0", "ready", num_gpu_blocks=8, parallel_config=config, **told)


@accepts("handshake-order")
def a_client_knows_what_each_of_its_cores_has() -> Builder:
    return both_are_ready(blocks={"core.0": 9, "core.1": 8})


@rejects("handshake-order")
def a_client_knows_the_least_of_what_its_cores_have() -> Builder:
    return both_are_ready()

"""Histories of cores that have a coordinator."""

from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent

START, DEATH = "dp-start-needs-all", "dp-coordinator-death-is-told"
HUB = "coordinator.0"


def hub(*, lockstep: bool = False) -> Builder:
    return history(tp=1, topology=data_parallel(2, coordinated=True, lockstep=lockstep), data_parallel_size=2)


def subscribes(h: Builder, core: int) -> Builder:
    h.sends(f"core.{core}->{HUB}/wave", f"subscription {core}")
    return h.observes(HUB, "subscribed", inbox="waves", index=core)


def hears(h: Builder, core: int) -> Builder:
    edge = f"{HUB}->core.{core}/wave"
    h.crosses(f"{edge}:send", "READY", ready=True).crosses(f"{edge}:receive", "READY", ready=True)
    return h.crosses(f"core.{core}/mark:ready")


def late(h: Builder) -> Builder:
    return h.fires("delay", f"core.1->{HUB}/wave:receive", node=HUB).wait(.1)


@accepts(START)
def all_subscribe_and_are_ready() -> Builder:
    h = subscribes(late(subscribes(hub(), 0)), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    return hears(hears(h, 0), 1)


@rejects(START)
def one_subscribes_twice_and_that_is_two() -> Builder:
    h = subscribes(subscribes(late(hub()), 0), 0).observes(HUB, "all-subscribed", cores=[0, 0])
    return hears(hears(subscribes(h, 1), 0), 1)


@rejects(START)
def one_is_ready_before_it_has_heard() -> Builder:
    h = late(subscribes(hub(), 0)).crosses("core.0/mark:ready")
    return hears(subscribes(h, 1).observes(HUB, "all-subscribed", cores=[0, 1]), 1)


@silent(START)
def nothing_befell_a_subscription() -> Builder:
    h = subscribes(subscribes(hub(), 0), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    return hears(hears(h, 0), 1)


def serving(*, lockstep: bool = False) -> Builder:
    h = hub(lockstep=lockstep).observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    return h.called("a")


def dies(h: Builder) -> Builder:
    return h.fires("kill", f"{HUB}/mark:ready").wait(.01)


@accepts(DEATH)
def a_client_says_that_its_coordinator_died() -> Builder:
    h = dies(serving()).observes("frontend.0", "coordinator-dead", reason="coordinator.0 died (exit code -9)")
    return h.wait(1.0).ended("a")


@accepts(DEATH)
def a_group_ends_by_its_coordinator_s_name() -> Builder:
    h = dies(serving(lockstep=True))
    return h.observes("frontend.0", "engine-dead", reason="coordinator.0 died (exit code -9)", core=0)


@rejects(DEATH)
def nobody_says_so() -> Builder:
    return dies(serving()).wait(5.0).ended("a")


@rejects(DEATH)
def it_is_said_late() -> Builder:
    h = dies(serving()).wait(5.0).observes("frontend.0", "coordinator-dead", reason="coordinator.0 stands still")
    return h.ended("a")


@rejects(DEATH)
def somebody_else_is_named() -> Builder:
    h = dies(serving(lockstep=True)).observes("frontend.0", "engine-dead", reason="core.1 died", core=0)
    return h.wait(5.0)


@silent(DEATH)
def nothing_was_asked_for() -> Builder:
    h = hub().observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    return dies(h).observes("frontend.0", "coordinator-dead", reason="coordinator.0 died (exit code -9)")

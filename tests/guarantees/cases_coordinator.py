"""Histories of cores that have a coordinator."""

from engine.config import DataParallelConfig
from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent
from tests.guarantees.cases_steps import step

START, DEATH, VIEW = "dp-start-needs-all", "dp-coordinator-death-is-told", "dp-view-converges"
HUB = "coordinator.0"


def hub(*, lockstep: bool = False) -> Builder:
    return history(tp=1, topology=data_parallel(2, coordinated=True, lockstep=lockstep), data_parallel_size=2)


def subscribes(h: Builder, core: int) -> Builder:
    h.sends(f"core.{core}->{HUB}/wave", f"subscription {core}")
    return h.observes(HUB, "subscribed", inbox="waves", index=core)


def hears(h: Builder, core: int, **struck: str) -> Builder:
    edge = f"{HUB}->core.{core}/wave"
    h.crosses(f"{edge}:send", "READY", ready=True).crosses(f"{edge}:receive", "READY", ready=True, **struck)
    return h.crosses(f"core.{core}/mark:ready")


def late(h: Builder) -> Builder:
    return h.fires("delay", f"core.1->{HUB}/wave:receive", node=HUB).wait(.1)


@accepts(START)
def all_subscribe_and_are_ready() -> Builder:
    h = subscribes(late(subscribes(hub(), 0)), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    return hears(hears(h, 0), 1)


@accepts(START)
def what_it_hears_is_late() -> Builder:
    h = subscribes(late(subscribes(hub(), 0)), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    edge = f"{HUB}->core.0/wave"
    h.crosses(f"{edge}:send", "READY", ready=True).crosses(f"{edge}:receive", "READY", ready=True, fate="delay")
    h.fires("delay", f"{edge}:receive").wait(.1).releases()
    return hears(h.crosses("core.0/mark:ready"), 1)


@rejects(START)
def what_it_hears_is_still_to_come() -> Builder:
    h = subscribes(late(subscribes(hub(), 0)), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    return hears(hears(h, 0, fate="delay"), 1)


@rejects(START)
def what_it_hears_is_lost() -> Builder:
    h = subscribes(late(subscribes(hub(), 0)), 1).observes(HUB, "all-subscribed", cores=[0, 1])
    return hears(hears(h, 0, fate="drop"), 1)


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


@accepts(START)
def a_subscription_is_lost_with_its_connection_and_said_again() -> Builder:
    h = subscribes(hub(), 0).fires("cut", f"core.1->{HUB}/wave:wire", node="core.1").releases().wait(.1)
    return hears(hears(subscribes(h, 1).observes(HUB, "all-subscribed", cores=[0, 1]), 0), 1)


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


# -- what clients learn by it


STATS = f"{HUB}->frontend.0/stats"
OPTIONS = DataParallelConfig(coordinator=True, changed_s=0.02, unchanged_s=0.2, settle_s=0.01)
#: Longer than it may take until a client knows, with a detection bound of a tenth of a second.
LONG_S = 0.5


def ready() -> Builder:
    h = history(tp=1, topology=data_parallel(2, coordinated=True), data_parallel_size=2, data_parallel=OPTIONS)
    h.observes("frontend.0", "starting").observes(HUB, "subscribed", inbox="stats", index=0)
    return h.observes("frontend.0", "ready", num_gpu_blocks=8)


def counted(*fates: str) -> Builder:
    """Both cores got a request; and what befell the notice of that."""
    h = views(ready(), 0, 0)
    for core, request in ((0, "a"), (1, "b")):
        h.observes(f"core.{core}", "request", request=request, action="add", reason="")
    for fate in fates:
        h.fires(fate, f"{STATS}:receive")
    return h


def views(h: Builder, *counts: int, running: int = 0) -> Builder:
    """The client is told so many requests of each core, of which at the first one so many run."""
    told = [[count - (running if not core else 0), running if not core else 0, 0.25]
            for core, count in enumerate(counts)]
    return h.observes("frontend.0", "view", counts=told, wave=0, running=False)


def waved(h: Builder) -> Builder:
    """It is told of a wave alone."""
    return h.observes("frontend.0", "view", counts=None, wave=1, running=False)


def done(h: Builder, core: int = 0, request: str = "a") -> Builder:
    return h.observes(f"core.{core}", "freed", request=request)


@accepts(VIEW)
def a_notice_is_lost_and_the_next_one_says_it_again() -> Builder:
    return views(counted("drop").wait(.2), 1, 1).wait(LONG_S)


@accepts(VIEW)
def an_old_notice_comes_behind_the_new_one_and_counts_are_told_again() -> Builder:
    h = views(counted("delay").wait(.05), 1, 1)
    return views(views(h.releases(), 0, 0).wait(.2), 1, 1).wait(LONG_S)


@accepts(VIEW)
def a_notice_of_a_wave_leaves_the_counts_as_they_are() -> Builder:
    return waved(views(counted("reorder").wait(.2), 1, 1)).wait(LONG_S)


@accepts(VIEW)
def a_client_that_stood_still_reads_late() -> Builder:
    h = counted("drop").fires("hang", "core.0->frontend.0/outputs:receive").wait(2.0).releases()
    return views(h, 1, 1).wait(LONG_S)


def cut_off(*, heard_between: bool) -> Builder:
    """The connection is lost before the last change, which is told twice."""
    h = views(ready(), 0, 0).fires("cut", f"{STATS}:wire", node="frontend.0")
    for core, request in ((0, "a"), (1, "b")):
        h.observes(f"core.{core}", "request", request=request, action="add", reason="")
    told = {"counts": [[1, 0, 0.0], [1, 0, 0.0]], "wave": 0, "running": False}
    h.crosses(f"{STATS}:send", **told)
    if heard_between:
        views(h.crosses(f"{STATS}:receive", **told), 1, 1)
    h.wait(.2).crosses(f"{STATS}:send", **told)
    return views(h.crosses(f"{STATS}:receive", **told), 1, 1).wait(LONG_S)


@accepts(VIEW)
def what_changes_behind_a_lost_connection_is_told_again() -> Builder:
    return cut_off(heard_between=False)


@silent(VIEW)
def a_connection_is_back_before_something_changes() -> Builder:
    return cut_off(heard_between=True)


@rejects(VIEW)
def a_notice_is_lost_and_never_said_again() -> Builder:
    return counted("drop").wait(LONG_S)


@rejects(VIEW)
def it_is_said_again_too_late() -> Builder:
    return views(counted("drop").wait(LONG_S), 1, 1).wait(LONG_S)


@rejects(VIEW)
def what_is_done_is_never_told() -> Builder:
    return done(views(counted(), 1, 1)).wait(LONG_S)


@rejects(VIEW)
def what_is_done_is_not_taken() -> Builder:
    return waved(done(views(counted(), 1, 1))).wait(LONG_S)


def begins(h: Builder, *, gives_way: bool = False) -> Builder:
    step(h, new=(("a", [1, 2], 2, [0], 0, 2),))
    return step(h, preempted=("a",)) if gives_way else h


@accepts(VIEW)
def a_request_begins_and_that_is_told() -> Builder:
    return views(begins(views(counted("drop").wait(.2), 1, 1)), 1, 1, running=1).wait(LONG_S)


@rejects(VIEW)
def a_request_begins_and_that_is_never_told() -> Builder:
    return begins(views(counted("drop").wait(.2), 1, 1)).wait(LONG_S)


@rejects(VIEW)
def a_request_gives_way_and_that_is_never_told() -> Builder:
    return begins(views(counted("drop").wait(.2), 1, 1, running=1), gives_way=True).wait(LONG_S)


@silent(VIEW)
def nobody_has_read_what_a_core_called_for() -> Builder:
    return views(counted("drop").observes("core.0", "rpc-call", call=0, method="execute_model", output_rank=0),
                 1, 1).wait(LONG_S)


@rejects(VIEW)
def the_counts_are_those_of_another_core() -> Builder:
    return views(done(views(counted(), 1, 1)), 1, 0).wait(LONG_S)


@rejects(VIEW)
def a_client_is_told_nothing_from_the_start() -> Builder:
    return ready().wait(LONG_S)


@silent(VIEW)
def no_notice_was_struck() -> Builder:
    return views(done(views(counted(), 1, 1)), 0, 1).wait(LONG_S)


@silent(VIEW)
def a_launcher_is_told_of_no_counts() -> Builder:
    """It starts cores, and asks for nothing."""
    h = history(tp=1, topology=data_parallel(2, clients=2, coordinated=True), data_parallel_size=2,
                data_parallel=OPTIONS)
    return h.observes("launcher.0", "starting").observes("launcher.0", "ready", num_gpu_blocks=8).wait(LONG_S)


@silent(VIEW)
def something_changes_before_it_is_due() -> Builder:
    return views(done(counted("drop").wait(.2)).wait(.01), 0, 1)


@silent(VIEW)
def a_core_dies_before_it_is_due() -> Builder:
    return counted("drop").fires("kill", "core.1/mark:executed").ends("core.1", exitcode=-9).wait(LONG_S)


@silent(VIEW)
def a_notice_is_held_up_for_ever() -> Builder:
    return counted("delay").wait(LONG_S)


@outside(VIEW)
def a_core_s_own_report_is_lost() -> Builder:
    return counted().fires("drop", f"core.1->{HUB}/report:receive", node=HUB).wait(LONG_S)


@outside(VIEW)
def a_core_fails_as_it_tells_its_counts() -> Builder:
    return counted().fires("raise", f"core.1->{HUB}/report:send", node="core.1").wait(LONG_S)


@outside(VIEW)
def a_coordinator_stands_still_for_good() -> Builder:
    return counted().fires("stall", f"core.1->{HUB}/report:receive", node=HUB).wait(LONG_S)

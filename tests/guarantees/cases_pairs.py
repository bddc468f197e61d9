"""Histories of two faults, of which one strikes what the other has begun."""

from engine.topology import data_parallel, external, headless
from faults.plan import Until
from scenarios.history.play import Options
from tests.guarantees.build import OUTPUTS, RPC, Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_clients import FIRST, SECOND, both, told
from tests.guarantees.cases_coordinator import HUB, serving
from tests.guarantees.cases_cores import asks
from tests.guarantees.cases_death import AT_ANSWER
from tests.guarantees.cases_queue import _alone, _over, _puts
from tests.guarantees.cases_waves import MISSING, enters, gives_up, two

LOST, NOTICE, TOLD, GROUP = "lost-request-is-bounded", "notice-to-all", "death-is-told", "dp-death-ends-group"
HUB_TOLD, ORPHANS, OVERFLOW, MEETS = (
    "dp-coordinator-death-is-told", "no-orphans", "ring-overflow-ordered", "handshake-order")


def _one_is_late_and_the_next_is_lost(then_s: float, *, lost_first: bool = True) -> Builder:
    """Its caller hears of what was late when the next one has been missing for 0.3 s, and then no more for `then_s`."""
    h = history().started().called("a").streams("a", [7])
    h.fires("delay", f"{OUTPUTS}:receive", until=Until(seconds=0.3))
    if lost_first:
        h.fires("drop", f"{OUTPUTS}:receive", nth=2)
    h.wait(0.3).releases(0).streams("a", [8], offset=1)
    if not lost_first:
        h.fires("drop", f"{OUTPUTS}:receive", nth=2)
    h.wait(then_s).ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)
    h.observes("core.0", "request", request="a-0", action="abort")
    return h.observes("core.0", "freed", request="a-0")


@accepts(LOST)
def what_is_missing_is_given_up_though_something_late_was_heard_behind_it() -> Builder:
    return _one_is_late_and_the_next_is_lost(0.3)


@rejects(LOST)
def what_is_missing_is_given_up_too_soon_behind_something_late() -> Builder:
    return _one_is_late_and_the_next_is_lost(0.1)


@rejects(LOST)
def what_was_late_shortens_the_wait_for_what_is_lost_later() -> Builder:
    return _one_is_late_and_the_next_is_lost(0.3, lost_first=False)


def _launcher_dies_and_its_core_stops(told_s: float, *, stops: bool = True) -> Builder:
    h = both().fires("kill", "core.0/mark:executed", node="launcher.0").ends("launcher.0", exitcode=-9).wait(0.001)
    if stops:
        h.fires("stall", "core.0/mark:executed", nth=2, node="core.0", until=Until(seconds=3.0))
    return told(told(h.wait(told_s), FIRST), SECOND)


@accepts(NOTICE)
def a_core_that_stops_before_it_has_told_is_given_up_by_its_clients() -> Builder:
    return _launcher_dies_and_its_core_stops(1.6)


@rejects(NOTICE)
def a_core_that_has_stopped_is_given_up_too_late() -> Builder:
    return _launcher_dies_and_its_core_stops(2.5)


@rejects(NOTICE)
def a_core_that_goes_on_tells_too_late() -> Builder:
    return _launcher_dies_and_its_core_stops(1.6, stops=False)


def _client_hears_of_two(*, stops: bool = True, reason: str = "core.0 said that it is leaving") -> Builder:
    """Of cores that step together one dies, and the other one with it; the client may stand still until then."""
    h = history(tp=1, topology=data_parallel(2, lockstep=True), data_parallel_size=2)
    h.observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8)
    h = asks(asks(h, "a", 0), "b", 1)
    if stops:
        h.fires("stall", "core.1/mark:executed", node="frontend.0", until=Until(seconds=0.05))
    h.fires("kill", "core.1/mark:executed", nth=2, node="core.1").ends("core.1", exitcode=-9).wait(0.02)
    h.observes("core.0", "dying", reason="core.1 is gone", queued=0).ends("core.0").wait(0.03)
    if stops:
        h.releases(0)
    for core in (0, 1):
        h.observes("frontend.0", "engine-dead", reason=reason, core=core)
    return h.dies("a", reason=reason).dies("b", reason=reason)


@accepts(TOLD)
def who_looks_late_names_another_one_of_those_that_are_gone() -> Builder:
    return _client_hears_of_two()


@rejects(TOLD)
def who_looks_late_names_nobody_who_is_gone() -> Builder:
    return _client_hears_of_two(reason="coordinator.0 died")


@rejects(TOLD)
def who_looks_in_time_names_another_one() -> Builder:
    return _client_hears_of_two(stops=False)


def _head_and_a_core_end(*, head: bool = False, closes: bool = False) -> Builder:
    h = history(tp=1, topology=external(2), data_parallel_size=2)
    for client in (FIRST, SECOND):
        h.observes(client, "starting").observes(client, "ready", num_gpu_blocks=8)
    h.observes(SECOND, "call", request="a", index=0, prompt=2, max_tokens=3)
    h.observes(SECOND, "accepted", request="a", internal="a-1", core=1)
    if head:
        h.fires("kill", "core.1/mark:executing", node=FIRST).ends(FIRST, exitcode=-9).ends(HUB).wait(0.001)
    if closes:
        h.observes(FIRST, "closing", kept={}, errors=[])
    h.fires("terminate", "core.1/mark:executing", nth=2, node="core.1").wait(0.001)
    reason = "coordinator.0 died"
    h.observes(SECOND, "engine-dead", reason=reason, core=1)
    return h.ended("a", "engine-dead", node=SECOND, error="EngineDeadError", reason=reason)


@silent(GROUP)
def a_head_takes_the_coordinator_along_before_a_core_ends() -> Builder:
    return _head_and_a_core_end(head=True)


@silent(GROUP)
def a_head_shuts_the_coordinator_down_before_a_core_ends() -> Builder:
    return _head_and_a_core_end(closes=True)


@rejects(GROUP)
def a_coordinator_is_named_that_is_there() -> Builder:
    return _head_and_a_core_end()


def _a_core_of_three_clients_dies(*, head_knows: bool) -> Builder:
    """The second one's; the third client is told of the coordinator alone."""
    h = history(tp=1, topology=external(3), data_parallel_size=3)
    for client in (FIRST, SECOND, "frontend.2"):
        h.observes(client, "starting").observes(client, "ready", num_gpu_blocks=8)
    h.observes("frontend.2", "call", request="a", index=0, prompt=2, max_tokens=3)
    h.observes("frontend.2", "accepted", request="a", internal="a-2", core=2)
    h.fires("kill", "core.1/mark:executing", node="core.1").wait(0.001)
    if head_knows:
        h.observes(FIRST, "engine-dead", reason="core.0 said that it is leaving: core.1 died", core=0)
        h.ends(HUB, exitcode=-9).wait(0.001)
    h.observes("frontend.2", "engine-dead", reason="coordinator.0 died", core=2)
    return h.ended("a", "engine-dead", node="frontend.2", error="EngineDeadError", reason="coordinator.0 died")


@accepts(GROUP, TOLD)
def a_head_ends_the_coordinator_for_another_client_s_core() -> Builder:
    return _a_core_of_three_clients_dies(head_knows=True)


@rejects(GROUP, TOLD)
def a_coordinator_is_named_that_nobody_has_ended() -> Builder:
    return _a_core_of_three_clients_dies(head_knows=False)


def _client_ends_its_coordinator(*, struck: bool = False) -> Builder:
    """Behind the end of a group, and the client is there for long; or somebody else has struck it before."""
    h = serving(lockstep=True)
    if struck:
        h.fires("kill", f"{HUB}/mark:ready", node=HUB).wait(0.001)
    h.fires("raise", "core.0/mark:step", node="core.0").wait(0.001)
    h.observes("frontend.0", "engine-dead", reason="core.0 said that it is leaving", core=0)
    return h.ends(HUB, exitcode=-9).wait(0.01).ends("core.0").wait(5.0)


@silent(HUB_TOLD)
def a_coordinator_is_ended_by_a_client_that_has_told_of_its_group() -> Builder:
    return _client_ends_its_coordinator()


@rejects(HUB_TOLD)
def a_coordinator_was_struck_before_its_group_ended_and_nobody_says_so() -> Builder:
    return _client_ends_its_coordinator(struck=True)


def _writer_ends(stops_s: float) -> Builder:
    """When its payload is under way, and one reader has not got it."""
    h = history().started().writes(RPC[1], 0, overflow=True)
    if stops_s:
        h.fires("stall", "core.0->worker.0/overflow:send", node="core.0", until=Until(seconds=stops_s))
        h.wait(stops_s).releases()
    else:
        h.wait(5.0)
    return h.ends("core.0", exitcode=-9)


@silent(OVERFLOW)
def a_writer_stands_still_with_a_payload_in_its_hands() -> Builder:
    return _writer_ends(5.0)


@rejects(OVERFLOW)
def a_writer_goes_on_with_a_payload_in_its_hands() -> Builder:
    return _writer_ends(0.0)


def _reader_stops_as_its_writer_ends(queue: str) -> Builder:
    h = history().started().promised(options=Options(queue=queue))
    h.fires("stall", "core.0/mark:ring-full", node="worker.0", until=Until(seconds=3.0))
    h.fires("kill", "core.0/mark:ring-full", nth=2, node="core.0").ends("core.0", exitcode=-9).wait(0.1)
    return h.ends("worker.1").wait(2.9).releases(0).ends("worker.0")


@accepts(ORPHANS)
def who_reads_a_queue_alone_has_nobody_who_would_end_it() -> Builder:
    return _reader_stops_as_its_writer_ends("few")


@rejects(ORPHANS)
def who_has_a_client_is_ended_by_it_where_it_stands_still() -> Builder:
    return _reader_stops_as_its_writer_ends("")


_UP, _DOWN = "core.0->frontend.0/handshake", "frontend.0->core.0/handshake"


def _hello_is_changed_and_ready_is_lost(*, read: bool, noise: bool = False) -> Builder:
    h = history().observes("frontend.0", "starting").carries(_UP, "").sends(_UP, "hello")
    h.receives(_UP, "HELLO", fate="corrupt", fault="f1").fires("corrupt", f"{_UP}:receive", nth=2)
    if not read:
        h.observes("frontend.0", "bad-frame", edge="handshake", error="no greeting")
    h.carries(_DOWN, "metadata").sends(_UP, "ready")
    if noise:
        h.receives(_UP, "noise", fate="corrupt", fault="f2").fires("corrupt", f"{_UP}:receive", nth=3)
        h.observes("frontend.0", "bad-frame", edge="handshake", error="no greeting")
    else:
        h.fires("drop", f"{_UP}:receive", nth=3)
    return h.wait(4.0).observes("frontend.0", "start-failed", error="StartupError",
                                reason="core.0 did not report READY in time")


@accepts(MEETS)
def a_changed_hello_is_one_all_the_same_and_its_core_has_the_time_of_a_start() -> Builder:
    return _hello_is_changed_and_ready_is_lost(read=True)


@accepts(MEETS)
def a_changed_hello_is_one_and_ready_cannot_be_read() -> Builder:
    return _hello_is_changed_and_ready_is_lost(read=True, noise=True)


@rejects(MEETS)
def a_changed_hello_that_cannot_be_read_is_waited_for_as_if_it_had_come() -> Builder:
    return _hello_is_changed_and_ready_is_lost(read=False)


def _drains_as_the_coordinator_ends(*, ends: bool) -> Builder:
    h = serving(lockstep=True).fires("terminate", "core.0/mark:step", node="core.0")
    h.observes("core.0", "draining", running=1, waiting=0, deadline=h.now + 1)
    if ends:
        h.fires("terminate", "core.0/mark:executing", node=HUB)
    return h.wait(0.01).dies("a", reason="coordinator.0 died")


@silent("drain")
def a_core_that_drains_ends_with_its_coordinator() -> Builder:
    return _drains_as_the_coordinator_ends(ends=True)


@rejects("drain")
def a_core_that_drains_ends_with_a_coordinator_that_is_there() -> Builder:
    return _drains_as_the_coordinator_ends(ends=False)


def _core_stops_behind_its_client(for_s: float) -> Builder:
    """The client is killed, and its core is stopped before it has left; the lab looks again after three seconds."""
    h = history().started().called("a").fires("kill", f"{OUTPUTS}:receive").ends("frontend.0", exitcode=-9)
    h.fires("stall", "core.0/mark:executing", until=Until(seconds=for_s)).wait(min(for_s, 3.0))
    if for_s < 3.0:
        h.releases().wait(3.0 - for_s)
    return h.ends("core.0", "worker.0", "worker.1", killed_by_lab=True).lab(
        leftovers=["process core.0 (pid 101)"], leftovers_checked_at=h.now)


@silent("no-orphans", "nothing-left-behind")
def a_core_that_stands_still_to_the_end_outlives_its_client() -> Builder:
    return _core_stops_behind_its_client(6.0)


@rejects("no-orphans", "nothing-left-behind")
def a_core_that_stood_still_for_a_moment_outlives_its_client() -> Builder:
    return _core_stops_behind_its_client(0.1)


def _worker_dies_and_its_core_stops(stops_after_s: float, told_after_s: float) -> Builder:
    h = history().started().called("a").streams("a", [7]).fires("kill", AT_ANSWER).wait(stops_after_s)
    h.fires("stall", f"{OUTPUTS}:send").wait(told_after_s)
    return h.observes("frontend.0", "engine-dead", reason="no heartbeat").dies("a", reason="core.0 and worker.1 died")


@accepts("death-is-told")
def a_core_stops_before_it_can_tell_of_its_worker() -> Builder:
    return _worker_dies_and_its_core_stops(.001, 1.6)


@rejects("death-is-told")
def a_core_had_the_time_to_tell_of_its_worker_before_it_stopped() -> Builder:
    return _worker_dies_and_its_core_stops(.8, 1.6)


@accepts("stall-is-told")
def a_core_stops_behind_its_worker() -> Builder:
    h = history().started().called("a").fires("hang", "worker.1/collective:enter").wait(.9)
    h.fires("stall", f"{OUTPUTS}:send").wait(1.6)
    return h.observes("frontend.0", "engine-dead", reason="no heartbeat").dies("a")


def _head_is_gone_and(stopped: str) -> Builder:
    """The other core is in an all-reduce with it when it hears of that, and leaves by the bound of that."""
    h = history(tp=1, topology=headless(2, 1, lockstep=True), data_parallel_size=2)
    h.observes("core.1", "ready", num_gpu_blocks=8, parallel_config={})
    h.fires("kill", "core.0->frontend.0/outputs:receive").ends("frontend.0", exitcode=-9)
    h.fires("stall", f"{stopped}/mark:executing", until=Until(seconds=6.0)).wait(1.0)
    h.observes("core.1", "dying", reason="frontend.0 is gone", queued=0).ends("core.1", "launcher.1")
    return h.wait(5.0).releases().ends("core.0")


@accepts("no-orphans")
def a_headless_core_waits_for_one_that_stands_still() -> Builder:
    return _head_is_gone_and("core.0")


@rejects("no-orphans")
def a_headless_core_waits_for_its_coordinator_s_sake() -> Builder:
    return _head_is_gone_and("coordinator.0")


@accepts(MISSING)
def who_stood_still_long_before_does_not_come() -> Builder:
    h = two().fires("stall", "core.1/mark:executing", until=Until(seconds=1.0)).wait(1.0).releases()
    return gives_up(enters(h.wait(3.0), 0).wait(5.05), 0, "core.1")


@silent("queue-hands-over")
def nothing_has_overtaken_what_was_lost() -> Builder:
    """What came behind it was lost, too."""
    h = _puts(_puts(_alone(), "a", 0), "b", 1)
    for nth, digest in ((1, "a"), (2, "b")):
        h.fires("drop", "core.0->worker.0/overflow:receive", nth=nth)
        h.crosses("core.0->worker.0/overflow:receive", digest, fate="drop", fault=f"f{nth}")
    return _over(h.wait(7))

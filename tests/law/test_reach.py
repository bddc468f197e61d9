"""Each row of the table explains what it says, and nothing before it, nothing of another engine, nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from engine.config import LimitsConfig
from engine.topology import Coordinator, Engine, data_parallel, hybrid
from faults.plan import Fate, Until
from scenarios.history.verdicts import Verdict
from scenarios.law.incidents import LAB, Sort, incidents
from scenarios.law.law import cause_of
from scenarios.law.reach import REACH, Reach
from tests.guarantees.build import Builder, history, two_engines

REQUESTS, OUTPUTS = "frontend.0->core.0/requests", "core.0->frontend.0/outputs"
STEP = "core.0/mark:step"
LONG, SHORT = Until(seconds=3.0), Until(seconds=0.1)

#: Where each row's fault fires, of whom, and until when.
OCCASIONS: dict[str, tuple[Fate, str, str, Until | None]] = {
    "the core dies": (Fate.KILL, STEP, "core.0", None),
    "a worker dies": (Fate.EXIT, "worker.1/mark:executing", "worker.1", None),
    "nothing can be sent to a core that is gone": (Fate.KILL, STEP, "core.0", None),
    "the core drains": (Fate.TERMINATE, STEP, "core.0", None),
    "the core gives up what it drains": (Fate.TERMINATE, STEP, "core.0", None),
    "a coordinator dies": (Fate.KILL, "coordinator.0/mark:ready", "coordinator.0", None),
    "a launcher dies": (Fate.KILL, "launcher.0/mark:ready", "launcher.0", None),
    "a launcher has its cores drain": (Fate.RAISE, "launcher.0/mark:ready", "launcher.0", None),
    "a launcher dies before it has cleaned up": (Fate.KILL, "launcher.0/mark:dying", "launcher.0", None),
    "a client dies": (Fate.KILL, f"{OUTPUTS}:receive", "frontend.0", None),
    "the head dies": (Fate.KILL, f"{OUTPUTS}:receive", "frontend.0", None),
    "a client dies before it has cleaned up": (Fate.KILL, "frontend.0/mark:dying", "frontend.0", None),
    "a subscriber dies": (Fate.KILL, "core.0->subscriber.0/kv:receive", "subscriber.0", None),
    "the core stands still": (Fate.STALL, STEP, "core.0", LONG),
    "a worker stands still": (Fate.HANG, "worker.1/mark:executing", "worker.1", LONG),
    "a coordinator stands still": (Fate.STALL, "coordinator.0/mark:ready", "coordinator.0", LONG),
    "a worker that stood still is behind": (Fate.STALL, "worker.0/mark:executing", "worker.0", SHORT),
    "requests wait for who stands still": (Fate.STALL, STEP, "core.0", LONG),
    "a client stands still": (Fate.STALL, "core.0->frontend.0/handshake:receive", "frontend.0", LONG),
    "a launcher stands still": (Fate.STALL, "core.0->launcher.0/handshake:receive", "launcher.0", LONG),
    "a subscriber stands still": (Fate.STALL, "core.0->subscriber.0/kv:receive", "subscriber.0", SHORT),
    "a publisher stands still": (Fate.HANG, STEP, "core.0", SHORT),
    "a message to the core is hit": (Fate.DROP, f"{REQUESTS}:receive", "core.0", None),
    "a call to one of those that step together is hit": (Fate.DROP, f"{REQUESTS}:receive", "core.0", None),
    "a call to those that step together is held": (Fate.STALL, f"{REQUESTS}:send", "frontend.0", LONG),
    "an abort is lost": (Fate.DROP, f"{REQUESTS}:receive", "core.0", None),
    "a message to the client is hit": (Fate.TRUNCATE, f"{OUTPUTS}:receive", "frontend.0", None),
    "a message of the start is hit": (Fate.DROP, "core.0->frontend.0/handshake:receive", "frontend.0", None),
    "a message of the start is late": (Fate.DELAY, "core.0->frontend.0/handshake:receive", "frontend.0", LONG),
    "a word at birth is lost": (Fate.DROP, "worker.1->core.0/birth:receive", "core.0", None),
    "a word at birth is late": (Fate.DELAY, "worker.1->core.0/birth:receive", "core.0", LONG),
    "who the workers are is lost": (Fate.DROP, "core.0->frontend.0/birth:receive", "frontend.0", None),
    "a word at birth cannot be read": (Fate.TRUNCATE, "worker.1->core.0/birth:receive", "core.0", None),
    "the core's announcement is hit": (Fate.DROP, "core.0->frontend.0/requests:receive", "frontend.0", None),
    "the core's announcement is late": (Fate.DELAY, "core.0->frontend.0/requests:receive", "frontend.0", LONG),
    "a word of a coordinator, or to it, is hit": (
        Fate.CORRUPT, "coordinator.0->core.0/wave:receive", "core.0", None),
    "an event or an answer is hit": (Fate.REORDER, "core.0->subscriber.0/kv:receive", "subscriber.0", None),
    "an event is changed": (Fate.CORRUPT, "core.0->subscriber.0/kv:receive", "subscriber.0", None),
    "a question or its answer is hit": (Fate.DUPLICATE, "subscriber.0->core.0/replay:receive", "core.0", None),
    "a payload beside the ring is hit": (Fate.CORRUPT, "core.0->worker.1/overflow:receive", "worker.1", None),
    "a payload beside the ring is late": (Fate.DELAY, "core.0->worker.1/overflow:receive", "worker.1", LONG),
    "a connection between client and core is cut": (Fate.CUT, f"{REQUESTS}:wire", "core.0", None),
    "the core's announcement is cut": (Fate.CUT, "core.0->frontend.0/requests:wire", "core.0", None),
    "a connection of outputs is cut": (Fate.CUT, f"{OUTPUTS}:wire", "core.0", None),
    "a connection of outputs stays cut": (Fate.CUT, f"{OUTPUTS}:wire", "core.0", None),
    "a coordinator's connection to a core is cut": (Fate.CUT, "coordinator.0->core.0/wave:wire", "core.0", LONG),
    "a core's connection to its coordinator is cut": (Fate.CUT, "core.0->coordinator.0/report:wire", "core.0", LONG),
    "the connection of the start is cut": (Fate.CUT, "core.0->frontend.0/handshake:wire", "core.0", None),
    "a pipe of birth is cut": (Fate.CUT, "core.0->frontend.0/birth:wire", "core.0", None),
    "a pipe of birth is cut by one who leaves": (Fate.CUT, "core.0->frontend.0/birth:wire", "core.0", None),
    "a connection of events is cut": (Fate.CUT, "core.0->subscriber.0/kv:wire", "subscriber.0", None),
    "a connection of questions is cut": (Fate.CUT, "subscriber.0->core.0/replay:wire", "subscriber.0", None),
    "a connection beside the ring is cut": (Fate.CUT, "core.0->worker.1/overflow:wire", "worker.1", None),
    "shared memory is written over": (Fate.CORRUPT, "core.0/rpc:store.data", "core.0", None),
}


def _fails(h: Builder, e: int, outcome: str = "failed", error: str = "") -> Builder:
    error = error or h.error
    return h.ended("a", outcome, node=f"frontend.{e}", error=error)


def _kept(h: Builder, e: int) -> Builder:
    h.ended("a", node=f"frontend.{e}")
    if not h.of_a_worker:
        return h.observes(f"frontend.{e}", "closing", kept={"requests": 0, "calls": 1})
    core, worker = f"core.{e}", "worker.1.0" if e else "worker.0"
    h.observes(core, "rpc-call", call=4, method="execute_model").executes(worker, call=4, method="execute_model")
    h.observes(core, "blocks", free=8, used=0, cached=0, total=8, requests=0, errors=[], untold=False)
    return h.observes(worker, "parent-gone", kept={"requests": 1})


#: What makes an incident of each sort in engine `e`. Request "a" was called before.
MADE: dict[Sort, Callable[[Builder, int], Builder]] = {
    Sort.DEATH: lambda h, e: h.ends(
        f"subscriber.{e}@1" if h.of_a_subscriber else f"core.{e}" if h.of_a_core else "worker.1.0" if e else "worker.0",
        exitcode=1),
    Sort.LEFTOVER: lambda h, e: h.lab(leftovers=["segment x"]),
    Sort.DEAD: lambda h, e: h.observes(f"frontend.{e}", "engine-dead", reason="core died"),
    Sort.START: lambda h, e: h.observes(f"frontend.{e}", "start-failed", error="StartupError", reason="too late"),
    Sort.FAILED: _fails,
    Sort.REFUSED: lambda h, e: _fails(h, e, "refused", "RefusedError"),
    Sort.TOLD: lambda h, e: _fails(h, e, "engine-dead", "EngineDeadError"),
    Sort.ABORTED: lambda h, e: _fails(h, e, "aborted", "none"),
    Sort.UTILITY: lambda h, e: h.observes(f"frontend.{e}", "utility", method="ping", failure="timed out"),
    Sort.UNSENT: lambda h, e: h.observes(f"frontend.{e}", "unroutable", request="a", edge="requests"),
    Sort.BAD_FRAME: lambda h, e: h.observes(f"core.{e}", "bad-frame", edge="requests", error="no request"),
    Sort.STRANGE: lambda h, e: h.observes(f"core.{e}", "request", request="x-0", action="duplicate", reason=""),
    Sort.RPC: lambda h, e: h.observes(f"core.{e}", "rpc-failed", call=3, rank=1, error="boom"),
    Sort.WAIT: lambda h, e: h.observes(f"core.{e}", "queue-wait", ring="response", began=h.now, ended=h.now,
                                       deadline=h.now, outcome="timeout"),
    Sort.KEPT: _kept,
    Sort.THREAD: lambda h, e: h.observes(
        f"subscriber.{e}" if h.of_a_subscriber else f"core.{e}", "thread-ended", thread="x", why="failed"),
    Sort.ORPHAN: lambda h, e: h.observes(f"core.{e}", "parent-gone"),
    Sort.KV_SENDER: lambda h, e: h.observes(f"core.{e}", "kv-unsent", seq=3, error="closed"),
    Sort.MISTOLD: lambda h, e: h.observes(f"subscriber.{e}", "kv-mirror", errors=["a block has no parent"]),
    Sort.KV_READER: lambda h, e: h.observes(f"subscriber.{e}", "kv-gap", first=3, last=4),
}
CASES = [(row, sort) for row in REACH for sort in sorted(row.sorts, key=lambda sort: sort.name)]


def _begun(row: Reach) -> Builder:
    lost_abort = row.name == "an abort is lost"
    topology = two_engines(subscribers=True)
    if "coordinator" in row.name or "step together" in row.name:
        topology = msgspec.structs.replace(topology, coordinators=(Coordinator(engines=(0,), lockstep=True),))
    if row.name == "a call to those that step together is held":  # which was sent to one of them before
        one, other = topology.clients
        topology = msgspec.structs.replace(
            topology, engines=(*topology.engines, Engine(tp=2)), coordinators=(Coordinator(
                engines=(0, 2), lockstep=True),), clients=(msgspec.structs.replace(one, engines=(0, 2)), other))
    h = history(topology=topology, limits=LimitsConfig(max_requests=1 if lost_abort else 4))
    h.of_a_worker = row.name.startswith("a worker that")
    h.of_a_core = row.name == "a connection of outputs stays cut"
    h.of_a_subscriber = row.name == "a subscriber dies"
    h.error = {"nothing can be sent to a core that is gone": "UnroutableError",
               "the core gives up what it drains": "RequestError"}.get(row.name, "RequestTimeoutError")
    for e in (0, 1):
        h.observes(f"subscriber.{e}", "born", pid=9 + e)
        if row.name.startswith("a call"):
            edge = f"frontend.{e}->core.{e}/requests"
            h.observes(f"frontend.{e}", "ask", method="pause_scheduler", ticket=1, args=[])
            if row.name.endswith("held"):
                h.crosses(f"frontend.{e}->core.2/requests:send", "pause")
            h.crosses(f"{edge}:send", "pause").crosses(f"{edge}:receive", "pause")
        h.called("a", node=f"frontend.{e}")
        if lost_abort:
            h.observes(f"frontend.{e}", "abort", request="a")
        edge = f"frontend.{e}->core.{e}/requests"
        h.crosses(f"{edge}:send", "add a").crosses(f"{edge}:receive", "add a")
    return h


def _fires(h: Builder, row: Reach) -> Builder:
    fate, site, node, until = OCCASIONS[row.name]
    h.fires(fate, site, node=node, until=until)
    return h.wait(until.seconds).releases() if until is not None else h


def _explained(h: Builder, sort: Sort, e: int = 0) -> list[str | None]:
    """What explains the incidents of this sort, in engine `e` or wherever none is told."""
    seen = h.history()
    return [cause_of(seen, incident) for incident in incidents(seen) if incident.sort is sort
            and (incident.node == LAB or seen.engine_of(incident.node).engine == e)
            and not (sort is Sort.DEATH and incident.text.endswith(("kill", "exit")))]  # the fault itself


def test_every_row_has_its_occasion() -> None:
    assert [row.name for row in REACH] == list(OCCASIONS)


@pytest.mark.parametrize(("row", "sort"), CASES, ids=[f"{row.name}: {sort.name}" for row, sort in CASES])
def test_a_row_explains_what_follows_from_its_fault(row: Reach, sort: Sort) -> None:
    h = MADE[sort](_fires(_begun(row), row), 0)
    assert _explained(h, sort) != [] and None not in _explained(h, sort)
    without = _explained(MADE[sort](_begun(row), 0), sort)
    assert without and set(without) == {None}, "not the fault explains it"


@pytest.mark.parametrize(("row", "sort"), CASES, ids=[f"{row.name}: {sort.name}" for row, sort in CASES])
def test_no_row_explains_what_came_before_its_fault(row: Reach, sort: Sort) -> None:
    if sort is Sort.LEFTOVER:
        pytest.skip("is seen when all is over")
    assert set(_explained(_fires(MADE[sort](_begun(row), 0).wait(0.1), row), sort)) == {None}


@pytest.mark.parametrize(("row", "sort"), CASES, ids=[f"{row.name}: {sort.name}" for row, sort in CASES])
def test_no_row_explains_what_happens_to_another_engine(row: Reach, sort: Sort) -> None:
    if sort is Sort.LEFTOVER:
        pytest.skip("belongs to no engine that the lab could name")
    h = MADE[sort](_fires(_begun(row), row), 1)
    assert set(_explained(h, sort, 1)) == {None}
    assert h.judged("nothing-without-cause").verdict is Verdict.BROKEN


@pytest.mark.parametrize("sort", Sort, ids=lambda sort: sort.name)
def test_no_row_explains_every_sort(sort: Sort) -> None:
    assert not all(sort in row.sorts for row in REACH)


# -- near misses -----------------------------------------------------------------------------------------------


def _core_stops(h: Builder, until: Until) -> Builder:
    return h.fires("stall", STEP, node="core.0", until=until).wait(until.seconds or 0.0).releases()


@pytest.mark.parametrize("fate", [Fate.KILL, Fate.RAISE, Fate.TERMINATE])
def test_no_end_of_an_engine_explains_that_its_client_falls_over(fate: Fate) -> None:
    h = history().called("a").fires(fate, STEP, node="core.0").ends("frontend.0", exitcode=1)
    assert _explained(h, Sort.DEATH) == [None]


@pytest.mark.parametrize(("victim", "at", "is_explained"), [
    ("launcher.0", "core.0/mark:step", True), ("core.0", STEP, False), ("frontend.0", f"{OUTPUTS}:receive", False)])
def test_a_launcher_s_end_is_explained_by_what_befell_itself(victim: str, at: str, is_explained: bool) -> None:
    """It outlives its cores, and its clients are none of its own."""
    h = history(topology=data_parallel(2, clients=2)).fires(Fate.TERMINATE, at, node=victim)
    assert [cause is not None for cause in _explained(h.ends("launcher.0", exitcode=1), Sort.DEATH)] == [is_explained]


@pytest.mark.parametrize(("edge", "node"), [(OUTPUTS, "frontend.0"), (REQUESTS, "core.0")])
@pytest.mark.parametrize(("fate", "until"), [
    (Fate.DUPLICATE, None), (Fate.REORDER, SHORT), (Fate.DELAY, SHORT)])
def test_what_comes_twice_or_a_little_late_explains_no_failure(
        fate: Fate, until: Until | None, edge: str, node: str) -> None:
    h = history().called("a").crosses(f"{edge}:send", "a").crosses(f"{edge}:receive", "a")
    h.fires(fate, f"{edge}:receive", node=node, until=until).wait(0.1)
    h = (h if until is None else h.releases()).wait(0.5).ended("a", "failed", error="RequestTimeoutError")
    h.observes("frontend.0", "utility", method="ping", failure="timed out")
    assert _explained(h, Sort.FAILED) == [None] == _explained(h, Sort.UTILITY)


@pytest.mark.parametrize(("method", "ticket", "steps", "is_explained"), [
    ("run_steps", 1, 2, True), ("run_steps", 1, 3, True), ("run_steps", 2, 1, True), ("run_steps", 2, 3, False),
    ("run_steps", 0, 0, False), ("ping", 1, 0, False)])
def test_a_call_for_steps_that_comes_twice_may_fail_and_so_may_the_next_one_while_they_are_run(
        method: str, ticket: int, steps: int, is_explained: bool) -> None:
    """Its client takes the first answer: that of the second one, which is refused."""
    h = history().called("a").observes("frontend.0", "ask", method=method, ticket=1, args=[2])
    h.crosses(f"{REQUESTS}:send").crosses(f"{REQUESTS}:receive", fate="duplicate")
    h.fires(Fate.DUPLICATE, f"{REQUESTS}:receive", node="core.0").wait(0.1)
    for _ in range(steps):
        h.crosses(STEP).wait(0.1)
    h.observes("frontend.0", "utility", method=method, failure="steps are being run already", ticket=ticket)
    assert [cause is not None for cause in _explained(h, Sort.UTILITY)] == [is_explained]


@pytest.mark.parametrize(("fate", "until"), [
    (Fate.DUPLICATE, None), (Fate.REORDER, SHORT), (Fate.DELAY, SHORT)])
def test_a_payload_that_comes_twice_or_a_little_late_ends_nobody(fate: Fate, until: Until | None) -> None:
    h = history().called("a").fires(fate, "core.0->worker.1/overflow:receive", node="worker.1", until=until).wait(0.1)
    h = (h if until is None else h.releases()).wait(5.0).ends("worker.1", exitcode=1)
    assert _explained(h, Sort.DEATH) == [None]


def test_a_drain_does_not_explain_a_time_out() -> None:
    h = history().called("a").fires(Fate.TERMINATE, STEP, node="core.0")
    assert _explained(h.ended("a", "failed", error="RequestTimeoutError"), Sort.FAILED) == [None]


def test_a_short_stop_ends_no_engine() -> None:
    h = _core_stops(history().called("a"), SHORT).observes("frontend.0", "engine-dead", reason="stands still")
    assert _explained(h, Sort.DEAD) == [None]


def test_a_stop_does_not_explain_a_time_out_that_is_longer_than_it() -> None:
    h = _core_stops(history().called("a"), Until(seconds=0.5)).ended("a", "failed", error="RequestTimeoutError")
    assert _explained(h, Sort.FAILED) == [None]


def test_a_stop_does_not_explain_a_time_out_of_what_came_after_it() -> None:
    h = _core_stops(history(), LONG).called("a").ended("a", "failed", error="RequestTimeoutError")
    assert _explained(h, Sort.FAILED) == [None]


def test_a_lost_message_does_not_explain_that_another_request_fails() -> None:
    h = history()
    for name in ("a", "b"):
        h.called(name).crosses(f"{REQUESTS}:send", f"add {name}").crosses(f"{REQUESTS}:receive", f"add {name}")
    h.fires("drop", f"{REQUESTS}:receive", node="core.0", nth=1)
    for name in ("a", "b"):
        h.ended(name, "failed", error="RequestTimeoutError")
    assert [cause is None for cause in _explained(h, Sort.FAILED)] == [False, True]


def test_a_lost_message_that_was_about_no_request_may_hold_up_all() -> None:
    h = history().crosses(f"{REQUESTS}:send", "pause").crosses(f"{REQUESTS}:receive", "pause")
    h.fires("drop", f"{REQUESTS}:receive", node="core.0", nth=1).called("a").ended("a", "failed", error="timed out")
    assert None not in _explained(h, Sort.FAILED)


@pytest.mark.parametrize(("method", "is_explained"), [("pause_scheduler", False), (None, True)])
def test_a_lost_call_explains_nothing_strange_of_a_request(method: str | None, is_explained: bool) -> None:
    """What the client says of no call may be the abort of one that it has given up."""
    h = history().called("a")
    if method is not None:
        h.observes("frontend.0", "ask", method=method, ticket=1, args=[])
    h.crosses(f"{REQUESTS}:send", "x").crosses(f"{REQUESTS}:receive", "x")
    h.fires("drop", f"{REQUESTS}:receive", node="core.0", nth=1)
    h.observes("core.0", "request", request="x-0", action="duplicate", reason="")
    assert [cause is not None for cause in _explained(h, Sort.STRANGE)] == [is_explained]


def _refused(h: Builder, lost: bool) -> list[str | None]:
    for name in ("a", "b"):
        h.called(name)
    h.observes("frontend.0", "abort", request="a").ended("a", "aborted")
    h.crosses(f"{REQUESTS}:send", "abort a").crosses(f"{REQUESTS}:receive", "abort a")
    if lost:
        h.fires("drop", f"{REQUESTS}:receive", node="core.0")
    return _explained(h.called("c", core=False).ended("c", "refused", error="RefusedError"), Sort.REFUSED)


def test_a_lost_abort_explains_a_refusal_by_a_core_that_is_full_and_by_no_other() -> None:
    assert _refused(history(limits=LimitsConfig(max_requests=2)), lost=True) != [None]
    assert _refused(history(limits=LimitsConfig(max_requests=3)), lost=True) == [None]
    assert _refused(history(limits=LimitsConfig(max_requests=2)), lost=False) == [None]


def test_lost_outputs_do_not_explain_that_a_later_request_fails() -> None:
    h = history().fires("drop", f"{OUTPUTS}:receive", node="frontend.0").called("a").ended("a", "failed")
    assert _explained(h, Sort.FAILED) == [None]


def test_a_death_does_not_explain_that_a_request_times_out() -> None:
    h = history().called("a").fires("kill", STEP, node="core.0").ended("a", "failed", error="RequestTimeoutError")
    assert _explained(h, Sort.FAILED) == [None]


def test_a_death_does_not_explain_the_next_life() -> None:
    h = history().fires("kill", STEP, node="core.0").observes("frontend.0@1", "engine-dead", reason="core died")
    assert _explained(h, Sort.DEAD) == [None]


def test_a_fault_that_never_fires_explains_nothing() -> None:
    h = history().called("a").plans("kill", STEP).dies("a")
    assert h.judged("nothing-without-cause").verdict is Verdict.BROKEN


def test_a_starved_machine_excuses_lateness_only() -> None:
    late = history(world="engine").called("a").ended("a", "failed", error="RequestTimeoutError")
    wrong = history(world="engine").called("a").ended("a").observes("core.0", "bad-frame", edge="x", error="damaged")
    assert late.lab(longest_starvation_s=9.0).judged("nothing-without-cause").verdict is Verdict.UNKNOWN
    assert wrong.lab(longest_starvation_s=9.0).judged("nothing-without-cause").verdict is Verdict.BROKEN
    assert late.lab(longest_starvation_s=0.0).judged("nothing-without-cause").verdict is Verdict.BROKEN


# -- cores that step together ----------------------------------------------------------------------------------


def _two_ranks(*, lockstep: bool) -> Builder:
    h = history(tp=1, topology=data_parallel(2, coordinated=True, lockstep=lockstep), data_parallel_size=2)
    h.observes("frontend.0", "starting").observes("frontend.0", "ready", num_gpu_blocks=8).wait(0.1)
    for e in (0, 1):
        h.called(f"of-{e}").observes("frontend.0", "accepted", request=f"of-{e}", internal=f"of-{e}-x", core=e)
    return h


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_end_of_a_core_is_that_of_those_that_step_together_with_it(lockstep: bool) -> None:
    h = _two_ranks(lockstep=lockstep).fires("kill", "core.1/mark:step", node="core.1").wait(0.01)
    h = h.ended("of-0", "engine-dead", error="EngineDeadError")
    assert (_explained(h, Sort.TOLD) == ["the core dies (f1)"]) is lockstep


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_end_of_a_coordinator_is_that_of_cores_that_step_together(lockstep: bool) -> None:
    h = _two_ranks(lockstep=lockstep).fires("kill", "coordinator.0/mark:ready", node="coordinator.0").wait(0.01)
    h = h.observes("frontend.0", "coordinator-dead", reason="coordinator.0 died")
    assert None not in _explained(h, Sort.DEAD)
    h = h.ended("of-0", "engine-dead", error="EngineDeadError")
    assert (_explained(h, Sort.TOLD) == ["a coordinator dies (f1)"]) is lockstep


@pytest.mark.parametrize(("struck", "told", "cause"), [
    ("frontend.0", "frontend.1", "the head dies (f1)"), ("frontend.1", "frontend.0", None)])
def test_the_end_of_a_head_is_that_of_the_coordinator_and_no_other_client_s_is(
        struck: str, told: str, cause: str | None) -> None:
    h = history(tp=1, topology=hybrid(2, 1), data_parallel_size=2)
    for client in ("frontend.0", "frontend.1"):
        h.observes(client, "starting").observes(client, "ready", num_gpu_blocks=8)
    h.fires("kill", f"core.{struck[-1]}->{struck}/outputs:receive", node=struck).wait(0.01)
    h.observes(told, "coordinator-dead", reason="coordinator.0 died")
    assert _explained(h, Sort.DEAD, int(told[-1])) == [cause]


def test_a_start_that_is_lost_explains_no_request_that_fails() -> None:
    h = _two_ranks(lockstep=True).fires("drop", "coordinator.0->core.1/wave:receive", node="core.1").wait(5)
    assert _explained(h.ended("of-1", "failed", error="RequestTimeoutError"), Sort.FAILED) == [None]
    assert _explained(h.observes("core.0", "dying", reason="CollectiveError", queued=0), Sort.DEAD) == [None]


def _held(method: str, *, lockstep: bool = True, told_before: bool = True, seconds: float = 3.0) -> list[str | None]:
    """What explains the end of rank 0, whose client was held as it sent this call to rank 1."""
    h = _two_ranks(lockstep=lockstep).observes("frontend.0", "ask", method=method, ticket=1, args=[])
    if told_before:
        h.crosses(f"{REQUESTS}:send", "call")
    site = "frontend.0->core.1/requests:send"
    h.crosses(site, "call").fires("stall", site, node="frontend.0", until=Until(seconds=seconds)).wait(seconds)
    return _explained(h.releases().observes("core.0", "dying", reason="CollectiveError", queued=0), Sort.DEAD)


def test_a_client_that_is_held_amid_a_call_explains_that_one_is_missed_and_no_other_hold_does() -> None:
    assert _held("pause_scheduler") == _held("run_steps") == ["a call to those that step together is held (f1)"]
    assert _held("get_stats") == [None]
    assert _held("pause_scheduler", lockstep=False) == [None]
    assert _held("pause_scheduler", told_before=False) == [None]
    assert _held("pause_scheduler", seconds=0.1) == [None]


def test_a_client_that_is_held_between_calls_explains_no_end_of_its_group() -> None:
    h = _two_ranks(lockstep=True).observes("frontend.0", "ask", method="pause_scheduler", ticket=1, args=[])
    h.crosses(f"{REQUESTS}:send", "call").crosses("frontend.0->core.1/requests:send", "call")
    h.observes("frontend.0", "accepted", request="b", internal="b-x", core=1)
    site = "frontend.0->core.1/requests:send"
    h.crosses(site, "add b").fires("stall", site, node="frontend.0", nth=2, until=LONG).wait(3.0).releases()
    assert _explained(h.observes("core.0", "dying", reason="CollectiveError", queued=0), Sort.DEAD) == [None]


@pytest.mark.parametrize(("lasts_s", "explained"), [((0.4, 0.4), True), ((0.4, 0.3), False), ((0.4,), False)])
def test_one_standstill_behind_another_one_may_last_as_long_as_others_wait(lasts_s: tuple[float, ...],
                                                                          explained: bool) -> None:
    h = history(tp=1).started().called("a")
    for seconds in lasts_s:
        h.fires("stall", STEP, until=Until(seconds=seconds)).wait(seconds).releases()
    h = h.observes("core.0", "rpc-failed", call=3, rank=0, error="worker.0 did not answer").history()
    found = [cause_of(h, incident) is not None for incident in incidents(h) if incident.sort is Sort.RPC]
    assert found == [explained]

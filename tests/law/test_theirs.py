"""What the law makes of plays of an engine that is not ours: what its records can show, and what its ways explain."""

from __future__ import annotations

import pytest

from engine.topology import data_parallel
from scenarios.history.names import EngineLife
from scenarios.history.verdicts import Verdict
from tests.guarantees.build import WORKLOAD, Builder, history

LAW = "nothing-without-cause"


def theirs() -> Builder:
    return history(world="vllm")


def called(h: Builder) -> Builder:
    return h.called("r0", core=False)


def test_what_its_processes_keep_of_themselves_is_no_incident() -> None:
    def left(world: str) -> Builder:
        return called(history(world=world)).ended("r0").observes("frontend.0", "bye", reason="done")

    assert left("vllm").judged(LAW).verdict is Verdict.HELD
    assert left("engine").judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize("end", ["failed", "aborted", "engine-dead"])
def test_a_request_that_ends_otherwise_needs_a_cause(end: str) -> None:
    assert called(theirs()).ended("r0", end, reason="why").judged(LAW).verdict is Verdict.BROKEN


def test_a_core_that_is_asked_to_leave_aborts_what_it_has() -> None:
    h = called(theirs()).fires("terminate", "core.0/mark:step").wait(.01)
    assert h.ended("r0", "aborted").judged(LAW).verdict is Verdict.HELD


def test_what_ended_before_is_not_explained_by_it() -> None:
    h = called(theirs()).ended("r0", "aborted").wait(.01).fires("terminate", "core.0/mark:step")
    assert h.judged(LAW).verdict is Verdict.BROKEN


def test_what_is_killed_when_its_engine_is_closed_has_its_cause() -> None:
    h = called(theirs().started()).ended("r0").wait(.01).observes("frontend.0", "closing", kept={}, errors=[]).wait(.01)
    assert h.ends("worker.0", exitcode=-9).judged(LAW).verdict is Verdict.HELD


def beside(world: str) -> Builder:
    """Two cores of one client, the first one with a request; the second one is killed."""
    built = history(world=world, tp=1, topology=data_parallel(2, coordinated=True), data_parallel_size=2)
    built.started().called("r0", core=False).wait(.01).fires("kill", "core.1/mark:step").wait(.01)
    return built.ends("core.1", exitcode=-9)


def test_who_is_given_up_with_another_has_its_cause() -> None:
    """A client of theirs gives up all of its engines where one has died, and one of ours does not."""
    def given_up(world: str) -> Builder:
        return beside(world).wait(.01).ends("core.0", exitcode=-15).ended("r0", "engine-dead")

    assert given_up("vllm").judged(LAW).verdict is Verdict.HELD
    assert given_up("engine").judged(LAW).verdict is Verdict.BROKEN


def test_a_request_of_who_is_given_up_is_not_aborted() -> None:
    """Its caller has not aborted it, and no core was asked to leave by anybody but its client."""
    h = beside("vllm").wait(.01).ended("r0", "aborted")
    assert h.judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize("lockstep", [True, False], ids=["in step", "side by side"])
def test_a_coordinator_of_theirs_is_missed_by_nobody(lockstep: bool) -> None:
    """Whoever has stopped serving behind its end has not done so because of it."""
    group = data_parallel(2, coordinated=True, lockstep=lockstep)
    theirs, ours = (history(world=world, tp=1, topology=group, data_parallel_size=2).history()
                    for world in ("vllm", "engine"))
    one, other = EngineLife(0, 0), EngineLife(1, 0)
    assert theirs.joined(one) == (one, other) and not theirs.lives_with(one, "coordinator.0")
    assert theirs.lives_with(one, "core.1")
    assert ours.lives_with(one, "coordinator.0") is ours.lives_with(one, "core.1") is lockstep


def test_what_is_killed_before_has_none() -> None:
    h = called(theirs().started()).ends("worker.0", exitcode=-9).wait(.01).ended("r0")
    assert h.observes("frontend.0", "closing", kept={}, errors=[]).judged(LAW).verdict is Verdict.BROKEN


@pytest.mark.parametrize(("closed", "verdict"), [(True, Verdict.HELD), (False, Verdict.BROKEN)])
def test_who_has_closed_its_engine_may_be_told_that_it_is_dead(closed: bool, verdict: Verdict) -> None:
    h = called(theirs().started()).ended("r0").wait(.01)
    if closed:
        h.observes("frontend.0", "closing", kept={}, errors=[])
    assert h.wait(.01).observes("frontend.0", "health", healthy=False, reason="dead").judged(LAW).verdict is verdict


@pytest.mark.parametrize(("asked", "verdict"), [({"kinds": {"seed": "a text"}}, Verdict.HELD), (None, Verdict.BROKEN)],
                         ids=["oddly", "as documented"])
def test_what_is_asked_for_oddly_may_fail(asked: object, verdict: Verdict) -> None:
    requests = [{**WORKLOAD["requests"][0], "asked_params": asked}]
    h = called(theirs().promised(workload={**WORKLOAD, "requests": requests}))
    assert h.ended("r0", "failed", reason="why", error="RequestError").judged(LAW).verdict is verdict


def test_it_promises_streams_nothing_of_a_lost_message_and_an_end_of_a_start_all_the_same() -> None:
    def verdict(name: str, channel: str) -> Verdict:
        h = theirs().observes("frontend.0", "starting").fires("drop", f"core.0->frontend.0/{channel}:receive")
        return h.wait(900.0).judged(name).verdict

    assert verdict("ends-once", "outputs") is Verdict.OUTSIDE
    assert verdict("start-ends", "handshake") is Verdict.BROKEN


@pytest.mark.parametrize(("world", "other_s", "verdict"), [
    ("vllm", 1.0, Verdict.HELD), ("vllm", 0.01, Verdict.BROKEN), ("engine", 1.0, Verdict.BROKEN)])
def test_its_core_tells_of_a_worker_when_the_others_have_left(world: str, other_s: float, verdict: Verdict) -> None:
    h = history(world=world).started().called("r0", core=False).wait(.01).fires("kill", "worker.1/mark:executing")
    h.ends("worker.1", exitcode=-9).wait(other_s).ends("worker.0").wait(1.01 - other_s)
    assert h.dies("r0", reason="worker.1 died").judged("death-is-told").verdict is verdict

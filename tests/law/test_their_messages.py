"""What a fault at a message of vLLM's explains: each row what it says, and nothing before, beside or long after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from engine.topology import data_parallel
from faults.plan import MESSAGE_FATES, Fate, Until
from scenarios.history.verdicts import Verdict
from scenarios.law.incidents import Sort, incidents
from scenarios.law.law import cause_of
from scenarios.law.reach import REACH, Reach
from scenarios.law.theirs import OF_MESSAGES, THEIRS
from tests.guarantees.build import OUTPUTS, REQUESTS, Builder, history, two_engines

LAW = "nothing-without-cause"
UP, DOWN, ANNOUNCED = ("core.0->frontend.0/handshake", "frontend.0->core.0/handshake", "core.0->frontend.0/requests")
LATE = Until(seconds=3.0)


class Occasion(NamedTuple):
    """Where a row's fault fires, at a message of which kind; which request it is about."""

    fate: Fate
    edge: str
    says: str = ""
    about: str = ""
    until: Until | None = None
    place: str = "receive"


OCCASIONS = {
    "a request comes twice": Occasion(Fate.DUPLICATE, REQUESTS, "ADD", "a-0"),
    "a call comes twice": Occasion(Fate.DUPLICATE, REQUESTS, "UTILITY"),
    "an answer comes twice": Occasion(Fate.DUPLICATE, OUTPUTS, "answer"),
    "a request is changed": Occasion(Fate.CORRUPT, REQUESTS, "ADD", "a-0"),
    "a request that is changed cannot be served": Occasion(Fate.CORRUPT, REQUESTS, "ADD", "a-0"),
    "a call is changed": Occasion(Fate.CORRUPT, REQUESTS, "UTILITY"),
    "a call to one of those in step is hit": Occasion(Fate.DROP, REQUESTS, "UTILITY"),
    "a message to the client cannot be read": Occasion(Fate.TRUNCATE, OUTPUTS, "outputs"),
    "what a request is told is changed": Occasion(Fate.CORRUPT, OUTPUTS, "outputs"),
    "a word of the start cannot be read": Occasion(Fate.TRUNCATE, DOWN, "INIT"),
    "a core's announcement cannot be read": Occasion(Fate.TRUNCATE, ANNOUNCED, "READY"),
    "a core greets twice": Occasion(Fate.DUPLICATE, UP, "HELLO"),
    "a word of the start is lost or late": Occasion(Fate.DELAY, UP, "READY", until=LATE),
    "a core's announcement is lost or late": Occasion(Fate.DROP, ANNOUNCED, "READY"),
}
#: What makes an incident of each sort in engine `e`, of which request "a" was called before.
MADE: dict[Sort, Callable[[Builder, int], Builder]] = {
    Sort.DEATH: lambda h, e: h.ends(f"core.{e}", exitcode=1),
    Sort.DEAD: lambda h, e: h.observes(f"frontend.{e}", "health", healthy=False, reason="core died"),
    Sort.START: lambda h, e: h.observes(f"frontend.{e}", "start-failed", error="RuntimeError", reason="no READY"),
    Sort.FAILED: lambda h, e: _ends(h, e, "failed", "RequestError"),
    Sort.REFUSED: lambda h, e: _ends(h, e, "refused", "RefusedError"),
    Sort.TOLD: lambda h, e: _ends(h, e, "engine-dead", "EngineDeadError"),
    Sort.ABORTED: lambda h, e: _ends(h, e, "aborted", ""),
    Sort.UTILITY: lambda h, e: h.observes(f"frontend.{e}", "utility", method="ping", failure="engine dead"),
}
CASES = [(row, sort) for row in OF_MESSAGES for sort in sorted(row.sorts, key=lambda sort: sort.name)]
EACH = pytest.mark.parametrize(("row", "sort"), CASES, ids=[f"{row.name}: {sort.name}" for row, sort in CASES])


def _ends(h: Builder, e: int, outcome: str, error: str) -> Builder:
    return h.ended("a", outcome, node=f"frontend.{e}", error=error)


def _begun(row: Reach) -> Builder:
    """Two engines, each with a client of its own and a request; of a start only that."""
    if "in step" in row.name:
        h = history(world="vllm", tp=1, topology=data_parallel(2, coordinated=True, lockstep=True))
        return h.called("a", core=False)
    h = history(world="vllm", topology=two_engines())
    for e in (0, 1):
        h.observes(f"frontend.{e}", "starting")
        if row.sorts != {Sort.START, Sort.DEATH}:
            h.observes(f"frontend.{e}", "ready", num_gpu_blocks=8).called("a", node=f"frontend.{e}", core=False)
    return h


def _fires(h: Builder, occasion: Occasion, **instead: Any) -> Builder:
    fate, edge, says, about, until, place = occasion._replace(**instead)
    told = {"says": says} | ({"about": about} if about else {})
    h.crosses(f"{edge}:{place}", "m", **told).fires(fate, f"{edge}:{place}", until=until)
    return h.wait(until.seconds).releases() if until is not None and until.seconds is not None else h


def _struck(row: Reach, **instead: Any) -> Builder:
    h = _fires(_begun(row), OCCASIONS[row.name], **instead)
    return h.wait(2 * h.config.bounds.detection_s) if "lost or late" in row.name else h


def _explained(h: Builder, sort: Sort, e: int = 0) -> list[str | None]:
    seen = h.history()
    return [cause_of(seen, incident) for incident in incidents(seen) if incident.sort is sort
            and seen.engine_of(incident.node).engine == e]


def test_every_row_has_its_occasion() -> None:
    assert [row.name for row in OF_MESSAGES] == list(OCCASIONS)


@EACH
def test_a_row_explains_what_follows_from_its_fault(row: Reach, sort: Sort) -> None:
    causes = _explained(MADE[sort](_struck(row), 0), sort)
    assert causes and None not in causes
    assert any(f"{row.name} (f1)" == cause for cause in causes) or "changed" in row.name or "in step" in row.name
    assert set(_explained(MADE[sort](_begun(row), 0), sort)) == {None}, "not the fault explains it"


@EACH
def test_no_row_explains_what_came_before_its_fault(row: Reach, sort: Sort) -> None:
    assert set(_explained(_fires(MADE[sort](_begun(row), 0).wait(0.1), OCCASIONS[row.name]), sort)) == {None}


@EACH
def test_no_row_explains_what_happens_to_another_engine(row: Reach, sort: Sort) -> None:
    if "in step" in row.name:
        pytest.skip("they live and die as one")
    h = MADE[sort](_struck(row), 1)
    assert set(_explained(h, sort, 1)) == {None}
    assert h.judged(LAW).verdict is Verdict.BROKEN


#: Rows that have no bound in time: of calls, which take as long as their workers do, and of requests, until their end.
_UNBOUND = ("in step", "a call is changed", "a request is changed", "cannot be served")


@EACH
def test_no_row_explains_what_comes_long_after_it(row: Reach, sort: Sort) -> None:
    """Of which nothing was told until then."""
    if any(name in row.name for name in _UNBOUND):
        pytest.skip("has no bound in time")
    assert set(_explained(MADE[sort](_struck(row).wait(60.0), 0), sort)) == {None}


# -- near misses: what vLLM tells nobody ---------------------------------------------------------------------------


@pytest.mark.parametrize("fate", sorted(MESSAGE_FATES - {Fate.CORRUPT, Fate.DUPLICATE}))
@pytest.mark.parametrize("says", ["ADD", "ABORT", "UTILITY"])
@pytest.mark.parametrize("sort", MADE)
def test_what_does_not_reach_the_core_as_it_was_explains_nothing(fate: Fate, says: str, sort: Sort) -> None:
    h = history(world="vllm").started().called("a", core=False)
    h = _fires(h, Occasion(fate, REQUESTS, says, "a-0" if says == "ADD" else "", LATE))
    assert set(_explained(MADE[sort](h, 0), sort)) == {None}


@pytest.mark.parametrize("fate", [Fate.DROP, Fate.DELAY, Fate.REORDER, Fate.DUPLICATE])
@pytest.mark.parametrize("says", ["outputs", "ENGINE_CORE_DEAD"])
@pytest.mark.parametrize("sort", MADE)
def test_outputs_that_are_lost_late_or_come_twice_explain_nothing(fate: Fate, says: str, sort: Sort) -> None:
    h = history(world="vllm").started().called("a", core=False)
    assert set(_explained(MADE[sort](_fires(h, Occasion(fate, OUTPUTS, says)), 0), sort)) == {None}


@pytest.mark.parametrize("edge", [REQUESTS, OUTPUTS])
@pytest.mark.parametrize("sort", MADE)
def test_a_connection_that_ends_explains_nothing(edge: str, sort: Sort) -> None:
    h = _fires(history(world="vllm").started().called("a", core=False), Occasion(Fate.CUT, edge, place="wire"))
    assert set(_explained(MADE[sort](h, 0), sort)) == {None}


@pytest.mark.parametrize("says", ["ABORT", "UTILITY"])
def test_only_a_request_that_comes_twice_ends_a_core(says: str) -> None:
    h = _fires(history(world="vllm").started(), Occasion(Fate.DUPLICATE, REQUESTS, says))
    assert _explained(h.ends("core.0", exitcode=1), Sort.DEATH) == [None]


def test_a_core_s_end_by_a_request_that_came_twice_explains_what_is_told_later() -> None:
    h = _fires(history(world="vllm").started().called("a", core=False), OCCASIONS["a request comes twice"])
    h = h.dies("a").wait(30.0).called("b", 1, core=False).dies("b")
    assert _explained(h, Sort.TOLD) == ["a request comes twice (f1)"] * 2


def test_a_message_that_cannot_be_read_fails_no_request_that_comes_later() -> None:
    h = _fires(history(world="vllm").started(), OCCASIONS["a message to the client cannot be read"])
    assert _explained(MADE[Sort.FAILED](h.called("a", core=False), 0), Sort.FAILED) == [None]


def test_a_message_that_cannot_be_read_ends_no_process() -> None:
    h = _fires(history(world="vllm").started(), OCCASIONS["a message to the client cannot be read"])
    assert _explained(h.ends("core.0", exitcode=1), Sort.DEATH) == [None]


def test_a_request_that_is_changed_fails_no_other_one_and_ends_nothing_when_it_is_over() -> None:
    h = _fires(history(world="vllm").started().called("a", core=False).called("b", 1, core=False),
               OCCASIONS["a request is changed"])
    h = h.ended("a").wait(1.0).ended("b", "failed", error="RequestError").ends("core.0", exitcode=1)
    assert _explained(h, Sort.FAILED) == [None] and _explained(h, Sort.DEATH) == [None]


@pytest.mark.parametrize("fate", [Fate.DROP, Fate.DELAY, Fate.REORDER, Fate.CUT])
def test_a_start_does_not_fail_at_once_by_a_word_that_is_missed(fate: Fate) -> None:
    h = history(world="vllm").observes("frontend.0", "starting")
    h.crosses(f"{UP}:receive", "m", says="HELLO")
    h.fires(fate, f"{UP}:{'wire' if fate is Fate.CUT else 'receive'}", until=LATE)
    assert _explained(MADE[Sort.START](h, 0), Sort.START) == [None]


def test_a_start_does_not_fail_by_a_word_that_is_a_little_late() -> None:
    h = _fires(history(world="vllm").observes("frontend.0", "starting"), Occasion(
        Fate.DELAY, UP, "HELLO", until=Until(seconds=0.05)))
    assert _explained(MADE[Sort.START](h.wait(2.0), 0), Sort.START) == [None]


@pytest.mark.parametrize("says", ["READY", "INIT"])
def test_no_other_word_that_comes_twice_ends_a_start(says: str) -> None:
    h = _fires(history(world="vllm").observes("frontend.0", "starting"), Occasion(Fate.DUPLICATE, UP, says))
    assert _explained(MADE[Sort.START](h, 0), Sort.START) == [None]


def test_a_word_of_a_start_that_is_over_explains_nothing() -> None:
    h = _fires(history(world="vllm").started(), OCCASIONS["a word of the start cannot be read"])
    assert _explained(h.ends("core.0", exitcode=1), Sort.DEATH) == [None]


def test_a_message_whose_kind_is_not_on_record_explains_nothing_of_its_kind() -> None:
    h = _fires(history(world="vllm").started().called("a", core=False), Occasion(Fate.DUPLICATE, REQUESTS))
    assert _explained(h.dies("a"), Sort.TOLD) == [None]


# -- what a coordinator hears

HUB, GROUP = "coordinator.0", data_parallel(2, coordinated=True, lockstep=True)
REPORT, SUBSCRIPTION = f"core.0->{HUB}/report", f"core.1->{HUB}/wave"


def _group(*, started: bool) -> Builder:
    h = history(world="vllm", tp=1, topology=GROUP).observes("frontend.0", "starting")
    return h.observes("frontend.0", "ready", num_gpu_blocks=8) if started else h


def test_what_a_coordinator_hears_explains_its_end_and_that_of_a_start() -> None:
    h = _fires(_group(started=True), Occasion(Fate.TRUNCATE, REPORT)).ends(HUB, exitcode=1)
    assert _explained(h, Sort.DEATH) == ["a report cannot be read (f1)"]
    h = MADE[Sort.START](_fires(_group(started=False), Occasion(Fate.DROP, SUBSCRIPTION)).wait(2.0), 0)
    h = h.ends("core.1", exitcode=1)
    assert _explained(h, Sort.START) == ["a core's subscription is lost or late (f1)"]
    assert _explained(h, Sort.DEATH, 1) == ["a core's subscription is lost or late (f1)"]


@pytest.mark.parametrize("told", [
    lambda: _fires(_group(started=True), Occasion(Fate.DROP, REPORT)).ends(HUB, exitcode=1),
    lambda: _fires(_group(started=True), Occasion(Fate.TRUNCATE, REPORT)).wait(2.0).ends(HUB, exitcode=1),
    lambda: _fires(_group(started=True), Occasion(Fate.TRUNCATE, REPORT)).ends("core.0", exitcode=1),
    lambda: _fires(_group(started=True), Occasion(Fate.DROP, SUBSCRIPTION)).wait(2.0).ends("core.0", exitcode=1),
    lambda: MADE[Sort.START](_fires(_group(started=False), Occasion(Fate.DROP, SUBSCRIPTION)), 0)],
    ids=["a report is lost", "long after", "of the core that reports", "it has started", "at once"])
def test_what_a_coordinator_hears_explains_nothing_else(told: Callable[[], Builder]) -> None:
    h = told()
    assert {*_explained(h, Sort.DEATH), *_explained(h, Sort.START)} == {None}


def test_the_rows_of_messages_stand_in_place_of_ours() -> None:
    """And those of processes are the same."""
    gone = [row for row in REACH if row not in THEIRS]
    assert {row.name for row in REACH if row.fates & MESSAGE_FATES and any(
        f"/{channel}:" in row.sites for channel in ("requests", "outputs", "handshake")) and not row.fates & {
            Fate.STALL}} <= {row.name for row in gone}
    assert {"the core dies", "a worker dies", "a worker stands still"} <= {row.name for row in THEIRS}

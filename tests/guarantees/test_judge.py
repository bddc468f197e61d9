"""The verdict logic: one place, one order of precedence."""

import pytest

from scenarios.guarantees.judge import HarnessError, judge
from scenarios.guarantees.registry import GUARANTEES
from scenarios.history.verdicts import Cell, Judgement, Verdict
from tests.guarantees.build import OUTPUTS, REQUESTS, RESPONSE, Builder, history


def cell(judgement: Judgement, name: str) -> Cell:
    return next(cell for cell in judgement.cells if cell.guarantee == name)


def test_a_failed_lab_is_an_error_and_no_verdict() -> None:
    with pytest.raises(HarnessError, match="no free port"):
        history().started().lab(failure="no free port").judgement()


def test_a_run_without_a_record_is_an_error_and_no_verdict() -> None:
    with pytest.raises(HarnessError, match="not|single record"):
        history().judgement()


def test_a_planned_fault_that_did_not_fire_makes_every_cell_unknown() -> None:
    judgement = history().started().request("a").ended("a").plans("kill", "core.0/mark:step").judgement()
    law, *promises = judgement.cells
    assert law.guarantee == "nothing-without-cause" and law.verdict is Verdict.HELD
    assert {cell.verdict for cell in promises} == {Verdict.UNKNOWN}
    assert [(fault.id, fault.fired) for fault in judgement.faults] == [("f1", False)]
    assert "core.0/mark:step" in promises[0].evidence[0].text


def test_the_law_is_judged_where_every_promise_is_unknown_or_outside() -> None:
    h = history().started().called("a").wait(2).ended("a", "failed", error="RequestTimeoutError")
    assert cell(h.plans("kill", "core.0/mark:step").judgement(), "nothing-without-cause").verdict is Verdict.BROKEN
    h = history().started().request("a").fires("corrupt", f"{OUTPUTS}:receive").ends("worker.1", exitcode=1)
    assert cell(h.judgement(), "nothing-without-cause").verdict is Verdict.BROKEN


def test_a_fault_outside_of_the_envelope_is_never_red() -> None:
    """The stream is broken, but the plan changed bytes that no checksum protects."""
    h = history().started().called("a").fires("corrupt", f"{OUTPUTS}:receive").streams("a", [1], offset=2)
    found = cell(h.judgement(), "tokens-in-order")
    assert found.verdict is Verdict.OUTSIDE
    assert found.as_declared
    assert "checksum" in found.evidence[0].text


def test_a_break_beats_what_cannot_be_told() -> None:
    h = history("engine").started().called("a").called("b", 1).ended("b").ended("b").wait(3)
    assert cell(h.judgement(), "ends-once").verdict is Verdict.BROKEN


def test_a_promise_is_expected_to_hold_and_a_canary_says_what_it_expects() -> None:
    h = history().started().request("a").promised("ends-once", "hwm0-no-loss",
                                                  expected={"hwm0-no-loss": Verdict.BROKEN})
    judgement = h.judgement()
    assert cell(judgement, "ends-once").expected is Verdict.HELD
    assert cell(judgement, "hwm0-no-loss").expected is Verdict.BROKEN
    assert cell(judgement, "edge-fifo").expected is None


def test_a_promised_guarantee_that_does_not_apply_is_untested_not_missing() -> None:
    judgement = history(tp=1).started().promised("ring-exact-prefix").judgement()
    assert cell(judgement, "ring-exact-prefix").verdict is Verdict.UNTESTED
    assert not any(c.guarantee == "workers-in-step" for c in judgement.cells)


def test_an_unknown_guarantee_is_named() -> None:
    with pytest.raises(KeyError, match="no-such"):
        history().started().promised("no-such").judgement()


def test_only_the_asked_for_promises_are_judged() -> None:
    h = history().started().request("a")
    judgement = judge(h.play(), h.lab_seen(), h.journals(), only=["ends-once"])
    assert [c.guarantee for c in judgement.cells] == ["ends-once"]


def test_every_cell_of_a_calm_run_has_evidence_and_none_is_red() -> None:
    h = history(subscribers=1, skip_tokenizer_init=False).started()
    judgement = h.observes("frontend.0", "closing").judgement()
    not_of_it = [name for name in GUARANTEES if name.startswith(("queue-", "programs-", "self-checks-", "priority-",
                                                                "steps-in-order", "async-", "placeholders-", "pp-",
                                                                "dp-", "client-", "notice-", "launcher-",
                                                                "thread-", "pause-"))]
    assert len(judgement.cells) == len(GUARANTEES) - len(not_of_it)
    assert all(c.evidence for c in judgement.cells)
    assert not [c.guarantee for c in judgement.cells if c.verdict is Verdict.BROKEN]


def test_a_death_is_detected_when_the_first_caller_is_told() -> None:
    h = history().started().called("a").fires("kill", f"{RESPONSE[1]}:send").wait(.02).dies("a")
    [fault] = h.judgement().faults
    assert fault.node == "worker.1"
    assert fault.detected_at - fault.at == pytest.approx(.021)


def test_a_lost_message_is_not_detected_as_a_death() -> None:
    h = history().started().called("a").fires("drop", f"{REQUESTS}:receive").wait(2).ended("a", "failed")
    [fault] = h.judgement().faults
    assert fault.fired
    assert fault.detected_at is None


@pytest.mark.parametrize(("how", "build"), [
    ("clean", lambda h: h.request("a").observes("frontend.0", "closing")),
    ("isolated request", lambda h: h.request("a", outcome="failed", error="BadRequestError")),
    ("clean error", lambda h: h.called("a").fires("kill", "core.0/mark:step").observes(
        "frontend.0", "engine-dead", reason="x").dies("a")),
    ("hang", lambda h: h.called("a").wait(9)),
    ("hang", lambda h: h.request("a").lab(guard_expired=True)),
    ("crash", lambda h: h.called("a").ends("core.0", exitcode=-11).wait(.05).observes(
        "frontend.0", "engine-dead", reason="x").dies("a")),
])
def test_how_the_run_ended_is_told_in_a_word(how: str, build) -> None:  # noqa: ANN001
    h: Builder = build(history().started())
    assert h.judgement().ended == how

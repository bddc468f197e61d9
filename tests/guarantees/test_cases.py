"""Every guarantee accepts, rejects and stays silent as its unit histories say."""

import pytest

from scenarios.guarantees.registry import GUARANTEES
from scenarios.history.verdicts import Verdict
from tests.guarantees import (  # noqa: F401  each module adds its histories to the table
    cases_apart,
    cases_asking,
    cases_birth,
    cases_clients,
    cases_coordinator,
    cases_cores,
    cases_death,
    cases_first,
    cases_flight,
    cases_holdings,
    cases_hub,
    cases_kv,
    cases_kv_late,
    cases_kv_patience,
    cases_kv_publishing,
    cases_kv_ranks,
    cases_kv_reading,
    cases_kv_strange,
    cases_law,
    cases_load,
    cases_modes,
    cases_names,
    cases_odd,
    cases_offline,
    cases_pairs,
    cases_passed,
    cases_priority,
    cases_programs,
    cases_queue,
    cases_requests,
    cases_ring,
    cases_rpc,
    cases_silence,
    cases_stages,
    cases_steps,
    cases_text,
    cases_transport,
    cases_turns,
    cases_waves,
    cases_wrong,
)
from tests.guarantees.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_history_gets_its_verdict(case: Case) -> None:
    cell = case.build().judged(case.guarantee)
    assert cell.verdict is case.verdict, [evidence.text for evidence in cell.evidence]
    assert cell.evidence, "a verdict without a reason"
    if case.verdict is Verdict.HELD:
        assert cell.witnesses > 0


@pytest.mark.parametrize("name", GUARANTEES)
@pytest.mark.parametrize("verdict", [Verdict.HELD, Verdict.BROKEN, Verdict.UNTESTED], ids=str)
def test_every_guarantee_ships_with_what_it_accepts_rejects_and_says_nothing_about(name: str, verdict: Verdict) -> None:
    assert any(case.guarantee == name and case.verdict is verdict for case in CASES)


def test_no_history_is_about_a_guarantee_that_does_not_exist() -> None:
    assert {case.guarantee for case in CASES} <= set(GUARANTEES)

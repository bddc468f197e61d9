"""The twin and the engine, playing the same plans, come to the same verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.results import agreement, exit_code
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import Scenario, catalogue, selected
from scenarios.lab.player import Settings, Worlds, play
from scenarios.worlds.registry import can_play

#: One of each kind, and fast: calm, two deaths, the ring, overflow, transport, start-up.
NAMES = (
    "test_nothing_goes_wrong",
    "test_core_dies_in_mid_step",
    "test_answering_worker_dies",
    "test_reader_stalls_until_the_ring_is_full",
    "test_overflow_payloads_overtake_each_other",
    "test_output_is_doubled",
    "test_frames_that_are_no_requests",
    "test_worker_dies_while_loading",
)
CANARY = "test_canary_no_linger"

pytestmark = pytest.mark.skipif(can_play("engine") is not None, reason=str(can_play("engine")))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    opened = Worlds(Settings(out=Path(tmp_path_factory.mktemp("agreement")), device="cpu"))
    yield opened
    opened.close()


def both(worlds: Worlds, name: str) -> list:
    scenario: Scenario = selected(catalogue(), [name])[0]
    outcomes = [play(scenario, worlds.open(world, scenario)) for world in ("sim", "engine")]
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    return [run for outcome in outcomes for run in outcome.runs]


@pytest.mark.parametrize("name", NAMES)
def test_both_worlds_say_the_same_of_one_plan(worlds: Worlds, name: str) -> None:
    """Wherever both worlds decided, they decided alike; and they decided every promise of the scenario."""
    runs = both(worlds, name)
    found = agreement(runs)
    assert found["disagreements"] == []
    assert found["played_in_one_world"] == []
    assert found["agreed"] >= len(runs[0].play.promises)
    assert exit_code(runs) == 0


def test_both_worlds_are_red_where_a_mechanism_is_switched_off(worlds: Worlds) -> None:
    """Agreement is not only about what is green."""
    runs = both(worlds, CANARY)
    assert agreement(runs)["disagreements"] == []
    for world in ("sim", "engine"):
        said = {cell.verdict for run in runs if run.play.world == world for cell in run.judgement.cells
                if cell.guarantee == "dead-notice"}
        assert Verdict.BROKEN in said

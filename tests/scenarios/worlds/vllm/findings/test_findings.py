"""What is declared broken of vLLM is a finding, with its promise, a program without the lab, and a mend that heals.

The controls are played where an interpreter that has vLLM is named; PLANTED=all plays those of all findings.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.guarantees.registry import GUARANTEES
from scenarios.guarantees.theirs import is_promised
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import Scenario, catalogue
from scenarios.lab.player import play
from scenarios.worlds.vllm.edits.mends import MENDS
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.known import KNOWN, alike
from scenarios.worlds.vllm.findings.table import FINDINGS, finding_of
from scenarios.worlds.vllm.world import VllmWorld
from tests.mutation.plays import asked_for

CHOSEN = FINDINGS if os.environ.get("PLANTED") == "all" else FINDINGS[:1]


def declared() -> list[tuple[Scenario, str]]:
    """(scenario, guarantee) that is declared broken of vLLM."""
    return [(scenario, guarantee) for scenario in catalogue() if scenario.only and scenario.only.world == "vllm"
            for guarantee in getattr(scenario.function, "broken", ())]


def test_each_red_of_vllm_is_a_finding() -> None:
    assert declared()
    unknown = [(scenario.name, guarantee) for scenario, guarantee in declared()
               if finding_of(scenario.name, guarantee) is None]
    assert unknown == []


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_each_finding_is_whole(finding: Finding) -> None:
    shown = {guarantee for scenario, guarantee in declared() if finding.shows(scenario.name, guarantee)}
    assert set(finding.breaks) <= set(GUARANTEES)
    if finding.by_chance:
        assert finding.control in {edit for scenario in catalogue() if scenario.function.__name__ in finding.rows
                                   for play in asked_for(scenario) for edit in play.options.edits}
    else:
        assert shown == set(finding.breaks)
    assert all(GUARANTEES[guarantee].is_law or is_promised(guarantee, "vllm") for guarantee in finding.breaks)
    assert finding.control in MENDS and finding.source and finding.mechanism
    module = f"scenarios.worlds.vllm.findings.by_hand.{finding.by_hand}"
    found = importlib.util.find_spec(module)
    assert found is not None and found.origin is not None
    assert f'prepared("{finding.control}")' in Path(found.origin).read_text()


def test_no_two_findings_are_one() -> None:
    """One mend, one defect."""
    for field in ("id", "control", "by_hand"):
        assert len({getattr(finding, field) for finding in FINDINGS}) == len(FINDINGS)


def test_what_is_known_names_guarantees_that_there_are_and_is_recognized_by_what_befell_whom() -> None:
    assert {name for one in KNOWN for name in one.breaks} <= set(GUARANTEES)
    assert len({one.number for one in KNOWN}) == len(KNOWN)
    assert "vllm#55510" in [one.number for one in alike(["no-orphans"], ["kill"], ["frontend"])]
    assert "vllm#55510" not in [one.number for one in alike(["no-orphans"], ["kill"], ["core"])]
    assert alike(["tokens-match-reference"], ["kill"], ["core"]) == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorld]:
    world = VllmWorld(Path(tmp_path_factory.mktemp("controls")))
    yield world
    world.close()


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")
@pytest.mark.parametrize("finding", CHOSEN, ids=lambda finding: finding.id)
def test_a_play_of_a_finding_is_green_when_its_mechanism_is_mended(world: VllmWorld, finding: Finding) -> None:
    for scenario in {scenario.name: scenario for scenario, guarantee in declared()
                     if finding.shows(scenario.name, guarantee)}.values():
        world.edits, world.scenario, world.title, world.played = (finding.control,), scenario.name, scenario.title, []
        result = play(scenario, world)
        assert result.failure is None and result.skipped is None and not result.runs[0].unfired
        assert result.runs[0].judgement is not None
        broken = {cell.guarantee for cell in result.runs[0].judgement.cells if cell.verdict is Verdict.BROKEN}
        assert broken == set()

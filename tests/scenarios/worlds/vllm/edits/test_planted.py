"""Bugs of ours in vLLM itself, where an interpreter that has it is named: each turns its promise red in its scenario.

PLANTED=all plays all of them; some take a minute, because what a bug hangs the lab waits for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import catalogue
from scenarios.lab.player import play
from scenarios.worlds.vllm.edits.planted import PLANTED
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.world import VllmWorld

#: Of those that are played each time; the others hang, and are waited for.
QUICK = ("tokens-of-another", "always-healthy")
CHOSEN = tuple(PLANTED) if os.environ.get("PLANTED") == "all" else QUICK


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorld]:
    world = VllmWorld(Path(tmp_path_factory.mktemp("planted")))
    yield world
    world.close()


def test_each_names_a_scenario_that_holds_without_it() -> None:
    shipped = {scenario.name: scenario for scenario in catalogue()}
    for planted in PLANTED.values():
        assert planted.breaks not in shipped[planted.scenario].function.broken  # type: ignore[attr-defined]


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")
@pytest.mark.parametrize("name", CHOSEN)
def test_a_bug_of_vllm_is_seen(world: VllmWorld, name: str) -> None:
    planted = PLANTED[name]
    scenario = next(one for one in catalogue() if one.name == planted.scenario)
    world.edits, world.scenario, world.title, world.played = (name,), scenario.name, scenario.title, []
    result = play(scenario, world)
    assert result.failure is None and result.skipped is None
    (run,) = result.runs
    assert run.play.options.edits == (name,) and run.judgement is not None
    broken = {cell.guarantee for cell in run.judgement.cells if cell.verdict is Verdict.BROKEN}
    assert planted.breaks in broken and result.broken is not None

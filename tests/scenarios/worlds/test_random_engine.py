"""Plans that nobody wrote, on real processes: several cores, and clients that share them, judged by every guarantee.

What is struck is what the twin crosses without a fault; where it does not fire the law is judged all the same.
RANDOM_ENGINE_PLANS=200 plays more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from faults.generate import generate_plan
from faults.plan import plan_to_json
from scenarios.guarantees.judge import judge
from scenarios.history.verdicts import Verdict
from scenarios.worlds.engine import EngineWorld
from tests.scenarios.worlds.test_random_plans import TOPOLOGIES, crossings, none_is_broken, play_of

PLANS = int(os.environ.get("RANDOM_ENGINE_PLANS", "20"))
SIZES = (1, 2, 3)
NAMES = ("two cores", "two cores and a coordinator", "two ranks in step", "two clients of a core",
         "two cores of two workers", "two clients of two cores in step", "two clients, and one comes back",
         "two ranks of two workers in step")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineWorld]:
    world = EngineWorld(Path(tmp_path_factory.mktemp("random")))
    yield world
    world.close()


@pytest.mark.parametrize("seed", range(PLANS))
def test_no_promise_is_broken_on_the_engine_and_none_in_the_twin(world: EngineWorld, seed: int) -> None:
    name = NAMES[seed % len(NAMES)]
    plan = generate_plan(TOPOLOGIES[name], seed, SIZES[seed % len(SIZES)], crossings(name))
    play = play_of(name, plan)
    bounds = msgspec.structs.replace(play.config.bounds, request_s=6.0)  # the twin never waits for a processor
    play = msgspec.structs.replace(play, config=msgspec.structs.replace(play.config, bounds=bounds))
    run, *_ = world.replay(play).runs
    broken = {cell.guarantee: cell.evidence[0].text for cell in judge(run.play, run.lab, run.journals).cells
              if cell.verdict is Verdict.BROKEN}
    assert not broken, f"{name}: {broken} by {plan_to_json(plan).decode()}"
    none_is_broken(name, plan)

"""What every world does for a scenario, shown on the twin."""

from __future__ import annotations

import pytest

from engine.topology import Mark, core, mark_site, tensor_parallel
from faults.plan import kill, plan
from reports.collect import collect
from scenarios.guarantees.all import death_is_told, tokens_match_reference
from scenarios.history.run import load_run
from scenarios.history.verdicts import Verdict
from scenarios.workloads.workload import recorded
from scenarios.worlds.registry import WORLDS
from scenarios.worlds.sim import SimWorld


def test_a_scenario_that_plays_twice_keeps_both_runs(tmp_path) -> None:
    world = SimWorld(tmp_path)
    world.scenario = "twice"
    calm = world.play(topology=tensor_parallel(2), workload=recorded("eight-even"))
    calm.holds(tokens_match_reference)
    deadly = world.play(topology=tensor_parallel(2), workload=recorded("eight-even"),
                        plan=plan(kill("core.0", at=mark_site(core(), Mark.SCHEDULED), nth=3)))
    deadly.holds(death_is_told)
    runs = [*calm.runs, *deadly.runs]
    assert [run.path.name for run in runs] == ["twice-sim", "twice-sim.2"]
    assert [load_run(run.path).play.plan.faults == () for run in runs] == [True, False]
    (scenario,) = collect([load_run(run.path) for run in runs])
    assert len(scenario.runs) == 2
    assert {scenario.sides[name]["sim"].verdict for name in ("tokens-match-reference", "death-is-told")} == {
        Verdict.HELD}


def test_the_same_scenario_played_anew_replaces_its_runs(tmp_path) -> None:
    for _ in range(2):
        world = SimWorld(tmp_path)
        world.scenario = "again"
        world.play(topology=tensor_parallel(1), workload=recorded("eight-even"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["again-sim"]


@pytest.mark.parametrize("entry", WORLDS.values(), ids=lambda entry: entry.name)
def test_a_world_is_what_the_registry_says_of_it(entry, tmp_path) -> None:
    if (reason := entry.obstacle()) is not None:
        pytest.skip(reason)
    world = entry.make(tmp_path)
    assert (world.name, world.virtual_time) == (entry.name, entry.virtual_time)
    world.close()


def test_a_play_records_whose_time_it_was(tmp_path) -> None:
    world = SimWorld(tmp_path)
    (run,) = world.play(topology=tensor_parallel(1), workload=recorded("pair")).runs
    assert (run.play.world, run.play.virtual_time) == ("sim", True)

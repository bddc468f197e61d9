"""Who met whom: collectives of an engine's own ranks, and those across the engines of a group."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.topology import data_parallel
from reports.charts.arrows import Collective, arrows_of
from scenarios.history.run import Run
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import eight
from scenarios.worlds.sim import SimWorld
from tests.reports.charts.told import Told, history

OWN = {"worker.0": 0, "worker.1": 0, "worker.1.0": 1, "worker.1.1": 1}
ACROSS = {"worker.0": 0, "worker.1.0": 0, "worker.1": 1, "worker.1.1": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    world = SimWorld(tmp_path_factory.mktemp("groups"))
    world.scenario = "test_groups"
    return world.play(topology=data_parallel(2, tp=2, lockstep=True), workload=eight(),
                      config=lab_config(bounds={"collective_s": 0.8})).runs[0]


def collectives(run: Run) -> list[Collective]:
    return [item for item in arrows_of(run.history) if isinstance(item, Collective)]


def test_ranks_meet_their_own_group_and_their_like_and_nobody_else(run):
    for collective in collectives(run):
        groups = ACROSS if collective.operation else OWN
        assert len({groups[node] for node in collective.entered}) == 1 and len(collective.entered) == 2


def test_every_entry_stands_in_one_collective_of_its_kind(run):
    found = Counter((node, bool(item.operation)) for item in collectives(run) for node in item.entered
                    for _ in range(item.count))
    wanted = Counter((file.node, record.data.get("operation") == "keep_step") for file in run.journals
                     for record in file.records if record.site == f"{file.node}/collective:enter")
    assert found == wanted and len(wanted) == 8 and min(wanted.values()) > 10


def test_what_engines_enter_together_does_not_shift_the_numbers_of_the_others():
    """Two calls of core.0 beside one of core.1: they meet in their first step together."""
    told = [Told("core.0").at(1.0, "core.0/collective:enter", operation="all_reduce")
            .at(2.0, "core.0/collective:enter", operation="keep_step"),
            Told("core.1").at(2.5, "core.1/collective:enter", operation="keep_step")]
    found = [item for item in arrows_of(history(data_parallel(2, lockstep=True), *told))
             if isinstance(item, Collective)]
    assert [(item.words, sorted(item.entered)) for item in found] == [
        ("collective 1", ["core.0"]), ("keep_step 1", ["core.0", "core.1"])]


def test_cores_that_do_not_step_together_meet_nobody():
    told = [Told(node).at(1.0, f"{node}/collective:enter") for node in ("core.0", "core.1")]
    found = [item for item in arrows_of(history(data_parallel(2), *told)) if isinstance(item, Collective)]
    assert [sorted(item.entered) for item in found] == [["core.0"], ["core.1"]]

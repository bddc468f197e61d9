"""What steps that all ranks make together cost, and what they bring, in the twin's time."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

import msgspec
import pytest

from engine.topology import Mark, Topology, data_parallel, mark_site
from faults.plan import Plan
from scenarios.history.history import History
from scenarios.history.play import Play
from scenarios.lab.settings import lab_config, of_topology
from scenarios.test_lockstep import rested
from scenarios.workloads import Workload, add, recorded
from scenarios.worlds.sim import play_once

INTERVALS = (1, 2, 4, 8, 16, 32)


def played(topology: Topology, workload: Workload, **options: object) -> History:
    config = of_topology(lab_config(bounds={"collective_s": 0.8}, data_parallel=options), topology)
    play = Play(scenario="waves", title="", world="sim", topology=topology, plan=Plan(), config=config, promises=(),
                workload=msgspec.to_builtins(workload.played()))
    simulation, lab = play_once(play)
    return History(play, lab, simulation.journal_files())


def of_interval(interval: int) -> tuple[float, float]:
    """(all-reduces for each forward, dummy batches for each wave), of one rank of two that come to rest twice."""
    seen = played(data_parallel(2, lockstep=True), rested(), sync_interval=interval)
    entered, dummies = seen.crossings["core.0/consensus:enter"], seen.crossings.get(mark_site("core.1", Mark.DUMMY), ())
    waves = seen.crossings[mark_site("core.0", Mark.WAVE_DONE)]
    forwards = [record for record in seen.crossings["core.0/collective:enter"]
                if record.data.get("operation") == "keep_step"]
    return len(entered) / len(forwards), len(dummies) / len(waves)


def test_ranks_that_ask_each_other_seldom_make_more_dummy_batches_and_fewer_all_reduces() -> None:
    asked, dummies = zip(*map(of_interval, INTERVALS), strict=True)
    assert list(asked) == sorted(asked, reverse=True) and asked[0] > 4 * asked[-1]
    assert list(dummies) == sorted(dummies) and dummies[-1] > dummies[0]
    assert all(more - dummies[0] <= interval for interval, more in zip(INTERVALS, dummies, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_step_together_answer_equal_requests_in_equal_times(ranks: int) -> None:
    seen = played(data_parallel(ranks, lockstep=True), recorded("eight-even").then(add(*range(8))))
    took: dict[str, list[float]] = defaultdict(list)
    for operation in seen.operations:
        assert operation.accepted is not None and operation.ends
        took[seen.asked_of(operation).core].append(operation.ended_at - operation.accepted.at)
    assert {core: len(times) for core, times in took.items()} == {f"core.{k}": 8 // ranks for k in range(ranks)}
    times = [mean(times) for times in took.values()]
    assert max(times) < 1.1 * min(times), took

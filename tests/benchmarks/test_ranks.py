"""What a rank costs the twin: sixteen that step together beside two, for each forward, judging included.

    pytest tests/benchmarks/test_ranks.py -s                       a few rounds
    RINGTWIN_ROUNDS=50 pytest tests/benchmarks/test_ranks.py -s    the measurement

A forward of one of sixteen may cost at most twice as much as one of two: nothing that a play does may grow with the
square of its ranks. Processor time, interleaved, medians.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import msgspec
import pytest

from engine.topology import data_parallel
from faults.plan import Plan
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import of_topology
from scenarios.test_data_parallel import eight
from scenarios.test_lockstep import CONFIG
from scenarios.worlds.sim import play_once

pytest.importorskip("pytest_benchmark")

ROUNDS = int(os.environ.get("RINGTWIN_ROUNDS", "5"))
MOST = 2.0


def cost_of_a_forward(ranks: int) -> float:
    """Processor time, in s, of a play and its judges, for each forward of each rank."""
    topology = data_parallel(ranks, lockstep=True)
    play = Play(scenario="ranks", title="", world="sim", topology=topology, plan=Plan(), promises=(),
                config=of_topology(CONFIG, topology), workload=msgspec.to_builtins(eight().played()),
                virtual_time=True)
    began = time.process_time()
    simulation, lab = play_once(play)
    journals = simulation.journal_files()
    verdicts = {cell.guarantee: cell.verdict for cell in judge(play, lab, journals).cells}
    took = time.process_time() - began
    assert verdicts["tokens-match-reference"] is Verdict.HELD and Verdict.BROKEN not in verdicts.values()
    return took / sum(record.site.endswith("/collective:enter") for file in journals for record in file.records)


def test_sixteen_ranks_beside_two(benchmark: Any) -> None:
    ratios: list[float] = []

    def both() -> None:
        two, sixteen = cost_of_a_forward(2), cost_of_a_forward(16)
        ratios.append(sixteen / two)

    benchmark.pedantic(both, rounds=max(3, ROUNDS), warmup_rounds=1)
    ratio = statistics.median(ratios)
    benchmark.extra_info["ratio"] = ratio
    print(f"\n  a forward of one of 16 ranks beside one of 2: {ratio:.2f}, at most {MOST}")
    assert ratio <= MOST

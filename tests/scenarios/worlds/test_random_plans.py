"""Plans that nobody wrote: random faults at sites that a calm play crosses, judged by every guarantee.

No promise may be BROKEN: whatever a plan does that a promise need not survive stands in that promise's envelope.
RANDOM_PLANS=1000 plays more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import msgspec
import pytest

from engine.topology import Topology, tensor_parallel
from faults.generate import generate_plan
from faults.plan import Plan, plan_to_json
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import play_once
from sim.kernel.choices import Choices

PLANS = int(os.environ.get("RANDOM_PLANS", "20"))
TOPOLOGIES = {"two workers": tensor_parallel(2), "a subscriber": tensor_parallel(2, subscribers=1),
              "four workers": tensor_parallel(4), "one process": tensor_parallel(1)}


def played(topology: Topology, plan: Plan) -> tuple:
    """-> (play, simulation, lab)"""
    config = lab_config(tensor_parallel_size=topology.engines[0].tp, bounds={"request_s": 2.0},
                        kv_events={"enable_kv_cache_events": len(topology.subscribers) > 0})
    play = Play(scenario="random", title="", world="sim", topology=topology, plan=plan, config=config, promises=(),
                workload=msgspec.to_builtins(recorded("eight-mixed").played()))
    return play, *play_once(play, Choices())


@cache
def crossings(name: str) -> dict[str, int]:
    """How often a calm play crosses each site."""
    _, simulation, _ = played(TOPOLOGIES[name], Plan())
    counts: Counter[str] = Counter()
    for journal in simulation.journal_files():
        for record in journal.records:
            if record.nth:
                counts[record.site] = max(counts[record.site], record.nth)
    return dict(counts)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_promise_is_broken(name: str, size: int) -> None:
    for seed in range(PLANS):
        plan = generate_plan(TOPOLOGIES[name], seed, size, crossings(name))
        play, simulation, lab = played(TOPOLOGIES[name], plan)
        broken = {cell.guarantee: cell.evidence[0].text for cell in judge(play, lab, simulation.journal_files()).cells
                  if cell.verdict is Verdict.BROKEN}
        assert not broken, f"{broken} by {plan_to_json(plan).decode()}"

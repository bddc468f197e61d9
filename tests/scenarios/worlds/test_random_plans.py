"""Plans that nobody wrote: random faults at sites that a calm play crosses, judged by every guarantee.

No promise may be BROKEN: whatever a plan does that a promise need not survive stands in that promise's envelope.
RANDOM_PLANS=1000 plays more of them, RANDOM_FIRST=1000 others.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import msgspec
import pytest

from engine.topology import (
    Engine,
    data_parallel,
    external,
    headless,
    hybrid,
    offline,
    side_by_side,
    tensor_parallel,
)
from faults.generate import generate_plan
from faults.plan import Plan, plan, plan_to_json, raises, truncate
from scenarios.guarantees.judge import judge
from scenarios.history.play import Options, Play
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import lab_config, of_topology
from scenarios.test_lockstep import waves
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import play_once

PLANS, FIRST = int(os.environ.get("RANDOM_PLANS", "20")), int(os.environ.get("RANDOM_FIRST", "0"))
TOPOLOGIES = {
    "two workers": tensor_parallel(2), "a subscriber": tensor_parallel(2, subscribers=1),
    "four workers": tensor_parallel(4), "one process": tensor_parallel(1),
    "two stages": tensor_parallel(1, pp=2), "two stages of two ranks": tensor_parallel(2, pp=2),
    "two cores": data_parallel(2), "two cores of two workers": data_parallel(2, tp=2),
    "two cores and a coordinator": data_parallel(2, coordinated=True),
    "two ranks in step": data_parallel(2, lockstep=True),
    "two ranks of two workers in step": data_parallel(2, tp=2, lockstep=True),
    "two ranks of two stages in step": data_parallel(2, pp=2, lockstep=True),
    "two clients of a core": data_parallel(1, clients=2),
    "two clients of two cores in step": data_parallel(2, lockstep=True, clients=2),
    "two clients, and one comes back": data_parallel(1, clients=2),
    "two clients with a core each": external(2), "two clients with two cores each": hybrid(2, 2),
    "two cores, one of them headless": headless(2, 1), "two offline ranks": offline(2),
    "two engines": side_by_side(Engine(tp=2), Engine(tp=2)),
    "two ranks": side_by_side(*(Engine(tp=2, data_parallel_rank=k, subscribers=(k,)) for k in range(2))),
}

OPTIONS = {"two clients, and one comes back": Options(client_returns=True)}


def play_of(name: str, plan: Plan) -> Play:
    topology = TOPOLOGIES[name]
    first = topology.engines[0]
    in_step = bool(topology.stepping)
    asked = waves() if in_step and not topology.offline else recorded("eight-mixed")
    config = of_topology(lab_config(bounds={"request_s": 2.0, **({"collective_s": 0.8} if in_step else {})},
                                    scheduler={"async_scheduling": first.pp > 1},
                                    kv_events={"enable_kv_cache_events": len(topology.subscribers) > 0}), topology)
    return Play(scenario="random", title="", world="sim", topology=topology, plan=plan, config=config, promises=(),
                options=OPTIONS.get(name, Options()),
                workload=msgspec.to_builtins(asked.played()))


def played(name: str, plan: Plan) -> tuple:
    """-> (play, simulation, lab)"""
    play = play_of(name, plan)
    return play, *play_once(play)


@cache
def crossings(name: str) -> dict[str, int]:
    """How often a calm play crosses each site."""
    _, simulation, _ = played(name, Plan())
    counts: Counter[str] = Counter()
    for journal in simulation.journal_files():
        for record in journal.records:
            if record.nth:
                counts[record.site] = max(counts[record.site], record.nth)
    return dict(counts)


def none_is_broken(name: str, plan: Plan) -> None:
    play, simulation, lab = played(name, plan)
    broken = {cell.guarantee: cell.evidence[0].text for cell in judge(play, lab, simulation.journal_files()).cells
              if cell.verdict is Verdict.BROKEN}
    assert not broken, f"{broken} by {plan_to_json(plan).decode()}"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_promise_is_broken(name: str, size: int) -> None:
    for seed in range(FIRST, FIRST + PLANS):
        none_is_broken(name, generate_plan(TOPOLOGIES[name], seed, size, crossings(name)))


#: Plans that once broke a promise, by what they do.
FOUND = {
    "what resumes the scheduler is cut short": (
        "two workers", plan(truncate("frontend.0->core.0/requests", nth=10, byte=13))),
    "a core leaves while its client reads nothing": (
        "two engines", plan(raises("worker.1.1", at="worker.1.1/response:doorbell", nth=2))),
    "a rank fails while there is no room for the next call": (
        "two stages of two ranks", plan(raises("worker.2", at="worker.2/pipe:receive", nth=11))),
    "a client dies in its last round": (
        "two engines", plan(raises("frontend.1", at="frontend.1->core.1/requests:send", nth=15))),
}


@pytest.mark.parametrize("found", FOUND)
def test_what_once_broke_a_promise_breaks_none(found: str) -> None:
    none_is_broken(*FOUND[found])

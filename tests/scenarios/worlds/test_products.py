"""Products of settings in the twin: grids of ranks, steps in flight, promises, what carries tensors, and who dies.

    PRODUCTS=all pytest tests/scenarios/worlds/test_products.py        all of them; else as many as `SAMPLED` says
"""

from __future__ import annotations

import os
from itertools import product
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from engine.topology import Grid, Mark, mark_site, tensor_parallel, worker
from faults.plan import Plan, hang, kill, plan, raises
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import with_grid
from scenarios.test_pipeline import DEEP, NAMED
from scenarios.test_scheduling import pressure, under_pressure
from scenarios.worlds.sim import play_once

GRIDS = [Grid(tp, pp) for tp, pp in product((1, 2, 4), repeat=2) if tp * pp <= 4]
#: How often a rank has come to a call when it is struck: in the middle of the play.
MIDDLE = 25
SAMPLED = 60


class Settings(NamedTuple):
    grid: Grid
    depth: int
    promises: bool
    communicator: str
    struck: tuple[int, str] | None  # rank and fate

    def __str__(self) -> str:
        who = "" if self.struck is None else f", {self.struck[1]} of rank {self.struck[0]}"
        return (f"tp {self.grid.tp}, pp {self.grid.pp}, depth {self.depth}, "
                f"{'promised' if self.promises else 'known'} tokens, {self.communicator}{who}")

    @property
    def plan(self) -> Plan:
        if self.struck is None:
            return Plan()
        rank, fate = self.struck
        node = str(worker(rank)) if self.grid.size > 1 else "core.0"
        return plan({"kill": kill, "raise": raises, "hang": hang}[fate](
            node, at=mark_site(node, Mark.EXECUTING), nth=MIDDLE))


def every_one() -> list[Settings]:
    found = []
    for grid, promises, communicator in product(GRIDS, (False, True), ("shm", "gloo")):
        for depth in sorted({1, 2, grid.pp + 1} - ({1} if promises else set())):
            found.append(Settings(grid, depth, promises, communicator, None))
            found += [Settings(grid, depth, promises, communicator, (rank, fate))
                      for rank in range(grid.size) for fate in ("kill", "raise", "hang")]
    return found


EVERY_ONE = every_one()
CHOSEN = EVERY_ONE if os.environ.get("PRODUCTS") == "all" else Random(5).sample(EVERY_ONE, SAMPLED)


@pytest.mark.parametrize("settings", CHOSEN, ids=str)
def test_no_promise_is_broken(settings: Settings) -> None:
    topology = tensor_parallel(settings.grid.tp, pp=settings.grid.pp)
    config = under_pressure(
        model=DEEP, bounds=NAMED, max_concurrent_batches=settings.depth, device_communicator=settings.communicator,
        scheduler={"async_scheduling": settings.promises})
    play = Play(scenario="product", title="", world="sim", topology=topology, plan=settings.plan, promises=(),
                config=with_grid(config, topology.engines[0]), virtual_time=True,
                workload=msgspec.to_builtins(pressure("deep/eight-growing").played()))
    simulation, lab = play_once(play)
    cells = {cell.guarantee: cell for cell in judge(play, lab, simulation.journal_files()).cells}
    red = {name: cell.evidence[0].text for name, cell in cells.items() if cell.verdict is Verdict.BROKEN}
    assert not red
    if settings.struck is None:
        assert cells["tokens-match-reference"].verdict is Verdict.HELD


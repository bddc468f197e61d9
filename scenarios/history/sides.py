"""What several runs say together: one guarantee of one scenario in one world (a `Side`), and worlds beside each other.

Promises of this file:
- Nothing is left out. A promise without a cell, and a run without a judgement, become UNKNOWN with a reason.
- Worlds disagree where one says HELD and another BROKEN, and what the later one did is not among the outcomes that the
  earlier one allows. Of any number of worlds, each is held against all before it (`scenarios/worlds/registry.py` has
  their order: those that play every allowed outcome stand first).
- An engine that is not ours is in no dispute with ours: it may keep another promise, or none. Where it came to another
  verdict is told beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec

from scenarios.history.play import OTHERS
from scenarios.history.run import Run
from scenarios.history.verdicts import DECISIVE, Cell, Evidence, Verdict, combined, is_as_declared


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee of one scenario in one world: one world's part of a cell of the matrix."""

    world: str
    guarantee: str
    verdict: Verdict
    expected: Verdict | None
    cells: list[tuple[Run, Cell]]  # one per run, in the order of the runs
    verdicts: tuple[Verdict, ...]  # every one that some run gave, each once
    decided: bool  # whether some run answered: HELD or BROKEN

    @property
    def promised(self) -> bool:
        return self.expected is Verdict.HELD

    @property
    def canary(self) -> bool:
        """Declared to end otherwise than HELD: the lab shows here that it can see red."""
        return self.expected is not None and self.expected is not Verdict.HELD

    @property
    def as_declared(self) -> bool:
        return is_as_declared(self.verdict, self.expected)

    @property
    def telling(self) -> tuple[Run, Cell]:
        """The run that gave the side its verdict, and its cell."""
        return next(((run, cell) for run, cell in self.cells if cell.verdict is self.verdict), self.cells[0])


def sides_of(runs: Iterable[Run]) -> dict[str, dict[str, Side]]:
    """guarantee -> world -> side, of the runs of one scenario."""
    cells: dict[str, dict[str, list[tuple[Run, Cell]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for cell in cells_of(run):
            cells[cell.guarantee][run.play.world].append((run, cell))
    return {guarantee: {world: _side(world, guarantee, found) for world, found in worlds.items()}
            for guarantee, worlds in cells.items()}


def _side(world: str, guarantee: str, cells: list[tuple[Run, Cell]]) -> Side:
    verdict, expected = combined((run.play.choice, cell) for run, cell in cells)
    verdicts = tuple(dict.fromkeys(cell.verdict for _, cell in cells))
    return Side(world=world, guarantee=guarantee, verdict=verdict, expected=expected, cells=cells, verdicts=verdicts,
                decided=not DECISIVE.isdisjoint(verdicts))


def cells_of(run: Run) -> list[Cell]:
    """The judged cells, and an UNKNOWN one for every declared guarantee that was not judged."""
    judged = run.judgement.cells if run.judgement else []
    seen = {cell.guarantee for cell in judged}
    why = "the judgement has no cell for this promise"
    if run.judgement is None:
        why = f"the harness failed: {run.lab.failure}" if run.lab.failure else "this run was not judged"
    return judged + [
        Cell(guarantee=guarantee, verdict=Verdict.UNKNOWN, expected=expected, witnesses=0,
             evidence=[Evidence(text=why)])
        for guarantee, expected in run.play.declared.items() if guarantee not in seen
    ]


# -- worlds beside each other


def ours(sides: Iterable[Side]) -> list[Side]:
    """Those of our engine and its twin."""
    return [side for side in sides if side.world not in OTHERS]


def comparable(sides: Sequence[Side]) -> bool:
    """Two worlds of ours at least came to HELD or BROKEN."""
    return sum(side.decided for side in ours(sides)) > 1


def dispute(sides: Sequence[Side]) -> tuple[Side, Side] | None:
    """The first two that disagree, the one that allows and the one that did. `sides` in the order of their worlds."""
    for allows, did in combinations([side for side in ours(sides) if side.decided], 2):
        if any(verdict not in allows.verdicts for verdict in did.verdicts if verdict in DECISIVE):
            return allows, did
    return None


def disagree(sides: Sequence[Side]) -> bool:
    return dispute(sides) is not None

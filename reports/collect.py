"""Runs, sorted for a reader: scenarios in the order they were given, guarantees by chapter, worlds side by side.

Promises of this file:
- Nothing is left out. A promise without a cell, and a run without a judgement, become UNKNOWN with a reason.
- One rule says what a scenario's verdict in a world is (`Side`), and everybody who counts uses it:

      runs of one choice    every run must be as declared          the worst verdict speaks
      several choices       the twin played each allowed outcome   broken in one is broken, witnessed in one is
                                                                   witnessed; a canary must be caught in one

It reads runs that are in memory and judges nothing itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scenarios.history.run import Cell, Evidence, Run, Verdict

WORLDS = ("sim", "engine")
#: What a reader must see first, when several runs of one choice say different things.
WORST_FIRST = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.UNTESTED, Verdict.OUTSIDE, Verdict.HELD)
#: The same over the choices of the twin: a witness in one allowed outcome is a witness.
UNION_FIRST = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.HELD, Verdict.UNTESTED, Verdict.OUTSIDE)
#: The same for a promise that is declared to break: what is not broken is the bad news.
CANARY_WORST_FIRST = (Verdict.HELD, Verdict.UNKNOWN, Verdict.UNTESTED, Verdict.OUTSIDE, Verdict.BROKEN)


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A guarantee in words: its id, the sentence, who documents it, and the chapter it belongs to."""

    id: str
    sentence: str
    source: str = ""
    chapter: str = ""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee of one scenario in one world: half a cell of the matrix."""

    world: str
    guarantee: str
    verdict: Verdict
    expected: Verdict | None
    cells: list[tuple[Run, Cell]]  # one per run, in the order of the runs

    @property
    def promised(self) -> bool:
        return self.expected is Verdict.HELD

    @property
    def canary(self) -> bool:
        """Declared to end otherwise than HELD: the lab shows here that it can see red."""
        return self.expected is not None and self.expected is not Verdict.HELD

    @property
    def as_declared(self) -> bool:
        if self.expected is None:
            return self.verdict is not Verdict.BROKEN
        return self.verdict is self.expected

    @property
    def verdicts(self) -> list[Verdict]:
        """Every verdict that some run gave, each once."""
        return list(dict.fromkeys(cell.verdict for _, cell in self.cells))


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One test function in every world that played it."""

    number: int  # from 1, the order of the report
    name: str
    title: str
    runs: list[Run]
    sides: dict[str, dict[str, Side]]  # guarantee -> world -> side

    @property
    def worlds(self) -> list[str]:
        return sort_worlds({run.play.world for run in self.runs})

    @property
    def canary(self) -> bool:
        return any(side.canary for worlds in self.sides.values() for side in worlds.values())

    def of(self, world: str) -> list[Run]:
        return [run for run in self.runs if run.play.world == world]

    def all_sides(self) -> list[Side]:
        return [side for worlds in self.sides.values() for side in worlds.values()]


def sort_worlds(worlds: Iterable[str]) -> list[str]:
    """The twin left, the engine right, others after them by name."""
    return sorted(set(worlds), key=lambda world: (WORLDS.index(world) if world in WORLDS else len(WORLDS), world))


def collect(runs: Sequence[Run]) -> list[Scenario]:
    """Scenarios in the order in which they first appear."""
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.play.scenario].append(run)
    return [_scenario(number, name, group) for number, (name, group) in enumerate(by_name.items(), 1)]


def _scenario(number: int, name: str, runs: list[Run]) -> Scenario:
    worlds = sort_worlds(run.play.world for run in runs)
    runs = sorted(runs, key=lambda run: (worlds.index(run.play.world), run.play.choice))
    cells: dict[str, dict[str, list[tuple[Run, Cell]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for cell in cells_of(run):
            cells[cell.guarantee][run.play.world].append((run, cell))
    sides = {guarantee: {world: _side(world, guarantee, found) for world, found in worlds.items()}
             for guarantee, worlds in cells.items()}
    return Scenario(number=number, name=name, title=runs[0].play.title, runs=runs, sides=sides)


def declared(run: Run) -> dict[str, Verdict]:
    """What the scenario declared, by guarantee: HELD where promised, the canary's verdict where it says so."""
    return {guarantee: Verdict.HELD for guarantee in run.play.promises} | run.play.expected


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
        for guarantee, expected in declared(run).items() if guarantee not in seen
    ]


def _side(world: str, guarantee: str, cells: list[tuple[Run, Cell]]) -> Side:
    expected = next((cell.expected for _, cell in cells if cell.expected is not None), None)
    canary = expected is Verdict.BROKEN
    choices: dict[int, set[Verdict]] = defaultdict(set)
    for run, cell in cells:
        # Of a play that did not promise it, beside one that did, only a break counts.
        if expected is None or cell.expected is not None or cell.verdict is Verdict.BROKEN:
            choices[run.play.choice].add(cell.verdict)
    within = [_first(found, CANARY_WORST_FIRST if canary else WORST_FIRST) for found in choices.values()]
    return Side(world=world, guarantee=guarantee, verdict=_first(set(within), UNION_FIRST), expected=expected,
                cells=cells)


def _first(found: set[Verdict], order: Sequence[Verdict]) -> Verdict:
    return next(verdict for verdict in order if verdict in found)


def guarantees_of(scenarios: Sequence[Scenario], promises: Mapping[str, Promise]) -> list[Promise]:
    """Every guarantee that a run judged, in the order of `promises`; unknown ones last, named by their id."""
    used = {guarantee for scenario in scenarios for guarantee in scenario.sides}
    known = [promise for guarantee, promise in promises.items() if guarantee in used]
    strange = sorted(used - set(promises))
    return known + [Promise(id=guarantee, sentence=guarantee) for guarantee in strange]


def unfired(run: Run) -> list[str]:
    """Ids of planned faults that did not fire, so that the run says nothing; empty where that was declared."""
    if Verdict.UNKNOWN in run.play.expected.values():
        return []
    fired = {receipt.id for receipt in run.judgement.faults if receipt.fired} if run.judgement else set()
    return [fault.id for fault in run.play.plan.faults if fault.id not in fired]


def harness_failure(run: Run) -> str | None:
    """Why the run says nothing about the engine: the lab itself failed, or nobody judged it."""
    if run.lab.failure:
        return run.lab.failure
    return "the run was not judged" if run.judgement is None else None

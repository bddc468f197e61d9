"""What a judge says of a run, and the one rule by which verdicts are ranked and combined.

pytest, the command line and the report all count by this rule (over runs, in `sides.py`); nobody else ranks a verdict:

    runs of one choice    every run must be as declared          the worst verdict speaks
    several choices       the twin played each allowed outcome   broken in one is broken, witnessed in one is
                                                                 witnessed; a canary must be caught in one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    HELD = "HELD"
    BROKEN = "BROKEN"
    UNTESTED = "UNTESTED"  # it could not have failed here: no witness
    OUTSIDE = "OUTSIDE"  # a fault outside the guarantee's envelope fired
    UNKNOWN = "UNKNOWN"  # a planned fault did not fire, or the machine starved: the run says nothing


#: Verdicts that answer the question. The others say why there is no answer.
DECISIVE = frozenset({Verdict.HELD, Verdict.BROKEN})
#: What a reader must see first, when several runs of one choice say different things.
WORST_FIRST = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.UNTESTED, Verdict.OUTSIDE, Verdict.HELD)
#: The same for a promise that is declared to break: what is not broken is the bad news.
CANARY_WORST_FIRST = (Verdict.HELD, Verdict.UNKNOWN, Verdict.UNTESTED, Verdict.OUTSIDE, Verdict.BROKEN)
#: The same over the choices of a play: a witness in one allowed outcome is a witness.
UNION_FIRST = (Verdict.BROKEN, Verdict.UNKNOWN, Verdict.HELD, Verdict.UNTESTED, Verdict.OUTSIDE)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for a verdict: a sentence, where it stands, and bound against measured if it is a time."""

    text: str
    at: float | None = None
    node: str | None = None
    bound: float | None = None
    measured: float | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee on one run."""

    guarantee: str
    verdict: Verdict
    expected: Verdict | None  # HELD where promised, the declared one for a canary, None elsewhere
    witnesses: int
    evidence: list[Evidence]  # of the breaks if BROKEN, else of the witnesses (a few)
    bound: float | None = None  # the tightest bound that was checked, seconds
    measured: float | None = None  # the longest time measured against it

    @property
    def as_declared(self) -> bool:
        return is_as_declared(self.verdict, self.expected)


class FaultReceipt(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    fired: bool
    at: float | None = None
    node: str | None = None
    released_at: float | None = None
    detected_at: float | None = None  # when a caller was told, where the fault is a death or a stall


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    cells: list[Cell]
    faults: list[FaultReceipt]
    ended: str  # how the engine ended: "clean", "clean error", "isolated request", "hang", "crash"
    seconds: float

    @property
    def red(self) -> Cell | None:
        """The first promise that broke and was not declared to break."""
        return next((cell for cell in self.cells
                     if cell.verdict is Verdict.BROKEN and cell.expected is not Verdict.BROKEN), None)


def is_as_declared(verdict: Verdict, expected: Verdict | None) -> bool:
    """What nobody promised may be anything but BROKEN."""
    return verdict is not Verdict.BROKEN if expected is None else verdict is expected


def combined(said: Iterable[tuple[int, Cell]]) -> tuple[Verdict, Verdict | None]:
    """(choice, cell) of one guarantee in one world -> its verdict over all of them, and what was declared."""
    said = list(said)
    expected = next((cell.expected for _, cell in said if cell.expected is not None), None)
    choices: dict[int, set[Verdict]] = defaultdict(set)
    for choice, cell in said:
        # Of a play that did not promise it, beside one that did, only a break counts.
        if expected is None or cell.expected is not None or cell.verdict is Verdict.BROKEN:
            choices[choice].add(cell.verdict)
    within = CANARY_WORST_FIRST if expected is Verdict.BROKEN else WORST_FIRST
    return _first({_first(found, within) for found in choices.values()}, UNION_FIRST), expected


def _first(found: Collection[Verdict], order: Sequence[Verdict]) -> Verdict:
    return next(verdict for verdict in order if verdict in found)

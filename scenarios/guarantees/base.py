"""What a guarantee is, what a check finds, and the one rule for time.

    Guarantee = sentence + envelope (which faults it must survive) + check(history) -> Finding
    Finding   = breaks, what cannot be told, witnesses, the longest time against its bound

A *witness* is an occasion on which the wrong engine named in `wrong` would have failed. Counting messages is
none. A finding without one says nothing, and the judge calls it UNTESTED.

Time: more than the bound is a break. In the twin always; on the engine it cannot be told where the lab's own
heartbeat was late by as much as the bound was missed. An operation that is open at the end is a hang: a break
in the twin; on the engine, once it has been open for three times its bound or its process has left.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from engine.config import Bounds
from scenarios.history.history import Fate, History, Receipt
from scenarios.history.play import Play
from scenarios.history.receipts import DEATH_FATES, STALL_FATES
from scenarios.history.verdicts import Evidence

#: Reasons that are put into words; more are counted, not told.
TOLD = 8
#: Sums of virtual times differ from their terms by rounding only.
ROUNDING_S = 1e-6
#: An operation that is open for so many times its bound will not end.
HANG_FACTOR = 3.0

ALL_FATES = frozenset(Fate) - {Fate.PASS}
DEATHS, STALLS = DEATH_FATES, STALL_FATES
PROCESS = DEATHS | STALLS
LOSSES = frozenset({Fate.DROP, Fate.CUT})
ORDERINGS = frozenset({Fate.DELAY, Fate.REORDER})
DAMAGE = frozenset({Fate.CORRUPT, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP})
MESSAGE = frozenset({Fate.DROP, Fate.DUPLICATE}) | ORDERINGS | DAMAGE


class Where(msgspec.Struct, frozen=True):
    """A set of faults: these fates, at sites and on nodes of these patterns (fnmatch), and why they stand here."""

    fates: frozenset[Fate]
    sites: str = "*"
    nodes: str = "*"
    why: str = ""
    passing: bool = True  # False: a stop, or a cut, that was over before the end does not count, it only took time

    def covers(self, receipt: Receipt) -> bool:
        return (receipt.fate in self.fates and fnmatchcase(receipt.site, self.sites)
                and fnmatchcase(receipt.node, self.nodes)
                and (self.passing or receipt.fate not in STALLS | {Fate.CUT} or receipt.released_at is None))


#: No checksum guards the memory that processes share.
MEMORY = Where(frozenset({Fate.CORRUPT}), sites="*:store.*", why="the plan writes into the shared memory")
#: Damage that no decoder of a request or an output ever sees, or that takes more than a frame.
DAMAGED_ELSEWHERE = (
    MEMORY,
    Where(DAMAGE, sites="*/handshake:*", why="the start fails, by name: see start-ends"),
    Where(DAMAGE, sites="*/birth:*", why="the start fails, by name: see birth-told"),
    Where(DAMAGE, sites="core.*->frontend.*/requests:*", why="its one frame has no bytes"),
    Where(DAMAGE, sites="*/overflow:*", why="a step that a rank cannot read ends the engine, by name"),
)


class Envelope(msgspec.Struct, frozen=True):
    """The faults a promise must survive: all that `inside` covers, less what `outside` covers."""

    outside: tuple[Where, ...] = ()
    inside: tuple[Where, ...] = (Where(ALL_FATES),)

    def excludes(self, receipt: Receipt) -> Where | None:
        """The reason why this fault is outside, or None if the promise must survive it."""
        for where in self.outside:
            if where.covers(receipt):
                return where
        if any(where.covers(receipt) for where in self.inside):
            return None
        return Where(frozenset({Fate(receipt.fate)}), why="the promise does not speak of it")


class Finding:
    """What one check found. Texts are templates for `str.format`, put together only where they are told."""

    __slots__ = ("bound", "breaks", "broken", "evidence", "history", "measured", "unknowns", "witnesses")

    def __init__(self, history: History) -> None:
        self.history = history
        self.breaks: list[Evidence] = []
        self.broken = 0
        self.unknowns: list[Evidence] = []
        self.witnesses = 0
        self.evidence: list[Evidence] = []
        self.bound: float | None = None
        self.measured: float | None = None

    def broke(self, template: str, *args: object, at: float | None = None, node: str | None = None,
              bound: float | None = None, measured: float | None = None) -> None:
        """The promise does not hold."""
        self.broken += 1
        if len(self.breaks) < TOLD:
            self.breaks.append(Evidence(text=template.format(*args), at=at, node=node, bound=bound, measured=measured))

    def unclear(self, template: str, *args: object, at: float | None = None, node: str | None = None,
                bound: float | None = None, measured: float | None = None) -> None:
        """It cannot be told from this run."""
        if len(self.unknowns) < TOLD:
            self.unknowns.append(
                Evidence(text=template.format(*args), at=at, node=node, bound=bound, measured=measured))

    def witness(self, template: str, *args: object, at: float | None = None, node: str | None = None,
                times: int = 1) -> None:
        """The named wrong engine would have failed here."""
        self.witnesses += times
        if len(self.evidence) < TOLD:
            self.evidence.append(Evidence(text=template.format(*args), at=at, node=node))

    def took(self, template: str, *args: object, bound: float, measured: float, at: float | None = None,
             node: str | None = None) -> bool:
        """Hold a time against its bound. -> whether it was kept"""
        measured = max(0.0, measured)
        if self.bound is None or measured * self.bound > (self.measured or 0.0) * bound or (
                self.measured == 0.0 == measured and bound < self.bound):
            self.bound, self.measured = bound, measured
        if measured <= bound + ROUNDING_S:
            return True
        history = self.history
        tell = self.broke
        if not history.simulated and measured - bound <= history.lab.longest_starvation_s:
            tell = self.unclear
            template += f" (the machine starved for {history.lab.longest_starvation_s:.3f} s)"
        tell(template + " took {:.4f} s, bound {:g} s", *args, measured, bound, at=at, node=node, bound=bound,
             measured=measured)
        return False

    def hangs(self, template: str, *args: object, bound: float, since: float, node: str) -> None:
        """Something that began at `since` never ended, up to the end of its process or of the play."""
        history = self.history
        until = min(history.ended_at, history.ends.at(node))
        open_s = until - since - history.faults.frozen_s(node, since, until)
        held = history.faults.held_for_ever
        where: dict[str, Any] = {"at": since, "node": node, "bound": bound, "measured": open_s}
        if held is not None:
            self.unclear(template + " never ended, but neither did planned fault {}", *args, held.id, **where)
        elif history.simulated or node in history.by_node("bye"):
            self.broke(template + " never ended", *args, **where)
        elif open_s <= HANG_FACTOR * bound:
            self.unclear(template + " was open for only {:.3f} s when the play ended (bound {:g} s)", *args, open_s,
                         bound, **where)
        elif open_s - bound <= history.lab.longest_starvation_s:
            self.unclear(template + " never ended, but the machine starved for {:.3f} s", *args,
                         history.lab.longest_starvation_s, **where)
        else:
            self.broke(template + " hangs: open for {:.3f} s, bound {:g} s", *args, open_s, bound, **where)


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """One promise. `wrong` names the engine that each witness would have caught: "one that ..."

    Where the sentence promises several things, there is one such engine for each half, by a short name. Each has been
    planted in each world, and was seen red (tests/mutants), but where the promise says that a world is blind.
    """

    id: str
    sentence: str
    source: str
    chapter: str
    wrong: str | dict[str, str]
    witness: str  # what counts as one, in words
    envelope: Envelope
    check: Callable[[History], Finding]
    applies: Callable[[Play], bool] = lambda play: True
    is_law: bool = False  # judged first, whatever the plan did and the scenario promises
    blind_in: dict[str, str] = {}  # by world, or `half in world`: why it cannot have that engine, or not see it

    @property
    def name(self) -> str:
        """As a Python name: `ends_once`."""
        return self.id.replace("-", "_")

    @property
    def parts(self) -> tuple[str, ...]:
        """Its id, or `id/half` of each half."""
        return (self.id,) if isinstance(self.wrong, str) else tuple(f"{self.id}/{half}" for half in self.wrong)

    def blindness(self, part: str, world: str) -> str | None:
        """Why no engine that breaks this part is seen in that world; None where one is."""
        half = part.partition("/")[2]
        return self.blind_in.get(f"{half} in {world}" if half else world)


    @property
    def blind_words(self) -> dict[str, str]:
        """By world: what it does not see there, and why."""
        found: dict[str, list[str]] = {}
        for place, reason in self.blind_in.items():
            half, _, world = place.rpartition(" in ")
            wrong = self.wrong.get(half) if isinstance(self.wrong, dict) else None
            found.setdefault(world, []).append(f"an engine that {wrong}: {reason}" if wrong else reason)
        return {world: "; ".join(reasons) for world, reasons in found.items()}


def timer_s(bounds: Bounds, seconds: float) -> float:
    """When a time-out of so many seconds must have been told at the latest.

    Whoever watches a time-out looks at least once a heartbeat, and telling a caller takes the detection bound.
    """
    return seconds + bounds.heartbeat_s + bounds.detection_s


def has_workers(play: Play) -> bool:
    return any(engine.workers for engine in play.topology.engines)


def has_kv_events(play: Play) -> bool:
    return play.config.kv_events.enable_kv_cache_events


def has_subscribers(play: Play) -> bool:
    return has_kv_events(play) and bool(play.topology.subscribers)

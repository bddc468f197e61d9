"""What a history speaks of: names of processes and sites, faults that fired, deaths and stalls."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from engine.topology import Edge
from faults.plan import Fate, Fault

FOREVER = float("inf")
#: Fates that end a process, sooner (kill, exit) or later (an exception, SIGTERM).
DEATH_FATES = frozenset({Fate.KILL, Fate.EXIT, Fate.RAISE, Fate.TERMINATE})
STALL_FATES = frozenset({Fate.STALL, Fate.HANG})
LOSS_FATES = frozenset({Fate.DROP, Fate.CUT, Fate.CORRUPT, Fate.TRUNCATE})
#: Fates that hold something back until the plan lets it go.
HOLDING_FATES = frozenset({Fate.DELAY, Fate.STALL, Fate.HANG, Fate.CUT})


def base(node: str) -> str:
    """`worker.1` for `worker.1@2`."""
    return node.partition("@")[0]


def life_of(node: str) -> int:
    return int(node.partition("@")[2] or 0)


def kind_of(node: str) -> str:
    return node.partition(".")[0]


@lru_cache(maxsize=4096)
def site_of_life(site: str, life: int) -> str:
    """The site with its life: journals name sites without, because a sender does not know its peer's.

    An engine is restarted whole, so both ends of an edge share a life; a subscriber outlives its publisher,
    and what it follows is one edge for all lives.
    """
    place, _, operation = site.rpartition(":")
    if "@" in site or place.endswith(("/kv", "/replay")):
        return site
    if "->" in place:
        edge = Edge.parse(place)
        return f"{edge.source}@{life}->{edge.target}@{life}/{edge.channel.value}:{operation}"
    node, _, rest = site.partition("/")
    return f"{node}@{life}/{rest}"


@lru_cache(maxsize=4096)
def edge_of(site: str) -> tuple[str, Edge, str] | None:
    """(edge's name, edge, operation) of a site on an edge, None for any other site."""
    place, _, operation = site.rpartition(":")
    if "->" not in place:
        return None
    try:
        return place, Edge.parse(place), operation
    except ValueError:
        return None


class Receipt(NamedTuple):
    """One fault that fired. `node` is whom it hit, `site` and `nth` the crossing, `fault` its line in the plan."""

    id: str
    at: float
    node: str
    site: str
    nth: int
    fate: str
    fault: Fault | None
    released_at: float | None

    @property
    def held_for_ever(self) -> bool:
        """A planned delay that should have ended and did not: nothing after it says anything about progress."""
        ends = self.fate == Fate.DELAY or (self.fault is not None and self.fault.until is not None)
        return self.fate in HOLDING_FATES and ends and self.released_at is None


class Death(NamedTuple):
    """The end of one process. For SIGKILL `at` is the moment of the kill, else the exit."""

    node: str
    at: float
    how: str
    hit_at: float | None  # when a fault ended it, which may be long before it is gone; None: nobody planned this

    @property
    def planned(self) -> bool:
        return self.hit_at is not None

    @property
    def onset(self) -> float:
        """When it began: from then on callers may be told."""
        return self.at if self.hit_at is None else min(self.hit_at, self.at)


class Stall(NamedTuple):
    """A process (or one of its threads) stopped making progress at `at`, until `until` (infinite: for good)."""

    node: str
    at: float
    until: float
    fate: str
    site: str

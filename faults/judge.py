"""Decides what befalls each crossing of one process. Pure: it counts and never rolls dice.

Promises: the same crossings in the same order meet the same fates, in every world. A site that no fault
names costs one dictionary look-up. Of two faults that are due at one crossing the first in the plan wins;
the other one counts the crossing too and does not fire there.

    counting    every fault counts for itself: only crossings that come after its `after` fault fired,
                and only messages that have the values of its `match`, of a `swap` two frames
    firing      at its nth counted crossing and the `times - 1` counted crossings behind it
    lives       a site belongs to the highest life that its name mentions, 0 if it mentions none:
                `core.0@1->worker.1/rpc:receive` is judged in worker.1 of life 1
    until       `Until(site, nth)` is the nth crossing of that site since its process was born; it may
                already lie in the past, then nothing is held
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.topology import Node
from faults.match import matches
from faults.plan import Fate, Fault, Plan
from faults.sites import bare, homes_of


class _Count:
    """One fault and the crossings it has counted."""

    __slots__ = ("counted", "fault", "waits")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.counted = 0
        self.waits = fault.after is not None


class Judge:
    """The judge of one process life. Not locked: the fault layer's ports hold a lock around it."""

    def __init__(self, plan: Plan, node: str, life: int = 0) -> None:
        me = Node.parse(node)
        self.node, self.life = bare(node), max(life, me.life)
        self._counts: dict[str, int] = {}
        self._faults: dict[str, list[_Count]] = {}
        self._waiting: dict[str, list[_Count]] = {}
        for fault in plan.faults:
            if (self.node, self.life) not in homes_of(fault.site):
                continue
            count = _Count(fault)
            self._faults.setdefault(bare(fault.site), []).append(count)
            if count.waits:
                self._waiting.setdefault(fault.after or "", []).append(count)

    def crossing(self, site: str, decoded: Any = None, frames: int = 2) -> Fault | None:
        """Count one crossing. -> the fault that fires here, or None

        `decoded` is the message's decoded form (see `match.decoded_of`), or a callable that gives it; it is only
        called where a fault at this site has a `match`. `frames`: how many it has, where it is a message.
        """
        if "@" in site:
            site = bare(site)
        self._counts[site] = self._counts.get(site, 0) + 1
        candidates = self._faults.get(site)
        if candidates is None:
            return None
        fires: Fault | None = None
        for count in candidates:
            fault = count.fault
            if count.waits or (fault.fate is Fate.SWAP and frames < 2):
                continue
            if fault.match is not None:
                if callable(decoded):
                    decoded = decoded()
                if not matches(decoded, fault.match):
                    continue
            count.counted += 1
            if fires is None and fault.nth <= count.counted < fault.nth + fault.times:
                fires = fault
        if fires is not None:
            self.notice(fires.id)
        return fires

    def notice(self, fault_id: str) -> None:
        """A fault fired, here or in another process: those that come `after` it begin to count."""
        for count in self._waiting.pop(fault_id, ()):
            count.waits = False

    def awaited(self) -> tuple[str, ...]:
        """Faults whose firing this judge still has to be told of."""
        return tuple(self._waiting)

    def names(self, site: str) -> bool:
        """Whether any fault of this process names the site."""
        return bare(site) in self._faults

    def fates_at(self, site: str) -> frozenset[Fate]:
        return frozenset(count.fault.fate for count in self._faults.get(bare(site), ()))

    def sites(self) -> tuple[str, ...]:
        """The sites, without lives, at which a fault of this process may fire."""
        return tuple(self._faults)

    def count(self, site: str) -> int:
        """How often this process has crossed the site."""
        return self._counts.get(bare(site), 0)


def is_over(fault: Fault, fired_at: float, now: float, count_of: Callable[[str], int]) -> bool:
    """Whether what `fault` holds since `fired_at` may go. `count_of(site)`: crossings so far, as on the board."""
    if fault.until is None:
        return False
    if fault.until.site is not None:
        return count_of(fault.until.site) >= fault.until.nth
    return now - fired_at >= (fault.until.seconds or 0.0)

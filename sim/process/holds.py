"""What faults hold, and when it is let go: the twin's board.

A stall, a hang, a delay or a refused connection lasts until the nth crossing of another site, or for some
virtual seconds, or for ever; `heal` ends all that is on. Holders learn of a crossing within the time that
re-reading the board takes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from faults.judge import is_over
from faults.plan import Fault
from faults.sites import bare, home_of
from sim.kernel.kernel import Kernel


class _Hold(msgspec.Struct, eq=False):
    fault: Fault
    since: float
    release: Callable[[], None]


class Holds:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        #: (node, life, site without lives) -> crossings so far; only sites that some `until` names
        self.watched: dict[tuple[str, int, str], int] = {}
        self._healed: dict[str, float] = {}
        self._waiting: list[_Hold] = []
        for fault in kernel.plan.faults:
            if fault.until is not None and fault.until.site is not None:
                self.watched[(*home_of(fault.until.site), bare(fault.until.site))] = 0

    def crossed(self, node: str, life: int, site: str, count: int) -> None:
        """A watched site was passed: whoever waited for this crossing may go."""
        self.watched[node, life, site] = count
        self._let_go()

    def heal(self) -> None:
        """End everything that is held now, whatever it waits for."""
        for hold in self._waiting:
            self._healed[hold.fault.id] = self._kernel.now
        self._let_go()

    def is_over(self, fault: Fault, since: float, now: float) -> bool:
        return is_over(fault, since, now, self._count) or self._healed.get(fault.id, -1.0) >= since

    def when_over(self, fault: Fault, release: Callable[[], None]) -> None:
        """Call `release` once what `fault` holds since now may go; only `heal` ends what the plan does not."""
        kernel = self._kernel
        hold = _Hold(fault, kernel.now, release)
        if fault.until is not None and fault.until.site is not None and self.is_over(fault, kernel.now, kernel.now):
            kernel.after(kernel.costs.board_s, release)
            return
        self._waiting.append(hold)
        if fault.until is not None and fault.until.seconds is not None:
            kernel.after(max(0.0, fault.until.seconds), self._time_is_up, hold)

    def untie(self) -> None:
        """The play is over."""
        self._waiting.clear()

    def _time_is_up(self, hold: _Hold) -> None:
        if hold in self._waiting:
            self._waiting.remove(hold)
            self._healed[hold.fault.id] = max(hold.since, self._healed.get(hold.fault.id, hold.since))
            hold.release()

    def _let_go(self) -> None:
        now = self._kernel.now
        for hold in list(self._waiting):
            if self.is_over(hold.fault, hold.since, now):
                self._waiting.remove(hold)
                self._kernel.after(self._kernel.costs.board_s, hold.release)

    def _count(self, site: str) -> int:
        return self.watched.get((*home_of(site), bare(site)), 0)

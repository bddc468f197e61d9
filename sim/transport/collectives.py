"""Collectives as the ranks feel them: a barrier that time, death and stops can break.

Promises
- A collective is over for all ranks some time after the last one entered it.
- Over shared memory a killed rank raises within about 10 ms in all that wait for it, and ranks that enter different
  collectives all raise.
- Over gloo it raises in its ring neighbours within about 10 ms; in the others it raises then or only at the
  time-out, which of them is one of the allowed outcomes.
- A stopped or hung rank, or one that never enters, raises in the others at the group's time-out. Over shared memory it
  is named, and who waits for others itself is not, as long as twice that time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import CollectiveError
from engine.worker.parallel.lockstep import check, contribution
from sim.kernel.kernel import Kernel, Sleeper
from sim.transport.waits import LOOK_S, Waits


class Part(msgspec.Struct, eq=False):
    """One rank's part in several collectives, one after the other: `entered` until the one it is in is over for it."""

    thread: Sleeper
    group: CollectiveGroup
    left: int
    data: dict[str, Any]  # what each crossing says
    at: tuple[int, int] | None
    entered: bool = False
    error: Exception | None = None  # what the last collective failed with


class CollectiveGroup:
    """The nth collective of each rank belongs together. `shared`: over shared memory, else over gloo."""

    def __init__(self, kernel: Kernel, name: str, ranks: list[str], timeout_s: float, *, shared: bool = True,
                 waits: Waits | None = None) -> None:
        self._kernel = kernel
        self._waiting = waits or Waits()
        self._waiting.at(self)
        self._shared = shared
        self._cost_s = kernel.costs.shared_collective_s if shared else kernel.costs.collective_s
        self.name = name
        self.ranks = ranks
        self.timeout_s = timeout_s
        self._size = len(ranks)
        self._entered: dict[str, int] = dict.fromkeys(ranks, 0)
        #: number -> who waits in it, by rank
        self._inside: dict[int, dict[str, Part]] = {}
        self._dead: list[str] = []
        #: rank -> (number, when it times out) of the collective it entered last. One alarm per rank is on its way:
        #: nearly every collective is over long before, and would leave a timer behind.
        self._waits: dict[str, tuple[int, float]] = {}
        self._alarmed: set[str] = set()

    def enter(self, rank: str, part: Part) -> None:
        """`rank` takes part in its next collective. Its thread is woken when that is over."""
        part.entered = True
        kernel = self._kernel
        number = self._entered[rank]
        self._entered[rank] = number + 1
        inside = self._inside.get(number)
        if inside is None:
            inside = self._inside[number] = {}
        inside[rank] = part
        if len(inside) == self._size:
            error = self._disagreement(number, inside)
            if error is None:
                kernel.after(self._cost_s, self._all_come_out, number)
            else:
                kernel.after(self._cost_s, self._all_fail, number, error)
            return
        until = kernel.time._now + self.timeout_s
        self._waits[rank] = number, until
        if rank not in self._alarmed:
            self._alarmed.add(rank)
            kernel.call_at(until, self._alarm, rank)
        for dead in self._dead:
            if self._entered[dead] <= number:
                self._told_of_death(number, rank, dead)

    def died(self, rank: str) -> None:
        """A rank's process is gone."""
        if rank not in self._entered or rank in self._dead:
            return
        self._dead.append(rank)
        for number, inside in list(self._inside.items()):
            if self._entered[rank] <= number or rank in inside:
                for other in list(inside):
                    if other != rank:
                        self._told_of_death(number, other, rank)

    def waiter(self, rank: str) -> Sleeper | None:
        part = self._inside.get(self._entered.get(rank, 0) - 1, {}).get(rank)
        return None if part is None else part.thread

    def _disagreement(self, number: int, inside: dict[str, Part]) -> CollectiveError | None:
        """What they are told if nobody brought what the others wait for. Gloo does not look at what they enter."""
        first, *others = inside.values()
        for other in others if self._shared else ():
            if other.data["operation"] != first.data["operation"]:
                entered = ", ".join(f"{rank} enters {part.data['operation']}" for rank, part in inside.items())
                return CollectiveError(f"{self.name} collective {number}: the ranks do not agree: {entered}")
        if first.at is not None:
            try:
                check(self.ranks, [contribution(*(inside[rank].at or (0, 0))) for rank in self.ranks])
            except CollectiveError as error:
                return error
        return None

    def _told_of_death(self, number: int, rank: str, dead: str) -> None:
        size = len(self.ranks)
        distance = (self.ranks.index(rank) - self.ranks.index(dead)) % size
        neighbour = distance in (1, size - 1)
        if self._shared or neighbour or self._kernel.choose(2, f"{rank} is told of {dead}'s death in {self.name}") == 0:
            error = CollectiveError(f"{self.name} collective {number}: connection closed by {dead}")
            self._kernel.after(self._kernel.costs.collective_death_s, self._fail, number, rank, error)

    def _alarm(self, rank: str) -> None:
        """The rank's collective of then has timed out; where it sits in a later one, that one's time comes later."""
        number, until = self._waits[rank]
        if rank not in self._inside.get(number, ()):
            self._alarmed.discard(rank)
        elif until > self._kernel.now:
            self._kernel.call_at(until, self._alarm, rank)
        elif (error := self._late(number, rank, until)) is None:
            self._kernel.after(LOOK_S, self._alarm, rank)
        else:
            self._alarmed.discard(rank)
            self._kernel.after(0.0, self._fail, number, rank, error)

    def _late(self, number: int, rank: str, until: float) -> CollectiveError | None:
        """What it fails with, or None where all that it waits for wait themselves."""
        if not self._shared:
            return CollectiveError(f"{self.name} collective {number}: timed out after {self.timeout_s} s on {rank}")
        missing = [other for other in self.ranks if self._entered[other] <= number]
        guilty = missing if self._kernel.now >= until + self.timeout_s else self._waiting.guilty(missing)
        return CollectiveError(f"{self.name} collective {number}: {' and '.join(guilty)} did not enter within "
                               f"{self.timeout_s} s") if guilty else None

    def _all_come_out(self, number: int) -> None:
        """Whoever is still inside, of all that were."""
        for part in self._inside.pop(number, {}).values():
            part.entered = False
            part.thread.wake()

    def _all_fail(self, number: int, error: CollectiveError) -> None:
        for rank in list(self._inside.get(number, ())):
            self._fail(number, rank, error)

    def _fail(self, number: int, rank: str, error: Exception) -> None:
        inside = self._inside.get(number, {})
        part = inside.pop(rank, None)
        if part is not None:
            self._waiting.failed(rank)
            part.entered, part.error = False, error
            part.thread.wake()
            if not inside:
                self._inside.pop(number, None)

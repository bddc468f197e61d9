"""What goes from stage to stage, as the ranks feel it: bounded by room, time, death and stops.

Promises
- A group of ranks stands in a ring: each sends to the next one, the last one to the first, and what it sent is there
  some time later, in that order.
- Who sends goes on at once while the next rank is less than `slots` messages behind, else it waits for that one.
- A wait ends with the death of whom it waits for, soon after, or at the time-out; what was sent before is received.
  Over shared memory it goes on as long as twice that time where that rank waits itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import CollectiveError
from sim.kernel.kernel import Kernel, Sleeper
from sim.transport.waits import LOOK_S, Waits


class Handed(NamedTuple):
    """What a rank sent for a step."""

    step: int
    content: Sequence[int]


class Pipe:
    """The ring of these ranks. `shared`: over shared memory, else over gloo."""

    def __init__(self, kernel: Kernel, name: str, ranks: Sequence[str], timeout_s: float, *, shared: bool = True,
                 waits: Waits | None = None) -> None:
        self._kernel = kernel
        self._shared = shared
        self._waiting = waits or Waits()
        self._waiting.at(self)
        self._cost_s = kernel.costs.shared_pipe_s if shared else kernel.costs.pipe_s
        self._slots = len(ranks) + 2
        self.name = name
        self.timeout_s = timeout_s
        self._before = {rank: ranks[place - 1] for place, rank in enumerate(ranks)}
        self._next = {before: rank for rank, before in self._before.items()}
        self._lanes: dict[str, deque[Handed]] = {rank: deque() for rank in ranks}  # by who sent
        self._in_flight = dict.fromkeys(ranks, 0)
        self._waits: dict[str, Sleeper] = {}
        self._dead: set[str] = set()

    def has_room(self, rank: str) -> bool:
        """Whether it may send. Raises CollectiveError where nobody will take it."""
        if len(self._lanes[rank]) + self._in_flight[rank] < self._slots:
            return True
        if self._next[rank] in self._dead:
            raise CollectiveError(f"{self._next[rank]} did not take what came before: it died")
        return False

    def send(self, rank: str, handed: Handed) -> None:
        self._in_flight[rank] += 1
        self._kernel.after(self._cost_s, self._arrive, rank, handed)

    def receive(self, rank: str, step: int, count: int) -> Sequence[int] | None:
        """-> what the rank before sent; None where nothing is here. Raises CollectiveError."""
        before = self._before[rank]
        lane = self._lanes[before]
        if not lane:
            if before in self._dead and not self._in_flight[before]:
                raise CollectiveError(f"{before} did not send step {step}: it died")
            return None
        found = lane.popleft()
        self._wake(before)
        if found.step != step or len(found.content) != count:
            raise CollectiveError(f"the stages do not agree: {before} sent step {found.step} with "
                                  f"{len(found.content)} words, wanted are {count} words of step {step}")
        return found.content

    def await_until(self, rank: str, other: str, thread: Sleeper, deadline: float, what: str) -> float:
        """The rank waits for another one; its thread is woken when something has changed. -> when it looks again

        Raises CollectiveError, which says `what`, where it has waited for too long.
        """
        late_s = self._kernel.now - deadline
        if late_s >= 0 and not (self._shared and late_s < self.timeout_s and self._waiting.is_waiting(other)):
            self._waiting.failed(rank)
            raise CollectiveError(f"{what} within {self.timeout_s} s")
        self._waits[rank] = thread
        return deadline if late_s < 0 else self._kernel.now + LOOK_S

    def next_to(self, rank: str) -> str:
        return self._next[rank]

    def before(self, rank: str) -> str:
        return self._before[rank]

    def waiter(self, rank: str) -> Sleeper | None:
        return self._waits.get(rank)

    def died(self, rank: str) -> None:
        """A rank's process is gone."""
        if rank in self._lanes:
            self._kernel.after(self._kernel.costs.collective_death_s, self._told_of_death, rank)

    def _told_of_death(self, rank: str) -> None:
        self._dead.add(rank)
        for other in (self._before[rank], self._next[rank]):
            self._wake(other)

    def _arrive(self, rank: str, handed: Handed) -> None:
        self._in_flight[rank] -= 1
        self._lanes[rank].append(handed)
        self._wake(self._next[rank])

    def _wake(self, rank: str) -> None:
        thread = self._waits.pop(rank, None)
        if thread is not None:
            thread.wake()

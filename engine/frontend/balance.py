"""Which rank gets the next request (pure).

Promises
- "new": the rank with the fewest requests, counted twice: those that this client has in flight there itself, times the
  number of clients, since the others do the same; and those that the coordinator told of last. The larger one counts,
  because either may be behind. With requests that wait, a cache that is more than half full counts, too.
- Of n*k equal requests to n idle ranks none gets more than k plus the number of clients, whatever counts arrive
  meanwhile. Without a coordinator own counts alone do it.
- "old": four times what waits, and what runs, by the coordinator's counts and what was sent since. Counts that were
  taken before a burst has arrived forget it, and the burst piles up on one rank.
- A rank that nothing can be sent to draws no requests for having none: each that was not sent counts there, until one
  has ended otherwise.
- A rank that is known dead is never chosen. A rank that is asked for by number is taken as it is, if it lives.
- A notice of a wave leaves the counts as they are. The wave never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.errors import EngineDeadError

#: Of a request that waits, at a cache that is full, per half of the cache.
_WAITING_WEIGHT, _CACHE_WEIGHT, _CACHE_FREE = 4, 6, 0.5


class Balance:
    """One client's view of the ranks, of which there are `engines`."""

    def __init__(self, engines: int, *, client_index: int = 0, client_count: int = 1,
                 score: Literal["old", "new"] = "new") -> None:
        self.engines = engines
        self.in_flight = [0] * engines  # own requests
        self.dead: set[int] = set()
        self.wave = 0
        self.running = False  # what the coordinator believes
        self._clients = client_count
        self._old = score == "old"
        self._counts = [(0, 0, 0.0)] * engines
        self._sent = [0] * engines  # since these counts came, by the clients together as far as one can guess
        self._unsent = [0] * engines  # in a row
        self._first = engines * client_index // client_count

    def choose(self, rank: int | None = None) -> int:
        """-> the rank that gets the next request, which is in flight there from now on.

        Raises ValueError if `rank`, which the caller asks for, is none of theirs, EngineDeadError if it is dead or all
        are.
        """
        if rank is None:
            rank = self._lowest()
        elif not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < self.engines:
            raise ValueError(f"data_parallel_rank must lie between 0 and {self.engines - 1}, got {rank!r}")
        elif rank in self.dead:
            raise EngineDeadError(f"data-parallel rank {rank} is dead")
        self.in_flight[rank] += 1
        self._sent[rank] += 1 if self._old else self._clients
        return rank

    def ended(self, rank: int, *, unsent: bool = False) -> None:
        """One of this client's requests has ended there, or could not be sent."""
        self.in_flight[rank] -= 1
        self._unsent[rank] = self._unsent[rank] + 1 if unsent else 0
        if not self._old:  # where no counts come, what was sent is what is in flight
            self._sent[rank] = max(0, self._sent[rank] - self._clients)

    def died(self, rank: int) -> None:
        """It is gone, and whatever is in flight there with it."""
        self.dead.add(rank)

    def on_notice(self, counts: Sequence[tuple[int, int, float]] | None, wave: int, running: bool) -> str | None:
        """What the coordinator published. -> what was wrong with it, if it was not used"""
        if counts is not None and len(counts) != self.engines:
            return f"counts of {len(counts)} ranks, there are {self.engines}"
        if wave >= self.wave:
            self.wave, self.running = wave, running
        if counts is not None:
            self._counts = [(waiting, active, cache) for waiting, active, cache in counts]
            self._sent = [0] * self.engines
        return None

    def sent(self) -> None:
        """Offline: whoever has a request is at work, and so is the group."""
        self.running = True

    def completed(self, wave: int) -> None:
        """Offline: its own core says that this wave is over. What was sent since then begins the next one."""
        self.wave, self.running = max(self.wave, wave + 1), any(self.in_flight)

    def first_request(self, rank: int) -> tuple[int, int] | None:
        """Of the old protocol: what the coordinator is to be told of a request that was sent to a group at rest."""
        if self.running:
            return None
        self.running = True
        return rank, self.wave

    def score(self, rank: int) -> float:
        """The lowest is chosen."""
        waiting, active, cache = self._counts[rank]
        waiting += self._sent[rank]
        if self._old:
            return _WAITING_WEIGHT * waiting + active
        known = max(self._clients * self.in_flight[rank], waiting + active)
        return known + self._clients * self._unsent[rank] + waiting * _CACHE_WEIGHT * max(0.0, cache - _CACHE_FREE)

    def _lowest(self) -> int:
        """The first of those with the lowest score. The scan begins one further each time, and elsewhere per client."""
        scan = [(self._first + offset) % self.engines for offset in range(self.engines)]
        living = [rank for rank in scan if rank not in self.dead]
        if not living:
            raise EngineDeadError("all data-parallel ranks are dead")
        self._first = (self._first + 1) % self.engines
        return min(living, key=self.score)

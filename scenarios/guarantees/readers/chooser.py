"""Which core a client has to choose, by what it was told and has sent: the rules, written down a second time and not as
`engine/frontend/balance.py` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A request that waits counts so often by the old score; by the new one for a cache in use beyond a half.
_OLD, _FULL, _HALF = 4, 6, 0.5


@dataclass
class Known:
    """Of one core. `told`: waiting, running, share of the cache in use."""

    told: tuple[int, int, float] = (0, 0, 0.0)
    own: int = 0  # in flight there
    since: int = 0  # sent there since it was told, by all clients, as far as one can know
    unsent: int = 0  # in a row
    dead: bool = False


class Chooser:
    """Of client `index` of `clients`, of `cores`."""

    def __init__(self, cores: int, index: int, clients: int, score: Literal["old", "new"]) -> None:
        self.cores = [Known() for _ in range(cores)]
        self._clients, self._is_old = clients, score == "old"
        self._begin = cores * index // clients

    def choice(self, gone: frozenset[int] = frozenset()) -> int | None:
        """None: all are dead. `gone`: those that it may have found dead and not told of."""
        count = len(self.cores)
        ranked = [(self._cost(self.cores[(self._begin + place) % count]), place) for place in range(count)
                  if not self.cores[(self._begin + place) % count].dead
                  and (self._begin + place) % count not in gone]
        return (self._begin + min(ranked)[1]) % count if ranked else None

    def _cost(self, known: Known) -> float:
        waiting, running, cache = known.told
        waiting += known.since
        if self._is_old:
            return _OLD * waiting + running
        return max(known.own * self._clients, waiting + running) + known.unsent * self._clients + (
            max(cache, _HALF) - _HALF) * _FULL * waiting

    def sends(self, core: int, *, chosen: bool) -> None:
        self._begin += chosen
        self.cores[core].own += 1
        self.cores[core].since += 1 if self._is_old else self._clients

    def ends(self, core: int, *, unsent: bool) -> None:
        known = self.cores[core]
        if known.dead:
            return
        known.own -= 1
        known.unsent = (known.unsent + 1) * unsent
        if not self._is_old:
            known.since -= min(known.since, self._clients)

    def hears(self, told: list[tuple[int, int, float]]) -> None:
        for known, counts in zip(self.cores, told, strict=True):
            known.told, known.since = counts, 0

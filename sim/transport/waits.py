"""Which ranks wait for others, as those that share memory with them can see.

A rank that stands still waits for nobody, whatever it was in when it was stopped: it does not say so any more. One
that has failed in a wait says so for good: nobody waits for it because of what it did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sim.kernel.kernel import Sleeper

#: So often a rank whose time is over looks again, while all that it waits for wait themselves.
LOOK_S = 0.01


class Place(Protocol):
    """Where ranks wait for each other."""

    def waiter(self, rank: str) -> Sleeper | None:
        """Who waits there for that rank's sake."""


class Waits:
    """Over all places of a host."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._failed: set[str] = set()

    def at(self, place: Place) -> None:
        self._places.append(place)

    def failed(self, rank: str) -> None:
        self._failed.add(rank)

    def is_waiting(self, rank: str) -> bool:
        waiters = (place.waiter(rank) for place in self._places)
        return rank in self._failed or any(waiter is not None and not waiter.stands_still for waiter in waiters)

    def guilty(self, ranks: Iterable[str]) -> list[str]:
        """Those among them for whom others wait, and who wait for nobody."""
        return [rank for rank in ranks if not self.is_waiting(rank)]

    def untie(self) -> None:
        """The play is over."""
        self._places.clear()

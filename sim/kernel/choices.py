"""Where the world may answer in several ways, one of them is picked, and that there were others is remembered.

What libzmq held at a death, which of the ranks is told of it: `choose` picks one answer, and `enumerate_choices` plays
the others, too. The same picks give the same play.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

import msgspec

Result = TypeVar("Result")


class Choice(msgspec.Struct, frozen=True):
    """One point at which the world had several allowed answers."""

    label: str
    count: int
    picked: int


class Choices:
    """Answers `choose`: from a prefix first; behind it the first outcome, or one drawn from `random`."""

    def __init__(self, prefix: Sequence[int] = (), random: Random | None = None) -> None:
        self._prefix = tuple(prefix)
        self._random = random
        self.made: list[Choice] = []

    def choose(self, count: int, label: str) -> int:
        place = len(self.made)
        if place < len(self._prefix):
            picked = min(self._prefix[place], count - 1)
        else:
            picked = self._random.randrange(count) if self._random else 0
        self.made.append(Choice(label, count, picked))
        return picked

    @property
    def picks(self) -> tuple[int, ...]:
        return tuple(choice.picked for choice in self.made)


def enumerate_choices(play: Callable[[Choices], Result], bound: int = 8) -> Iterator[tuple[tuple[int, ...], Result]]:
    """Play every allowed outcome, at most `bound` of them. -> (picks, result) of each

    The first play takes the usual outcome everywhere. Plays that differ from it at one point come next, early
    points first, then those that differ at two: within a small bound this reaches every point, where a
    depth-first order would only ever vary the last one.
    """
    waiting: deque[tuple[int, ...]] = deque([()])
    for _ in range(bound):
        if not waiting:
            return
        prefix = waiting.popleft()
        choices = Choices(prefix)
        result = play(choices)
        yield choices.picks, result
        picks = choices.picks
        for place in range(len(prefix), len(picks)):
            for other in range(1, choices.made[place].count):
                waiting.append((*picks[:place], other))

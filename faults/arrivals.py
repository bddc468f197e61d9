"""What faults do to arriving messages: one inbox's ready and held messages. Pure, used by both worlds.

Promises: a message that no fault names passes in its place; nothing here waits. A delayed message goes
behind whatever is ready when its fault is over; a reordered one goes right behind the next message of its
edge that is delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from faults.damage import corrupted, swapped, truncated, without_last
from faults.plan import Fate, Fault


class Held(msgspec.Struct, frozen=True):
    """A message that a fault keeps back: `nth` is its crossing, `since` when it arrived."""

    fault: Fault
    edge: str
    nth: int
    since: float
    message: Any  # (peer, frames)


class Inbox:
    """`is_over(fault, since, now)` tells when a delay ends; `on_release(held)` is called as it is let go."""

    def __init__(self, is_over: Callable[[Fault, float, float], bool], on_release: Callable[[Held], None]) -> None:
        self._is_over = is_over
        self._on_release = on_release
        self._ready: deque[Any] = deque()
        self._held: list[Held] = []
        self._swapped: dict[str, list[Held]] = {}

    @property
    def holding(self) -> bool:
        """Whether a delayed message waits for its release (a reordered one only waits for its successor)."""
        return bool(self._held)

    def arrive(self, edge: str, message: tuple[Any, list[Any]], fault: Fault | None, nth: int, now: float) -> None:
        """`message` (peer, frames) came in and `fault`, if any, befalls it."""
        fate = Fate.PASS if fault is None else fault.fate
        if fault is not None:
            if fate is Fate.DROP:
                return
            if fate in (Fate.DELAY, Fate.REORDER):
                held = Held(fault, edge, nth, now, message)
                (self._held if fate is Fate.DELAY else self._swapped.setdefault(edge, [])).append(held)
                return
            if fate is Fate.CORRUPT:
                message = message[0], corrupted(message[1], fault)
            elif fate is Fate.TRUNCATE:
                message = message[0], truncated(message[1], fault)
            elif fate is Fate.OMIT:
                message = message[0], without_last(message[1])
            elif fate is Fate.SWAP:
                message = message[0], swapped(message[1])
        self._ready.append(message)
        if fate is Fate.DUPLICATE:
            self._ready.append((message[0], list(message[1])))
        self._let_follow(edge)

    def release(self, now: float) -> bool:
        """Let go what is over. -> whether anything was"""
        going = [held for held in self._held if self._is_over(held.fault, held.since, now)]
        if not going:
            return False
        self._held = [held for held in self._held if held not in going]
        for held in going:
            self._on_release(held)
            self._ready.append(held.message)
            self._let_follow(held.edge)
        return True

    def _let_follow(self, edge: str) -> None:
        """A message of that edge is delivered: behind it those that have changed places with it."""
        for held in self._swapped.pop(edge, ()):
            self._on_release(held)
            self._ready.append(held.message)

    def take(self) -> Any | None:
        """(peer, frames) of the next message that may be read, or None."""
        return self._ready.popleft() if self._ready else None

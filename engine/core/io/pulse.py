"""Whether the threads beside a core's loop still move (pure): without them it serves nobody, however well it beats.

Promises: a thread that has not come round for a quarter of the stall bound is missed, and comes back when it moves
again; one that nobody has started yet is not missed. Each thread writes its own entry, the core's loop reads.
"""

from __future__ import annotations

from engine.config import Bounds

#: Of the stall bound: how often a thread comes round, and how long it may stay away.
_EVERY, _AWAY = 1 / 16, 1 / 4


class Pulse:
    def __init__(self, bounds: Bounds) -> None:
        self.every_s = bounds.stall_s * _EVERY
        self._away_s = bounds.stall_s * _AWAY
        self._seen: dict[str, float] = {}

    def beat(self, thread: str, now: float) -> None:
        self._seen[thread] = now

    def missing(self, now: float) -> list[str]:
        """Threads that stand still."""
        return [thread for thread, at in list(self._seen.items()) if now - at > self._away_s]

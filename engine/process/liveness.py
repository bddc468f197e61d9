"""Is it still making progress? (pure)

A heartbeat is a number that grows. `Liveness` is told the number and the time and answers with the reason to
treat its process as dead, or with None. Whoever asks decides how often; what counts is only how long the
number has stood still.
"""

from __future__ import annotations


class Liveness:
    """Promise: a process whose beat stands still for longer than `stall_s` is reported, at the next tick."""

    def __init__(self, name: str, stall_s: float, now: float) -> None:
        self._name = name
        self._stall_s = stall_s
        self._beat = -1
        self._since = now

    def still_s(self, now: float) -> float:
        """How long it has not beaten, as far as is known."""
        return now - self._since

    def on_tick(self, beat: int, now: float, beaten_at: float | None = None) -> str | None:
        """`beaten_at`: when that beat was, where it is known. Without it a beat counts from when it is seen first, and
        whoever looks seldom takes an old one for new.
        """
        if beat != self._beat:
            self._beat, self._since = beat, now if beaten_at is None else beaten_at
        still_s = now - self._since
        if still_s <= self._stall_s:
            return None
        return (f"{self._name} has made no progress for {still_s:.2f} s (bound {self._stall_s:g} s): "
                "it is stopped or hangs")

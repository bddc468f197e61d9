"""Leaving on SIGTERM (pure): refuse what is new, let run what runs, until a deadline."""

from __future__ import annotations


class Drain:
    """Promises: after `begin` nothing new is accepted; `over` is true once nothing runs or the deadline passed."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.deadline: float | None = None

    @property
    def active(self) -> bool:
        return self.deadline is not None

    def begin(self, now: float) -> None:
        """A second SIGTERM does not start the time anew."""
        if self.deadline is None:
            self.deadline = now + self._drain_s

    def over(self, now: float, unfinished: bool) -> bool:
        return self.deadline is not None and (not unfinished or now >= self.deadline)

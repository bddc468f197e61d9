"""How many steps a core may still schedule, and has run (pure but for its file): words that its caller maps, too.

    0  steps it may schedule before it pauses itself; 0: as many as it likes
    1  steps with tokens that it has scheduled since    2  that it has used    3  requests that are not done after that
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from pathlib import Path

_WORDS = 4
_ALLOWED, _SCHEDULED, _USED, _LEFT = range(_WORDS)


class Gate:
    """Of core `index`. Whoever comes first makes the file."""

    def __init__(self, folder: str, index: int) -> None:
        fd = os.open(Path(folder) / f"gate.{index}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, 8 * _WORDS)
            self._words = memoryview(mmap.mmap(fd, 8 * _WORDS)).cast("Q")
        finally:
            os.close(fd)

    # -- the caller's side

    def allow(self, steps: int) -> None:
        """So many from now on; the core rests while this is called."""
        words = self._words
        words[_SCHEDULED] = words[_USED] = 0
        words[_LEFT] = 1
        words[_ALLOWED] = steps

    def open(self) -> None:
        self._words[_ALLOWED] = 0

    def is_done(self) -> bool:
        """Whether all that were allowed are used, or nothing was left before that."""
        words = self._words
        return words[_USED] >= words[_ALLOWED] or (not words[_LEFT] and words[_USED] == words[_SCHEDULED])

    # -- the core's side

    def counts(self) -> bool:
        """A step with tokens was scheduled. -> whether it was the last that may be"""
        words = self._words
        if not words[_ALLOWED]:
            return False
        words[_SCHEDULED] += 1
        return words[_SCHEDULED] >= words[_ALLOWED]

    def has_run(self, left: int) -> None:
        words = self._words
        words[_LEFT] = left
        words[_USED] += 1


class Gates:
    """Of all cores of a caller. Who has nothing to do when steps are allowed is waited for by nobody."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates, self._busy = gates, list(gates)

    def __len__(self) -> int:
        return len(self._gates)

    def allow(self, steps: int, busy: Collection[int]) -> None:
        """So many of each. `busy`: the cores that have requests."""
        self._busy = [gate for index, gate in enumerate(self._gates) if index in busy]
        for gate in self._gates:
            gate.allow(steps)

    def open(self) -> None:
        for gate in self._gates:
            gate.open()

    def is_done(self) -> bool:
        return all(gate.is_done() for gate in self._busy)

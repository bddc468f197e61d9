"""How much of its processors' time this machine has left, whoever uses the rest."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
#: The kernel counts in hundredths of a second: over less than this a share says little.
LOOK_S = 0.5


class Rest:
    """Of those processors that this process may use, from one look to the next."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._looked_at, self._before, self._share = time.monotonic(), self._times(), 0.0

    def share(self) -> float:
        """0.0 to 1.0, of the time between the last two looks. 0.0 before the second, and where nothing can be seen."""
        if (now := time.monotonic()) - self._looked_at >= LOOK_S:
            self._looked_at, before, self._before = now, self._before, self._times()
            every, left = (after - was for after, was in zip(self._before, before, strict=True))
            self._share = left / every if every > 0 else 0.0
        return self._share

    def _times(self) -> tuple[int, int]:
        """-> ticks in all, and those in which nobody wanted the processor: the 4th number and the 5th (proc(5))"""
        try:
            lines = [line.split() for line in self._stat.read_text().splitlines()]
        except OSError:
            return 0, 0
        ticks = [[int(number) for number in numbers[:8]] for name, *numbers in lines if name in self._names]
        return sum(map(sum, ticks)), sum(one[3] + one[4] for one in ticks)

"""What a machine that has too much to do makes of a process: anywhere, it stands still for a moment.

Promises: nothing is lost, doubled or put in another order by it, so what a play promises must hold all the same, unless
it is late by more than its bounds allow. Where it happens is drawn by the play's seed, for each process by itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: So long at most: some turns of others that want the same processor.
MOST_S = 0.03


class Unsteady:
    """`share`: 0.0 to 1.0, of the places where it might. `sleep`: seconds -> None"""

    def __init__(self, share: float, seed: int, process: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._share, self._sleep = share, sleep
        self._lot = random.Random(f"{seed} {process}")  # noqa: S311 - no secret

    def pause(self) -> None:
        """Maybe a moment."""
        if self._lot.random() < self._share:
            self._sleep(self._lot.uniform(0.0, MOST_S))

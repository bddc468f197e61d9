"""The queue between the step loop and the publisher's thread: handing over costs a fraction of a microsecond.

Promises
- `put` never waits, and while batches come at least every `NAP_S * NAPS` it asks nothing of the kernel: waking a
  sleeping thread costs more than all the rest of a hand-over, and the step loop would pay it.
- What is put is taken within `NAP_S` and what the taker needs to run; who sleeps longer is woken.
- An idle queue costs nothing: after `NAPS` naps without a batch the taker sleeps until it is woken.

One thread takes; any thread, and a signal handler, may put.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

#: How late a batch may be taken. A subscriber is some network away, so it will not notice.
NAP_S = 0.001
#: So many naps after the last batch: longer than most steps take.
NAPS = 50


class NappingQueue:
    """What `engine.process.shell.LocalQueue` is, for a taker that need not run at once."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._sleeps = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._sleeps:  # it looks once more after it has said so: either it sees the item, or this is seen
            self._sleeps = False
            with contextlib.suppress(RuntimeError):  # two put at once, and the other one woke it
                self._wake.release()

    def take(self, timeout_s: float) -> list[Any]:
        """Everything that is there; waits for the first item at most `timeout_s`."""
        for _ in range(NAPS):
            if self._items or timeout_s <= 0:
                return self._all()
            self._wake.acquire(timeout=min(NAP_S, timeout_s))
            timeout_s -= NAP_S
        self._sleeps = True
        if not self._items and timeout_s > 0:
            self._wake.acquire(timeout=timeout_s)
        self._sleeps = False
        return self._all()

    def _all(self) -> list[Any]:
        return [self._items.popleft() for _ in range(len(self._items))]

    def __len__(self) -> int:
        return len(self._items)

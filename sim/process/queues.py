"""What the threads of one process wake each other with: queues; and its ends of the doorbells between processes."""

from __future__ import annotations

from collections import deque
from typing import Any

from sim.kernel.kernel import Sleeper
from sim.transport.ring_memory import Bell


class SimQueue:
    """A queue between the threads of one process."""

    __slots__ = ("_delay_s", "items", "waiter")

    def __init__(self, delay_s: float) -> None:
        self.items: deque[Any] = deque()
        self.waiter: Sleeper | None = None
        self._delay_s = delay_s

    def put(self, item: Any) -> None:
        self.items.append(item)
        if self.waiter is not None:
            self.waiter.wake_after(self._delay_s)

    def __len__(self) -> int:
        return len(self.items)


class Queues(dict[str, SimQueue]):
    """Queues by name, made when they are first used."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    def __missing__(self, name: str) -> SimQueue:
        queue = self[name] = SimQueue(self._delay_s)
        return queue


class BellEnd:
    """One process's end of a doorbell; `site` where ringing it is counted."""

    __slots__ = ("bell", "site")

    def __init__(self, bell: Bell, site: str | None) -> None:
        self.bell = bell
        self.site = site

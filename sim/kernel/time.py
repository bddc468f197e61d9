"""Virtual time: what happens next, and when.

Promises: time only moves to the next thing that happens, so a play costs what happens in it, not how long it waits;
of two things at one time the one that was asked for first happens first.

    simpy's heap ->  function, arguments      timers, arrivals, wake-ups: plain calls, no Process, no AnyOf
                 ->  any simpy event          usable beside them
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any

import simpy

#: Length of a call in simpy's queue.
_CALL = 5


class Ended(StrEnum):
    QUIET = "quiet"  # nothing is left to happen: what is open now is open for ever
    GUARD = "guard"  # the virtual guard time passed


class VirtualTime(simpy.Environment):
    """simpy's environment with exact times. Beside events its queue holds plain calls, which need no detour.

        event    (when, priority, number, event)
        call     (when, priority, number, function, arguments)
    """

    _queue: Any  # of both kinds

    def call_at(self, when: float, function: Callable[..., Any], *arguments: Any) -> None:
        now = self._now
        heappush(self._queue, (when if when > now else now, 1, next(self._eid), function, arguments))

    def after(self, delay_s: float, function: Callable[..., Any], *arguments: Any) -> None:
        """`delay_s` is never negative."""
        heappush(self._queue, (self._now + delay_s, 1, next(self._eid), function, arguments))

    def step(self) -> None:
        """Let the next thing happen. Raises simpy's EmptySchedule where there is none."""
        if self._queue and len(self._queue[0]) == _CALL:
            self._now, _, _, function, arguments = heappop(self._queue)
            function(*arguments)
        else:
            super().step()

    def advance(self, guard: float) -> Ended:
        """Let things happen until none is left, or the next one lies behind `guard`."""
        queue = self._queue
        while queue:
            if queue[0][0] > guard:
                self._now = guard
                return Ended.GUARD
            if len(queue[0]) == _CALL:  # as `step` does it
                self._now, _, _, function, arguments = heappop(queue)
                function(*arguments)
            else:
                super().step()
        return Ended.QUIET

    def forget(self) -> None:
        """Nothing happens any more."""
        self._queue.clear()

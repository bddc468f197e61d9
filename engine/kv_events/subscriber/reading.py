"""What one reader of KV events does with its two sockets, in a program as in a play. Pure.

Promises
- Neither socket starves the other: they are looked at in turns, also by a reader that takes one message at a time.
- A question is asked, or counts as unanswered, after what had already come was read.
- What is reported stays in `told` until somebody takes it, whatever becomes of the caller: an exception out of a turn
  loses nothing that was read. Where it struck in the midst of a message, the next turn starts over with a new follower,
  and that is told as `Restarted`.
- A connection that was cut and is back is known to the follower before what the new one brings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from engine.effects import Loop, Now, Receive, Send, WasCut
from engine.errors import UnroutableError
from engine.kv_events.reports import Question, Report, Restarted, Settled
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.ports import Unroutable
from engine.wire.wiring import KV, REPLAY

#: Messages read in a row before what they brought is handed on.
BURST_MESSAGES = 1000


class Reading:
    """`start` makes a follower that knows nothing yet."""

    def __init__(self, start: Callable[[], KVEventFollower]) -> None:
        self._start = start
        self.follower = start()
        self.told: deque[Report] = deque()  # in order; for the user, so neither questions nor that it is settled
        self.settled = False  # since somebody last looked, and said so
        self.whole = True  # not broken off in the midst of a message
        self._live_first = True

    def until_told(self, deadline: float | None) -> Loop[None]:
        """Read until there is something to tell, at most until `deadline`."""
        while not self.told:
            yield from self.turn(deadline)
            if deadline is not None and (yield Now()) >= deadline:
                return

    def turn(self, deadline: float | None) -> Loop[None]:
        """Read until there is something to report, and on while messages are there, at most until `deadline`.

        One that is over reads what is there, and waits for nothing.
        """
        found = False
        if not self.whole:
            self.told.append(Restarted(None))
            self.follower = self._start()
            self.whole = found = True
        follower = self.follower
        for messages in count(1):
            inboxes = (KV, REPLAY) if self._live_first else (REPLAY, KV)
            message = yield Receive(inboxes if follower.replay else (KV,),
                                    0.0 if found else _earlier(deadline, follower.deadline()))
            now = yield Now()
            if message is not None:
                reports = yield from self._read(message[0], message[2], now)
                found = (yield from self._ask(reports)) or found
            if message is None or (message[0] == KV and not self._live_first):  # there was no answer to read
                self.whole = False
                found = (yield from self._ask(self._keep(follower.on_time(now)))) or found
            self._live_first = not self._live_first
            enough = message is None or messages >= BURST_MESSAGES
            if enough and (found or (deadline is not None and now >= deadline)):
                return

    def _read(self, inbox: str, frames: list[Any], now: float) -> Loop[list[Report]]:
        self.whole = False
        if inbox != KV:
            return self._keep(self.follower.on_replay(frames, now))
        before: list[Report] = []
        if (yield WasCut(KV)):
            before = self._keep(self.follower.on_reconnect(now))
            self.whole = False
        return before + self._keep(self.follower.on_live(frames, now))

    def _keep(self, reports: list[Report]) -> list[Report]:
        self.told.extend([report for report in reports if not isinstance(report, Question | Settled)])
        self.settled = self.settled or any(isinstance(report, Settled) for report in reports)
        self.whole = True
        return reports

    def _ask(self, reports: list[Report]) -> Loop[bool]:
        """Send the questions. -> whether there are other reports"""
        found = False
        for report in reports:
            if not isinstance(report, Question):
                found = True
                continue
            try:
                yield Send(REPLAY, report.frames)
            except (Unroutable, UnroutableError):  # unanswered, then: it will be asked again
                pass
        return found


def _earlier(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times) if times else None

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
        self._found = False  # this turn has something to report

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
        self._found = False
        if not self.whole:
            self.told.append(Restarted(None))
            self.follower = self._start()
            self.whole = self._found = True
        follower = self.follower
        for messages in count(1):
            inboxes = (KV, REPLAY) if self._live_first else (REPLAY, KV)
            message = yield Receive(inboxes if follower.replay else (KV,),
                                    0.0 if self._found else _earlier(deadline, follower.deadline()))
            now = yield Now()
            if message is not None:
                inbox, _, frames = message
                self.whole = False
                if inbox != KV:
                    questions = self._keep(follower.on_replay(frames, now))
                else:
                    before = self._keep(follower.on_reconnect(now)) if (yield WasCut(KV)) else []
                    self.whole = False
                    questions = before + self._keep(follower.on_live(frames, now))
                if questions:
                    yield from self._ask(questions)
            if message is None or (inbox == KV and not self._live_first):  # there was no answer to read
                self.whole = False
                yield from self._ask(self._keep(follower.on_time(now)))
            self._live_first = not self._live_first
            enough = message is None or messages >= BURST_MESSAGES
            if enough and (self._found or (deadline is not None and now >= deadline)):
                return

    def _keep(self, reports: list[Report]) -> list[Question]:
        """-> the questions, which are to be sent"""
        questions = []
        for report in reports:
            if type(report) is Question:
                questions.append(report)
                continue
            self._found = True
            if type(report) is Settled:
                self.settled = True
            else:
                self.told.append(report)
        self.whole = True
        return questions

    def _ask(self, questions: list[Question]) -> Loop[None]:
        for question in questions:
            try:
                yield Send(REPLAY, question.frames)
            except (Unroutable, UnroutableError):  # unanswered, then: it will be asked again
                pass


def _earlier(one: float | None, other: float | None) -> float | None:
    times = [time for time in (one, other) if time is not None]
    return min(times) if times else None

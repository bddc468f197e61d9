"""How a rank answers (pure): at once, or with async scheduling by a thread of its own, while it takes the next call.

Promises: one answer for each call that asks this rank for one, in the order of the calls, whichever thread gives it;
the ring of answers has one writer. The thread has no more answers before it than steps may be in flight: whoever finds
more knows that it hangs. What it fails with ends the process, so that it is told like a death.
"""

from __future__ import annotations

from typing import Any

from engine.config import Bounds
from engine.effects import Call, Loop, MarkPoint, Observe, Put, Take, Waiting
from engine.ipc.framing import encode
from engine.ipc.queue import QueueWriter, Within
from engine.messages import ReplyStatus
from engine.topology import Mark

#: The thread, and the queue of what it has still to answer.
COPY = "copy"


class AsyncModelRunnerOutput:
    """What a step has sampled, on its way from the device. The worker's `get_output` waits for it to be here."""

    def __init__(self, step: int, sampled: Any) -> None:
        self.step = step
        self.sampled = sampled


class Answers:
    """Of one rank, given where they are made."""

    def __init__(self, response: QueueWriter, bounds: Bounds) -> None:
        self._response = response
        self._bounds = bounds

    def give(self, call_id: int, status: ReplyStatus, value: Any) -> Loop[None]:
        yield from self._response.enqueue(encode((call_id, int(status), value)), Within(self._bounds.rpc_s))


class LateAnswers(Answers):
    """Left to the thread. `most`: so many may wait there."""

    def __init__(self, response: QueueWriter, bounds: Bounds, most: int) -> None:
        super().__init__(response, bounds)
        self._most = most

    def give(self, call_id: int, status: ReplyStatus, value: Any) -> Loop[None]:
        """Raises RuntimeError where the thread must be hanging."""
        if (yield Waiting(COPY)) >= self._most:
            raise RuntimeError(f"{self._most} answers wait for the {COPY} thread, which may have no more: it hangs")
        yield Put(COPY, (call_id, status, value))

    def async_output_busy_loop(self) -> Loop[None]:
        """Runs until its process ends."""
        while True:
            for call_id, status, value in (yield Take(COPY, None)):
                yield MarkPoint(Mark.COPYING, {"call": call_id})
                if isinstance(value, AsyncModelRunnerOutput):
                    try:
                        yield MarkPoint(Mark.FETCHING, {"call": call_id})
                        value = yield Call("get_output", (value,), {})
                    except Exception as error:
                        status, value = ReplyStatus.FAILURE, f"{type(error).__name__}: {error}"
                        yield Observe("rpc-raised", {"call": call_id, "method": "get_output", "error": value})
                yield MarkPoint(Mark.COPIED, {"call": call_id})
                yield from super().give(call_id, status, value)


def answers_of(response: QueueWriter, bounds: Bounds, steps: int, is_async: bool) -> Answers:
    """`steps` may be in flight, each of which is two calls; one more is in hand, and one nobody takes for a step."""
    return LateAnswers(response, bounds, 2 * steps + 2) if is_async else Answers(response, bounds)

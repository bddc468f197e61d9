"""The RPC call table (pure): which calls are open, and which reply belongs to which.

    call     (call_id, method, args, kwargs, output_rank)       broadcast to all ranks
    reply    (call_id, SUCCESS | FAILURE, value)                 from the output rank, or from all; FAILURE from any
    reply    (-1 - position, FAILURE, value)                     from a rank that could not read what stands there

Promises: a reply is matched by its call id, never by its turn, so replies that come after a time-out or an
error cannot answer a later call; what a rank could not read is charged to the call at its place in the ring; a FAILURE
of any rank ends its call at once, or is kept where that call is over;
a call has one deadline, fixed when it is made, however long others are waited for in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from engine.errors import RpcError, RpcTimeoutError
from engine.messages import ReplyStatus

#: Calls whose success is remembered: a rank is never so many behind, the ring is smaller.
_REMEMBERED = 256


def unreadable(number: int) -> int:
    """What a rank that cannot read a message names in its answer, from the message's place in the ring; and back.

    Each call is one message, and both are counted from 0: so the place is the call's id.
    """
    return -1 - number


class PendingCall:
    """One call in flight: a future without a thread."""

    def __init__(self, call_id: int, method: str, waits_for: frozenset[int], output_rank: int | None,
                 deadline: float) -> None:
        self.call_id = call_id
        self.method = method
        self.output_rank = output_rank
        self.deadline = deadline
        self.error: Exception | None = None
        self.done = False
        self._waits_for = waits_for
        self._values: dict[int, Any] = {}

    @property
    def missing(self) -> list[int]:
        return sorted(self._waits_for - self._values.keys())

    def result(self) -> Any:
        """The output rank's value, or the list of all ranks' values. Raises what the call failed with."""
        if self.error is not None:
            raise self.error
        assert self.done, f"call {self.call_id} ({self.method}) has not been answered"
        if self.output_rank is not None:
            return self._values[self.output_rank]
        return [self._values[rank] for rank in sorted(self._waits_for)]


class CallTable:
    """The calls of one executor, whose ranks are known by these names."""

    def __init__(self, ranks: int, names: Sequence[str] = ()) -> None:
        self.ranks = ranks
        self._names = names or [f"worker.{rank}" for rank in range(ranks)]
        self._next_id = 0
        self._open: dict[int, PendingCall] = {}
        self.failure: RpcError | None = None  # of the first call that a rank failed in
        #: A rank failed in a call that another one had answered: the ranks are out of step, whoever asked is served.
        self.late_failure: RpcError | None = None
        self._succeeded: deque[int] = deque(maxlen=_REMEMBERED)

    def open(self, method: str, output_rank: int | None, deadline: float) -> PendingCall:
        """Raises ValueError for an output rank that does not exist."""
        if output_rank is not None and not 0 <= output_rank < self.ranks:
            raise ValueError(f"output_rank must lie between 0 and {self.ranks - 1}, got {output_rank}")
        waits_for = frozenset(range(self.ranks) if output_rank is None else (output_rank,))
        call = PendingCall(self._next_id, method, waits_for, output_rank, deadline)
        self._open[call.call_id] = call
        self._next_id += 1
        return call

    def reply(self, rank: int, call_id: int, status: int, value: Any) -> PendingCall | None:
        """Take one reply. -> the call it belongs to; None where that call has ended already."""
        if call_id < 0:
            call_id = unreadable(call_id)
        call = self._open.get(call_id)
        if call is None:
            if status == ReplyStatus.FAILURE and call_id in self._succeeded and self.late_failure is None:
                self.late_failure = RpcError(rank, "a call that was over", str(value), self._names[rank])
            return None
        if status == ReplyStatus.FAILURE:
            call.error = RpcError(rank, call.method, str(value), self._names[rank])
            self.failure = self.failure or call.error
            call.done = True
        else:
            call._values[rank] = value
            call.done = call._waits_for <= call._values.keys()
        if call.done:
            del self._open[call_id]
            if call.error is None:
                self._succeeded.append(call_id)
        return call

    def expire(self, call: PendingCall, now: float) -> None:
        """End a call whose deadline has passed; its late replies will belong to nobody."""
        if not call.done and now >= call.deadline:
            late = ", ".join(self._names[rank] for rank in call.missing)
            call.error = RpcTimeoutError(f"no answer to {call.method} from {late} by its deadline: a worker hangs, "
                                         "is stopped, or sits in a stuck collective")
            call.done = True
            del self._open[call.call_id]

    @property
    def outstanding(self) -> int:
        return len(self._open)

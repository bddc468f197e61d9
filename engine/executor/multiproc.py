"""TP>1: one process per rank, an RPC broadcast by one ring, answers by one ring per rank (pure).

Promises
- While it waits for the output rank it reads every rank's answers, so a FAILURE of any rank ends the call.
- Whatever ends a wait (deadline, death of a worker, shutdown) ends it with a named error.
- It starts, watches and stops the workers (`workers`).
- All answer rings wake one bell of the core.
- Any number of calls may be in flight: while there is no room for a call, answers are read, because a rank that
  cannot hand over an answer reads no further call; a failure among them ends that wait.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.config import Bounds
from engine.effects import Attempt, Loop, Now, Observe, WaitBell
from engine.errors import PeerDeadError, QueueCancelledError, QueueTimeoutError, RpcTimeoutError
from engine.executor.abstract import AcrossOf, Executor, alone
from engine.executor.calls import CallTable, PendingCall
from engine.executor.workers import CORE_BELL, Workers
from engine.ipc.framing import decode, encode
from engine.ipc.handle import QueueStats
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ring import EMPTY


class MultiprocExecutor(Executor):
    """Once connected, `rpc` broadcasts and `responses[rank]` answers. Both are queues of `engine.ipc.queue`."""

    rpc: QueueWriter
    responses: list[QueueReader]

    def __init__(self, bounds: Bounds, workers: Workers, output_rank: int) -> None:
        super().__init__(bounds, output_rank)
        self._workers = workers
        self.table = CallTable(len(workers.nodes), [str(node.first_life) for node in workers.nodes])

    def begin(self) -> Loop[None]:
        yield from self._workers.start()

    def connect(self, across: AcrossOf = alone) -> Loop[None]:
        self.rpc, self.responses = yield from self._workers.connect(across)
        self._answered = Attempt("response", self._who_answered)
        self.rpc.meanwhile = self._read_meanwhile

    def who_died(self, within_s: float) -> Loop[str]:
        return (yield from self._workers.who_died(within_s))

    def stop(self) -> Loop[None]:
        yield from self._workers.stop(self.bounds.terminate_s)

    def leaving(self) -> None:
        self._workers.leaving()

    def kill(self) -> Loop[None]:
        yield from self._workers.kill()

    def _who_answered(self) -> list[int]:
        return [rank for rank, reader in enumerate(self.responses) if reader.ready()]

    def submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], output_rank: int | None,
               timeout_s: float) -> Loop[PendingCall]:
        call = self.table.open(method, output_rank, (yield Now()) + timeout_s)
        yield Observe("rpc-call", {"call": call.call_id, "method": method, "output_rank": output_rank})
        message = encode((call.call_id, method, args, kwargs, output_rank))
        try:
            yield from self.rpc.enqueue(message, call.deadline)
        except QueueTimeoutError as error:
            raise RpcTimeoutError(f"{method} could not be handed to the workers: {error}") from None
        return call

    def wait(self, *calls: PendingCall) -> Loop[Any]:
        began = now = yield Now()
        slept = False
        error: Exception | None = None
        for call in calls:
            while not call.done and error is None:
                read_any = yield from self._read_answers()
                error = self.table.late_failure
                if call.done or read_any or error is not None:
                    continue
                self.table.expire(call, now)
                if not call.done:
                    slept = True
                    try:
                        yield WaitBell(CORE_BELL, call.deadline)
                    except QueueCancelledError as cancelled:
                        error = cancelled
                    now = yield Now()
            if error is not None or call.error is not None:
                break
        if slept:
            outcome = "peer-dead" if isinstance(error, PeerDeadError) else "cancelled" if error is not None \
                else "timeout" if isinstance(call.error, RpcTimeoutError) \
                else "failed" if call.error is not None else "ok"
            yield Observe("queue-wait", {"ring": "response", "began": began, "deadline": call.deadline,
                                         "ended": now, "outcome": outcome})
        if error is not None:
            raise error
        return call.result()

    def look(self) -> Loop[None]:
        yield from self._read_answers()
        if self.table.late_failure is not None:
            raise self.table.late_failure

    def queue_stats(self) -> Loop[list[QueueStats]]:
        stats = []
        queues: list[QueueWriter | QueueReader] = [self.rpc, *self.responses]
        for queue in queues:
            depth = yield Attempt(queue.name, queue.depth)
            stats.append(msgspec.structs.replace(queue.stats, messages=queue.position, depth=depth))
        return stats

    def _read_meanwhile(self) -> Loop[bool]:
        """While there is no room for a call: who does not read any more may wait for a rank that has failed."""
        read_any: bool = yield from self._read_answers()
        failure = self.table.failure or self.table.late_failure
        if failure is not None:
            raise failure
        return read_any

    def _read_answers(self) -> Loop[bool]:
        """Take one answer of each rank that has one."""
        read_any = False
        for rank in (yield self._answered):
            parts = yield from self.responses[rank].try_dequeue()
            if parts is EMPTY:
                continue
            read_any = True
            call_id, status, value = decode(parts)
            yield Observe("rpc-reply", {"call": call_id, "rank": rank, "status": int(status)})
            call = self.table.reply(rank, call_id, status, value)
            if call is not None and call.error is not None:
                yield Observe("rpc-failed", {"call": call.call_id, "rank": rank, "error": str(call.error)})
        return read_any

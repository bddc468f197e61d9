"""TP=1: the worker lives in the core's process, a call is a call."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.config import Bounds, EngineConfig
from engine.effects import Call, Describe, Loop, MakeWorker, Now, Observe
from engine.errors import RpcError
from engine.executor.abstract import AcrossOf, Executor, alone
from engine.executor.calls import CallTable, PendingCall
from engine.messages import ReplyStatus
from engine.worker.async_output import AsyncModelRunnerOutput
from engine.worker.worker_loop import Rank, described, described_error


class UniProcExecutor(Executor):
    """Promise: the same results and the same errors as with one process per rank.

    `config` None: the process has its worker already.
    """

    def __init__(self, bounds: Bounds, config: EngineConfig | None = None, local_dp_rank: int = 0) -> None:
        super().__init__(bounds)
        self._config, self._local_dp_rank = config, local_dp_rank
        self.table = CallTable(1)
        self._rank = Rank()

    def connect(self, across: AcrossOf = alone) -> Loop[None]:
        if self._config is not None:
            yield MakeWorker(self._config, 0, 1, "", across(0), self._local_dp_rank)
            yield Call("init_device", (), {})
            yield Call("load_model", (), {})

    def submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], output_rank: int | None,
               timeout_s: float) -> Loop[PendingCall]:
        call = self.table.open(method, output_rank, (yield Now()) + timeout_s)
        yield Observe("rpc-call", {"call": call.call_id, "method": method, "output_rank": output_rank})
        if method == "execute_model":
            yield Describe("step", partial(described, call.call_id, args[0]))
        try:
            value, status = (yield from self._rank.call(call.call_id, method, args, kwargs)), ReplyStatus.SUCCESS
        except Exception as error:  # a worker's failure is the call's, in one process as in many
            value, status = described_error(error), ReplyStatus.FAILURE
        self.table.reply(0, call.call_id, status, value)
        yield Observe("rpc-reply", {"call": call.call_id, "rank": 0, "status": int(status)})
        if isinstance(call.error, RpcError):
            yield Observe("rpc-failed", {"call": call.call_id, "rank": 0, "error": str(value)})
        return call

    def wait(self, *calls: PendingCall) -> Loop[Any]:
        value = [call.result() for call in calls][-1]
        if isinstance(value, AsyncModelRunnerOutput):
            value = yield Call("get_output", (value,), {})
        return value

"""What the core asks of whoever runs the model: `collective_rpc` and its two common uses.

All methods are pure loops (`engine.effects.Loop`). `UniProcExecutor` calls the worker inside the process,
`MultiprocExecutor` speaks to one process per rank through rings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from engine.config import Bounds
from engine.effects import Loop
from engine.executor.calls import CallTable, PendingCall
from engine.ipc.handle import QueueStats
from engine.messages import SchedulerOutput
from engine.process.consensus.effects import Across

#: What a client may ask of the workers while they serve. Anything else would end the engine: a rank that fails a call
#: is no longer in step with the others.
ASKABLE = frozenset({"check_health", "determine_available_memory", "get_num_blocks"})
#: A dying process closes its sockets a moment before its sentinel tells.
SENTINEL_S = 0.02

#: Whom a rank meets in each forward: its like in engines that step together with this one.
AcrossOf = Callable[[int], Across | None]


def alone(rank: int) -> Across | None:
    """Of an engine that steps by itself."""
    return None


class Executor(ABC):
    """It starts, watches and stops whoever runs the model: begin, connect, initialize, ..., leaving, stop."""

    table: CallTable

    def __init__(self, bounds: Bounds, output_rank: int = 0) -> None:
        self.bounds = bounds
        self._output_rank = output_rank  # who answers a step

    # -- its workers' life

    def begin(self) -> Loop[None]:
        """Start the processes that it needs: before the core's first socket."""
        return
        yield  # a loop without effects is a loop all the same

    @abstractmethod
    def connect(self, across: AcrossOf = alone) -> Loop[None]:
        """From here on calls can be made. Raises ConfigError, StartupError."""

    def who_died(self, within_s: float) -> Loop[str]:
        """When a call has failed: who is dead, as the beginning of a sentence; nothing, if nobody is so soon."""
        return ""
        yield

    def leaving(self) -> None:  # noqa: B027 - whoever has no workers has nobody to expect the end of
        """The core is on its way out: that a worker goes is no death any more."""

    def stop(self) -> Loop[None]:
        """End the workers, however long they take."""
        return
        yield

    def kill(self) -> Loop[None]:
        """End the workers, now."""
        return
        yield

    # -- calls

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return self.table.outstanding

    @abstractmethod
    def submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], output_rank: int | None,
               timeout_s: float) -> Loop[PendingCall]:
        """Start a call on all ranks without waiting for answers."""

    @abstractmethod
    def wait(self, *calls: PendingCall) -> Loop[Any]:
        """For all of them, in their order. -> the last one's result

        Raises what the first to fail failed with, RpcError or RpcTimeoutError, or what ended the queue.
        """

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = (),
                       kwargs: dict[str, Any] | None = None, non_block: bool = False,
                       output_rank: int | None = None) -> Loop[Any]:
        """Execute `method` on every worker.

        -> the list of all ranks' results, or the one of `output_rank`; with `non_block` a `PendingCall` whose
        result `wait` gives. `timeout` in seconds. A failure on any rank raises RpcError at once.
        """
        call = self.submit(method, args, kwargs or {}, output_rank, self.bounds.rpc_s if timeout is None else timeout)
        return call if non_block else self._waited_for(call)  # loops are handed on as they are: each of them costs

    def _waited_for(self, submitted: Loop[PendingCall]) -> Loop[Any]:
        return (yield from self.wait((yield from submitted)))

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Loop[Any]:
        """The first phase of a step. -> None, or the `ModelRunnerOutput` of a step without tokens; or the call."""
        return self.collective_rpc("execute_model", self.bounds.step_s, (scheduler_output,), non_block=non_block,
                                   output_rank=self._output_rank)

    def sample_tokens(self, grammar_output: None, non_block: bool = False) -> Loop[Any]:
        """The second phase. -> the step's `ModelRunnerOutput`, None where its execute failed; or the call."""
        return self.collective_rpc("sample_tokens", self.bounds.step_s, (grammar_output,), non_block=non_block,
                                   output_rank=self._output_rank)

    def execute_dummy_batch(self, at: tuple[int, int]) -> Loop[None]:
        """A forward of nobody's tokens, at this wave and step: what the ranks of other engines wait for is there."""
        yield from self.collective_rpc("execute_dummy_batch", self.bounds.step_s, (at,))

    def look(self) -> Loop[None]:
        """While nothing is asked of the workers: raises RpcError where one failed in a call that was over by then."""
        return
        yield

    def queue_stats(self) -> Loop[list[QueueStats]]:
        """One entry for each end of a queue to or from the workers, the broadcast first."""
        return []
        yield

    def initialize(self) -> Loop[int]:
        """Size the KV cache alike on all ranks. -> number of blocks"""
        counts: list[int] = yield from self.collective_rpc("get_num_blocks", self.bounds.startup_s)
        num_blocks = min(counts)
        yield from self.collective_rpc("initialize_cache", self.bounds.startup_s, (num_blocks,))
        return num_blocks

"""A worker's life (pure): read an RPC, execute it, answer.

Promises: RPCs are executed in the order of the ring, each once; the output rank answers, and any rank whose
method raises answers FAILURE, whoever was asked to answer; an RPC that cannot be decoded is answered FAILURE
too, so the core never waits for a reply that nobody will write. Behind a step that failed no other one is executed:
the core has asked for it already, and the ranks are not at one any more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.config import Bounds
from engine.effects import Call, Describe, Loop, MarkPoint, Observe
from engine.errors import QueueDecodeError, QueueTimeoutError
from engine.executor.calls import unreadable
from engine.ipc.framing import decode
from engine.ipc.queue import QueueReader, Within
from engine.messages import ReplyStatus, SchedulerOutput
from engine.topology import Mark
from engine.worker.async_output import Answers

#: What begins a forward, and what a step calls.
FORWARDS = ("execute_model", "execute_dummy_batch")
PHASES = (*FORWARDS, "sample_tokens")


class Rank:
    """One rank's worker, whose methods are called by name."""

    def __init__(self) -> None:
        self._failed = ""  # what the first step that failed did so with

    def lost(self, error: str) -> None:
        """A call could not be read, which may have been a step."""
        self._failed = self._failed or error

    def call(self, call_id: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Loop[Any]:
        """-> what it returns. Raises what it raises, and RuntimeError for a step behind one that failed."""
        try:
            yield MarkPoint(Mark.EXECUTING, _named(call_id, method, args))
            if self._failed and method in FORWARDS:
                raise RuntimeError(f"no step is executed behind one that failed ({self._failed})")
            return (yield Call(method, args, kwargs))
        except Exception as error:
            if method in PHASES:
                self.lost(described_error(error))
            raise


def described_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def worker_busy_loop(rank: int, rpc: QueueReader, answers: Answers, bounds: Bounds) -> Loop[None]:
    """Runs until its process cancels the wait on the ring."""
    own, a_while = Rank(), Within(bounds.ring_recheck_s)
    while True:
        try:
            parts = yield from rpc.dequeue(a_while)
        except QueueTimeoutError:
            continue  # nobody asked for anything; the next look goes on where this one ended
        try:
            call_id, method, args, kwargs, output_rank = decode(parts)
        except (QueueDecodeError, ValueError, TypeError) as error:
            text = f"unreadable RPC: {error}"
            own.lost(text)
            yield from answers.give(unreadable(rpc.position - 1), ReplyStatus.FAILURE, text)
            continue
        if method == "execute_model" and output_rank == rank:
            yield Describe("step", partial(described, call_id, args[0]))
        try:
            value = yield from own.call(call_id, method, args, kwargs)
        except Exception as error:
            text = described_error(error)
            yield Observe("rpc-raised", {"call": call_id, "method": method, "error": text})
            yield from answers.give(call_id, ReplyStatus.FAILURE, text)
            continue
        if output_rank is None or output_rank == rank:
            yield from answers.give(call_id, ReplyStatus.SUCCESS, value)


def _named(call_id: int, method: str, args: tuple[Any, ...]) -> dict[str, Any]:
    data = {"call": call_id, "method": method}
    if method == "execute_model":
        data["step"] = args[0].step
    return data


def described(call_id: int, step: SchedulerOutput) -> dict[str, Any]:
    """What a step asks for, as whoever has to answer it read it."""
    return {
        "call": call_id, "step": step.step, "scheduled": step.num_scheduled_tokens,
        "new": [[new.request_id, new.token_ids, new.num_prompt_tokens, new.block_ids, new.num_computed_tokens]
                for new in step.new],
        "cached": [[cached.request_id, cached.new_token_ids, cached.new_block_ids, cached.num_computed_tokens]
                   for cached in step.cached],
        "finished": step.finished, "preempted": step.preempted}

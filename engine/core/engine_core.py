"""The core's life (pure): take inputs, schedule, execute, publish.

Promises
- All inputs that are there are handled before the next step. As many steps are in flight as the queue is deep: to
  fill it comes before using the oldest one's results, and who is aborted meanwhile is told nothing of them.
- Each step's outputs are handed over in the order of the steps; the output thread keeps that order.
- A request that cannot be served fails alone; a failure of the executor ends the loop with its error.
- Paused (`pause_scheduler`), nothing is scheduled until `resume_scheduler`, and nothing is in flight any more.
  `run_steps(k)` runs k steps, or until nothing is left to run, then pauses and answers: so "after step k" can be said
  exactly.
- When idle it checks its own books and tells of them, once, and beats at least every `heartbeat_s`.

The loop asks for everything by effects: queue "input" brings what the input thread decoded, queue "output"
takes what the output thread shall send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.core.batch_queue import BatchQueue
from engine.core.drain import Drain
from engine.core.dump import failed_step
from engine.core.io.items import INPUT, KV, OUTPUT, ClientGone, MalformedRequest, Outgoing, Terminate
from engine.core.io.pulse import Pulse
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.effects import Beat, Loop, MarkPoint, Now, Observe, Put, Take, ThreadFailed
from engine.errors import RpcError
from engine.executor.abstract import ASKABLE, Executor
from engine.kv_events.publisher.log import KVEventLog, hand_over
from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    KVEventBatch,
    SchedulerOutput,
    UtilityOutput,
)
from engine.topology import Mark
from engine.wire.codec import Abort, Utility

#: The longest answer to a ping.
MAX_PING_BYTES = 1 << 20
#: What a utility gives that is answered when something else has happened.
LATER = object()


class EngineCore:
    """One engine core. `scheduler` and `executor` are the only things it owns."""

    def __init__(self, config: EngineConfig, scheduler: Scheduler, executor: Executor, *,
                 engine_index: int = 0, kv_log: KVEventLog | None = None, pulse: Pulse | None = None) -> None:
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.engine_index = engine_index
        self.kv_log = kv_log
        self.pulse = pulse or Pulse(config.bounds)
        self.drain = Drain(config.bounds.drain_s)
        self.in_flight = BatchQueue(executor, config.batch_queue_size)
        self.steps = 0
        self.forwards = 0  # of steps with tokens, and dummy ones, handed to the workers
        self._unhandled: list[Any] = []  # inputs that were taken and come later
        self._allowance: int | None = None  # steps that may still run; None: any number
        self._leaves_by = ""
        self._later: dict[str, Utility] = {}  # calls that are answered when something has happened
        self._beats = 0
        self._utilities: dict[str, Callable[..., Loop[Any]]] = {
            "pause_scheduler": self._pause_scheduler,
            "resume_scheduler": self._resume_scheduler,
            "run_steps": self._run_steps,
            "reset_prefix_cache": self._reset_prefix_cache,
            "collective_rpc": self._collective_rpc,
            "get_stats": self._get_stats,
            "get_queue_stats": self._get_queue_stats,
            "ping": self._ping,
        }

    def busy_loop(self) -> Loop[str]:
        """-> why the core leaves. Raises what the executor failed with."""
        idle = False
        while True:
            now = yield Now()
            if not self.pulse.missing(now):
                self._beats += 1
                yield Beat(self._beats)
            deadline = 0.0
            if not self._may_step():
                if not idle:
                    idle = True
                    yield from self._went_idle()
                deadline = now + self.config.bounds.heartbeat_s / 2 if not self._unhandled else 0.0
            yield from self._looked()
            items = self._unhandled + (yield Take(INPUT, deadline))
            self._unhandled = []
            for item in items:
                yield from self._handle(item)
            if idle and not items:
                yield from self.executor.look()
            if self.drain.active and self.drain.over((yield Now()), self._has_to_stay()):
                yield from self._use_all()
                yield from self._abort_the_rest()
                if not idle:
                    yield from self._went_idle()
                return self._leaves_by
            if self._may_step():
                idle = False
                yield from self._looked()  # a step may take its time
                yield from self._step()
            if "run_steps" in self._later and not self._may_step():
                yield from self._steps_are_over()

    # -- what a core beside others does besides, or otherwise: before it waits, with a request, a step, and at its end

    def _looked(self) -> Loop[None]:
        yield from ()

    def _added(self, request: EngineCoreRequest) -> Loop[None]:
        yield from ()

    def _stamped(self, scheduled: SchedulerOutput) -> SchedulerOutput:
        return scheduled

    def _has_to_stay(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    # -- one step

    def _may_step(self) -> bool:
        return bool(self.in_flight) or self._may_schedule()

    def _may_schedule(self) -> bool:
        if self._allowance == 0:
            return False
        return self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_to_report()

    def _step(self) -> Loop[None]:
        """Fill the queue by one step; use the oldest where it is full, or nothing can be scheduled before."""
        try:
            if self._may_schedule() and not self.in_flight.is_full and (yield from self._submit()) and \
                    not self.in_flight.is_full:
                return
            yield from self._use()
        except Exception as error:
            yield self._failed(error)
            raise

    def _failed(self, error: Exception) -> Observe:
        """Of a step. What there was to do is on record."""
        return Observe("step-failed", failed_step(error, self.in_flight, self.scheduler))

    def _submit(self) -> Loop[bool]:
        """-> whether there was anything to do that need not wait for a step in flight"""
        yield MarkPoint(Mark.STEP, {"step": self.steps + len(self.in_flight)})
        scheduled = self.scheduler.schedule()
        if scheduled is None:
            return False
        scheduled = self._stamped(scheduled)
        yield MarkPoint(Mark.SCHEDULED, {"step": scheduled.step, "tokens": scheduled.total_num_scheduled_tokens})
        yield from self.in_flight.submit(scheduled)
        self._count(forwards=bool(scheduled.num_scheduled_tokens))
        return True

    def _count(self, *, forwards: bool = True) -> None:
        self.forwards += forwards
        if self._allowance is not None:
            self._allowance -= 1

    def _use_all(self) -> Loop[None]:
        try:
            while self.in_flight:
                yield from self._use()
        except Exception as error:
            yield self._failed(error)
            raise

    def _use(self) -> Loop[None]:
        scheduled, result = yield from self.in_flight.oldest()
        if self.in_flight.depth > 1:
            yield from self._hear_aborts()
        yield MarkPoint(Mark.EXECUTED, {"step": scheduled.step})
        self.steps += 1
        outputs = self.scheduler.update_from_output(scheduled, result)
        yield from self._publish_kv_events()
        for client_index, client_outputs in outputs.items():
            yield from self._emit(client_index, client_outputs)
            for output in client_outputs:
                if output.finish_reason is not None:
                    yield Observe("freed", {"request": output.request_id})
        yield MarkPoint(Mark.PUBLISHED, {"step": scheduled.step})

    def _hear_aborts(self) -> Loop[None]:
        """Who was aborted while its step was in flight is told nothing of it. All other inputs keep their turn."""
        for item in (yield Take(INPUT, 0.0)):
            if isinstance(item, Abort):
                living = [request_id for request_id in item.request_ids if request_id in self.scheduler.requests]
                if living:
                    yield from self._abort(living)
                item = Abort([request_id for request_id in item.request_ids if request_id not in living])
                if not item.request_ids:
                    continue
            self._unhandled.append(item)

    def _emit(self, client_index: int, outputs: list[EngineCoreOutput]) -> Loop[None]:
        yield Put(OUTPUT, Outgoing(client_index, EngineCoreOutputs(
            self.engine_index, outputs, self.scheduler.stats(), (yield Now()), step=self.steps)))

    def _publish_kv_events(self) -> Loop[None]:
        events = self.scheduler.take_events()
        if self.kv_log is not None and events:
            at = (yield Now()) + self.kv_log.wall_offset_s
            yield from hand_over(self.kv_log, KVEventBatch(at, events), queue=KV)

    def _went_idle(self) -> Loop[None]:
        yield MarkPoint(Mark.IDLE)
        scheduler = self.scheduler
        cache = scheduler.cache
        yield Observe("blocks", {
            "free": cache.num_free, "cached": cache.num_cached, "used": cache.num_used, "total": cache.num_total,
            "requests": len(scheduler.requests), "errors": scheduler.check_integrity(),
            "kept": {**scheduler.kept(), "calls": self.executor.open_calls},
            "untold": scheduler.has_finished_to_report()})
        if self.kv_log is not None:
            yield Observe("kv-cache", {"hashes": scheduler.cached_hashes()})

    # -- inputs

    def _handle(self, item: Any) -> Loop[None]:
        if isinstance(item, EngineCoreRequest):
            yield from self._add(item)
        elif isinstance(item, Abort):
            yield from self._abort(item.request_ids)
        elif isinstance(item, Utility):
            yield from self._utility(item)
        elif isinstance(item, MalformedRequest):
            if item.request_id is not None and not self.scheduler.knows(item.request_id):
                yield from self._reject(item.request_id, item.client_index, FinishReason.ERROR, item.error)
        elif isinstance(item, ClientGone):
            its = [r for r in self.scheduler.requests.values() if r.client_index == item.client_index]
            yield Observe("client-gone", {"client": item.client_index, "requests": len(its)})
            yield from self._give_up(its, "client gone", "the connection to its client has ended")
        elif isinstance(item, Terminate):
            self._allowance, self._leaves_by = None, item.why
            self.drain.begin((yield Now()))
            running, waiting = self.scheduler.get_request_counts()
            yield MarkPoint(Mark.DRAINING)
            yield Observe("draining", {"running": running, "waiting": waiting, "deadline": self.drain.deadline})
        elif isinstance(item, ThreadFailed):
            error = item.error
            raise error if isinstance(error, Exception) else RuntimeError(reason_of(error))
        elif isinstance(item, Exception):
            raise item
        else:
            raise TypeError(f"the core cannot handle {type(item).__name__}")

    def _add(self, request: EngineCoreRequest) -> Loop[None]:
        if self.scheduler.knows(request.request_id):
            yield Observe("request", {"request": request.request_id, "action": "duplicate", "reason": "id is live"})
            return
        reason = "the engine is draining" if self.drain.active else ""
        if not reason and self._has_its_limit(request.client_index):
            reason = f"{self.config.limits.max_requests} requests are in flight already"
        if reason:
            yield from self._reject(request.request_id, request.client_index, FinishReason.REFUSED, reason)
            return
        self.scheduler.add_request(Request.from_engine_core_request(request))
        yield Observe("request", {"request": request.request_id, "action": "add", "reason": "",
                                  "wave": request.current_wave})
        yield from self._added(request)

    def _has_its_limit(self, client: int) -> bool:
        """Whether that client has as much in flight as it may. What others have is not counted against it."""
        requests, most = self.scheduler.requests, self.config.limits.max_requests
        return len(requests) >= most and sum(r.client_index == client for r in requests.values()) >= most

    def _reject(self, request_id: str, client_index: int, finish: FinishReason, reason: str) -> Loop[None]:
        yield Observe("request", {"request": request_id, "action": "refused", "reason": reason})
        yield from self._emit(client_index, [EngineCoreOutput(request_id, [], 0, finish, reason)])

    def _abort(self, request_ids: list[str]) -> Loop[None]:
        freed = {request.request_id for request in self.scheduler.abort_requests(request_ids)}
        for request_id in request_ids:
            action = "abort" if request_id in freed else "unknown-abort"
            yield Observe("request", {"request": request_id, "action": action, "reason": ""})
            if request_id in freed:
                yield Observe("freed", {"request": request_id})

    def _abort_the_rest(self) -> Loop[None]:
        """The drain's deadline has come."""
        yield from self._give_up(list(self.scheduler.requests.values()), "drain deadline",
                                 "the engine was told to stop")

    def _give_up(self, some: list[Request], why: str, reason: str) -> Loop[None]:
        """They end here, and their clients are told so."""
        rest = [(r.request_id, r.client_index, r.num_output_tokens) for r in some]
        self.scheduler.abort_requests([request_id for request_id, _, _ in rest])
        for request_id, client_index, sent in rest:
            yield Observe("request", {"request": request_id, "action": "abort", "reason": why})
            yield Observe("freed", {"request": request_id})
            yield from self._emit(client_index, [
                EngineCoreOutput(request_id, [], sent, FinishReason.ABORT, reason)])

    # -- utilities

    def _utility(self, call: Utility) -> Loop[None]:
        failure, result = None, None
        method = self._utilities.get(call.method)
        if method is None:
            failure = f"unknown utility {call.method!r}; known: {', '.join(sorted(self._utilities))}"
        else:
            try:
                result = yield from method(*call.args)
            except (TypeError, ValueError) as error:
                failure = f"{call.method}: {error}"
            else:
                if result is LATER:
                    self._later[call.method] = call
                    return
        yield from self._answer(call, failure, result)

    def _answer(self, call: Utility, failure: str | None, result: Any) -> Loop[None]:
        yield Put(OUTPUT, Outgoing(call.client_index, EngineCoreOutputs(
            self.engine_index, utility_output=UtilityOutput(call.call_id, failure, result), step=self.steps)))

    def _pause_scheduler(self) -> Loop[int]:
        self._allowance = 0
        yield from self._use_all()
        return self.steps

    def _resume_scheduler(self) -> Loop[int]:
        self._allowance = None
        return self.steps
        yield

    def _run_steps(self, steps: int) -> Loop[Any]:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if "run_steps" in self._later:
            raise ValueError("steps are being run already")
        self._allowance = steps
        return LATER
        yield

    def _steps_are_over(self) -> Loop[None]:
        self._allowance = 0
        yield from self._answer_later("run_steps")

    def _answer_later(self, method: str) -> Loop[None]:
        if (call := self._later.pop(method, None)) is not None:
            yield from self._answer(call, None, self.steps)

    def _reset_prefix_cache(self, preempt_running: bool = False) -> Loop[bool]:
        done = self.scheduler.reset_prefix_cache(preempt_running)
        yield Observe("reset", {"done": done, "preempts": preempt_running})
        yield from self._publish_kv_events()
        return done

    def _collective_rpc(self, method: str, count: int = 1, args: list[Any] | None = None) -> Loop[list[Any]]:
        """`count` calls in flight at once; -> the last one's results of all ranks."""
        if method not in ASKABLE:
            raise ValueError(f"workers cannot be asked for {method!r}; known: {', '.join(sorted(ASKABLE))}")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        calls = []
        for _ in range(count):
            calls.append((yield from self.executor.collective_rpc(method, args=tuple(args or ()), non_block=True)))
        results: list[Any] = []
        for call in calls:
            results = yield from self.executor.wait(call)
        return results

    def _get_stats(self) -> Loop[Any]:
        return msgspec.to_builtins(self.scheduler.stats())
        yield

    def _get_queue_stats(self) -> Loop[Any]:
        """A dict per queue end of this process, by the fields of `QueueStats`; none where there are no workers."""
        return msgspec.to_builtins((yield from self.executor.queue_stats()))

    def _ping(self, payload: Any = None, repeat: int = 1) -> Loop[Any]:
        """The payload comes back; a text `repeat` times, so that a small question has a large answer."""
        if repeat != 1 and not (isinstance(payload, str) and 0 <= repeat * len(payload) <= MAX_PING_BYTES):
            raise ValueError(f"repeat is for texts of at most {MAX_PING_BYTES} bytes in all")
        return payload * repeat if repeat != 1 else payload
        yield


def reason_of(error: BaseException) -> str:
    """One line that names what killed the core, for the notice and the log."""
    if isinstance(error, RpcError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}"

"""What a client knows of its requests (pure): admission, order, loss, time-outs, death.

Promises
- Every accepted request gets exactly one end: finished, aborted, failed, refused, or engine-dead.
- Tokens of a request are delivered once each and in order, never after its end. A missing output may come late
  by `output_gap_s`; then the request fails. A doubled one is ignored.
- A request without any output for `request_s` fails with an error that says it may have taken effect, and the
  core is told to free it.
- The id a caller gives is free again when its stream has ended; inside, every request has an id of its own, so
  what arrives late for the old one never touches the new.
- What is in flight is bounded; beyond it a request is refused by name.

Of several cores each request has one, which is asked for its abort and takes it along when it dies; a utility call is
put to all that live, and answered when all have answered.

Frames to send are returned; whoever sends them may find out that nobody is connected (`unroutable`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from engine.config import Bounds, LimitsConfig
from engine.coordinator.board import Notice
from engine.errors import (
    BadFrameError,
    BadRequestError,
    EngineDeadError,
    RefusedError,
    RequestError,
    RequestTimeoutError,
    UnroutableError,
)
from engine.frontend.balance import Balance
from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    Outcome,
    SamplingParams,
)
from engine.wire.codec import DeadNotice, Utility, decode_outputs, encode_abort, encode_add, encode_utility


class Tokens(msgspec.Struct, frozen=True):
    """Delivery: new tokens of a request, starting at `offset`."""

    request_id: str
    offset: int
    token_ids: list[int]
    num_cached_tokens: int = 0
    internal_id: str = ""


class RequestEnd(msgspec.Struct, frozen=True):
    """Delivery: the one end of a request. `error` is None where it finished or was aborted as asked."""

    request_id: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    error: Exception | None = None
    internal_id: str = ""


class UtilityResult(msgspec.Struct, frozen=True):
    """Delivery: the answer to a utility call."""

    call_id: int
    failure: str | None
    result: Any
    error: Exception | None = None


class CoreAnswer(msgspec.Struct, frozen=True):
    """What one of several cores answered to a utility call, for whoever records."""

    core: int
    method: str
    args: list[Any]
    failure: str | None
    result: Any


Delivery = Tokens | RequestEnd | UtilityResult


class Message(NamedTuple):
    """Frames for one core."""

    core: int
    frames: list[bytes]


class _Call:
    """A utility call that not all of its cores have answered."""

    __slots__ = ("answers", "args", "deadline", "method", "waits_for")

    def __init__(self, method: str, args: list[Any], deadline: float, cores: list[int]) -> None:
        self.method = method
        self.args = args
        self.deadline = deadline
        self.waits_for = set(cores)
        self.answers: dict[int, tuple[str | None, Any]] = {}  # (failure, result) by core

    def result(self, call_id: int) -> UtilityResult:
        """The first failure, else what the first core answered."""
        failure, result = next((answer for _, answer in sorted(self.answers.items()) if answer[0] is not None),
                               self.answers[min(self.answers)])
        return UtilityResult(call_id, failure, result)


class _Live:
    """One request in flight."""

    __slots__ = ("core", "early", "encoded_bytes", "have", "heard_at", "internal_id", "request_id")

    def __init__(self, request_id: str, internal_id: str, encoded_bytes: int, now: float, core: int) -> None:
        self.request_id, self.internal_id = request_id, internal_id
        self.core = core
        self.encoded_bytes = encoded_bytes
        self.have = 0  # tokens delivered
        self.heard_at = now
        self.early: dict[int, tuple[float, EngineCoreOutput]] = {}  # by num_preceding: what came before its turn, when


class ClientSession:
    """The requests and utility calls of one client of these cores."""

    def __init__(self, limits: LimitsConfig, bounds: Bounds, suffix: Callable[[], str], client_index: int = 0,
                 cores: tuple[int, ...] = (0,), client_count: int = 1, score: Literal["old", "new"] = "new",
                 own_frame_bytes: int = 0) -> None:
        self.limits, self.bounds = limits, bounds
        self.client_index, self._own_frame_bytes = client_index, own_frame_bytes
        self._cores, self.alive = cores, list(cores)
        self.balance = Balance(len(cores), client_index=client_index, client_count=client_count, score=score)
        self._several = len(cores) > 1
        self.answers: list[CoreAnswer] = []  # since somebody took them
        self.dead: EngineDeadError | None = None
        self.notices: set[int] = set()  # cores that have said their last word
        self.bytes_in_flight = 0
        self._suffix = suffix
        self._mark = f"{client_index}." if client_count > 1 else ""  # whose a request is, among several clients
        self.strays: list[str] = []  # outputs for others of them, since somebody took these
        self._by_id: dict[str, _Live] = {}
        self._by_internal: dict[str, _Live] = {}
        self._utilities: dict[int, _Call] = {}
        self._next_call = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def busy(self) -> bool:
        return bool(self._by_id or self._utilities)

    # -- what the caller asks

    def add(self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, now: float,
            eos_token_id: int | None = None, priority: int = 0, rank: int | None = None) -> tuple[str, Message]:
        """Of the rank that is asked for, or of the one that the balance chooses. -> (internal id, message to send)

        Raises EngineDeadError, BadRequestError for an id that is in use, RefusedError beyond the limits.
        """
        self._require_alive()
        if request_id in self._by_id:
            raise BadRequestError(request_id, "this id is in use by a request that has not ended")
        if len(self._by_id) >= self.limits.max_requests:
            raise RefusedError(request_id, f"{len(self._by_id)} requests are in flight, the limit is "
                                           f"{self.limits.max_requests}; retry when one has ended")
        internal_id = f"{request_id}-{self._mark}{self._suffix()}"
        frames = encode_add(EngineCoreRequest(
            internal_id, prompt_token_ids, params, self.client_index, self.balance.wave, arrival_time=now,
            eos_token_id=eos_token_id, priority=priority), self._own_frame_bytes)
        encoded_bytes = sum(map(len, frames))
        if self.bytes_in_flight + encoded_bytes > self.limits.max_request_bytes:
            raise RefusedError(request_id, f"{self.bytes_in_flight + encoded_bytes} bytes of requests would be in "
                                           f"flight, the limit is {self.limits.max_request_bytes}")
        try:
            core = self._cores[self.balance.choose(rank)]
        except ValueError as error:
            raise BadRequestError(request_id, str(error)) from None
        live = _Live(request_id, internal_id, encoded_bytes, now, core)
        self._by_id[request_id] = self._by_internal[internal_id] = live
        self.bytes_in_flight += encoded_bytes
        return internal_id, Message(core, frames)

    def shun(self, core: int) -> None:
        """It is gone; what it has said may still have to be read. Nothing more is sent to it."""
        self.balance.died(self._cores.index(core))

    def on_notice(self, notice: Notice) -> None:
        """The coordinator has said what its cores have to do. Raises BadFrameError where that cannot be."""
        wrong = self.balance.on_notice(notice.counts, notice.wave, notice.running)
        if wrong is not None:
            raise BadFrameError(wrong)

    def abort(self, request_id: str) -> tuple[list[Delivery], list[Message]]:
        """End a request for its caller, now. -> (its end, messages to send). Unknown ids are nobody's business."""
        live = self._by_id.get(request_id)
        if live is None:
            return [], []
        return [self._end(live, FinishReason.ABORT)], _aborts([live])

    def stop(self, request_id: str, stop_reason: str) -> tuple[list[Delivery], list[Message]]:
        """The client itself found the end (a stop string): finished for the caller, aborted in the core."""
        live = self._by_id.get(request_id)
        if live is None:
            return [], []
        return [self._end(live, FinishReason.STOP, stop_reason)], _aborts([live])

    def free_all(self) -> list[Message]:
        """-> messages by which the cores free whatever is in flight; for the caller nothing changes."""
        return _aborts(list(self._by_internal.values()))

    def unroutable(self, request_id: str) -> list[Delivery]:
        """The socket said that nobody is connected: this request certainly did not reach the core."""
        live = self._by_id[request_id]
        error = UnroutableError(request_id, f"the core is not connected, so {request_id!r} was not sent; "
                                            "retry when the engine is healthy")
        return [self._end(live, FinishReason.ERROR, error=error)]

    def utility(self, method: str, args: list[Any], now: float) -> tuple[int, list[Message]]:
        """-> (call id, messages to send). Raises EngineDeadError."""
        self._require_alive()
        call_id = self._next_call
        self._next_call += 1
        self._utilities[call_id] = _Call(method, args, now + self.bounds.request_s, self.alive)
        frames = encode_utility(Utility(self.client_index, call_id, method, args), self._own_frame_bytes)
        return call_id, [Message(core, frames) for core in self.alive]

    def unroutable_call(self, call_id: int) -> UnroutableError:
        """The same of a utility call: it is forgotten. -> what its caller is told"""
        method = self._utilities.pop(call_id).method
        return UnroutableError(f"utility {method}", "the core is not connected, so the call was not sent; "
                                                    "retry when the engine is healthy")

    # -- what the core says

    def on_frames(self, frames: list[Any], now: float, core: int = 0) -> list[Delivery]:
        """Take one message of that core. Raises BadFrameError where it is none; nothing is lost but the frame."""
        outputs = decode_outputs(frames)
        if isinstance(outputs, DeadNotice):
            self.notices.add(core)
            return []
        if outputs.engine_index != core:
            raise BadFrameError(f"outputs of engine {outputs.engine_index} on the way of engine {core}")
        return self.on_outputs(outputs, now, core)

    def on_outputs(self, outputs: EngineCoreOutputs, now: float, core: int = 0) -> list[Delivery]:
        deliveries: list[Delivery] = []
        if outputs.wave_complete is not None:
            self.balance.completed(outputs.wave_complete)
        for output in outputs.outputs:
            live = self._by_internal.get(output.request_id)
            if live is None or live.core != core:  # it has ended, or is not this core's
                if not output.request_id.rpartition("-")[2].startswith(self._mark):
                    self.strays.append(output.request_id)
                continue
            live.heard_at = now
            if output.num_preceding > live.have:
                live.early.setdefault(output.num_preceding, (now, output))
                continue
            self._deliver(live, output, deliveries)
            while live.early and live.internal_id in self._by_internal and min(live.early) <= live.have:
                self._deliver(live, live.early.pop(min(live.early))[1], deliveries)
        answer = outputs.utility_output
        call = self._utilities.get(answer.call_id) if answer is not None else None
        if answer is not None and call is not None and core in call.waits_for:
            call.waits_for.discard(core)
            call.answers[core] = answer.failure, answer.result
            if self._several:
                self.answers.append(CoreAnswer(core, call.method, call.args, answer.failure, answer.result))
            if not call.waits_for:
                del self._utilities[answer.call_id]
                deliveries.append(call.result(answer.call_id))
        return deliveries

    def _deliver(self, live: _Live, output: EngineCoreOutput, deliveries: list[Delivery]) -> None:
        """Deliver an output whose turn has come, less what was delivered before (a doubled message)."""
        known = live.have - output.num_preceding
        fresh = output.new_token_ids[known:] if known else output.new_token_ids
        if fresh:
            deliveries.append(Tokens(live.request_id, live.have, fresh, output.num_cached_tokens,
                                     live.internal_id))
            live.have += len(fresh)
        if output.finish_reason is not None:
            deliveries.append(self._end(live, output.finish_reason, output.stop_reason, self._error_of(live, output)))

    @staticmethod
    def _error_of(live: _Live, output: EngineCoreOutput) -> RequestError | None:
        if output.finish_reason is FinishReason.REFUSED:
            return RefusedError(live.request_id, str(output.stop_reason))
        if output.finish_reason is FinishReason.ERROR:
            return BadRequestError(live.request_id, str(output.stop_reason), may_have_taken_effect=live.have > 0)
        if output.finish_reason is FinishReason.ABORT:
            return RequestError(live.request_id, str(output.stop_reason or "aborted by the engine"),
                                may_have_taken_effect=True)
        return None

    # -- time and death

    def on_tick(self, now: float) -> tuple[list[Delivery], list[Message]]:
        """-> (ends of requests whose time is over, messages that free them in their cores)."""
        if not self.busy:
            return [], []
        deliveries: list[Delivery] = []
        late: list[_Live] = []
        for live in list(self._by_id.values()):
            gap_s = now - min((at for at, _ in live.early.values()), default=now)
            silent_s = now - live.heard_at
            if gap_s > self.bounds.output_gap_s:
                text = (f"an output was lost: tokens from {live.have} on are missing, later ones came; "
                        "it may have taken effect")
            elif silent_s > self.bounds.request_s:
                text = (f"no output for {silent_s:.2f} s (bound {self.bounds.request_s:g} s); "
                        "it may have taken effect")
            else:
                continue
            late.append(live)
            deliveries.append(self._end(live, FinishReason.ERROR, error=RequestTimeoutError(
                live.request_id, text, may_have_taken_effect=True)))
        for call_id, call in list(self._utilities.items()):
            if now > call.deadline:
                del self._utilities[call_id]
                deliveries.append(UtilityResult(call_id, None, None, RequestTimeoutError(
                    f"utility {call.method}", "no answer in time; it may have taken effect",
                    may_have_taken_effect=True)))
        return deliveries, _aborts(late)

    def die(self, reason: str, core: int | None = None) -> list[Delivery]:
        """All cores are dead, or this one, which is shunned: what was theirs ends; where none is left, all later calls
        do, too.
        """
        if self.dead is not None:
            return []
        lost = self.alive if core is None else [core]
        self.alive = [index for index in self.alive if index not in lost]
        if not self.alive:
            self.dead = EngineDeadError(reason)
        deliveries: list[Delivery] = [self._end(live, None, error=EngineDeadError(reason))
                                      for live in list(self._by_id.values()) if live.core in lost]
        for call_id, call in list(self._utilities.items()):
            was_asked = not call.waits_for.isdisjoint(lost)
            call.waits_for.difference_update(lost)
            if was_asked and not call.waits_for:
                del self._utilities[call_id]
                deliveries.append(call.result(call_id) if call.answers else
                                  UtilityResult(call_id, None, None, EngineDeadError(reason)))
        return deliveries

    def kept(self) -> dict[str, int]:
        """Sizes of what holds requests and calls: nothing is left in it when all have ended."""
        return {"requests": len(self._by_id), "internal": len(self._by_internal), "bytes": self.bytes_in_flight,
                "calls": len(self._utilities)}

    def check_integrity(self) -> list[str]:
        """What is wrong with the books; nothing, if nothing is."""
        wrong = []
        if {id(live) for live in self._by_id.values()} != {id(live) for live in self._by_internal.values()}:
            wrong.append("the two request tables differ")
        if self.bytes_in_flight != sum(live.encoded_bytes for live in self._by_id.values()):
            wrong.append("bytes in flight do not add up")
        return wrong

    def _require_alive(self) -> None:
        if self.dead is not None:
            raise EngineDeadError(self.dead.reason)

    def _end(self, live: _Live, reason: FinishReason | None, stop_reason: int | str | None = None,
             error: Exception | None = None) -> RequestEnd:
        del self._by_id[live.request_id], self._by_internal[live.internal_id]
        self.bytes_in_flight -= live.encoded_bytes
        rank = self._cores.index(live.core)
        if rank not in self.balance.dead:
            self.balance.ended(rank, unsent=isinstance(error, UnroutableError))
        return RequestEnd(live.request_id, reason, stop_reason, error, live.internal_id)


def _aborts(some: list[_Live]) -> list[Message]:
    """A message for each of their cores."""
    by_core: dict[int, list[str]] = {}
    for live in some:
        by_core.setdefault(live.core, []).append(live.internal_id)
    return [Message(core, encode_abort(ids)) for core, ids in sorted(by_core.items())]


def outcome_of_error(error: BaseException) -> Outcome:
    """How an error looks among the outcomes of a request."""
    if isinstance(error, EngineDeadError):
        return Outcome.ENGINE_DEAD
    return Outcome.REFUSED if isinstance(error, RefusedError) else Outcome.FAILED

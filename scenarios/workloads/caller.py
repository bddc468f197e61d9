"""The caller of a play (pure): asks what its driver says, and writes down what it was told. Both worlds run it.

Whoever runs it says what happened (`hear`, `ended`, `answered`), asks for the health every `PROBE_S` (`probe`),
and when the workload is `finished` lets it look once more (`look_back`). What it asks goes to an `AskedEngine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from engine.effects import Loop, Now, Observe
from engine.errors import EngineDeadError, RingtwinError, UnroutableError
from engine.frontend.life import ClientLife
from engine.frontend.session import outcome_of_error
from engine.frontend.text.input_processor import Prompt
from engine.messages import EngineCoreRequestType, FinishReason, Outcome, RequestOutput, SamplingParams
from scenarios.workloads.workload import Command, Driver, RecordedRequest, Workload

#: How often the health is asked for while the workload runs.
PROBE_S = 0.05


class AskedEngine(Protocol):
    """An engine as its caller asks it. Whatever comes later is told to the caller."""

    def add(self, name: str, prompt: Prompt, params: SamplingParams, priority: int = 0,
            rank: int | None = None) -> Loop[str]:
        """-> the id it has inside. Raises errors of `engine.errors`."""

    def abort(self, name: str) -> Loop[None]: ...
    def send_raw(self, frames: list[bytes]) -> Loop[None]: ...
    def call(self, command: Command) -> Loop[None]:
        """Call a utility. Raises EngineDeadError, UnroutableError."""

    def check_health(self) -> Loop[None]:
        """Raises EngineDeadError."""

    @property
    def errored(self) -> bool: ...
    @property
    def life(self) -> ClientLife: ...


class Heard:
    """What a caller has heard of one request. `internal` is empty where it was not accepted."""

    def __init__(self, name: str, internal: str = "") -> None:
        self.name = name
        self.internal = internal
        self.token_ids: list[int] = []
        self.last: RequestOutput | None = None


class Caller:
    """`decode`: the tokenizer's own, where text is asked for; so the judges know what tokens mean. It is told whether
    those are left out that are no text.
    """

    def __init__(self, workload: Workload, asked: AskedEngine,
                 decode: Callable[[list[int], bool], str] | None) -> None:
        self._decode = decode
        self._driver = Driver(workload)
        self._first: RecordedRequest = workload.requests[0]
        self._asked = asked
        self._internal: dict[str, str] = {}
        self._unskipped: set[str] = set()  # who asks for all tokens as text
        self.finished = False

    def begin(self) -> Loop[None]:
        yield from self._do(self._driver.start())

    # -- what it asks

    def _do(self, commands: list[Command]) -> Loop[None]:
        for command in commands:
            if command.kind == "add":
                yield from self._add(command)
            elif command.kind == "abort":
                name = command.request_id
                yield Observe("abort", {"request": name, "internal": self._internal.get(name, "")})
                yield from self._asked.abort(name)
            elif command.kind == "raw":
                yield from self._asked.send_raw(self._raw(command))
            elif command.kind == "utility":
                yield from self._call(command)
            else:
                self.finished = True

    def _raw(self, command: Command) -> list[bytes]:
        """The frames that the workload says, or what bears the id of a request and is none."""
        if not command.request_id:
            return [bytes.fromhex(frame) for frame in command.args]
        return [EngineCoreRequestType.ADD, msgspec.msgpack.encode([self._internal[command.request_id], 0])]

    def _add(self, command: Command) -> Loop[None]:
        request, name = command.request, command.request_id
        assert request is not None
        yield Observe("call", {"request": name, "index": request.index, "prompt": len(request.prompt_token_ids),
                               "max_tokens": request.params.max_tokens,
                               **({} if request.data_parallel_rank is None else {"rank": request.data_parallel_rank})})
        if request.sampling_params.get("skip_special_tokens") is False:
            self._unskipped.add(name)
        try:
            self._internal[name] = yield from self._asked.add(name, request.prompt, request.given, request.priority,
                                                               request.data_parallel_rank)
        except RingtwinError as error:
            yield from self.ended(Heard(name), error)

    def _call(self, command: Command) -> Loop[None]:
        yield Observe("ask", {"method": command.method, "ticket": command.ticket, "args": command.args})
        try:
            yield from self._asked.call(command)
        except (EngineDeadError, UnroutableError) as error:
            yield from self.answered(command, None, error)

    # -- what it is told

    def hear(self, heard: Heard, output: RequestOutput) -> Loop[None]:
        """What is new of the tokens: outputs are cumulative. One that takes something back begins anew."""
        have, tokens, heard.last = heard.token_ids, output.token_ids, output
        offset = len(have)
        if tokens[:offset] != have:
            offset = 0
        if len(tokens) > offset or offset < len(have):
            heard.token_ids = tokens
            told = {"request": heard.name, "internal": heard.internal, "offset": offset, "tokens": tokens[offset:],
                    "cached": output.num_cached_tokens}
            if self._decode is not None:
                told |= self._text_of(output, offset)
            yield Observe("tokens", told)
            commands = self._driver.heard(heard.name, len(tokens))
            if commands:
                yield from self._do(commands)

    def _text_of(self, output: RequestOutput, offset: int) -> dict[str, Any]:
        """What is shown, and what all tokens up to each of the new ones decode to at once."""
        assert self._decode is not None
        have = output.token_ids
        skips = output.request_id not in self._unskipped
        told = {"decoded": [self._decode(have[:n + 1], skips) for n in range(offset, len(have))]}
        return told if output.finished else {"text": output.text, **told}

    def ended(self, heard: Heard, error: Exception | None) -> Loop[None]:
        last = heard.last
        finish = last.finish_reason if last is not None and error is None else None
        outcome = outcome_of_error(error) if error is not None else (
            Outcome.ABORTED if finish == str(FinishReason.ABORT) else Outcome.FINISHED)
        yield Observe("end", {
            "request": heard.name, "internal": heard.internal, "outcome": outcome.value, "reason": str(error or ""),
            "finish_reason": finish,
            "error": type(error).__name__ if error is not None else "",
            "may_have_taken_effect": getattr(error, "may_have_taken_effect", False), **_last_words(last)})
        if isinstance(error, EngineDeadError) and not self._asked.life.reachable:
            yield from self._learn_of_death()
        yield from self._do(self._driver.ended(heard.name))

    def answered(self, command: Command, result: Any, failure: BaseException | None) -> Loop[None]:
        yield Observe("utility", {"method": command.method, "args": command.args, "result": result,
                                  "failure": str(failure or ""), "ticket": command.ticket})
        if isinstance(failure, EngineDeadError) and not self._asked.life.reachable:
            yield from self._learn_of_death()
        yield from self._do(self._driver.answered(command.ticket, failure is not None))

    def _learn_of_death(self) -> Loop[None]:
        """It may be gone and its last words not be read yet: then calls that are open have still to be answered."""
        yield from self._do(self._driver.died(told=self._asked.errored))

    # -- health

    def probe(self) -> Loop[bool]:
        """Ask for the engine's health. -> whether to ask again"""
        yield from self._check_health()
        if self._asked.errored:
            yield from self._learn_of_death()
        return not self._asked.errored

    def over(self) -> Loop[None]:
        """Nothing is open."""
        yield Observe("over", {"unanswered": self._driver.unanswered, "errored": self._asked.errored})

    def look_back(self) -> Loop[None]:
        """A dead engine must say so to a later call."""
        yield from self.over()
        if self._asked.errored:
            began, error = (yield Now()), ""
            try:
                yield from self._asked.add("late", [1], self._first.params)
            except RingtwinError as raised:
                error = type(raised).__name__
            yield Observe("late-call", {"began": began, "error": error})
        yield from self._check_health()

    def _check_health(self) -> Loop[None]:
        """What the caller was told is on record, not what the engine says of itself."""
        reason = ""
        try:
            yield from self._asked.check_health()
        except EngineDeadError as error:
            reason = str(error)
        told = {"healthy": not reason, "reason": reason}
        yield Observe("health", told if reason or not (dead := self._asked.life.dead_cores) else {**told, "dead": dead})


def ask_closed(asked: AskedEngine) -> Loop[None]:
    """Ask a client that was shut down for its health, and for one answer more."""
    reason = error = ""
    try:
        yield from asked.check_health()
    except EngineDeadError as raised:
        reason = str(raised)
    try:
        yield from asked.add("closed", [1], SamplingParams(max_tokens=1))
    except RingtwinError as raised:
        error = type(raised).__name__
    yield Observe("asked-when-closed", {"reason": reason, "error": error})


def _last_words(last: RequestOutput | None) -> dict[str, Any]:
    """What the last output says beside its tokens, where there is something."""
    if last is None:
        return {}
    told: dict[str, Any] = {"text": last.text} if last.text else {}
    if last.stop_reason is not None:
        told["stop_reason"] = last.stop_reason
    if last.num_cached_tokens:
        told["cached"] = last.num_cached_tokens
    return told

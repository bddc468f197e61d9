"""Prompts in, streams out (pure): what the callers of one client get. Both worlds run it.

A `Stream` holds the latest output of one request: outputs are cumulative, so a caller that reads slowly skips
intermediate ones and the memory of a stream is bounded by its request.

Promises
- A request that cannot be served is refused by name, and nothing of it is sent.
- A stream ends once: with its last output, or with an error once all that came before it was taken.
- When a stop string is found the core is told to stop, and the stream ends with the text before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.effects import Loop
from engine.errors import BadRequestError
from engine.frontend.life import ClientLife
from engine.frontend.session import Delivery, RequestEnd, Tokens, UtilityResult
from engine.frontend.text.input_processor import InputProcessor, Prompt
from engine.frontend.text.output_processor import OutputProcessor
from engine.messages import FinishReason, RequestOutput, SamplingParams


class Stream:
    """The answers to one request. `changed` is called whenever there is something new."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.internal_id = ""  # what the engine calls it
        self.latest: RequestOutput | None = None
        self.error: Exception | None = None
        self.ended = False
        self.changed: Callable[[], None] = lambda: None

    def put(self, output: RequestOutput) -> None:
        self.latest = output
        self.ended = output.finished
        self.changed()

    def fail(self, error: Exception) -> None:
        """What was delivered before is still read first."""
        self.error, self.ended = error, True
        self.changed()

    def take(self) -> RequestOutput | None:
        """The newest output that was not taken yet, None if there is none. Raises the error once all was taken."""
        output, self.latest = self.latest, None
        if output is None and self.error is not None:
            raise self.error
        return output


class Streams:
    """Streams by request id over one client's life."""

    def __init__(self, life: ClientLife, inputs: InputProcessor) -> None:
        self._life = life
        self._inputs = inputs
        self._outputs = OutputProcessor(inputs.tokenizer)
        self._streams: dict[str, Stream] = {}
        self._utilities: dict[int, Callable[[UtilityResult], None]] = {}
        life.deliver = self._deliver
        life.kept = self._kept

    def start(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None,
              priority: int = 0, data_parallel_rank: int | None = None) -> Loop[Stream]:
        """Send a request. Raises BadRequestError, RefusedError, EngineDeadError; all else comes by the stream."""
        if request_id in self._streams:
            raise BadRequestError(request_id, "this id is in use by a request that has not ended")
        inputs = self._inputs.process(request_id, prompt, params, priority)
        stream = self._streams[request_id] = Stream(request_id)
        self._outputs.add(inputs)
        try:
            stream.internal_id = yield from self._life.add(
                request_id, inputs.prompt_token_ids, inputs.sampling_params, inputs.eos_token_id, inputs.priority,
                data_parallel_rank)
        except Exception:  # what an interruption leaves ends as it would
            self._forget(request_id)
            raise
        return stream

    def utility(self, method: str, args: list[Any], done: Callable[[UtilityResult], None]) -> Loop[None]:
        """Call a utility of the core. Raises EngineDeadError, UnroutableError."""
        call_id = yield from self._life.utility(method, args)
        self._utilities[call_id] = done

    def _deliver(self, delivery: Delivery) -> Loop[None]:
        if isinstance(delivery, Tokens):
            request_id = delivery.request_id
            progress = self._outputs.on_tokens(request_id, delivery.token_ids, delivery.num_cached_tokens)
            if progress is None:  # what came before these completed a stop string
                return
            if progress.stop_string is not None:
                yield from self._life.stop(request_id, progress.stop_string)
            else:
                self._streams[request_id].put(progress.output)
        elif isinstance(delivery, UtilityResult):
            done = self._utilities.pop(delivery.call_id, None)
            if done is not None:  # else its call was interrupted
                done(delivery)
        else:
            self._deliver_end(delivery)

    def _deliver_end(self, end: RequestEnd) -> None:
        stream = self._streams[end.request_id]
        if end.error is None:
            reason = FinishReason.ABORT if end.finish_reason is None else end.finish_reason
            output = self._outputs.on_end(end.request_id, reason, end.stop_reason)
            self._forget(end.request_id)
            stream.put(output)
        else:
            self._forget(end.request_id)
            stream.fail(end.error)

    def _kept(self) -> dict[str, int]:
        return {"streams": len(self._streams), "texts": len(self._outputs.requests), "answers": len(self._utilities)}

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._outputs.forget(request_id)

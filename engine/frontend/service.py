"""What `AsyncLLM` and `LLM` share: prompts in, streams out, one client in between. Nothing here waits.

A `Stream` holds the latest output of one request: outputs are cumulative, so a caller that reads slowly skips
intermediate ones and the memory of a stream is bounded by its request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.errors import BadRequestError, EngineDeadError
from engine.frontend.client import EngineCoreClient
from engine.frontend.input_processor import InputProcessor, Prompt
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.session import Delivery, RequestEnd, Tokens, UtilityResult
from engine.messages import FinishReason, RequestOutput, SamplingParams
from engine.ports import Ports


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


class Service:
    """Streams by request id over one `EngineCoreClient`."""

    def __init__(self, config: EngineConfig, *, asyncio_mode: bool, ports: Ports | None = None) -> None:
        """Raises ConfigError, StartupError."""
        self.config = config
        self.inputs = InputProcessor.from_config(config)
        self.outputs = OutputProcessor(self.inputs.tokenizer)
        self.client: Any = EngineCoreClient.make_client(config, asyncio_mode=asyncio_mode, ports=ports)
        self.client.life.deliver = self._deliver
        self.streams: dict[str, Stream] = {}
        self._utilities: dict[int, Callable[[UtilityResult], None]] = {}

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self.client.session.dead

    def start(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Send a request. Raises BadRequestError, RefusedError, EngineDeadError; all else comes by the stream."""
        if request_id in self.streams:
            raise BadRequestError(request_id, "this id is in use by a request that has not ended")
        inputs = self.inputs.process(request_id, prompt, params)
        stream = self.streams[request_id] = Stream(request_id)
        self.outputs.add(inputs)
        try:
            stream.internal_id = self.client.add(request_id, inputs.prompt_token_ids, inputs.sampling_params,
                                                 inputs.eos_token_id)
        except BaseException:
            self._forget(request_id)
            raise
        return stream

    def abort(self, request_id: str) -> None:
        """End a request for its caller now. An id that is not in use is nobody's business."""
        self.client.abort(request_id)

    def utility(self, method: str, args: tuple[Any, ...], done: Callable[[UtilityResult], None]) -> None:
        """Call a utility of the core. Raises EngineDeadError, UnroutableError."""
        self._utilities[self.client.utility(method, *args)] = done

    def _deliver(self, delivery: Delivery) -> None:
        if isinstance(delivery, UtilityResult):
            done = self._utilities.pop(delivery.call_id, None)
            if done is not None:
                done(delivery)
        elif isinstance(delivery, Tokens):
            self._deliver_tokens(delivery)
        else:
            self._deliver_end(delivery)

    def _deliver_tokens(self, tokens: Tokens) -> None:
        progress = self.outputs.on_tokens(tokens.request_id, tokens.token_ids, tokens.num_cached_tokens)
        if progress is None:
            return
        if progress.stop_string is not None:
            self.client.stop(tokens.request_id, progress.stop_string)
            return
        self.streams[tokens.request_id].put(progress.output)

    def _deliver_end(self, end: RequestEnd) -> None:
        stream = self.streams.get(end.request_id)
        if stream is None:
            return
        if end.error is None:
            reason = FinishReason.ABORT if end.finish_reason is None else end.finish_reason
            output = self.outputs.on_end(end.request_id, reason, end.stop_reason)
            self._forget(end.request_id)
            stream.put(output)
        else:
            self._forget(end.request_id)
            stream.fail(end.error)

    def _forget(self, request_id: str) -> None:
        self.streams.pop(request_id, None)
        self.outputs.forget(request_id)

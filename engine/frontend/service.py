"""What `AsyncLLM` and `LLM` share: a client of a real engine, and its streams. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.frontend.arguments import checked
from engine.frontend.client import EngineCoreClient
from engine.frontend.session import UtilityResult
from engine.frontend.streams import Stream, Streams
from engine.frontend.text.input_processor import Prompt
from engine.frontend.text.tokenizer import inputs_of
from engine.messages import SamplingParams


class Service:
    """The streams of one `EngineCoreClient`."""

    def __init__(self, config: EngineConfig, *, asyncio_mode: bool, **more: Any) -> None:
        """`more`: see `EngineCoreClient`. Raises ConfigError, StartupError."""
        self.config = checked(config)
        self.inputs = inputs_of(self.config)
        self.client: Any = EngineCoreClient.make_client(self.config, asyncio_mode=asyncio_mode, **more)
        self.streams = Streams(self.client.life, self.inputs)

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self.client.session.dead

    def start(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None,
              priority: int = 0, data_parallel_rank: int | None = None) -> Stream:
        """Send a request. Raises BadRequestError, RefusedError, EngineDeadError; all else comes by the stream."""
        return self.client.run(self.streams.start(request_id, prompt, params, priority, data_parallel_rank))

    def abort(self, request_id: str) -> None:
        """End a request for its caller now. An id that is not in use is nobody's business."""
        self.client.run(self.client.life.abort(request_id))

    def utility(self, method: str, args: tuple[Any, ...], done: Callable[[UtilityResult], None]) -> None:
        """Call a utility of the core. Raises EngineDeadError, UnroutableError."""
        self.client.run(self.streams.utility(method, list(args), done))

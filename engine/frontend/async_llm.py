"""`AsyncLLM`: generation for asyncio programs.

    llm = AsyncLLM(EngineConfig(model=DIR, tensor_parallel_size=2))
    async for output in llm.generate(prompt, SamplingParams(max_tokens=16), request_id="a"):
        ...
    llm.shutdown()

Promises: every stream ends, with its last output or with an error of `engine.errors`; the death of the engine ends
all of them within the detection bound, and every later call at once; leaving a stream early aborts its request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from typing import Any

from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.frontend.attachment import Attachment
from engine.frontend.client import end_client
from engine.frontend.service import Service
from engine.frontend.session import UtilityResult
from engine.frontend.streams import Stream
from engine.frontend.text.input_processor import Prompt
from engine.messages import RequestOutput, SamplingParams
from engine.ports import Ports


class AsyncStream:
    """Async iterator over one request's outputs. `aclose` aborts what has not ended."""

    def __init__(self, llm: AsyncLLM, stream: Stream) -> None:
        self._llm = llm
        self._stream = stream
        self._changed = asyncio.Event()
        stream.changed = self._changed.set
        if stream.ended or stream.latest is not None:
            self._changed.set()
        self._over = False

    @property
    def internal_id(self) -> str:
        """What the engine calls this request: its caller's id may be used again, this one never."""
        return self._stream.internal_id

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._over:
            raise StopAsyncIteration
        while True:
            self._changed.clear()
            output = self._stream.take()
            if output is not None:
                self._over = output.finished
                return output
            await self._changed.wait()

    async def aclose(self) -> None:
        self._over = True
        if not self._stream.ended:
            self._llm.abort(self._stream.request_id)


class AsyncLLM:
    """One engine in the background. Raises ConfigError or StartupError; then nothing is left behind."""

    def __init__(self, config: EngineConfig, *, ports: Ports | None = None, attachment: Attachment | None = None,
                 client_index: int = 0) -> None:
        """`attachment`: of the running engines of an `EngineLauncher`, one of whose clients this is."""
        self._service = Service(config, asyncio_mode=True, ports=ports, attachment=attachment,
                                client_index=client_index)
        self.config = self._service.config
        self.client = self._service.client
        weakref.finalize(self, end_client, self.client).atexit = False  # the client sees to the program's end itself

    # -- requests

    def start(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None,
              priority: int = 0, data_parallel_rank: int | None = None) -> AsyncStream:
        """Send a request now; its outputs are iterated later. `priority`: the lowest is served first. Of several cores
        the one is asked that has the least to do, or `data_parallel_rank`.

        Raises BadRequestError, RefusedError, EngineDeadError.
        """
        self._attach()
        return AsyncStream(self, self._service.start(
            request_id, prompt, params, priority, data_parallel_rank))

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None, request_id: str, *,
                       priority: int = 0, data_parallel_rank: int | None = None) -> AsyncIterator[RequestOutput]:
        """vLLM's call: yields cumulative outputs, the last one finished."""
        stream = self.start(request_id, prompt, sampling_params, priority, data_parallel_rank)
        try:
            async for output in stream:
                yield output
        finally:
            await stream.aclose()

    def abort(self, request_id: str) -> None:
        """The stream of this request ends, aborted."""
        self._service.abort(request_id)

    # -- the engine

    def start_utility(self, method: str, *args: Any) -> asyncio.Future[Any]:
        """Send a utility call now; await its result later. Raises EngineDeadError, UnroutableError."""
        self._attach()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: UtilityResult) -> None:
            if answer.cancelled():
                return
            if result.error is not None:
                answer.set_exception(result.error)
            elif result.failure is not None:
                answer.set_exception(ValueError(result.failure))
            else:
                answer.set_result(result.result)

        self._service.utility(method, args, done)
        return answer

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Raises ValueError for what the core refuses, EngineDeadError, UnroutableError, RequestTimeoutError."""
        return await self.start_utility(method, *args)

    async def check_health(self) -> None:
        """Raises EngineDeadError where the engine is dead or makes no progress; of several cores, where all are."""
        self.client.check_health()

    @property
    def dead_cores(self) -> dict[str, str]:
        """Of several cores those that are dead, each with the reason."""
        return self.client.dead_cores

    @property
    def errored(self) -> bool:
        return self._service.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        return self._service.dead_error

    def shutdown(self) -> None:
        """End the engine; pending streams end with EngineDeadError. Nothing is left behind."""
        self.client.shutdown()

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self.client.loop is not loop:  # a program may run several loops after each other
            self.client.attach(loop)

"""An `AsyncLLM` of vLLM's as the lab's caller asks it (`scenarios.workloads.caller.AskedEngine`).

What a caller asks in one breath goes out in that order: each command is sent before the next one is begun. Steps are
counted by the gate in the core's scheduler; pauses are vLLM's own, of the mode that keeps requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from vllm import SamplingParams as TheirParams
from vllm.exceptions import VLLMClientError
from vllm.v1.engine.exceptions import EngineDeadError as TheirDeadError
from vllm.v1.engine.exceptions import EngineGenerateError

from engine.effects import Loop
from engine.errors import BadRequestError, EngineDeadError, RequestError, RingtwinError
from engine.messages import RequestOutput, SamplingParams
from scenarios.workloads.caller import Heard
from scenarios.workloads.workload import Command
from scenarios.worlds.vllm.stand_in.gate import Gates

#: How often a caller of counted steps looks whether they are done: nobody tells it.
LOOK_S = 0.003
#: Utilities of our core that vLLM's client has by another name, or that a caller of it cannot ask for.
_CALLS: dict[str, Callable[[Any, list[Any]], Coroutine[Any, Any, Any]]] = {
    "reset_prefix_cache": lambda llm, args: llm.reset_prefix_cache(),
    "collective_rpc": lambda llm, args: llm.collective_rpc(args[0]),
    "is_paused": lambda llm, args: llm.is_paused(),
}
#: Fields of our parameters that vLLM has under the same names.
_PARAMS = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos")


class Life:
    """What a caller may know of its engine: whether it can be reached at all."""

    dead_cores: dict[str, str] = {}

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    @property
    def reachable(self) -> bool:
        return not self._llm.errored


class AskedVllm:
    def __init__(self, llm: Any, gates: Gates) -> None:
        self._llm, self._gates = llm, gates
        self.life = Life(llm)
        self.tasks: set[asyncio.Task[None]] = set()
        self.told: Any = None  # the CallerProcess
        self._orders: asyncio.Queue[tuple[Coroutine[Any, Any, None], asyncio.Event]] = asyncio.Queue()
        self._sending: dict[str, tuple[Heard, asyncio.Event]] = {}  # by the id that vLLM is given
        self._uses = 0
        self._watch_sends()
        self._ordering = asyncio.create_task(self._in_order())

    def add(self, name: str, prompt: Any, params: SamplingParams, priority: int = 0,
            rank: int | None = None) -> Loop[str]:
        self._uses += 1
        heard, sent = Heard(name, f"{name}-{self._uses}"), asyncio.Event()
        self._sending[heard.internal] = heard, sent
        self._order(self._generate(heard, prompt, params, priority, rank, sent), sent)
        return heard.internal
        yield  # a loop without effects is a loop all the same

    def abort(self, name: str) -> Loop[None]:
        sent = asyncio.Event()
        self._order(self._abort(name, sent), sent)
        return
        yield

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        raise RingtwinError("nobody speaks with vLLM's core but its own client")
        yield

    def call(self, command: Command) -> Loop[None]:
        sent = asyncio.Event()
        self._order(self._utility(command, sent), sent)
        return
        yield

    def check_health(self) -> Loop[None]:
        asked = self._llm.check_health()
        try:
            asked.send(None)  # it waits for nothing
        except StopIteration:
            return
        except TheirDeadError as error:
            raise EngineDeadError(str(error)) from None
        asked.close()
        raise RuntimeError("vLLM's check_health waits, and its caller cannot")
        yield

    @property
    def errored(self) -> bool:
        return bool(self._llm.errored)

    def close(self) -> None:
        self._ordering.cancel()
        for task in self.tasks:
            task.cancel()

    async def ask_late(self, params: SamplingParams) -> str:
        """A call to an engine that is known to be dead. -> the class of the error, empty where there is none"""
        self._uses += 1
        try:
            async for _ in self._llm.generate({"prompt_token_ids": [5]}, _theirs(params), f"late-{self._uses}"):
                pass
        except TheirDeadError:
            return EngineDeadError.__name__
        except Exception as error:
            return type(error).__name__
        return ""

    # -- tasks of the event loop

    def _order(self, work: Coroutine[Any, Any, None], sent: asyncio.Event) -> None:
        self._orders.put_nowait((work, sent))

    async def _in_order(self) -> None:
        while True:
            work, sent = await self._orders.get()
            self.tasks.add(task := asyncio.create_task(work))
            task.add_done_callback(self.told.consumed)
            await sent.wait()

    def _watch_sends(self) -> None:
        """A request is accepted when its message was handed to the core's socket."""
        client = self._llm.engine_core
        send = client.add_request_async

        async def add_request_async(request: Any) -> None:
            await send(request)
            heard, sent = self._sending.pop(request.external_req_id, (None, None))
            if heard is not None and sent is not None:
                self.told.accepted(heard, request.request_id, _core_of(client, request.request_id))
                sent.set()

        client.add_request_async = add_request_async

    async def _generate(self, heard: Heard, prompt: Any, params: SamplingParams, priority: int, rank: int | None,
                        sent: asyncio.Event) -> None:
        failure: RingtwinError | None = None
        try:
            async for output in self._llm.generate({"prompt_token_ids": list(prompt)}, _theirs(params), heard.internal,
                                                   priority=priority, data_parallel_rank=rank):
                self.told.hear(heard, _ours(heard, output))
        except (TheirDeadError, EngineGenerateError, VLLMClientError, ValueError, TypeError) as error:
            failure = _error_of(heard, error)
        finally:
            self._sending.pop(heard.internal, None)
            sent.set()
        self.told.ended(heard, failure)

    async def _abort(self, name: str, sent: asyncio.Event) -> None:
        try:
            await self._llm.abort([heard.internal for heard in self.told.open_of(name)])
        except TheirDeadError:
            pass  # what is open is told so itself
        finally:
            sent.set()

    async def _utility(self, command: Command, sent: asyncio.Event) -> None:
        result, failure = None, None
        try:
            result = await self._asked(command, sent)
        except TheirDeadError as error:
            failure = EngineDeadError(str(error))
        except RingtwinError as error:
            failure = error
        except Exception as error:
            failure = RequestError(command.method, f"{type(error).__name__}: {error}", may_have_taken_effect=True)
        finally:
            sent.set()
        self.told.answered(command, result, failure)

    async def _asked(self, command: Command, sent: asyncio.Event) -> Any:
        method, args = command.method, list(command.args)
        if method == "pause_scheduler":
            await self._sent(self._llm.pause_generation(mode="keep", clear_cache=False), sent)
        elif method == "resume_scheduler":
            self._gates.open()
            await self._sent(self._llm.resume_generation(), sent)
        elif method == "run_steps":
            client = self._llm.engine_core
            self._gates.allow(int(args[0]), {_index(engine) for engine in _asked_of(client).values()} or {0})
            await self._sent(self._llm.resume_generation(), sent)
            while not self._gates.is_done():
                self._check_lives()
                await asyncio.sleep(LOOK_S)
            if len(self._gates) > 1:  # those that had nothing to do did not come to their last step
                await self._llm.pause_generation(mode="keep", clear_cache=False)
            return None
        elif method in _CALLS:
            return await self._sent(_CALLS[method](self._llm, args), sent)
        else:
            raise RequestError(method, "vLLM's client has no such call")
        return None

    async def _sent(self, call: Coroutine[Any, Any, Any], sent: asyncio.Event) -> Any:
        """A call sends its message before it waits for the first time."""
        asked = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        sent.set()
        return await asked

    def _check_lives(self) -> None:
        if self._llm.errored:
            raise EngineDeadError(str(self._llm.dead_error))


def _theirs(params: SamplingParams) -> TheirParams:
    given = {name: getattr(params, name) for name in _PARAMS}
    return TheirParams(detokenize=False, **{name: list(value) if isinstance(value, tuple) else value
                                            for name, value in given.items()})


def _core_of(client: Any, internal: str) -> int:
    """Which core got it, where there are several."""
    engine = _asked_of(client).get(internal)
    return 0 if engine is None else _index(engine)


def _asked_of(client: Any) -> dict[str, bytes]:
    """By request that is open: the identity of its core, where there are several."""
    return getattr(client, "reqs_in_flight", {})


def _index(engine: bytes) -> int:
    return int.from_bytes(engine, "little")


def _ours(heard: Heard, output: Any) -> RequestOutput:
    """The lab's form of what vLLM told."""
    (one,) = output.outputs
    return RequestOutput(request_id=heard.name, prompt=None, prompt_token_ids=list(output.prompt_token_ids or ()),
                         token_ids=list(one.token_ids), text="", finished=output.finished,
                         finish_reason=one.finish_reason, stop_reason=one.stop_reason,
                         num_cached_tokens=output.num_cached_tokens or 0)


def _error_of(heard: Heard, error: BaseException) -> RingtwinError:
    if isinstance(error, TheirDeadError):
        return EngineDeadError(str(error))
    if isinstance(error, EngineGenerateError):
        return RequestError(heard.name, f"EngineGenerateError, by {error.__cause__!r}", may_have_taken_effect=True)
    return BadRequestError(heard.name, f"{type(error).__name__}: {error}")

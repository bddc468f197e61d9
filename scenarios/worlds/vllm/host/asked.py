"""An `AsyncLLM` of vLLM's as the lab's caller asks it (`scenarios.workloads.caller.AskedEngine`).

What a caller asks in one breath goes out in that order: each command is sent before the next one is begun. Steps are
counted by the gate in the core's scheduler; pauses are vLLM's own, of the mode that keeps requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from vllm import SamplingParams as TheirParams
from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineDeadError as TheirDeadError
from vllm.v1.engine.exceptions import EngineGenerateError

from engine.effects import Loop
from engine.errors import BadRequestError, EngineDeadError, RefusedError, RequestError, RingtwinError
from engine.messages import RequestOutput, SamplingParams
from scenarios.workloads.caller import Heard
from scenarios.workloads.workload import Command
from scenarios.worlds.vllm.host.values import given
from scenarios.worlds.vllm.stand_in.gate import Gate

#: How often a caller of counted steps looks whether they are done: nobody tells it.
LOOK_S = 0.003
#: Utilities of our core that vLLM's client has by another name, or that a caller of it cannot ask for.
_CALLS: dict[str, Callable[[Any, list[Any]], Coroutine[Any, Any, Any]]] = {
    "reset_prefix_cache": lambda llm, args: llm.reset_prefix_cache(),
    "collective_rpc": lambda llm, args: llm.collective_rpc(args[0], args[1], tuple(args[2:])),
    "is_paused": lambda llm, args: llm.is_paused(),
    "pause_generation": lambda llm, args: llm.pause_generation(mode=args[0]),
    "shutdown": lambda llm, args: _shut_down(llm),
}


async def _shut_down(llm: Any) -> None:
    """As a program's own last act: it waits, and its event loop with it."""
    llm.shutdown()


class Life:
    """What a caller may know of its engine: whether it can be reached at all."""

    dead_cores: dict[str, str] = {}

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    @property
    def reachable(self) -> bool:
        return not self._llm.errored


class AskedVllm:
    def __init__(self, llm: Any, gate: Gate) -> None:
        self._llm, self._gate = llm, gate
        self.life = Life(llm)
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls: set[asyncio.Task[None]] = set()  # those of the workload that are open
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
            async for _ in self._llm.generate({"prompt_token_ids": [5]}, TheirParams(**given(params).params),
                                              f"late-{self._uses}"):
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
        asked = given(params)
        call = {"request_id": heard.internal, "priority": priority, "data_parallel_rank": rank, **asked.call}
        try:
            async for output in self._llm.generate({"prompt_token_ids": list(prompt), **asked.prompt},
                                                   TheirParams(**asked.params), **call):
                self.told.hear(heard, ours(heard, output))
        except Exception as error:  # whatever its caller is told
            failure = error_of(heard.name, error)
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
        if command.method in _CALLS and (task := asyncio.current_task()) is not None:
            self.calls.add(task)
            task.add_done_callback(self.calls.discard)
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
            self._gate.open()
            await self._sent(self._llm.resume_generation(), sent)
        elif method == "run_steps":
            self._gate.allow(int(args[0]))
            await self._sent(self._llm.resume_generation(), sent)
            while not self._gate.is_done():
                self._check_lives()
                await asyncio.sleep(LOOK_S)
            return None
        elif method in _CALLS:
            if method == "shutdown":
                self.told.closing()
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


def _core_of(client: Any, internal: str) -> int:
    """Which core got it, where there are several."""
    engine = getattr(client, "reqs_in_flight", {}).get(internal)
    return int.from_bytes(engine, "little") if isinstance(engine, bytes) else 0


def ours(heard: Heard, output: Any) -> RequestOutput:
    """The lab's form of what vLLM told."""
    (one,) = output.outputs
    return RequestOutput(request_id=heard.name, prompt=None, prompt_token_ids=list(output.prompt_token_ids or ()),
                         token_ids=list(one.token_ids), text="", finished=output.finished,
                         finish_reason=one.finish_reason, stop_reason=one.stop_reason,
                         num_cached_tokens=output.num_cached_tokens or 0)


def error_of(request: str, error: BaseException) -> RingtwinError:
    """The lab's form of an error by which a request ended."""
    if isinstance(error, TheirDeadError):
        return EngineDeadError(str(error))
    if isinstance(error, GracefulHTTPError):
        return RefusedError(request, f"{type(error).__name__}: {error}")
    if isinstance(error, EngineGenerateError):
        return RequestError(request, f"EngineGenerateError, by {error.__cause__!r}", may_have_taken_effect=True)
    return BadRequestError(request, f"{type(error).__name__}: {error}")

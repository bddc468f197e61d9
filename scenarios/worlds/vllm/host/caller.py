"""The caller of a play of vLLM: the lab's own `Caller`, which asks vLLM's `AsyncLLM`. It is the play's frontend.

It speaks only through the library's public methods. What it is told is on record as any caller's would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from vllm import AsyncEngineArgs, envs
from vllm.config import KVEventsConfig
from vllm.v1.engine import core_client
from vllm.v1.engine.async_llm import AsyncLLM

from engine.effects import Loop, Now, Observe
from engine.messages import RequestOutput
from engine.topology import Mark, frontend
from scenarios.lab.script import CLOSE, DONE, FAILED, GO, UP
from scenarios.workloads.caller import PROBE_S, Caller, Heard
from scenarios.workloads.workload import Command
from scenarios.worlds.vllm.host.asked import AskedVllm
from scenarios.worlds.vllm.host.recipe import PATIENCE, Recipe
from scenarios.worlds.vllm.host.relayed import shake_hands_through
from scenarios.worlds.vllm.stand_in.gate import Gate, Gates
from scenarios.worlds.vllm.stand_in.seat import KEY, Seat


def prepare() -> str:
    """Import what every engine needs. -> vLLM's version"""
    import vllm.v1.core.sched.async_scheduler
    import vllm.v1.engine.core
    import vllm.v1.executor.multiproc_executor  # noqa: F401

    import scenarios.worlds.vllm.stand_in.scheduler
    import scenarios.worlds.vllm.stand_in.worker  # noqa: F401

    return vllm.__version__


def main(recipe: Recipe, descriptor: int) -> None:
    # This process is a fork of one that has imported it with another environment.
    core_client.VLLM_ENGINE_READY_TIMEOUT_S = envs.VLLM_ENGINE_READY_TIMEOUT_S
    connection = Connection(descriptor)
    seat = Seat(recipe.folder, frontend(recipe.index, recipe.life))
    seat.born()
    asyncio.run(_run(recipe, connection, seat))
    seat.observe("bye", reason="done")


async def _run(recipe: Recipe, connection: Connection, seat: Seat) -> None:
    seat.observe("starting")
    if recipe.relay:
        shake_hands_through(recipe.relay, recipe.index)
    try:
        arguments = {**recipe.arguments, "additional_config": {KEY: {"folder": recipe.folder}}}
        if "kv_events_config" in arguments:
            arguments["kv_events_config"] = KVEventsConfig(**arguments["kv_events_config"])
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        seat.observe("start-failed", error=type(error).__name__, reason=str(error))
        connection.send_bytes(FAILED + b" " + why.encode()[:4000])
        return
    seat.observe("ready", num_gpu_blocks=llm.vllm_config.cache_config.num_gpu_blocks or 0, parallel_config={})
    gates = Gates([Gate(recipe.folder, index) for index in range(arguments["data_parallel_size"])])
    await CallerProcess(AskedVllm(llm, gates), llm.shutdown, recipe, connection, seat).run()


class CallerProcess:
    """Plays the caller's part on an event loop, as often as the lab says GO. `shut_down` ends the engine of `asked`."""

    def __init__(self, asked: Any, shut_down: Callable[[], None], recipe: Recipe, connection: Connection,
                 seat: Seat) -> None:
        self._asked, self._shut_down = asked, shut_down
        self._recipe, self._connection, self._seat = recipe, connection, seat
        self._orders: asyncio.Queue[bytes] = asyncio.Queue()
        self._asked.told = self
        self._caller = Caller(recipe.workload, self._asked, None)
        self._open: dict[str, list[Heard]] = {}
        self._changed = asyncio.Event()
        self._left = self._closing = False
        self._heard_at, self._patience_s = 0.0, PATIENCE * recipe.request_s  # when it was last told anything
        self._failure: BaseException | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._connection.fileno(), self._order)
        try:
            self._connection.send_bytes(UP)
            while await self._orders.get() == GO:
                await self._serve()
                self._connection.send_bytes(DONE)
        finally:
            loop.remove_reader(self._connection.fileno())
            self.closing()
            self._shut_down()
            self._seat.mark(Mark.DYING)
            self._seat.observe("closed", kept={}, errors=[])
        self._asked.close()

    async def _serve(self) -> None:
        """The workload, once."""
        self._caller = Caller(self._recipe.workload, self._asked, None)
        beside = [asyncio.create_task(self._probe_health()), asyncio.create_task(self._give_up())]
        self._heard_at = self._seat.crossings.clock.monotonic()
        self._tell(self._caller.begin())
        while not (self._caller.finished or self._left):
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        if self._asked.calls:
            await asyncio.wait(self._asked.calls, timeout=self._patience_s)
        if self._recipe.await_death_s:
            await self._until_dead()
        for task in beside:
            task.cancel()
        await self._look_back()

    async def _look_back(self) -> None:
        """As `Caller.look_back`, of an engine whose answers are awaited."""
        self._tell(self._caller.over())
        if self._asked.errored:
            began, params = self._seat.crossings.clock.monotonic(), self._recipe.workload.requests[0].params
            try:
                error = await asyncio.wait_for(self._asked.ask_late(params), self._recipe.request_s)
            except TimeoutError:
                error = "no answer"
            self._seat.observe("late-call", began=began, error=error)
        self._tell(self._caller.probe())

    def _run(self, told: Loop[Any]) -> Any:
        """A caller only observes, and asks for the time."""
        answer: Any = None
        while True:
            try:
                effect = told.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None
            if isinstance(effect, Observe):
                self._seat.crossings.observe(effect.name, effect.data)
            elif isinstance(effect, Now):
                answer = self._seat.crossings.clock.monotonic()
            else:
                raise TypeError(f"a caller asks for {effect!r}, which this world has no answer for")

    def _tell(self, told: Loop[Any]) -> Any:
        result = self._run(told)
        if self._caller.finished:
            self._changed.set()
        return result

    def _order(self) -> None:
        try:
            self._orders.put_nowait(self._connection.recv_bytes())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._orders.put_nowait(CLOSE)
            self._left = True
            self._changed.set()

    async def _until_dead(self) -> None:
        deadline = self._seat.crossings.clock.monotonic() + self._recipe.await_death_s
        while not self._asked.errored and self._seat.crossings.clock.monotonic() < deadline:
            await asyncio.sleep(PROBE_S)

    async def _probe_health(self) -> None:
        while self._tell(self._caller.probe()):
            await asyncio.sleep(PROBE_S)

    async def _give_up(self) -> None:
        """Leave when nothing more is heard: what is open then is open for good."""
        while (left := self._heard_at + self._patience_s - self._seat.crossings.clock.monotonic()) > 0.0:
            await asyncio.sleep(left)
        self._left = True
        self._changed.set()

    # -- what it is told (see `asked`)

    def closing(self) -> None:
        """It begins to shut its engine down."""
        if not self._closing:
            self._closing = True
            self._seat.observe("closing", kept={}, errors=[])

    def accepted(self, heard: Heard, internal: str, core: int) -> None:
        """`internal`: vLLM's own id inside."""
        self._heard_at = self._seat.crossings.clock.monotonic()
        self._open.setdefault(heard.name, []).append(heard)
        self._seat.observe("accepted", request=heard.name, internal=heard.internal, core=core)

    def open_of(self, name: str) -> list[Heard]:
        return self._open.get(name, [])

    def hear(self, heard: Heard, output: RequestOutput) -> None:
        self._heard_at = self._seat.crossings.clock.monotonic()
        self._tell(self._caller.hear(heard, output))

    def ended(self, heard: Heard, failure: Exception | None) -> None:
        self._heard_at = self._seat.crossings.clock.monotonic()
        if heard in self._open.get(heard.name, ()):
            self._open[heard.name].remove(heard)
        self._tell(self._caller.ended(heard, failure))

    def answered(self, command: Command, result: Any, failure: BaseException | None) -> None:
        self._heard_at = self._seat.crossings.clock.monotonic()
        self._tell(self._caller.answered(command, result, failure))

    def consumed(self, task: asyncio.Task[None]) -> None:
        """What a caller's program fails of ends it: nothing else would wake it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._changed.set()

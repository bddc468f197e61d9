"""The caller of a real play: a process that runs the workload against `AsyncLLM` and tells what it was told.

This is the play's frontend node. It speaks only through the library's public methods, so what it observes is what
any user of the engine would have seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop
from engine.errors import RingtwinError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.attachment import Attachment
from engine.frontend.text.input_processor import Prompt
from engine.frontend.text.tokenizer import load_tokenizer
from engine.messages import SamplingParams
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.process.shell import Process
from engine.topology import Mark, frontend
from scenarios.lab.script import CLOSE, DONE, FAILED, GO, UP
from scenarios.workloads.caller import PROBE_S, Caller, Heard, ask_closed
from scenarios.workloads.workload import Command, Workload

_LLM = TypeVar("_LLM")


class CallerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0  # of the frontend
    config: EngineConfig
    workload: Workload
    ports_factory: str
    ports_argument: bytes
    life: int = 0
    log: str = ""  # the file that takes what this process and those it starts write to stderr
    await_death_s: float = 0.0  # after the workload, wait so long for the engine's death
    attachment: bytes = b""  # of the engines that it shares; nothing where it starts its own

    @property
    def attached(self) -> Attachment | None:
        return msgspec.msgpack.decode(self.attachment, type=Attachment) if self.attachment else None


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    begun = begin(recipe, connection, lambda play, ports: AsyncLLM(
        play.config, ports=ports, attachment=play.attached))
    if begun is not None:
        play, ports, llm = begun
        asyncio.run(CallerProcess(llm, ports, play, connection).run())
        ports.observe("bye", reason="done")


def begin(recipe: bytes, connection: Connection, make: Callable[[CallerRecipe, Any], _LLM],
          ) -> tuple[CallerRecipe, Any, _LLM] | None:
    """Set a caller up. -> (its recipe, its ports, its engine), or None where that did not start, as the lab is told."""
    ignore_interrupts()
    play = msgspec.msgpack.decode(recipe, type=CallerRecipe)
    set_process_title(f"frontend-{play.index}")
    log_to(play.log)
    ports = open_ports(frontend(play.index, play.life), play.ports_factory, play.ports_argument,
                       io_threads=play.config.sockets.io_threads)
    ports.mark(Mark.BORN)
    try:
        return play, ports, make(play, ports)
    except RingtwinError as error:
        ports.observe("bye", reason="the engine did not start")
        connection.send_bytes(FAILED + b" " + str(error).encode())
        return None


def ignore_interrupts() -> None:
    """Ctrl-C is the lab's to handle; it ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def log_to(path: str) -> None:
    """Stderr goes to this file from here on: a play's own log, beside its journals, and not into the lab's progress."""
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(fd, 2)
        os.close(fd)


class AskedLLM:
    """An `AsyncLLM` as the caller asks it: what comes later is told by tasks of the event loop."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.life = llm.client.life
        self.tasks: set[asyncio.Task[None]] = set()
        self.told: Any = None  # the CallerProcess

    def add(self, name: str, prompt: Prompt, params: SamplingParams, priority: int = 0,
            rank: int | None = None) -> Loop[str]:
        stream = self._llm.start(name, prompt, params, priority, rank)
        self.tasks.add(task := asyncio.create_task(self.told.consume(name, stream)))
        task.add_done_callback(self.told.consumed)
        return stream.internal_id
        yield  # a loop without effects is a loop all the same

    def abort(self, name: str) -> Loop[None]:
        self._llm.abort(name)
        return
        yield

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        self._llm.client.send_raw(frames)
        return
        yield

    def call(self, command: Command) -> Loop[None]:
        # Sent here and now: the order of sends is the order of commands.
        answer = self._llm.start_utility(command.method, *command.args)
        answer.add_done_callback(lambda done: self.told.answered(command, done))
        return
        yield

    def check_health(self) -> Loop[None]:
        self._llm.client.check_health()
        return
        yield

    @property
    def errored(self) -> bool:
        return self._llm.errored


class CallerProcess:
    """Plays the caller's part on an event loop, as often as the lab says GO."""

    def __init__(self, llm: AsyncLLM, ports: Any, play: CallerRecipe, connection: Connection) -> None:
        self._connection = connection
        self._orders: asyncio.Queue[bytes] = asyncio.Queue()
        self._llm = llm
        self._clock = ports.clock
        self._run = Process(ports).run
        self._play = play
        self._asked = AskedLLM(llm)
        self._asked.told = self
        self._decode = None if play.config.skip_tokenizer_init else load_tokenizer(
            play.config.tokenizer_directory).decode
        self._caller = Caller(play.workload, self._asked, self._decode)
        self._changed = asyncio.Event()
        self._left = False
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
            self._llm.shutdown()
        self._run(ask_closed(self._asked))

    async def _serve(self) -> None:
        """The workload, once."""
        self._caller = Caller(self._play.workload, self._asked, self._decode)
        probe = asyncio.create_task(self._probe_health())
        self._tell(self._caller.begin())
        while not (self._caller.finished or self._left):
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        await asyncio.gather(*self._asked.tasks)
        await asyncio.sleep(0)  # the loop tells of answers that are there already
        if self._play.await_death_s:
            await self._until_dead()
        probe.cancel()
        self._tell(self._caller.look_back())

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
            for task in self._asked.tasks:
                task.cancel()

    async def _until_dead(self) -> None:
        """The plan tells the core to leave: whoever uses an engine still hears of that."""
        deadline = self._clock.monotonic() + self._play.await_death_s
        while not self._llm.errored and self._clock.monotonic() < deadline:
            await asyncio.sleep(self._llm.client.tick_s)

    async def consume(self, name: str, stream: Any) -> None:
        heard, failure = Heard(name, stream.internal_id), None
        try:
            async for output in stream:
                self._tell(self._caller.hear(heard, output))
        except RingtwinError as error:
            failure = error
        self._tell(self._caller.ended(heard, failure))

    def consumed(self, task: asyncio.Task[None]) -> None:
        """What a caller's program fails of ends it: nothing else would wake it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._changed.set()

    def answered(self, command: Command, done: asyncio.Future[Any]) -> None:
        failure = done.exception()
        self._tell(self._caller.answered(command, None if failure else done.result(), failure))

    async def _probe_health(self) -> None:
        while self._tell(self._caller.probe()):
            await asyncio.sleep(PROBE_S)

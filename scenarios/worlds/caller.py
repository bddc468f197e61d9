"""The caller of a real play: a process that runs the workload against `AsyncLLM` and tells what it was told.

This is the play's frontend node. It speaks only through the library's public methods, so what it observes is what
any user of the engine would have seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineDeadError, RingtwinError, UnroutableError
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.session import outcome_of_error
from engine.messages import Outcome
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.topology import Mark, frontend
from scenarios.workloads.workload import Command, Driver, Workload


class CallerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    config: EngineConfig
    workload: Workload
    ports_factory: str
    ports_argument: bytes
    life: int = 0
    log: str = ""  # the file that takes what this process and those it starts write to stderr
    await_death_s: float = 0.0  # after the workload, wait so long for the engine's death
    probe_s: float = 0.05  # how often the health is asked for while the workload runs


#: What the caller says to the lab, and the lab to the caller. The lab's silence (EOF) means: end at once.
READY, FAILED, DONE = b"ready", b"failed", b"done"
GO, CLOSE = b"go", b"close"


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle; it ends its processes
    set_process_title("frontend-0")
    play = msgspec.msgpack.decode(recipe, type=CallerRecipe)
    log_to(play.log)
    ports = open_ports(frontend(0, play.life), play.ports_factory, play.ports_argument)
    ports.mark(Mark.BORN)
    try:
        llm = AsyncLLM(play.config, ports=ports)
    except RingtwinError as error:
        ports.observe("bye", reason="the engine did not start")
        connection.send_bytes(FAILED + b" " + str(error).encode())
        return
    asyncio.run(Caller(llm, ports, play, connection).run())
    ports.observe("bye", reason="done")


def log_to(path: str) -> None:
    """Stderr goes to this file from here on: a play's own log, beside its journals, and not into the lab's progress."""
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(fd, 2)
        os.close(fd)


class Caller:
    def __init__(self, llm: AsyncLLM, ports: Any, play: CallerRecipe, connection: Connection) -> None:
        self._connection = connection
        self._orders: asyncio.Queue[bytes] = asyncio.Queue()
        self._llm = llm
        self._ports = ports
        self._play = play
        self._driver: Any = None
        self._tasks: set[asyncio.Task] = set()
        self._finished = asyncio.Event()
        self._told_dead = False
        self._internal: dict[str, str] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._connection.fileno(), self._order)
        try:
            self._connection.send_bytes(READY)
            while await self._orders.get() == GO:
                await self._serve()
                self._connection.send_bytes(DONE)
        finally:
            loop.remove_reader(self._connection.fileno())
            self._llm.shutdown()

    async def _serve(self) -> None:
        """The workload, once."""
        self._driver, self._finished, self._told_dead = Driver(self._play.workload), asyncio.Event(), False
        probe = asyncio.create_task(self._probe_health())
        self._do(self._driver.start())
        await self._finished.wait()
        await asyncio.gather(*self._tasks)
        if self._play.await_death_s:
            await self._until_dead()
        probe.cancel()
        await self._after()

    def _order(self) -> None:
        try:
            self._orders.put_nowait(self._connection.recv_bytes())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._orders.put_nowait(CLOSE)
            self._finished.set()
            for task in self._tasks:
                task.cancel()

    async def _until_dead(self) -> None:
        """The plan tells the core to leave: whoever uses an engine still hears of that."""
        deadline = self._ports.clock.monotonic() + self._play.await_death_s
        while not self._llm.errored and self._ports.clock.monotonic() < deadline:
            await asyncio.sleep(self._llm.client.tick_s)

    async def _after(self) -> None:
        """Nothing is open: a dead engine must say so to a later call."""
        if self._llm.errored:
            began = self._ports.clock.monotonic()
            try:
                self._llm.start("late", [1], self._play.workload.requests[0].params)
                error = ""
            except RingtwinError as raised:
                error = type(raised).__name__
            self._ports.observe("late-call", began=began, error=error)
        await self._check_health()

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            if command.kind == "add":
                self._add(command)
            elif command.kind == "abort":
                self._ports.observe("abort", request=command.request_id,
                                    internal=self._internal.get(command.request_id, ""))
                self._llm.abort(command.request_id)
            elif command.kind == "raw":
                self._llm.client.send_raw([bytes.fromhex(frame) for frame in command.args])
            elif command.kind == "utility":
                self._call(command)
            else:
                self._finished.set()

    def _add(self, command: Command) -> None:
        request, observe = command.request, self._ports.observe
        observe("call", request=command.request_id, index=request.index, prompt=len(request.prompt_token_ids),
                max_tokens=request.params.max_tokens)
        try:
            stream = self._llm.start(command.request_id, request.prompt_token_ids, request.params)
        except RingtwinError as error:
            self._end(command.request_id, "", None, error)
            self._do(self._driver.ended(command.request_id))
            return
        self._internal[command.request_id] = stream.internal_id
        self._tasks.add(asyncio.create_task(self._consume(command.request_id, stream)))

    async def _consume(self, request_id: str, stream: Any) -> None:
        have, last, failure = 0, None, None
        try:
            async for last in stream:
                if len(last.token_ids) > have:
                    self._ports.observe("tokens", request=request_id, internal=stream.internal_id, offset=have,
                                        tokens=last.token_ids[have:])
                    have = len(last.token_ids)
        except RingtwinError as error:
            failure = error
        self._end(request_id, stream.internal_id, last, failure)
        self._do(self._driver.ended(request_id))

    def _end(self, request_id: str, internal: str, last: Any, error: RingtwinError | None) -> None:
        finish = last.finish_reason if last is not None else None
        outcome = outcome_of_error(error) if error is not None else (
            Outcome.ABORTED if finish == "abort" else Outcome.FINISHED)
        self._ports.observe(
            "end", request=request_id, internal=internal, outcome=outcome.value, reason=str(error or ""),
            finish_reason=finish, error=type(error).__name__ if error is not None else "",
            may_have_taken_effect=getattr(error, "may_have_taken_effect", False))
        if isinstance(error, EngineDeadError):
            self._learn_of_death()

    def _learn_of_death(self) -> None:
        if not self._told_dead:
            self._told_dead = True
            self._do(self._driver.died())

    def _call(self, command: Command) -> None:
        # Sent here and now: the order of sends is the order of commands.
        try:
            answer = self._llm.start_utility(command.method, *command.args)
        except (EngineDeadError, UnroutableError) as error:
            self._answered(command, None, error)
            return
        answer.add_done_callback(lambda done: self._answered(
            command, None if done.exception() else done.result(), done.exception()))

    def _answered(self, command: Command, result: Any, failure: BaseException | None) -> None:
        self._ports.observe("utility", method=command.method, result=result, failure=str(failure or ""))
        if isinstance(failure, EngineDeadError):
            self._learn_of_death()
        self._do(self._driver.answered(command.ticket, failure is not None))

    async def _probe_health(self) -> None:
        while True:
            await self._check_health()
            if self._llm.errored:
                self._learn_of_death()
                return
            await asyncio.sleep(self._play.probe_s)

    async def _check_health(self) -> None:
        try:
            await self._llm.check_health()
        except EngineDeadError:
            return

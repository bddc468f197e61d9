"""The caller of a play of vLLM that has no event loop: it asks vLLM's `LLM`, as a program that generates and waits.

What it asks for at once is one call of `generate`, so of a request it knows its end alone, and what a failed call had
to give is lost to it. A call that tells it nothing is interrupted, as by a user who waits no longer; then nothing of it
has ended. `LLM` says nothing of its health, so nor does its caller.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from vllm import LLM
from vllm import SamplingParams as TheirParams
from vllm.v1.engine.exceptions import EngineDeadError as TheirDeadError

from engine.effects import Loop, Now, Observe
from engine.errors import EngineDeadError, RequestError, RingtwinError
from engine.topology import Mark, frontend
from scenarios.lab.script import CLOSE, DONE, FAILED, GO, UP
from scenarios.workloads.caller import Caller, Heard
from scenarios.workloads.workload import Command
from scenarios.worlds.vllm.host.asked import error_of, ours
from scenarios.worlds.vllm.host.recipe import PATIENCE, Recipe
from scenarios.worlds.vllm.host.relayed import shake_hands_through
from scenarios.worlds.vllm.host.values import given
from scenarios.worlds.vllm.stand_in.seat import KEY, Seat


def main(recipe: Recipe, descriptor: int) -> None:
    connection = Connection(descriptor)
    seat = Seat(recipe.folder, frontend(recipe.index, recipe.life))
    seat.born()
    _play(recipe, connection, seat)
    seat.observe("bye", reason="done")


def _play(recipe: Recipe, connection: Connection, seat: Seat) -> None:
    seat.observe("starting")
    if recipe.relay:
        shake_hands_through(recipe.relay, recipe.index)
    arguments = {**recipe.arguments, "additional_config": {KEY: {"folder": recipe.folder}}}
    try:
        llm = LLM(**arguments)
    except Exception as error:
        seat.observe("start-failed", error=type(error).__name__, reason=str(error))
        connection.send_bytes(FAILED + b" " + f"{type(error).__name__}: {error}".encode()[:4000])
        return
    seat.observe("ready", num_gpu_blocks=llm.llm_engine.vllm_config.cache_config.num_gpu_blocks or 0,
                 parallel_config={})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the lab blocks it in all that it starts
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    connection.send_bytes(UP)
    while _heard(connection) == GO:
        Program(llm, recipe, seat).run()
        connection.send_bytes(DONE)
    seat.observe("closing", kept={}, errors=[])
    llm.llm_engine.engine_core.shutdown()
    seat.mark(Mark.DYING)
    seat.observe("closed", kept={}, errors=[])


def _heard(connection: Connection) -> bytes:
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return CLOSE


class Unheard(Exception):  # noqa: N818  nobody made a mistake: it is what the caller has come to
    """A call was interrupted: its caller has waited for too long."""


class Program:
    """Plays the caller's part once."""

    def __init__(self, llm: Any, recipe: Recipe, seat: Seat) -> None:
        self._asked = AskedProgram(llm, PATIENCE * recipe.request_s)
        self._caller = Caller(recipe.workload, self._asked, None)
        self._recipe, self._seat = recipe, seat

    def run(self) -> None:
        try:
            self._serve()
        except Unheard:
            pass
        self._tell(self._caller.over())
        if self._asked.errored:
            began = self._seat.crossings.clock.monotonic()
            self._seat.observe("late-call", began=began, error=self._late())

    def _serve(self) -> None:
        self._tell(self._caller.begin())
        while self._asked.answers or self._asked.wanted:
            while self._asked.answers:
                self._tell(self._caller.answered(*self._asked.answers.pop(0)))
            if self._asked.wanted:
                heard, outputs, failure = self._asked.generate()
                for one, output in zip(heard, outputs, strict=False):
                    self._tell(self._caller.hear(one, ours(one, output)))
                for one in heard:
                    self._tell(self._caller.ended(one, failure))

    def _late(self) -> str:
        """A call to an engine that is known to be dead. -> the class of the error"""
        self._asked.wanted.append(("late", [5], self._recipe.workload.requests[0].params, 0))
        try:
            _, _, failure = self._asked.generate()
        except Unheard:
            return "no answer"
        return type(failure).__name__ if failure is not None else ""

    def _tell(self, told: Loop[Any]) -> Any:
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


class AskedProgram:
    """An `LLM` as the lab's caller asks it. What is `wanted` is asked for by `generate`; `answers` are told to it."""

    def __init__(self, llm: Any, patience_s: float) -> None:
        self._llm, self._patience_s = llm, patience_s
        self.life = Life(llm)
        self.wanted: list[tuple[str, Any, Any, int]] = []
        self.answers: list[tuple[Command, Any, Exception | None]] = []

    def generate(self) -> tuple[list[Heard], list[Any], RingtwinError | None]:
        """All that is wanted. -> whom it is for, the outputs, or what it failed of. Raises Unheard."""
        wanted, self.wanted = self.wanted, []
        heard, asked = [Heard(name) for name, *_ in wanted], [given(params) for _, _, params, _ in wanted]
        try:
            return heard, self._waits_for(lambda: self._llm.generate(
                [{"prompt_token_ids": list(prompt), **one.prompt} for (_, prompt, _, _), one in zip(
                    wanted, asked, strict=True)],
                [TheirParams(**one.params) for one in asked], priority=[priority for *_, priority in wanted],
                use_tqdm=False)), None
        except Exception as error:
            if isinstance(error, Unheard):
                raise
            return heard, [], error_of(heard[0].name, error)

    def add(self, name: str, prompt: Any, params: Any, priority: int = 0, rank: int | None = None) -> Loop[str]:
        assert rank is None, "who generates and waits asks for no core by its rank"
        self.wanted.append((name, prompt, params, priority))
        return ""
        yield  # a loop without effects is a loop all the same

    def call(self, command: Command) -> Loop[None]:
        if command.method != "collective_rpc":
            raise RequestError(command.method, "vLLM's LLM has no such call")
        name, late_s, *words = command.args
        try:
            result = self._waits_for(lambda: self._llm.collective_rpc(name, late_s, tuple(words)))
            self.answers.append((command, result, None))
        except TheirDeadError as error:
            self.answers.append((command, None, EngineDeadError(str(error))))
        except Unheard:
            raise
        except Exception as error:
            self.answers.append((command, None, RequestError(command.method, f"{type(error).__name__}: {error}")))
        return
        yield

    def check_health(self) -> Loop[None]:
        raise NotImplementedError("an `LLM` says nothing of its health")

    def abort(self, name: str) -> Loop[None]:
        raise NotImplementedError("who waits for its answers aborts none")

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        raise NotImplementedError("an `LLM` sends requests alone")

    @property
    def errored(self) -> bool:
        return not self.life.reachable

    def _waits_for(self, call: Callable[[], Any]) -> Any:
        """Raises Unheard when it has lasted too long."""
        late = threading.Timer(self._patience_s, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        late.start()
        try:
            return call()
        except KeyboardInterrupt:
            raise Unheard from None
        finally:
            late.cancel()


class Life:
    dead_cores: dict[str, str] = {}

    def __init__(self, llm: Any) -> None:
        self._client = llm.llm_engine.engine_core

    @property
    def reachable(self) -> bool:
        return not self._client.resources.engine_dead

"""The caller of a real play that has no event loop: it asks `LLM`, as a program does that generates and waits.

It plays the part of `caller.main`. What it asks for at once is one call of `generate`, so of a request it knows its end
alone; what a failed call had to give is lost to it. Of what the lab says it hears when it waits for nothing else.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from engine.effects import Loop
from engine.errors import RingtwinError
from engine.frontend.llm import LLM
from engine.frontend.text.input_processor import Prompt
from engine.messages import SamplingParams
from engine.process.shell import Process
from scenarios.lab.script import CLOSE, DONE, GO, UP
from scenarios.workloads.caller import Caller, Heard, ask_closed
from scenarios.workloads.workload import Command
from scenarios.worlds.caller import CallerRecipe, begin


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    begun = begin(recipe, connection, lambda play, ports: LLM(config=play.config, ports=ports))
    if begun is None:
        return
    play, ports, llm = begun
    process = Process(ports)
    with llm:
        connection.send_bytes(UP)
        while _heard(connection) == GO:
            _serve(llm, play, process)
            connection.send_bytes(DONE)
    asked = AskedLLM(llm)
    asked.looks_back = True
    process.run(ask_closed(asked))
    ports.observe("bye", reason="done")


def _heard(connection: Connection) -> bytes:
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return CLOSE


def _serve(llm: LLM, play: CallerRecipe, process: Process) -> None:
    """The workload, once. It ends with what cannot be asked for, too."""
    asked = AskedLLM(llm)
    caller = Caller(play.workload, asked, None)
    process.run(caller.begin())
    process.run(caller.probe())
    while asked.answers or asked.wanted:
        while asked.answers:
            process.run(caller.answered(*asked.answers.pop(0)))
        if asked.wanted:
            heard, outputs, failure = asked.generate()
            for one, output in zip(heard, outputs, strict=False):
                process.run(caller.hear(one, output))
            for one in heard:
                process.run(caller.ended(one, failure))
        process.run(caller.probe())
    asked.looks_back = True
    process.run(caller.look_back())


class AskedLLM:
    """An `LLM` as the caller asks it. What is `wanted` is asked for by `generate`; `answers` are told to the caller."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self.life = llm, llm.client.life
        self.wanted: list[tuple[str, Prompt, SamplingParams, int]] = []
        self.answers: list[tuple[Command, Any, Exception | None]] = []
        self.looks_back = False

    def generate(self) -> tuple[list[Heard], list[Any], Exception | None]:
        """All that is wanted. -> whom it is for, the outputs, or what it failed of"""
        wanted, self.wanted = self.wanted, []
        heard = [Heard(name) for name, *_ in wanted]
        try:
            return heard, self._llm.generate(
                [prompt for _, prompt, _, _ in wanted], [params for _, _, params, _ in wanted],
                priority=[priority for *_, priority in wanted]), None
        except RingtwinError as error:
            return heard, [], error

    def add(self, name: str, prompt: Prompt, params: SamplingParams, priority: int = 0,
            rank: int | None = None) -> Loop[str]:
        assert rank is None, "who generates and waits asks for no core by its rank"
        if self.looks_back:
            self._llm.generate([prompt], params)
        self.wanted.append((name, prompt, params, priority))
        return ""
        yield  # a loop without effects is a loop all the same

    def call(self, command: Command) -> Loop[None]:
        try:
            self.answers.append((command, self._llm.call_utility(command.method, *command.args), None))
        except (RingtwinError, ValueError) as error:
            self.answers.append((command, None, error))
        return
        yield

    def check_health(self) -> Loop[None]:
        self._llm.check_health()
        return
        yield

    def abort(self, name: str) -> Loop[None]:
        raise NotImplementedError("who waits for its answers aborts none")

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        raise NotImplementedError("an `LLM` sends requests alone")

    @property
    def errored(self) -> bool:
        return self._llm.client.session.dead is not None

"""The caller of a play of vLLM's HTTP server: it starts one on a socket file of the play, and asks it as clients do.

    caller (frontend.k) --fork--> server --> core.k --> its workers          HTTP by a socket file, streams of events

A client is told that its engine is dead by the server's own words, or by a connection that ends before its answer does.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp

from engine.effects import Loop
from engine.errors import BadRequestError, EngineDeadError, RefusedError, RequestError, RingtwinError
from engine.messages import RequestOutput
from engine.topology import frontend
from scenarios.lab.script import FAILED
from scenarios.workloads.caller import Heard
from scenarios.workloads.workload import Command
from scenarios.worlds.vllm.host.caller import CallerProcess
from scenarios.worlds.vllm.host.recipe import Recipe
from scenarios.worlds.vllm.host.values import given
from scenarios.worlds.vllm.stand_in.seat import KEY, Seat

#: Of one question for the health, and how often it is asked while the server starts.
HEALTH_S, LOOK_S = 1.0, 0.05
#: A server that is asked to leave does so within this, or is killed.
LEAVE_S = 8.0
#: What clients read where their engine is dead (`vllm.v1.engine.exceptions.EngineDeadError`).
DEAD = "The server had an error while processing your request."


def main(recipe: Recipe, descriptor: int) -> None:
    seat = Seat(recipe.folder, frontend(recipe.index, recipe.life))
    seat.born()
    connection = Connection(descriptor)
    seat.observe("starting")
    server = Server(recipe, connection)
    try:
        if server.comes_up(recipe.startup_s):
            seat.observe("ready", num_gpu_blocks=recipe.arguments["num_gpu_blocks_override"], parallel_config={})
            asyncio.run(_run(server, recipe, connection, seat))
        else:
            seat.observe("start-failed", error="RuntimeError", reason="the server has not come up")
            connection.send_bytes(FAILED + b" the server has not come up")
    finally:
        server.leaves()
        seat.observe("server-ended", exitcode=server.exitcode)
    seat.observe("bye", reason="done")


async def _run(server: Server, recipe: Recipe, connection: Connection, seat: Seat) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(server.path, limit=0)) as session:
        await CallerProcess(AskedServer(server, session), server.leaves, recipe, connection, seat).run()


class Server:
    """vLLM's own, in a process that was forked, as `vllm serve` runs it."""

    def __init__(self, recipe: Recipe, connection: Connection) -> None:
        self.path = str(Path(recipe.environment["VLLM_RPC_BASE_PATH"]) / f"http.{recipe.index}")
        self.model = recipe.arguments["model"]
        self.pid = os.fork()
        if not self.pid:
            connection.close()
            _serve(recipe, self.path)

    def comes_up(self, at_most_s: float) -> bool:
        deadline = time.monotonic() + at_most_s
        while time.monotonic() < deadline and self.is_there():
            if self.health() == 200:
                return True
            time.sleep(LOOK_S)
        return False

    def is_there(self) -> bool:
        return self._left() is None

    @property
    def exitcode(self) -> int | None:
        """Or -signal; None: it is there."""
        left = self._left()
        if left is None:
            return None
        return left.si_status if left.si_code == os.CLD_EXITED else -left.si_status

    def _left(self) -> os.waitid_result | None:
        """It stays to be looked at again."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def begin_a_request(self) -> socket.socket:
        """As a client that says what it will send, and sends none of it. -> its connection"""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(HEALTH_S)
        client.connect(self.path)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Content-Length: 1000\r\n\r\n")
        return client

    def health(self) -> int:
        """-> the status, or 0 where nobody answers"""
        asked = http.client.HTTPConnection("localhost", timeout=HEALTH_S)
        try:
            asked.sock = socket.socket(socket.AF_UNIX)
            asked.sock.settimeout(HEALTH_S)
            asked.sock.connect(self.path)
            asked.request("GET", "/health")
            return asked.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            asked.close()

    def leaves(self) -> None:
        """It is asked to, and waited for."""
        if self.is_there():
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + LEAVE_S
            while self.is_there() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            if self.is_there():
                os.kill(self.pid, signal.SIGKILL)


def _serve(recipe: Recipe, path: str) -> None:
    """Does not come back."""
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    code = 1
    try:
        arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", recipe.arguments["model"]])
        for name, value in {**recipe.arguments, "additional_config": {KEY: {"folder": recipe.folder}}, "uds": path,
                            "uvicorn_log_level": "warning"}.items():
            setattr(arguments, name, value)
        asyncio.run(run_server(arguments))
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class AskedServer:
    """A server of vLLM's as the lab's caller asks it (`scenarios.workloads.caller.AskedEngine`)."""

    dead_cores: dict[str, str] = {}

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self.life = self
        self.errored = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls: set[asyncio.Task[None]] = set()
        self.told: Any = None  # the CallerProcess
        self._running: dict[str, list[asyncio.Task[None]]] = {}
        self._left: set[asyncio.Task[None]] = set()  # whose clients have gone away
        self._halves: list[socket.socket] = []  # of requests that have only begun
        self._uses = 0

    @property
    def reachable(self) -> bool:
        return not self.errored

    def add(self, name: str, prompt: Any, params: Any, priority: int = 0, rank: int | None = None) -> Loop[str]:
        self._uses += 1
        heard = Heard(name, f"{name}-{self._uses}")
        task = asyncio.create_task(self._generate(heard, prompt, params, priority))
        self.tasks.add(task)
        task.add_done_callback(self.told.consumed)
        self._running.setdefault(name, []).append(task)
        return heard.internal
        yield  # a loop without effects is a loop all the same

    def abort(self, name: str) -> Loop[None]:
        """Who goes away is not asked for a reason."""
        for task in self._running.pop(name, ()):
            self._left.add(task)
            task.cancel()
        return
        yield

    def send_raw(self, frames: list[bytes]) -> Loop[None]:
        raise RingtwinError("nobody speaks with vLLM's core but its own client")
        yield

    def call(self, command: Command) -> Loop[None]:
        """What a client may do beside asking: see `CALLS_OF_A_SERVER`."""
        if command.method == "begin_a_request":
            self._halves.append(self._server.begin_a_request())
        elif command.method == "leave_amid_a_request":
            self._halves.pop().close()
        else:
            raise RequestError(command.method, "vLLM's server has no such call")
        asyncio.get_running_loop().call_soon(self.told.answered, command, None, None)
        return
        yield

    def check_health(self) -> Loop[None]:
        status = self._server.health()
        if status != 200:
            self.errored = True
            raise EngineDeadError(f"the server's health is {status or 'told by nobody'}")
        return
        yield

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for half in self._halves:
            half.close()

    async def ask_late(self, params: Any) -> str:
        """-> the class of the error, empty where there is none"""
        try:
            async for _ in self._events([5], params, 0):
                pass
        except RingtwinError as error:
            return type(error).__name__
        return ""

    async def _generate(self, heard: Heard, prompt: Any, params: Any, priority: int) -> None:
        failure: RingtwinError | None = None
        tokens: list[int] = []
        finish = None
        try:
            async for choice in self._events(list(prompt), params, priority):
                tokens = tokens + (choice.get("token_ids") or [])
                finish = choice.get("finish_reason")
                self.told.hear(heard, RequestOutput(
                    request_id=heard.name, prompt=None, prompt_token_ids=list(prompt), token_ids=tokens, text="",
                    finished=finish is not None, finish_reason=finish, stop_reason=choice.get("stop_reason"),
                    num_cached_tokens=0))
            if finish is None:
                failure = EngineDeadError("the answer ended before its end")
        except asyncio.CancelledError:
            if asyncio.current_task() not in self._left:  # nobody waits any more: it has no end
                raise
            finish = "abort"
            self.told.hear(heard, RequestOutput(
                request_id=heard.name, prompt=None, prompt_token_ids=list(prompt), token_ids=tokens, text="",
                finished=True, finish_reason=finish, stop_reason=None, num_cached_tokens=0))
        except RingtwinError as error:
            failure = error
        self.told.ended(heard, failure)

    async def _events(self, prompt: list[int], params: Any, priority: int) -> AsyncIterator[dict[str, Any]]:
        """The choices of a stream. Raises errors of `engine.errors`."""
        asked = given(params)
        body = {"model": self._server.model, "prompt": prompt, "stream": True, "return_token_ids": True,
                "priority": priority, **asked.params, **asked.prompt, **asked.call}
        del body["detokenize"]
        try:
            async with self._session.post("http://localhost/v1/completions", json=body) as answer:
                if answer.status != 200:
                    raise _error_of(answer.status, (await answer.json())["error"]["message"])
                async for line in answer.content:
                    word = line.removeprefix(b"data: ").strip()
                    if line.startswith(b"data: ") and word != b"[DONE]":
                        event = json.loads(word)
                        if "error" in event:
                            raise _error_of(event["error"]["code"], event["error"]["message"])
                        for choice in event["choices"]:
                            yield choice
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineDeadError(f"{type(error).__name__}: {error}") from None


def _error_of(status: int, message: str) -> RingtwinError:
    if DEAD in message:
        return EngineDeadError(message)
    if status in (429, 503):
        return RefusedError("", message)
    if status == 500:
        return RequestError("", message or "an error of the server", may_have_taken_effect=True)
    return BadRequestError("", message)

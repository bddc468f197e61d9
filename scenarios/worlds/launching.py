"""The launcher of a real play: a process that owns the engines which several clients share.

And who speaks with real engines and is none of theirs: sockets of the lab's, that connect where an engine's are bound.
What an intruder has to say is with its own system before `let_in` returns, unless nobody let it in.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import zmq

from engine.config import EngineConfig
from engine.errors import RingtwinError
from engine.frontend.client import EngineLauncher
from engine.process.children import readable, set_process_title
from engine.process.entry import open_ports
from engine.topology import Mark, launcher
from scenarios.history.play import Intruder
from scenarios.lab.script import FAILED, UP
from scenarios.worlds.caller import ignore_interrupts, log_to


class LauncherRecipe(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0  # of the launcher
    config: EngineConfig
    clients: int
    ports_factory: str
    ports_argument: bytes
    life: int = 0
    log: str = ""  # the file that takes what this process and those it starts write to stderr


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process. It goes when the lab says so, or is gone."""
    ignore_interrupts()
    play = msgspec.msgpack.decode(recipe, type=LauncherRecipe)
    set_process_title(f"launcher-{play.index}")
    log_to(play.log)
    ports = open_ports(launcher(play.index, play.life), play.ports_factory, play.ports_argument,
                       io_threads=play.config.sockets.io_threads)
    ports.mark(Mark.BORN)
    try:
        engines = EngineLauncher(play.config, play.clients, ports=ports)
    except RingtwinError as error:
        ports.observe("bye", reason="the engines did not start")
        connection.send_bytes(FAILED + b" " + str(error).encode())
        return
    with engines:
        connection.send_bytes(UP + msgspec.msgpack.encode(engines.attachment))
        while not readable([connection.fileno()], 0):
            if engines.serve(engines.life.tick_s) and not engines.life.has_orphans:
                readable([connection.fileno()], None)
    ports.observe("bye", reason="done")


# -- intruders -------------------------------------------------------------------------------------------------------


#: What a connection on the same host takes, at most.
CONNECT_S = 2.0


def address_of(intruder: Intruder, runtime_dir: Path) -> str | None:
    """Where the socket is that it wants to speak with, of the engines in this directory; None: nowhere yet."""
    found = next(iter(runtime_dir.glob(f"*/{intruder.at}.ipc")), None)
    return None if found is None else f"ipc://{found}"


class Intruders:
    """Those of one play."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._sockets: list[zmq.Socket[bytes]] = []

    def let_in(self, intruder: Intruder, runtime_dir: Path) -> None:
        address = address_of(intruder, runtime_dir)
        if address is None:
            return
        if self._context is None:
            self._context = zmq.Context()
        socket = self._context.socket(getattr(zmq, intruder.kind))
        self._sockets.append(socket)
        if intruder.identity is not None:
            socket.setsockopt(zmq.IDENTITY, intruder.identity)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(address)
        monitor.poll(round(CONNECT_S * 1000))
        socket.disable_monitor()
        for frames in intruder.messages:
            socket.send_multipart(frames)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(0)
        if self._context is not None:
            self._context.term()

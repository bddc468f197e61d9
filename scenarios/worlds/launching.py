"""The launcher of a real play: a process that owns the engines which several clients share."""

from __future__ import annotations

from multiprocessing.connection import Connection

import msgspec

from engine.config import EngineConfig
from engine.errors import RingtwinError
from engine.frontend.client import EngineLauncher
from engine.process.children import readable, set_process_title
from engine.process.entry import open_ports
from engine.topology import Mark, launcher
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
            engines.serve(engines.life.tick_s)
            if engines.life.reason:
                readable([connection.fileno()], None)
    ports.observe("bye", reason="done")

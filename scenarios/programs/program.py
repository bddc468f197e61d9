"""The process of a real play that has no engine of the lab's: a program which uses parts of it, and asks.

It plays the part of frontend.0. See `asking`.
"""

from __future__ import annotations

import signal
import tempfile
from inspect import isgeneratorfunction
from multiprocessing.connection import Connection

import msgspec

from engine.config import EngineConfig
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.process.recipes import named
from engine.topology import Mark, frontend
from scenarios.history.play import BATCHES, BOOKS
from scenarios.lab.script import DONE
from scenarios.programs.asking import Asking
from scenarios.workloads.workload import Workload
from scenarios.worlds.caller import log_to

#: What `Options.program` may say: who asks, imported where it asks. The lab has none of what they need.
PROGRAMS = {
    "events": "events_user:ask_events", "queues": "queues.asks:ask_queues", "afar": "network.afar:ask_from_afar",
    "sockets": "network.sockets:ask_sockets", "groups": "ranks.groups:ask_groups",
    "meetings": "ranks.meetings:ask_meetings", "collectives": "ranks.collectives:ask_collectives",
    "generation": "generation_user:ask_generation", "engines": "engines_user:ask_engines",
    "models": "models_user:ask_models", BOOKS: "books:look_at_books", BATCHES: "batches:ask_of_batches"}


class ProgramRecipe(msgspec.Struct, frozen=True, kw_only=True):
    program: str
    config: EngineConfig
    workload: Workload
    ports_factory: str
    ports_argument: bytes
    folder: str  # for its files
    log: str


def main(recipe: bytes, connection: Connection) -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle; it ends its processes
    asked = msgspec.msgpack.decode(recipe, type=ProgramRecipe)
    set_process_title(f"program-{asked.program}")
    log_to(asked.log)
    tempfile.tempdir = asked.folder
    ports = open_ports(frontend(), asked.ports_factory, asked.ports_argument)
    ports.mark(Mark.BORN)
    asking = Asking(ports, asked.folder, asked.config, asked.workload)
    ask = named(f"scenarios.programs.{PROGRAMS[asked.program]}")
    if isgeneratorfunction(ask):  # what it asks is pure: the twin plays it, too
        asking.run(ask())
    else:
        ask(asking)
    connection.send_bytes(DONE)
    ports.observe("bye", reason="done")
    ports.close()

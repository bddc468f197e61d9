"""The process of a real play that has no engine of the lab's: a program which uses parts of it, and asks.

It plays the part of frontend.0. See `asking`.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from engine.config import EngineConfig
from engine.process.children import set_process_title
from engine.process.entry import open_ports
from engine.topology import Mark, frontend
from scenarios.history.play import BATCHES, BOOKS
from scenarios.lab.script import DONE
from scenarios.programs.asking import Asking
from scenarios.programs.batches import ask_of_batches
from scenarios.programs.books import look_at_books
from scenarios.programs.engines_user import ask_engines
from scenarios.programs.events_user import ask_events
from scenarios.programs.generation_user import ask_generation
from scenarios.programs.models_user import ask_models
from scenarios.programs.network.afar import ask_from_afar
from scenarios.programs.network.sockets import ask_sockets
from scenarios.programs.queues.asks import ask_queues
from scenarios.programs.ranks.collectives import ask_collectives
from scenarios.programs.ranks.groups import ask_groups
from scenarios.programs.ranks.meetings import ask_meetings
from scenarios.workloads.workload import Workload
from scenarios.worlds.caller import log_to

#: What `Options.program` may say.
PROGRAMS: dict[str, Callable[[Asking], None]] = {
    "events": ask_events, "queues": ask_queues, "afar": ask_from_afar, "sockets": ask_sockets, "groups": ask_groups,
    "meetings": ask_meetings, "collectives": ask_collectives, "generation": ask_generation, "engines": ask_engines,
    "models": ask_models,
    BOOKS: lambda asking: asking.run(look_at_books()), BATCHES: lambda asking: asking.run(ask_of_batches())}


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
    PROGRAMS[asked.program](Asking(ports, asked.folder, asked.config, asked.workload))
    connection.send_bytes(DONE)
    ports.observe("bye", reason="done")
    ports.close()

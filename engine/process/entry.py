"""What a child runs first: from the pipe that its parent left it to ports, a recipe, and the function that is its life.

Promise: nothing that the parent has open stays open here but the pipe, and nothing is opened before the recipe comes.
A child that hears of its parent's end instead of a recipe is gone without a word.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from engine.process.children import (
    Bootstrap,
    PipeParent,
    close_inherited_ends,
    keep_end,
    process_name,
    set_log_prefix,
    set_process_title,
)
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.process.recipes import Recipe, life_of, named, unreadable, unsealed
from engine.topology import Node


def child_main(name: str, target: str, connection: Connection, parent_pid: int) -> None:
    """`children.start_child` starts this by its name."""
    close_inherited_ends()
    gc.freeze()  # else the first full collection writes to, and so copies, all that a fork shares with its parent
    node = Node.parse(name)
    set_process_title(process_name(node))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the frontend's to handle; it ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_end(connection)
    parent = PipeParent(connection, parent_pid)
    message = parent.receive()
    if message is None:
        os._exit(0)  # the parent went away before this child had anything to do
    bootstrap = msgspec.msgpack.decode(message, type=Bootstrap)
    ports = open_ports(node, bootstrap.ports_factory, bootstrap.ports_argument, parent, bootstrap.io_threads)
    recipe = ports.parent.take(bootstrap.recipe)
    if recipe is None:
        os._exit(0)
    named(target)(ports, recipe)
    sys.stdout.flush()
    sys.stderr.flush()


def live(ports: Any, recipe_bytes: bytes) -> None:
    """A child's life is told by its recipe."""
    set_log_prefix(str(ports.node))
    try:
        recipe = unsealed(recipe_bytes, Recipe)
    except msgspec.DecodeError as error:
        EngineProcess(ports).run(unreadable(ports.node, error))
        return
    EngineProcess(ports, recipe.config.bounds.ring_recheck_s).run(life_of(ports.node, recipe))


def open_ports(node: Node, factory: str, argument: bytes, parent: PipeParent | None = None, io_threads: int = 1) -> Any:
    """The ports of this process, and its children's: plain, or wrapped by the named factory."""
    def open_real(node: Node) -> RealPorts:
        return RealPorts(node, factory, argument, parent, io_threads)

    return named(factory)(node, argument, open_real) if factory else open_real(node)

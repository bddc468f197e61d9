"""What a child process is sent to know what it is, and what it says in return (pure): data, opened in the child."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.effects import Identity, Loop
from engine.process.files import EngineFiles
from engine.topology import Node


class CoreRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="core"):
    config: EngineConfig
    files: EngineFiles
    handshake_address: str
    beat: str  # the shared word of the heartbeat
    frontend: Identity  # who owns the engine
    engine_index: int = 0
    clients: tuple[int, ...] = (0,)  # the frontends, by the index that they have among the core's clients


class WorkerRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="worker"):
    config: EngineConfig
    files: EngineFiles
    rank: int
    init_method: str
    rpc_handle: bytes
    frontend: Identity
    engine_index: int = 0


#: The life of whoever is sent this.
LIVES = {CoreRecipe: "engine.core.life:core_life", WorkerRecipe: "engine.worker.life:worker_life"}


def named(name: str) -> Any:
    """What a "module:attribute" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def life_of(node: Node, recipe: CoreRecipe | WorkerRecipe) -> Loop[None]:
    loop: Loop[None] = named(LIVES[type(recipe)])(node, recipe)
    return loop


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's word on its pipe: it is loaded, and this is its answer queue."""

    rank: int
    response_handle: bytes


class WorkersBorn(msgspec.Struct, frozen=True, tag="workers"):
    """The core's first word on its pipe: its workers, for when it cannot end them itself."""

    identities: tuple[Identity, ...]


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """A core's last word on its pipe: why it stops serving."""

    reason: str


class StartFailure(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last word on its pipe: why it could not start. `kind` is the error's class name."""

    kind: str
    reason: str


#: What a process may say on the pipe to whoever started it.
Word = WorkerReady | WorkersBorn | Leaving | StartFailure

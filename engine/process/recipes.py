"""What a child process is sent to know what it is, and what it says in return (pure): data, opened in the child."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.effects import Identity, Loop
from engine.process.consensus.effects import Across, Member
from engine.process.files import EngineFiles
from engine.topology import Node, frontend, launcher, worker


class CoreRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="core"):
    config: EngineConfig
    files: EngineFiles
    handshake_address: str
    beat: str  # the shared word of the heartbeat
    frontend: Identity  # who owns the engine
    engine_index: int = 0
    clients: tuple[int, ...] = (0,)  # the frontends, by the index that they have among the core's clients
    launcher: int | None = None  # who that is, where it is none of these
    ranks: tuple[Member, ...] = ()  # the cores that step together with it, itself among them, by rank

    @property
    def owner(self) -> Node:
        return frontend(self.clients[0]) if self.launcher is None else launcher(self.launcher)

    def across(self, rank: int) -> Across | None:
        """Whom that rank of this engine meets in each forward."""
        if not self.ranks:
            return None
        alone = self.config.grid.size == 1
        names = tuple(member.name if alone else str(worker(rank, engine=engine))
                      for engine, member in enumerate(self.ranks))
        return Across(self.engine_index, names, f"file://{self.files.path}/forwards.{rank}")

    @property
    def meets_at(self) -> str:
        """Where those cores meet."""
        return f"file://{self.files.path}/ranks"


class CoordinatorRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="coordinator"):
    config: EngineConfig
    files: EngineFiles
    beat: str  # the shared word of the heartbeat
    frontend: Identity  # who owns the engines


class WorkerRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="worker"):
    config: EngineConfig
    files: EngineFiles
    rank: int
    init_method: str
    rpc_handle: bytes
    frontend: Identity
    engine_index: int = 0
    across: Across | None = None


#: The life of whoever is sent this.
LIVES = {CoreRecipe: "engine.core.life:core_life", WorkerRecipe: "engine.worker.life:worker_life",
         CoordinatorRecipe: "engine.coordinator.life:coordinator_life"}
#: What a child may be sent.
Recipe = CoreRecipe | WorkerRecipe | CoordinatorRecipe


def named(name: str) -> Any:
    """What a "module:attribute" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def life_of(node: Node, recipe: Recipe) -> Loop[None]:
    loop: Loop[None] = named(LIVES[type(recipe)])(node, recipe)
    return loop


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's word on its pipe: it is loaded, and this is its answer queue."""

    rank: int
    response_handle: bytes


class WorkersBorn(msgspec.Struct, frozen=True, tag="workers"):
    """The core's first word on its pipe: its workers, for when it cannot end them itself."""

    identities: tuple[Identity, ...]


class CoordinatorReady(msgspec.Struct, frozen=True, tag="coordinates"):
    """A coordinator's first word on its pipe: where its sockets are bound."""

    stats: str
    waves: str
    reports: str


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The last word of a core or a coordinator on its pipe: why it stops serving."""

    reason: str


class StartFailure(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last word on its pipe: why it could not start. `kind` is the error's class name."""

    kind: str
    reason: str


#: What a process may say on the pipe to whoever started it.
Word = WorkerReady | WorkersBorn | CoordinatorReady | Leaving | StartFailure

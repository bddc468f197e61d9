"""What a child process is sent to know what it is, and what it says in return (pure): data, opened in the child.

Promise: what comes damaged is known to be, whatever of it was hit: it is a checksum, then the struct.
"""

from __future__ import annotations

import importlib
import zlib
from functools import lru_cache
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.effects import ExitNow, Identity, LogLine, Loop, Observe, OnTerminate, TellParent
from engine.process.consensus.effects import Across, Member
from engine.process.files import EngineFiles
from engine.topology import Channel, Node, frontend, launcher, worker

#: Before each word and recipe.
_CHECKSUM_BYTES = 4


class CoreRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="core"):
    config: EngineConfig
    files: EngineFiles
    handshake_address: str  # of its owner, or of the head of all
    beat: str  # the shared word of the heartbeat
    frontend: Identity  # who owns the engine
    engine_index: int = 0
    dp_rank: int = 0
    local_dp_rank: int = 0  # among those of this host: which of its devices are its own
    head: int | None = None  # the frontend that is the head, where that is not its owner
    client_handshake_address: str | None = None  # of its owner, where that is a client and not the head
    clients: tuple[int, ...] = (0,)  # the frontends, by the index that they have among the core's clients
    launcher: int | None = None  # who that is, where it is none of these
    ranks: tuple[Member, ...] = ()  # the cores that step together with it, itself among them, by rank
    start_by: float | None = None  # on the host's monotonic clock: who owns it waits no longer for its READY
    meets_in: str = ""  # the directory where they meet; "": their own, which is one for all

    @property
    def owner(self) -> Node:
        return frontend(self.clients[0]) if self.launcher is None else launcher(self.launcher)

    @property
    def greeted(self) -> Node:
        """Who is at the handshake address."""
        return self.owner if self.head is None else frontend(self.head)

    @property
    def is_headless(self) -> bool:
        return self.head is not None and self.client_handshake_address is None

    @property
    def rank(self) -> int:
        """Among those cores."""
        return self.dp_rank

    def across(self, rank: int) -> Across | None:
        """Whom that rank of this engine meets in each forward."""
        if not self.ranks:
            return None
        alone = self.config.grid.size == 1
        names = tuple(member.name if alone else str(worker(rank, engine=Node.parse(member.name).index))
                      for member in self.ranks)
        return Across(self.rank, names, f"file://{self.meets_in or self.files.path}/forwards.{rank}")

    @property
    def meets_at(self) -> str:
        """Where those cores meet."""
        return f"file://{self.meets_in or self.files.path}/ranks"


class CoordinatorRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="coordinator"):
    config: EngineConfig
    files: EngineFiles
    beat: str  # the shared word of the heartbeat
    frontend: Identity  # who owns the engines
    clients: tuple[int, ...] = (0,)  # the frontends that may subscribe


class WorkerRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="worker"):
    config: EngineConfig
    files: EngineFiles
    rank: int
    init_method: str
    rpc_handle: bytes
    frontend: Identity
    engine_index: int = 0
    local_dp_rank: int = 0
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
    """The last word of a core or a coordinator on its pipe: why it stops serving.

    `follows`: because another one gave up, who knows why.
    """

    reason: str
    follows: bool = False


class StartFailure(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last word on its pipe: why it could not start. `kind` is the error's class name."""

    kind: str
    reason: str


class Garbled(msgspec.Struct, frozen=True):
    """What is heard in place of a word that cannot be read, and why not."""

    error: str


#: What a process may say on the pipe to whoever started it.
Word = WorkerReady | WorkersBorn | CoordinatorReady | Leaving | StartFailure


def sealed(word: msgspec.Struct) -> bytes:
    """As it travels on the pipe."""
    body = msgspec.msgpack.encode(word)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def unsealed(message: bytes, kind: Any) -> Any:
    """Raises msgspec.DecodeError for what was not sent so."""
    body = message[_CHECKSUM_BYTES:]
    if message[:_CHECKSUM_BYTES] != zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little"):
        raise msgspec.DecodeError("its checksum is wrong")
    return _decoder(kind).decode(body)


@lru_cache(maxsize=16)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Of few kinds: making one takes longer than reading a word."""
    return msgspec.msgpack.Decoder(kind)


def misread(error: str) -> Observe:
    """Of a word or a recipe, by whoever should read it."""
    return Observe("bad-frame", {"edge": Channel.BIRTH.value, "error": error})


def leaves_undisturbed(queue: str, item: Any) -> Loop[None]:
    """Whoever leaves already is not broken off by a SIGTERM, nor by one that comes as this is asked for: from here on
    it puts `item` into `queue`.
    """
    while True:
        try:
            yield OnTerminate(queue, item)
        except SystemExit:
            continue
        return


def last_word(word: Leaving | StartFailure) -> Loop[None]:
    """Whatever goes wrong with it, whoever leaves goes on to do so in order."""
    try:
        yield TellParent(word)
    except (Exception, SystemExit) as error:
        yield LogLine("its parent is not told why", error)


def unreadable(node: Node, error: Exception) -> Loop[None]:
    """The life of whoever was sent a recipe that cannot be read."""
    yield misread(str(error))
    yield TellParent(StartFailure("StartupError", f"the recipe of {node.first_life} cannot be read: {error}"))
    yield ExitNow(1)

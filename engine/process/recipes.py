"""What a child process is sent to know what it is: names, addresses, config. Everything is opened in the child."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig


class CoreRecipe(msgspec.Struct, frozen=True, kw_only=True):
    config: EngineConfig
    engine_id: str
    runtime_path: str
    handshake_address: str
    beat: str  # the shared word of the heartbeat
    frontend: tuple[int, int]  # pid and start time: who owns the engine
    clients: int
    engine_index: int = 0


class WorkerRecipe(msgspec.Struct, frozen=True, kw_only=True):
    config: EngineConfig
    engine_id: str
    runtime_path: str
    rank: int
    init_method: str
    rpc_handle: bytes
    frontend: tuple[int, int]


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's word on its pipe: it is loaded, and this is its answer queue."""

    rank: int
    response_handle: bytes


class WorkersBorn(msgspec.Struct, frozen=True, tag="workers"):
    """The core's first word on its pipe: (pid, start time) of its workers, for when it cannot end them itself."""

    identities: list[tuple[int, int]]


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """A core's last word on its pipe: why it stops serving."""

    reason: str


class StartFailure(msgspec.Struct, frozen=True, tag="failed"):
    """A child's last word on its pipe: why it could not start. `kind` is the error's class name."""

    kind: str
    reason: str

"""The cores of a client, and their coordinator where they have one (pure): started, told what they are, ended."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.config import EngineConfig
from engine.effects import AwaitEnds, Identity, Loop, Now
from engine.errors import ChildGoneError
from engine.frontend.attachment import ClientAddresses
from engine.frontend.handles.coordinator import CoordinatorHandle
from engine.frontend.handles.core import CoreHandle
from engine.frontend.handles.handle import Handle
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses
from engine.process.files import EngineFiles
from engine.process.recipes import CoordinatorReady
from engine.topology import Node, NodeKind, coordinator, core
from engine.wire.handshake import frontend_handshake

#: What both sides of a handshake must agree on, by name.
Agreed = dict[str, int | str | bool]


def with_start_method(config: EngineConfig) -> EngineConfig:
    """As the processes of an engine are started."""
    return msgspec.structs.replace(config, start_method="spawn") if config.start_method == "auto" else config


def parallel_config(config: EngineConfig) -> Agreed:
    return {"tensor_parallel_size": config.tensor_parallel_size,
            "pipeline_parallel_size": config.pipeline_parallel_size,
            "data_parallel_size": config.data_parallel_size}


class CoreEngineProcManager:
    """Of the process `node`; a single core has its number, several count from 0."""

    files: EngineFiles | None = None  # from the start on

    def __init__(self, node: Node, config: EngineConfig) -> None:
        ranks, bounds = config.data_parallel_size, config.bounds
        indices = tuple(range(ranks)) if ranks > 1 else (node.index,)
        self.cores = {index: CoreHandle(core(index, node.life), bounds) for index in indices}
        self.coordinator = CoordinatorHandle(coordinator(0, node.life), bounds) if config.has_coordinator else None
        self.all: list[Handle] = [*self.cores.values(), *([self.coordinator] if self.coordinator else [])]
        self.by_node = {handle.node: handle for handle in self.all}
        self.nodes = tuple(self.by_node)
        self._bounds, self._launcher = bounds, node.index if node.kind is NodeKind.LAUNCHER else None

    def is_core(self, node: Node) -> bool:
        return self.coordinator is None or node != self.coordinator.node

    # -- start

    def start(self, start_method: str) -> Loop[None]:
        """Before the first socket: a forked child must not inherit a ZMQ context."""
        for handle in self.all:
            yield from handle.start(start_method)

    def tell(self, config: EngineConfig, files: EngineFiles, me: Identity, handshake_address: str,
             clients: tuple[int, ...]) -> Loop[CoordinatorReady | None]:
        """-> where the coordinator is bound. Raises StartupError where it is not."""
        hub = None if self.coordinator is None else (yield from self.coordinator.open(config, files, me))
        several = len(self.cores) > 1
        for index, handle in self.cores.items():
            yield from handle.claim(files.of_core(index) if several else files)
        ranks = tuple(handle.member for handle in self.cores.values()) if config.is_lockstep else ()
        for index, handle in self.cores.items():
            own = msgspec.structs.replace(config, data_parallel_rank=index) if several else config
            yield from handle.tell(own, handshake_address, me, clients, ranks, self._launcher)
        return hub

    def meet(self, clients: Sequence[ClientAddresses], agreed: Agreed, hub: CoordinatorReady | None,
             inboxes: tuple[str, ...]) -> Loop[dict[int, int]]:
        """Until all have introduced themselves, and announced in these inboxes. -> KV-cache blocks of each core

        Raises ConfigError or StartupError.
        """
        theirs = () if hub is None else (hub.waves, hub.reports, hub.stats)
        metadata = {index: EngineHandshakeMetadata(EngineZmqAddresses(
            [client.requests for client in clients], [client.outputs[index] for client in clients], *theirs), agreed)
            for index in self.cores}
        try:
            return (yield from frontend_handshake(
                metadata, self._bounds.handshake_s, self._bounds.startup_s, self.nodes, inboxes))
        except ChildGoneError:
            raise (yield from self.why_start_failed()) from None

    def why_start_failed(self) -> Loop[Exception]:
        """One of them is gone."""
        gone = yield AwaitEnds(self.nodes, 0.0)
        first = self.by_node[min(gone)]
        error = yield from first.why_start_failed()
        is_one_of_several = len(self.all) > 1 or self._launcher is not None
        return type(error)(f"{first.name}: {error}") if is_one_of_several and first.name not in str(error) else error

    def watch(self, now: float) -> None:
        """All are ready."""
        for handle in self.all:
            handle.watch(now)

    def silent(self, now: float) -> str:
        """Who may be the reason for what another one says, as the end of a sentence: whoever does not beat."""
        longest = 2 * self._bounds.heartbeat_s
        found = [said for handle in self.all if handle.serves and (said := handle.monitor.silent(now, longest))]
        return f"; {', '.join(found)}" if found else ""

    # -- the end

    def end(self) -> Loop[None]:
        for handle in self.all:
            yield from handle.terminate()
        deadline = (yield Now()) + self._bounds.terminate_s
        for handle in self.all:
            yield from handle.end(deadline)

    def kill(self) -> Loop[None]:
        for handle in self.all:
            yield from handle.kill()

"""The cores of a client, and their coordinator where they have one (pure): started, told what they are, ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from engine.config import EngineConfig
from engine.effects import AwaitEnds, Identity, Loop, Now, ReadHeartbeat
from engine.errors import ChildGoneError, StartupError
from engine.frontend.attachment import ClientAddresses, Running
from engine.frontend.handles.coordinator import CoordinatorHandle
from engine.frontend.handles.core import CoreHandle
from engine.frontend.handles.handle import Handle
from engine.frontend.handles.remote import RemoteCore, RemoteHandle
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses
from engine.process.consensus.effects import Member
from engine.process.files import EngineFiles
from engine.process.recipes import CoordinatorReady, CoreRecipe
from engine.topology import Node, NodeKind, coordinator, core, frontend
from engine.wire.adoption import SIZE, Agreed
from engine.wire.handshake import Expected, Greeting, frontend_handshake

#: Of cores that are started by several: who starts rank 0.
HEAD = frontend()

def with_start_method(config: EngineConfig) -> EngineConfig:
    """As the processes of an engine are started."""
    return msgspec.structs.replace(config, start_method="spawn") if config.start_method == "auto" else config


class CoreEngineProcManager:
    """Of the process `node`; a single core has its number, offline too, several count from the first one's rank.

    `cores` are those that its client asks: its own, and of a head also those that others have started headless.
    """

    files: EngineFiles | None = None  # from the start on
    stats: str | None = None  # where the head's coordinator tells clients, once that is known
    greeted: Collection[int] = ()  # whose cores introduce themselves here

    def __init__(self, node: Node, config: EngineConfig) -> None:
        bounds, life = config.bounds, node.life
        several = config.data_parallel_size > 1 and not config.is_offline
        local = tuple(config.local_ranks) if several else (node.index,)
        self.start_index, self.local_engine_count = local[0], len(local)
        self.local_start_index = config.data_parallel.rank_local
        self.own = {index: CoreHandle(core(index, life), bounds) for index in local}
        asked = config.client_ranks if several and node.kind is NodeKind.FRONTEND else ()
        self.remote = {index: RemoteCore(core(index, life), bounds) for index in asked if index not in self.own}
        self.headless = tuple(self.remote)
        self.cores: dict[int, CoreHandle | RemoteCore] = {**self.own, **self.remote}
        self._is_spread, self._is_head = config.is_spread, not config.is_spread or config.is_head
        self.coordinator = CoordinatorHandle(coordinator(0, life), bounds) if (
            config.has_coordinator and self._is_head) else None
        #: Of the head, as a client of other cores hears of it.
        self.hub = RemoteHandle(coordinator(0, life), bounds) if (
            config.has_coordinator and not self._is_head and node.kind is NodeKind.FRONTEND) else None
        started: list[Handle] = [*self.own.values(), *([self.coordinator] if self.coordinator else [])]
        self.all: list[Handle] = [*started, *self.remote.values(), *([self.hub] if self.hub else [])]
        self.by_node = {handle.node: handle for handle in self.all}
        self.nodes = tuple(handle.node for handle in started)
        self._started, self._node, self._bounds = started, node, bounds

    def is_core(self, node: Node) -> bool:
        return node.kind is NodeKind.CORE

    # -- start

    def start(self, start_method: str) -> Loop[None]:
        """Before the first socket: a forked child must not inherit a ZMQ context."""
        for handle in self._started:
            yield from handle.start(start_method)

    def tell(self, config: EngineConfig, files: EngineFiles, me: Identity, handshake_address: str | None,
             clients: tuple[int, ...]) -> Loop[CoordinatorReady | None]:
        """`handshake_address`: of this process, where it has one. -> where the coordinator is bound

        Raises StartupError where it is not.
        """
        hub = None if self.coordinator is None else (yield from self.coordinator.open(
            config, files, me, tuple(config.client_indices) if config.is_spread else clients))
        several = len(self.own) > 1
        for index, handle in self.own.items():
            yield from handle.claim(files.of_core(index) if several else files)
        together = config.is_lockstep and not config.is_offline and not config.is_spread  # else they find each other
        greets = {"handshake_address": handshake_address} if self._is_head else {
            "handshake_address": config.data_parallel.head_address, "client_handshake_address": handshake_address,
            "head": HEAD.index}
        recipe = CoreRecipe(config=config, files=files, beat="", frontend=me, clients=clients,
                            ranks=tuple(handle.member for handle in self.own.values()) if together else (),
                            launcher=self._node.index if self._node.kind is NodeKind.LAUNCHER else None, **greets)
        for place, (index, handle) in enumerate(self.own.items()):
            local = self.local_start_index + place
            own = msgspec.structs.replace(config, data_parallel_rank=index, data_parallel=msgspec.structs.replace(
                config.data_parallel, size_local=1 if config.is_spread else None, rank_local=local)
                ) if several or config.is_spread else config
            yield from handle.tell(msgspec.structs.replace(recipe, config=own, local_dp_rank=local))
        return hub

    def meet(self, clients: Sequence[ClientAddresses], agreed: Agreed, hub: CoordinatorReady | None,
             inboxes: tuple[str, ...], me: Identity) -> Loop[dict[int, int]]:
        """Until all have introduced themselves, and announced in these inboxes. -> KV-cache blocks of each core

        Of a head all are those that others have started, too. Raises ConfigError or StartupError.
        """
        theirs = () if hub is None else (hub.waves, hub.reports, hub.stats)
        metadata = {index: EngineHandshakeMetadata(EngineZmqAddresses(
            [client.requests for client in clients], [client.outputs[index] for client in clients], *theirs), agreed)
            for index in self.cores}
        expected = Expected()
        if self._is_spread and self._is_head:
            named = Member(str(self._node.first_life), me), None if self.coordinator is None else Member(
                self.coordinator.name, self.coordinator.identity, self.coordinator.beats_at)
            of_others = frozenset(range(int(agreed[SIZE]))) - self.cores.keys()
            metadata |= {index: EngineHandshakeMetadata(EngineZmqAddresses([], [], *theirs), agreed)
                         for index in of_others}
            metadata |= {index: msgspec.structs.replace(metadata[index], head=named[0], coordinator=named[1])
                         for index in metadata if index not in self.own}
            expected = Expected(headless=frozenset(self.remote), of_others=of_others)
        self.greeted = metadata
        heard: dict[int, Greeting] = {}
        try:
            blocks = yield from frontend_handshake(
                metadata, self._hello_s, self._bounds.startup_s, self.nodes, inboxes, expected,
                self._bounds.detection_s, heard.__setitem__)
        except ChildGoneError:
            raise (yield from self.why_start_failed()) from None
        except StartupError as error:
            raise (yield from self._in_their_words(error)) from None
        for index, handle in self.remote.items():
            handle.meet(heard[index].member)
            yield from handle.open()
        if self.hub is not None:
            yield from self._hear_of_hub(heard)
        return {index: blocks[index] for index in self.cores}

    @property
    def running(self) -> dict[int, Running]:
        """Its own cores, as others have to know them."""
        return {index: Running(identity=handle.identity, beat=handle.beats_at) for index, handle in self.own.items()}

    def await_beats(self, look_s: float) -> Loop[None]:
        """Until all serve, who are ready to others. Raises ConfigError or StartupError."""
        deadline = (yield Now()) + self._bounds.startup_s
        silent = set(self.nodes)
        while silent:
            now = yield Now()
            if (yield AwaitEnds(self.nodes, min(deadline, now + look_s))):
                raise (yield from self.why_start_failed())
            for node in list(silent):
                if (yield ReadHeartbeat(node))[0]:
                    silent.discard(node)
            if silent and now >= deadline:
                late = ", ".join(str(node.first_life) for node in sorted(silent))
                raise StartupError(f"{late} did not begin to serve in time")

    @property
    def _hello_s(self) -> float:
        """A core greets the head first, and says why it gave up: before its own client does."""
        return self._bounds.handshake_s if self._is_head else 2 * self._bounds.handshake_s

    def _hear_of_hub(self, heard: dict[int, Greeting]) -> Loop[None]:
        """Its cores have been told where that is, and who."""
        first = heard[self.start_index]
        assert self.hub is not None
        if first.stats is None or first.coordinator is None:
            raise StartupError(f"core.{self.start_index} did not say where the coordinator is")
        self.hub.meet(first.coordinator)
        self.stats = first.stats
        yield from self.hub.open()

    def _in_their_words(self, error: StartupError) -> Loop[Exception]:
        """Who has given up says so before it is gone."""
        for handle in self._started:
            yield from handle.listen()
            if handle.has_given_up:
                return (yield from self._named(handle))
        return error

    def why_start_failed(self) -> Loop[Exception]:
        """One of them is gone."""
        gone = yield AwaitEnds(self.nodes, 0.0)
        return (yield from self._named(self.by_node[min(gone)]))

    def _named(self, handle: Handle) -> Loop[Exception]:
        is_one_of_several = len(self.all) > 1 or self._node.kind is NodeKind.LAUNCHER
        return (yield from handle.why_it_failed() if is_one_of_several else handle.why_start_failed())

    def watch(self, now: float) -> None:
        """All are ready."""
        for handle in self.all:
            handle.watch(now)

    def look(self, now: float) -> Loop[None]:
        """Its own children's ends are told of by their sentinels."""
        return
        yield

    def look_for_another(self, handle: Handle, until: float) -> Loop[None]:
        """As above."""
        return
        yield

    def silent(self, now: float) -> str:
        """Who may be the reason for what another one says, as the end of a sentence: whoever is gone, or silent."""
        longest, mine = 2 * self._bounds.heartbeat_s, [handle for handle in self.all if handle.serves]
        gone = [f"{handle.name} died, too" for handle in mine if not handle.dead and handle.gone() is not None]
        found = [said for handle in mine if (said := handle.monitor.silent(now, longest))]
        return "".join(f"; {said}" for said in (*gone, ", ".join(found)) if said)

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

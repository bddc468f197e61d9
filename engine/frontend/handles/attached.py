"""The engines of a client that did not start them (pure): an `Attachment` says who and where they are."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.effects import AwaitEnds, Loop, Now, Observe, WhoAmI
from engine.frontend.attachment import Attachment
from engine.frontend.handles.handle import Handle
from engine.frontend.handles.monitor import LOOK_S
from engine.frontend.handles.own import open_all, subscribe
from engine.frontend.handles.remote import RemoteCore, RemoteHandle
from engine.process.files import EngineFiles, birth_certificate
from engine.topology import Node, coordinator, core
from engine.wire.adoption import Agreed
from engine.wire.handshake import REQUESTS, await_announcements
from engine.wire.wiring import client_sockets, outputs_of


class AttachedEngines:
    """What `OwnEngines` are to a client that has started them."""

    nodes: tuple[Node, ...] = ()  # its own children
    headless: tuple[int, ...] = ()  # who leaves when it says so
    files: EngineFiles | None = None  # they are their launcher's
    greeted: tuple[int, ...] = ()  # they introduce themselves to that

    def __init__(self, config: EngineConfig, attachment: Attachment, life: int = 0) -> None:
        bounds, hub = config.bounds, attachment.coordinator
        self._attachment = attachment
        self.cores = {index: RemoteCore(core(index, life), bounds, running)
                      for index, running in attachment.cores.items()}
        self.coordinator = None if hub is None else RemoteHandle(coordinator(0, life), bounds, hub)
        self.all: list[RemoteHandle] = [*self.cores.values(), *([self.coordinator] if self.coordinator else [])]
        self.by_node = {handle.node: handle for handle in self.all}

    def is_core(self, node: Node) -> bool:
        return self.coordinator is None or node != self.coordinator.node

    def open_for(self, node: Node, config: EngineConfig, agreed: Agreed) -> Loop[dict[int, int]]:
        """Open what joins them with `node`. -> KV-cache blocks of each core. Raises ConfigError or StartupError."""
        attachment = self._attachment
        yield Observe("born", birth_certificate((yield WhoAmI())))
        attachment.check(agreed)
        for handle in self.all:
            yield from handle.open()
        mine = attachment.clients[attachment.index_of(node.index)]
        at = {REQUESTS: mine.requests, **{outputs_of(index): address for index, address in mine.outputs.items()}}
        yield from open_all(client_sockets(config, at, tuple(self.cores)))
        if attachment.stats is not None:
            yield from subscribe(config, attachment.stats, node.index)
        cores = {index: running.identity for index, running in attachment.cores.items()}
        yield from await_announcements(cores, (yield Now()) + config.bounds.handshake_s, config.bounds.detection_s)
        return attachment.blocks

    def watch(self, now: float) -> None:
        for handle in self.all:
            handle.watch(now)

    def look(self, now: float) -> Loop[None]:
        """At all of them, before one is said to be dead: who ends one of a group may end others at the same time."""
        for handle in self.all:
            if handle.serves and not handle.dead:
                yield from handle.look(now)

    def look_for_another(self, handle: Handle, until: float) -> Loop[None]:
        """Until one of the others is gone, too, and at most until then."""
        others = [other for other in self.all if other is not handle]
        while (now := (yield Now())) < until:
            for other in others:
                yield from other.look(now)
            if any(other.gone() is not None for other in others):
                return
            yield AwaitEnds((), min(until, now + LOOK_S))

    def silent(self, now: float) -> str:
        """Their launcher says it, to those whom it tells. Who else is gone: from here nobody can tell who was first."""
        return "".join(f"; {handle.name} died, too" for handle in self.all
                       if handle.serves and not handle.dead and handle.gone() is not None)

    def end(self) -> Loop[None]:
        return
        yield

    def kill(self) -> Loop[None]:
        return
        yield

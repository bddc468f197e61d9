"""The engines of a client that starts them, and its sockets (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import EngineConfig
from engine.coordinator.sockets import STATS, stats_socket
from engine.effects import ClaimFiles, Loop, Observe, OpenSocket, Send, SweepFiles, WhoAmI
from engine.frontend.attachment import ClientAddresses
from engine.frontend.handles.manager import Agreed, CoreEngineProcManager, with_start_method
from engine.ports import SocketSpec
from engine.process.files import birth_certificate
from engine.topology import Node
from engine.wire.handshake import HANDSHAKE, REQUESTS
from engine.wire.places import place_of
from engine.wire.subscriptions import subscriptions_of
from engine.wire.wiring import frontend_sockets


class OwnEngines(CoreEngineProcManager):
    def open_for(self, node: Node, config: EngineConfig, agreed: Agreed) -> Loop[dict[int, int]]:
        """Start them, and open what joins them with `node`. -> KV-cache blocks of each core

        Raises ConfigError or StartupError.
        """
        yield SweepFiles()
        self.files = files = yield ClaimFiles(config.runtime_dir)
        me = yield WhoAmI()
        yield Observe("born", birth_certificate(me, files))
        config = with_start_method(config)
        yield from self.start(config.start_method)
        bound = yield from open_all(frontend_sockets(
            config, partial(place_of, config.sockets, files), tuple(self.cores)))
        hub = yield from self.tell(config, files, me, bound[HANDSHAKE], (node.index,))
        if hub is not None:
            yield from subscribe(config, hub.stats, node.index)
        mine = ClientAddresses(frontend=node.index, requests=bound[REQUESTS],
                               outputs={index: bound[handle.inbox] for index, handle in self.cores.items()})
        return (yield from self.meet((mine,), agreed, hub, (HANDSHAKE, REQUESTS)))


def open_all(sockets: Sequence[SocketSpec]) -> Loop[dict[str, str]]:
    """-> where each is bound"""
    bound = {}
    for spec in sockets:
        bound[spec.name] = yield OpenSocket(spec)
    return bound


def subscribe(config: EngineConfig, stats: str, client: int) -> Loop[None]:
    """To what a coordinator says to that client."""
    yield OpenSocket(stats_socket(config.sockets, stats, client))
    for topic in subscriptions_of(client):
        yield Send(STATS, [topic])

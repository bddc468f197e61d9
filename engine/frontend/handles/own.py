"""The engines of a client that starts them, and its sockets (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import EngineConfig
from engine.coordinator.sockets import STATS, stats_socket
from engine.effects import ClaimFiles, Loop, Observe, OpenSocket, ReserveAddress, Send, SweepFiles, WhoAmI
from engine.frontend.attachment import ClientAddresses
from engine.frontend.handles.manager import CoreEngineProcManager, with_start_method
from engine.ports import SocketSpec
from engine.process.files import birth_certificate
from engine.topology import Node
from engine.wire.adoption import MASTER_ADDRESS, Agreed
from engine.wire.handshake import HANDSHAKE, REQUESTS
from engine.wire.places import is_chosen_by_the_system, place_of
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
        options = config.data_parallel

        def address(name: str) -> str:
            if name == HANDSHAKE and config.is_spread and config.is_head and options.head_address is not None:
                return options.head_address
            return place_of(config.sockets, files, name)

        bound = yield from open_all(frontend_sockets(config, address, tuple(self.cores)))
        if config.is_spread and config.is_head and config.is_lockstep:
            agreed = {**agreed, MASTER_ADDRESS: (yield from _kept(place_of(config.sockets, files, "ranks")))}
        hub = yield from self.tell(config, files, me, bound[HANDSHAKE], (node.index,))
        if hub is not None:
            yield from subscribe(config, hub.stats, node.index)
        mine = ClientAddresses(frontend=node.index, requests=bound[REQUESTS],
                               outputs={index: bound[handle.inbox] for index, handle in self.cores.items()})
        blocks = yield from self.meet((mine,), agreed, hub, (HANDSHAKE, REQUESTS), me)
        if self.stats is not None:
            yield from subscribe(config, self.stats, node.index)
        return blocks


def _kept(address: str) -> Loop[str]:
    """For others to bind, who are told of it."""
    return (yield ReserveAddress(address)) if is_chosen_by_the_system(address) else address


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

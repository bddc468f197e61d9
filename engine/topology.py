"""Which processes there are, and how they are joined: engines, their clients, and who follows them.

Names of nodes, edges and places are those of `engine.names`, and may be imported from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from engine.names import (
    LOCKSTEP_MARKS,
    MESSAGE_CHANNELS,
    READER_STORES,
    RING_CHANNELS,
    UNCOUNTED,
    WRITER_STORES,
    Channel,
    Client,
    Coordinator,
    Deployment,
    Edge,
    Engine,
    Grid,
    Launcher,
    Mark,
    Node,
    NodeKind,
    Offline,
    at,
    coordinator,
    core,
    frontend,
    launcher,
    mark_site,
    subscriber,
    worker,
)

__all__ = [
    "MESSAGE_CHANNELS", "READER_STORES", "RING_CHANNELS", "WRITER_STORES", "Channel", "Client", "Coordinator",
    "Deployment", "Edge", "Engine", "Grid", "Launcher", "Mark", "Node", "NodeKind", "Offline", "Topology", "at",
    "consensus_sites", "coordinator", "core", "data_parallel", "external", "frontend", "headless", "hybrid",
    "is_site", "launcher", "mark_site", "offline", "side_by_side", "subscriber", "tensor_parallel", "with_ranks",
    "worker",
]


class Topology(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Which processes a play has."""

    engines: tuple[Engine, ...] = (Engine(),)
    clients: tuple[Client, ...] = (Client(),)
    coordinators: tuple[Coordinator, ...] = ()
    launchers: tuple[Launcher, ...] = ()
    offline: tuple[Offline, ...] = ()

    def engine(self, index: int) -> Engine:
        """Raises KeyError for an engine that the play does not have."""
        for engine in self.engines:
            if engine.index == index:
                return engine
        raise KeyError(f"no engine {index}")

    def clients_of(self, engine: int) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if engine in client.engines)

    def launcher_of(self, engine: int) -> Launcher | None:
        return next((one for one in self.launchers if engine in one.engines), None)

    def owner_of(self, engine: int) -> Node:
        """Who starts it and ends it: its launcher, or its client."""
        one = self.launcher_of(engine)
        return self.clients_of(engine)[0].node if one is None else one.node

    def head_of(self, engine: int) -> Node:
        """Who owns the first of the engines that it is deployed with, and so their coordinator; offline its owner."""
        return _head_of(self, engine)

    def is_spread(self, engine: int) -> bool:
        """Whether not all that it is deployed with are started by one, and they have a head."""
        return _is_spread(self, engine)

    def is_headless(self, engine: int) -> bool:
        """Whether it was started elsewhere than its client."""
        one = self.launcher_of(engine)
        return one is not None and one.node != self.head_of(engine)

    def greeted_by(self, engine: int) -> tuple[Node, ...]:
        """With whom its core shakes hands: the head of all, then its own client, where that is another one."""
        head = self.head_of(engine)
        return (head,) if self.is_headless(engine) else tuple(dict.fromkeys((head, self.owner_of(engine))))

    def coordinators_of(self, engines: Iterable[int]) -> tuple[Coordinator, ...]:
        """Those of any of these engines."""
        wanted = set(engines)
        return tuple(one for one in self.coordinators if not wanted.isdisjoint(one.engines))

    @property
    def stepping(self) -> tuple[tuple[int, ...], ...]:
        """The groups of engines that step together."""
        return (*(one.engines for one in self.coordinators if one.lockstep), *(one.engines for one in self.offline))

    def steps_with(self, engine: int) -> tuple[int, ...]:
        """Whom an engine steps together with, itself among them; nobody, where it steps alone."""
        return next((group for group in self.stepping if engine in group), ())

    def is_offline(self, engine: int) -> bool:
        return any(engine in one.engines for one in self.offline)

    def _joined(self, engine: int) -> frozenset[int]:
        """The engines that it has to do with, itself among them: by a client, a coordinator, or their steps."""
        groups = (*(one.engines for one in self.clients), *(one.engines for one in self.coordinators), *self.stepping)
        return frozenset((engine, *(other for group in groups if engine in group for other in group)))

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """In the order of their first engines."""
        return _deployments(self)

    def engines_of(self, node: Node) -> tuple[Engine, ...]:
        """The engine that a core or worker is of, those of a frontend, the one that a subscriber follows."""
        if node.kind is NodeKind.FRONTEND:
            wanted = next((client.engines for client in self.clients if client.index == node.index), ())
            return tuple(engine for engine in self.engines if engine.index in wanted)
        if node.kind is NodeKind.SUBSCRIBER:
            return tuple(engine for engine in self.engines if node.index in engine.subscribers)
        if node.kind in (NodeKind.COORDINATOR, NodeKind.LAUNCHER):
            known = self.coordinators if node.kind is NodeKind.COORDINATOR else self.launchers
            wanted = next((one.engines for one in known if one.index == node.index), ())
            return tuple(engine for engine in self.engines if engine.index in wanted)
        index = node.index if node.kind is NodeKind.CORE else node.engine
        return tuple(engine for engine in self.engines if engine.index == index)

    def peers(self, node: Node, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of this kind that a node is joined with."""
        if node.kind is NodeKind.CORE and kind is NodeKind.FRONTEND:
            own = (client.node for client in self.clients_of(node.index))
            return tuple(dict.fromkeys((*own, *(one for one in self.greeted_by(node.index) if one.kind is kind))))
        engines = self.engines_of(node)
        if kind is NodeKind.COORDINATOR:
            return tuple(one.node for one in self.coordinators_of(engine.index for engine in engines))
        if kind is NodeKind.LAUNCHER:
            return tuple(one.node for one in self.launchers if not {e.index for e in engines}.isdisjoint(one.engines))
        if node.kind in (NodeKind.COORDINATOR, NodeKind.LAUNCHER) and kind is NodeKind.FRONTEND:
            return tuple(dict.fromkeys(client.node for engine in engines for client in self.clients_of(engine.index)))
        found = {NodeKind.CORE: [engine.core for engine in engines],
                 NodeKind.WORKER: [w for engine in engines for w in engine.workers],
                 NodeKind.SUBSCRIBER: [s for engine in engines for s in engine.followers]}
        return tuple(peer for peer in found.get(kind, ()) if peer != node.first_life)

    @property
    def workers(self) -> tuple[Node, ...]:
        return tuple(w for engine in self.engines for w in engine.workers)

    @property
    def subscribers(self) -> tuple[Node, ...]:
        return tuple(s for engine in self.engines for s in engine.followers)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Client, coordinator, core and workers of each engine in turn, then the subscribers."""
        found: list[Node] = []
        for engine in self.engines:
            found += [one.node for one in self.launchers if one.engines[0] == engine.index]
            found += [client.node for client in self.clients if client.engines[0] == engine.index]
            found += [one.node for one in self.coordinators if one.engines[0] == engine.index]
            found += engine.nodes
        return (*found, *self.subscribers)

    @property
    def edges(self) -> tuple[Edge, ...]:
        edges: list[Edge] = []
        for engine in self.engines:
            c, owner = engine.core, self.owner_of(engine.index)
            for greeted in self.greeted_by(engine.index):
                edges += [Edge(c, greeted, Channel.HANDSHAKE), Edge(greeted, c, Channel.HANDSHAKE)]
            edges += [Edge(c, owner, Channel.BIRTH), Edge(owner, c, Channel.BIRTH)]
            for client in self.clients_of(engine.index):
                f = client.node
                edges += [Edge(f, c, Channel.REQUESTS), Edge(c, f, Channel.REQUESTS), Edge(c, f, Channel.OUTPUTS)]
            edges += engine.edges
        for one in self.coordinators:
            edges += self._edges_of(one.node)
        return tuple(edges)

    def _edges_of(self, hub: Node) -> list[Edge]:
        """Of a coordinator."""
        owner = self.owner_of(self.engines_of(hub)[0].index)
        edges = [Edge(hub, owner, Channel.BIRTH), Edge(owner, hub, Channel.BIRTH)]
        for f in self.peers(hub, NodeKind.FRONTEND):
            edges += [Edge(hub, f, Channel.STATS), Edge(f, hub, Channel.STATS)]
        for c in self.peers(hub, NodeKind.CORE):
            edges += [Edge(hub, c, Channel.WAVE), Edge(c, hub, Channel.WAVE), Edge(c, hub, Channel.REPORT)]
        return edges

    def sites(self) -> tuple[str, ...]:
        """Every site of the first life, in a stable order."""
        names = [at(edge, op) for edge in self.edges if edge.channel not in UNCOUNTED
                 for op in ("send", "receive")]
        names += [at(edge, "wire") for edge in self.edges if edge.channel in MESSAGE_CHANNELS]
        for engine in self.engines:
            names += _ring_sites(engine)
        for group in self.stepping:
            names += _lockstep_sites(engine for engine in self.engines if engine.index in group)
        names += [mark_site(node, mark) for node in self.nodes for mark in Mark if mark not in LOCKSTEP_MARKS]
        return tuple(names)


@lru_cache(maxsize=64)
def _deployments(topology: Topology) -> tuple[Deployment, ...]:
    found: list[list[Engine]] = []
    for engine in topology.engines:
        joined = topology._joined(engine.index)
        known = next((one for one in found if any(other.index in joined for other in one)), None)
        if known is None:
            found.append(known := [])
        known.append(engine)
    return tuple(_deployment(topology, tuple(engines)) for engines in found)


@lru_cache(maxsize=256)
def _head_of(topology: Topology, engine: int) -> Node:
    if topology.is_offline(engine):
        return topology.owner_of(engine)
    return next(topology.owner_of(one.index) for one in topology.deployments
                if any(member.index == engine for member in one.engines))


@lru_cache(maxsize=256)
def _is_spread(topology: Topology, engine: int) -> bool:
    return not topology.is_offline(engine) and any(
        topology.owner_of(member.index) != topology.head_of(engine) for one in topology.deployments
        if any(member.index == engine for member in one.engines) for member in one.engines)


def _deployment(topology: Topology, engines: tuple[Engine, ...]) -> Deployment:
    indices = tuple(engine.index for engine in engines)
    owners = tuple(dict.fromkeys(one for index in indices if (one := topology.launcher_of(index)) is not None))
    first = topology.launcher_of(indices[0])
    clients = tuple(dict.fromkeys(client for index in indices for client in topology.clients_of(index)))
    return Deployment(engines, clients, topology.coordinators_of(indices), first,
                      tuple(one for one in owners if one != first))


def _ring_sites(engine: Engine) -> list[str]:
    """Stores, doorbells and collectives of an engine whose workers are processes."""
    if not engine.workers:
        return []
    c = engine.core
    names = [at(f"{c}/rpc", f"store.{s}") for s in WRITER_STORES] + [at(f"{c}/rpc", "doorbell")]
    for w in engine.workers:
        names += [at(f"{w}/rpc", f"store.{s}") for s in READER_STORES]
        names += [at(f"{w}/response", f"store.{s}") for s in WRITER_STORES]
        names += [at(f"{w}/response", "doorbell"), at(f"{w}/collective", "enter")]
        names += [at(f"{w}/pipe", operation) for operation in ("send", "receive") if engine.pp > 1]
        names += [at(f"{c}/response.{w.index}", f"store.{s}") for s in READER_STORES]
    return names


def consensus_sites(cores: Iterable[Node]) -> list[str]:
    """Where cores that step together enter what they decide together."""
    return [at(f"{c}/{Channel.CONSENSUS.value}", "enter") for c in cores]


def _lockstep_sites(engines: Iterable[Engine]) -> list[str]:
    """The same, and where a core that is its own worker enters what each forward has."""
    names = []
    for engine in engines:
        names += consensus_sites([engine.core])
        names += [at(f"{engine.core}/{Channel.COLLECTIVE.value}", "enter")] if not engine.workers else []
        names += [mark_site(engine.core, mark) for mark in LOCKSTEP_MARKS]
    return names


_LIFE_RE = re.compile(r"@\d+")


def is_site(topology: Topology, name: str) -> bool:
    """Whether a plan may name this site. Later lives of a node have the sites of its first."""
    return _LIFE_RE.sub("", name) in topology.sites()


def tensor_parallel(tp: int, *, subscribers: int = 0, pp: int = 1) -> Topology:
    """One engine of `pp` stages of `tp` ranks with one client."""
    return Topology(engines=(Engine(tp=tp, pp=pp, subscribers=tuple(range(subscribers))),))


def data_parallel(dp: int, *, tp: int = 1, pp: int = 1, subscribers: int = 0, coordinated: bool = False,
                  lockstep: bool = False, clients: int = 1) -> Topology:
    """Clients of `dp` engines, each of which spreads its requests over them. `subscribers` follow each of them.

    `coordinated`: they have a coordinator, as engines in `lockstep` have. Of several clients none owns the engines.
    """
    ranks = tuple(range(dp))
    hubs = (Coordinator(engines=ranks, lockstep=lockstep),) if coordinated or lockstep else ()
    launchers = (Launcher(engines=ranks),) if clients > 1 else ()
    several = tuple(Client(index=index, engines=ranks) for index in range(clients))
    return Topology(clients=several, coordinators=hubs, launchers=launchers, engines=tuple(
        Engine(index=rank, tp=tp, pp=pp, data_parallel_rank=rank,
               subscribers=tuple(range(rank * subscribers, (rank + 1) * subscribers))) for rank in range(dp)))


def side_by_side(*engines: Engine) -> Topology:
    """Several engines, numbered in this order, each with a client of its own."""
    numbered = tuple(msgspec.structs.replace(engine, index=index) for index, engine in enumerate(engines))
    return Topology(engines=numbered, clients=tuple(Client(index=e.index, engines=(e.index,)) for e in numbered))


def offline(dp: int, *, tp: int = 1, pp: int = 1, subscribers: int = 0) -> Topology:
    """`dp` engines that step together, each with a client of its own, which has to ask something of it in each wave."""
    spread = data_parallel(dp, tp=tp, pp=pp, subscribers=subscribers)
    ranks = tuple(range(dp))
    return Topology(engines=spread.engines, offline=(Offline(engines=ranks),),
                    clients=tuple(Client(index=rank, engines=(rank,)) for rank in ranks))


def hybrid(groups: int, engines: int, *, tp: int = 1, pp: int = 1, lockstep: bool = False) -> Topology:
    """Groups of so many engines with a client each, which spreads its requests over those of its own group alone.

    They have one coordinator, which the first client starts: it is the head of all.
    """
    spread = data_parallel(groups * engines, tp=tp, pp=pp, coordinated=True, lockstep=lockstep)
    return msgspec.structs.replace(spread, clients=tuple(
        Client(index=group, engines=tuple(range(group * engines, (group + 1) * engines))) for group in range(groups)))


def external(dp: int, *, tp: int = 1, pp: int = 1) -> Topology:
    """`dp` engines that step together, each with a client of its own; whoever asks chooses the client."""
    return hybrid(dp, 1, tp=tp, pp=pp, lockstep=True)


def headless(groups: int, engines: int, *, tp: int = 1, pp: int = 1, coordinated: bool = False,
             lockstep: bool = False) -> Topology:
    """Groups of so many engines that have one client: it owns the first group, a launcher each other one."""
    spread = data_parallel(groups * engines, tp=tp, pp=pp, coordinated=coordinated, lockstep=lockstep)
    return msgspec.structs.replace(spread, launchers=tuple(
        Launcher(index=group, engines=tuple(range(group * engines, (group + 1) * engines)))
        for group in range(1, groups)))


def with_ranks(topology: Topology, *, tp: int | None = None, pp: int | None = None, dp: int | None = None) -> Topology:
    """The same play with engines of `pp` stages of `tp` ranks, `dp` of them where there is one; None: as they were."""
    if dp is not None and dp > 1 and len(topology.engines) == 1:
        (one,) = topology.engines
        spread = data_parallel(dp, tp=one.tp, pp=one.pp)
        topology = msgspec.structs.replace(spread, engines=tuple(
            msgspec.structs.replace(engine, subscribers=one.subscribers if engine.index == 0 else ())
            for engine in spread.engines))
    return msgspec.structs.replace(topology, engines=tuple(
        msgspec.structs.replace(engine, tp=tp or engine.tp, pp=pp or engine.pp) for engine in topology.engines))

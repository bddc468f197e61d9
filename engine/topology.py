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
    Edge,
    Mark,
    Node,
    NodeKind,
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
    "Deployment", "Edge", "Engine", "Grid", "Launcher", "Mark", "Node", "NodeKind", "Topology", "at",
    "consensus_sites", "coordinator", "core", "data_parallel", "frontend",
    "is_site", "launcher", "mark_site", "side_by_side", "subscriber", "tensor_parallel", "with_ranks", "worker",
]


class Grid(msgspec.Struct, frozen=True):
    """How an engine's ranks stand: `pp` stages of `tp` ranks each, one stage after the other."""

    tp: int = 1
    pp: int = 1

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def output_rank(self) -> int:
        """Who answers: the first of the last stage."""
        return self.size - self.tp

    def stage(self, rank: int) -> int:
        return rank // self.tp

    def tp_group(self, rank: int) -> tuple[int, ...]:
        """The ranks of its stage, each of which holds a part of the same layers."""
        first = rank - rank % self.tp
        return tuple(range(first, first + self.tp))

    def pp_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same part of every stage's layers, one of each stage."""
        return tuple(range(rank % self.tp, self.size, self.tp))


@lru_cache(maxsize=256)
def _workers_of(engine: int, ranks: int) -> tuple[Node, ...]:
    return tuple(worker(rank, engine=engine) for rank in range(ranks)) if ranks > 1 else ()


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A core and its workers: `pp` stages of `tp`; a single rank runs inside the core (no worker node).

    `data_parallel_rank` None: as configured. `subscribers`: those that follow its KV events, by index.
    """

    index: int = 0
    tp: int = 2
    data_parallel_rank: int | None = None
    subscribers: tuple[int, ...] = ()
    pp: int = 1

    @property
    def grid(self) -> Grid:
        return Grid(self.tp, self.pp)

    @property
    def ranks(self) -> int:
        return self.tp * self.pp

    @property
    def core(self) -> Node:
        return core(self.index)

    @property
    def workers(self) -> tuple[Node, ...]:
        return _workers_of(self.index, self.ranks)

    @property
    def followers(self) -> tuple[Node, ...]:
        return tuple(subscriber(k) for k in self.subscribers)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The engine's own processes."""
        return (self.core, *self.workers)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Those among its own nodes, and to its followers."""
        c, edges = self.core, []
        for w in self.workers:
            edges += [Edge(c, w, Channel.RPC), Edge(c, w, Channel.OVERFLOW), Edge(w, c, Channel.RESPONSE)]
            edges += [Edge(w, c, Channel.OVERFLOW)]
            edges += [Edge(w, self.workers[other], Channel.COLLECTIVE)
                      for other in self.grid.tp_group(w.index) if other != w.index]
            edges += [Edge(w, self.workers[other], Channel.PIPE) for other in self.piped_to(w.index)]
        for s in self.followers:
            edges += [Edge(c, s, Channel.KV), Edge(s, c, Channel.REPLAY), Edge(c, s, Channel.REPLAY)]
        return tuple(edges)

    def piped_to(self, rank: int) -> tuple[int, ...]:
        """The rank of the next stage that it sends to; of the last stage the one of the first."""
        group = self.grid.pp_group(rank)
        return (group[(self.grid.stage(rank) + 1) % self.pp],) if self.pp > 1 else ()


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A frontend and the engines that it speaks with."""

    index: int = 0
    engines: tuple[int, ...] = (0,)

    @property
    def node(self) -> Node:
        return frontend(self.index)


class Coordinator(msgspec.Struct, frozen=True, kw_only=True):
    """Who carries word between these engines, and to all clients of them. `lockstep`: they execute as many steps."""

    index: int = 0
    engines: tuple[int, ...] = (0,)
    lockstep: bool = False

    @property
    def node(self) -> Node:
        return coordinator(self.index)


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns these engines, and their coordinator, where they have several clients. It asks nothing of them."""

    index: int = 0
    engines: tuple[int, ...] = (0,)

    @property
    def node(self) -> Node:
        return launcher(self.index)


class Deployment(msgspec.Struct, frozen=True):
    """Engines and clients that are joined: what is started, serves and goes as a whole. Subscribers outlive it."""

    engines: tuple[Engine, ...]
    clients: tuple[Client, ...]
    coordinators: tuple[Coordinator, ...] = ()
    launcher: Launcher | None = None

    @property
    def index(self) -> int:
        return self.engines[0].index

    @property
    def nodes(self) -> frozenset[Node]:
        return frozenset((*(node for engine in self.engines for node in engine.nodes),
                          *(client.node for client in self.clients), *(one.node for one in self.coordinators),
                          *([self.launcher.node] if self.launcher else [])))

    @property
    def followers(self) -> tuple[tuple[Node, Engine], ...]:
        """Its subscribers, each with whom it follows."""
        return tuple((node, engine) for engine in self.engines for node in engine.followers)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes a play has."""

    engines: tuple[Engine, ...] = (Engine(),)
    clients: tuple[Client, ...] = (Client(),)
    coordinators: tuple[Coordinator, ...] = ()
    launchers: tuple[Launcher, ...] = ()

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

    def coordinators_of(self, engines: Iterable[int]) -> tuple[Coordinator, ...]:
        """Those of any of these engines."""
        wanted = set(engines)
        return tuple(one for one in self.coordinators if not wanted.isdisjoint(one.engines))

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """In the order of their first engines."""
        found: list[Deployment] = []
        for engine in self.engines:
            clients = self.clients_of(engine.index)
            for place, other in enumerate(found):
                if not set(clients).isdisjoint(other.clients):
                    joined = tuple(dict.fromkeys((*other.clients, *clients)))
                    found[place] = Deployment((*other.engines, engine), joined)
                    break
            else:
                found.append(Deployment((engine,), clients))
        return tuple(msgspec.structs.replace(
            one, coordinators=self.coordinators_of(engine.index for engine in one.engines),
            launcher=self.launcher_of(one.index)) for one in found)

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
            return tuple(client.node for client in self.clients_of(node.index))
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
            edges += [Edge(c, owner, Channel.HANDSHAKE), Edge(owner, c, Channel.HANDSHAKE)]
            for client in self.clients_of(engine.index):
                f = client.node
                edges += [Edge(f, c, Channel.REQUESTS), Edge(c, f, Channel.REQUESTS), Edge(c, f, Channel.OUTPUTS)]
            edges += engine.edges
        for one in self.coordinators:
            edges += self._edges_of(one.node)
        return tuple(edges)

    def _edges_of(self, hub: Node) -> list[Edge]:
        """Of a coordinator."""
        edges: list[Edge] = []
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
        for one in self.coordinators:
            if one.lockstep:
                names += _lockstep_sites(self.engines_of(one.node))
        names += [mark_site(node, mark) for node in self.nodes for mark in Mark if mark not in LOCKSTEP_MARKS]
        return tuple(names)


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

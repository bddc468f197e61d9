"""Every process, channel and place where something can go wrong, by name.

Names are frozen: plans on disk refer to them.

    node     frontend.0   core.0   worker.1   subscriber.0          with @life after a restart: core.0@1
             core.1   worker.1.0                                    engine 1: its core, its rank 0
    edge     core.0->worker.1/rpc                                    directed, one per peer
    site     core.0->worker.1/rpc:receive                            an operation on an edge
             core.0/rpc:store.written                                a store of the ring that core.0 writes
             worker.1/rpc:store.read                                 the read flag that worker.1 sets in it
             core.0/rpc:doorbell                                     the wake-up after publishing
             core.0/mark:scheduled                                   a mark in the process
             worker.1/collective:enter                               a collective, counted per node
             core.1/consensus:enter                                  what cores decide together, likewise
             worker.2/pipe:receive                                   what a stage takes from the one before it

An engine is a core with its workers. `worker.R` is the only written name of rank R of engine 0, `worker.E.R` names the
ranks of engines E from 1. A play has one or more engines, one or more clients of them, and subscribers.

Sends, arrivals, stores, marks, collectives and what goes from stage to stage are counted. Polls and flag reads never
are, because their number is not reproducible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

import msgspec


class NodeKind(StrEnum):
    FRONTEND = "frontend"
    CORE = "core"
    WORKER = "worker"
    SUBSCRIBER = "subscriber"


class Channel(StrEnum):
    """What an edge carries. The value is the last part of the edge's name."""

    HANDSHAKE = "handshake"
    REQUESTS = "requests"
    OUTPUTS = "outputs"
    RPC = "rpc"
    RESPONSE = "response"
    OVERFLOW = "overflow"  # the ZMQ by-pass of the rpc ring, for messages of at least a chunk
    COLLECTIVE = "collective"
    CONSENSUS = "consensus"  # what cores decide together
    PIPE = "pipe"  # hidden states to the next stage, sampled tokens back to the first
    KV = "kv"
    REPLAY = "replay"


class Mark(StrEnum):
    """Crash points that are no message: a process passes them in a reproducible order."""

    BORN = "born"
    LOADING = "loading"  # worker: before the weights are read
    READY = "ready"  # a process is about to report that it is ready
    IDLE = "idle"  # core: has nothing to do and is about to wait
    STEP = "step"  # core: about to schedule a step
    SCHEDULED = "scheduled"  # core: a step was scheduled, nothing was sent yet
    SUBMITTED = "submitted"  # core: the workers were told to execute the step, not yet to sample
    EXECUTED = "executed"  # core: the model's answer is here, nothing was published yet
    PUBLISHED = "published"  # core: the step's outputs were handed to the output thread
    RING_FULL = "ring-full"  # a writer found no free chunk and begins to wait
    DRAINING = "draining"  # core: SIGTERM was seen
    DYING = "dying"  # a process is on its way out and still able to speak
    KV_DROPPED = "kv-dropped"  # publisher: a batch was lost at its own full queue
    EXECUTING = "executing"  # worker, or a core that is its own: an RPC is about to be executed
    COPYING = "copying"  # a worker's copy thread took an answer
    COPIED = "copied"  # it is about to give it


#: Site operations on an edge, by channel.
RING_CHANNELS = (Channel.RPC, Channel.RESPONSE)
MESSAGE_CHANNELS = (
    Channel.HANDSHAKE, Channel.REQUESTS, Channel.OUTPUTS, Channel.OVERFLOW, Channel.KV, Channel.REPLAY,
)

#: Their crossings are counted by the process, whoever is at the other end.
_UNCOUNTED = (Channel.COLLECTIVE, Channel.CONSENSUS, Channel.PIPE)

#: The stores of one ring write, in order, and the one store of a read.
WRITER_STORES = ("reset", "data", "readers", "written")
READER_STORES = ("read",)

_NODE_RE = re.compile(r"^(?P<kind>frontend|core|worker|subscriber)\.(?:(?P<engine>[1-9]\d*)\.(?=\d))?(?P<index>\d+)"
                      r"(?:@(?P<life>\d+))?$")
_EDGE_RE = re.compile(r"^(?P<source>[a-z]+\.[\d.]+(?:@\d+)?)->(?P<target>[a-z]+\.[\d.]+(?:@\d+)?)/(?P<channel>[a-z]+)$")


class Node(msgspec.Struct, frozen=True, order=True):
    """One process. `life` counts its restarts; 0 is the first. `engine` is whose rank a worker is, else 0."""

    kind: NodeKind
    index: int
    life: int = 0
    engine: int = 0

    def __str__(self) -> str:
        engine = f"{self.engine}." if self.engine else ""
        return f"{self.kind.value}.{engine}{self.index}" + (f"@{self.life}" if self.life else "")

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(name: str) -> Node:
        """Raises ValueError for anything that is not a node's name."""
        found = _NODE_RE.match(name)
        if not found or (found["engine"] and found["kind"] != "worker"):
            raise ValueError(f"{name!r} is not the name of a node, such as 'core.0', 'worker.1@2' or 'worker.1.0'")
        return Node(NodeKind(found["kind"]), int(found["index"]), int(found["life"] or 0), int(found["engine"] or 0))

    @property
    def first_life(self) -> Node:
        """The same node as sites and journals name it: without its life."""
        return Node(self.kind, self.index, 0, self.engine) if self.life else self


def frontend(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.FRONTEND, index, life)


def core(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.CORE, index, life)


def worker(rank: int, life: int = 0, engine: int = 0) -> Node:
    return Node(NodeKind.WORKER, rank, life, engine)


def subscriber(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.SUBSCRIBER, index, life)


class Edge(msgspec.Struct, frozen=True, order=True):
    """A directed channel between two nodes."""

    source: Node
    target: Node
    channel: Channel

    def __str__(self) -> str:
        return f"{self.source}->{self.target}/{self.channel.value}"

    @staticmethod
    def parse(name: str) -> Edge:
        """Raises ValueError for anything that is not an edge's name."""
        found = _EDGE_RE.match(name)
        if not found:
            raise ValueError(f"{name!r} is not the name of an edge, such as 'core.0->frontend.0/outputs'")
        return Edge(Node.parse(found["source"]), Node.parse(found["target"]), Channel(found["channel"]))


def at(place: Edge | Node | str, operation: str) -> str:
    """The name of a site: `at(edge, "receive")`, `at("core.0/rpc", "store.written")`."""
    return f"{place}:{operation}"


def mark_site(node: Node | str, mark: Mark) -> str:
    return f"{node}/mark:{mark.value}"


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


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes a play has."""

    engines: tuple[Engine, ...] = (Engine(),)
    clients: tuple[Client, ...] = (Client(),)

    def engine(self, index: int) -> Engine:
        """Raises KeyError for an engine that the play does not have."""
        for engine in self.engines:
            if engine.index == index:
                return engine
        raise KeyError(f"no engine {index}")

    def clients_of(self, engine: int) -> tuple[Client, ...]:
        return tuple(client for client in self.clients if engine in client.engines)

    def processes_of(self, engine: Engine) -> frozenset[Node]:
        """The engine's own and its clients': who goes when it goes. Subscribers outlive it."""
        return frozenset((*engine.nodes, *(client.node for client in self.clients_of(engine.index))))

    def engines_of(self, node: Node) -> tuple[Engine, ...]:
        """The engine that a core or worker is of, those of a frontend, the one that a subscriber follows."""
        if node.kind is NodeKind.FRONTEND:
            wanted = next((client.engines for client in self.clients if client.index == node.index), ())
            return tuple(engine for engine in self.engines if engine.index in wanted)
        if node.kind is NodeKind.SUBSCRIBER:
            return tuple(engine for engine in self.engines if node.index in engine.subscribers)
        index = node.index if node.kind is NodeKind.CORE else node.engine
        return tuple(engine for engine in self.engines if engine.index == index)

    def peers(self, node: Node, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of this kind that a node is joined with."""
        if node.kind is NodeKind.CORE and kind is NodeKind.FRONTEND:
            return tuple(client.node for client in self.clients_of(node.index))
        engines = self.engines_of(node)
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
        """Client, core and workers of each engine in turn, then the subscribers."""
        found: list[Node] = []
        for engine in self.engines:
            found += [client.node for client in self.clients if client.engines[0] == engine.index]
            found += engine.nodes
        return (*found, *self.subscribers)

    @property
    def edges(self) -> tuple[Edge, ...]:
        edges: list[Edge] = []
        for engine in self.engines:
            c = engine.core
            for client in self.clients_of(engine.index):
                f = client.node
                edges += [Edge(c, f, Channel.HANDSHAKE), Edge(f, c, Channel.HANDSHAKE),
                          Edge(f, c, Channel.REQUESTS), Edge(c, f, Channel.REQUESTS),
                          Edge(c, f, Channel.OUTPUTS)]
            edges += engine.edges
        return tuple(edges)

    def sites(self) -> tuple[str, ...]:
        """Every site of the first life, in a stable order."""
        names = [at(edge, op) for edge in self.edges if edge.channel not in _UNCOUNTED
                 for op in ("send", "receive")]
        names += [at(edge, "wire") for edge in self.edges if edge.channel in MESSAGE_CHANNELS]
        for engine in self.engines:
            names += _ring_sites(engine)
        names += [mark_site(node, mark) for node in self.nodes for mark in Mark]
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


_LIFE_RE = re.compile(r"@\d+")


def is_site(topology: Topology, name: str) -> bool:
    """Whether a plan may name this site. Later lives of a node have the sites of its first."""
    return _LIFE_RE.sub("", name) in topology.sites()


def tensor_parallel(tp: int, *, subscribers: int = 0, pp: int = 1) -> Topology:
    """One engine of `pp` stages of `tp` ranks with one client."""
    return Topology(engines=(Engine(tp=tp, pp=pp, subscribers=tuple(range(subscribers))),))


def side_by_side(*engines: Engine) -> Topology:
    """Several engines, numbered in this order, each with a client of its own."""
    numbered = tuple(msgspec.structs.replace(engine, index=index) for index, engine in enumerate(engines))
    return Topology(engines=numbered, clients=tuple(Client(index=e.index, engines=(e.index,)) for e in numbered))


def with_ranks(topology: Topology, *, tp: int | None = None, pp: int | None = None) -> Topology:
    """The same play with engines of `pp` stages of `tp` ranks; None: as they were."""
    return msgspec.structs.replace(topology, engines=tuple(
        msgspec.structs.replace(engine, tp=tp or engine.tp, pp=pp or engine.pp) for engine in topology.engines))

"""Every process, channel and place where something can go wrong, by name.

Names are frozen: plans on disk refer to them.

    node     frontend.0   core.0   worker.1   subscriber.0          with @life after a restart: core.0@1
    edge     core.0->worker.1/rpc                                    directed, one per peer
    site     core.0->worker.1/rpc:receive                            an operation on an edge
             core.0/rpc:store.written                                a store of the ring that core.0 writes
             worker.1/rpc:store.read                                 the read flag that worker.1 sets in it
             core.0/rpc:doorbell                                     the wake-up after publishing
             core.0/mark:scheduled                                   a mark in the process
             worker.1/collective:enter                               a collective, counted per node

Sends, arrivals, stores, marks and collectives are counted. Polls and flag reads never are, because
their number is not reproducible.
"""

from __future__ import annotations

import re
from enum import StrEnum

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
    EXECUTED = "executed"  # core: the model's answer is here, nothing was published yet
    PUBLISHED = "published"  # core: the step's outputs were handed to the output thread
    RING_FULL = "ring-full"  # a writer found no free chunk and begins to wait
    DRAINING = "draining"  # core: SIGTERM was seen
    DYING = "dying"  # a process is on its way out and still able to speak
    KV_DROPPED = "kv-dropped"  # publisher: a batch was lost at its own full queue
    EXECUTING = "executing"  # worker: an RPC was read and is about to be executed


#: Site operations on an edge, by channel.
RING_CHANNELS = (Channel.RPC, Channel.RESPONSE)
MESSAGE_CHANNELS = (
    Channel.HANDSHAKE, Channel.REQUESTS, Channel.OUTPUTS, Channel.OVERFLOW, Channel.KV, Channel.REPLAY,
)

#: The stores of one ring write, in order, and the one store of a read.
WRITER_STORES = ("reset", "data", "readers", "written")
READER_STORES = ("read",)

_NODE = r"(?P<kind>frontend|core|worker|subscriber)\.(?P<index>\d+)(?:@(?P<life>\d+))?"
_NODE_RE = re.compile(rf"^{_NODE}$")
_EDGE_RE = re.compile(r"^(?P<source>[a-z]+\.\d+(?:@\d+)?)->(?P<target>[a-z]+\.\d+(?:@\d+)?)/(?P<channel>[a-z]+)$")


class Node(msgspec.Struct, frozen=True, order=True):
    """One process. `life` counts its restarts; 0 is the first."""

    kind: NodeKind
    index: int
    life: int = 0

    def __str__(self) -> str:
        return f"{self.kind.value}.{self.index}" + (f"@{self.life}" if self.life else "")

    @staticmethod
    def parse(name: str) -> Node:
        """Raises ValueError for anything that is not a node's name."""
        found = _NODE_RE.match(name)
        if not found:
            raise ValueError(f"{name!r} is not the name of a node, such as 'core.0' or 'worker.1@2'")
        return Node(NodeKind(found["kind"]), int(found["index"]), int(found["life"] or 0))


def frontend(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.FRONTEND, index, life)


def core(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.CORE, index, life)


def worker(rank: int, life: int = 0) -> Node:
    return Node(NodeKind.WORKER, rank, life)


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


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes a play has. `tp` workers; TP=1 runs its worker inside the core (no worker node)."""

    tp: int = 2
    subscribers: int = 0

    @property
    def workers(self) -> tuple[Node, ...]:
        return tuple(worker(rank) for rank in range(self.tp)) if self.tp > 1 else ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (frontend(), core(), *self.workers, *(subscriber(k) for k in range(self.subscribers)))

    @property
    def edges(self) -> tuple[Edge, ...]:
        f, c = frontend(), core()
        edges = [
            Edge(c, f, Channel.HANDSHAKE), Edge(f, c, Channel.HANDSHAKE),
            Edge(f, c, Channel.REQUESTS), Edge(c, f, Channel.REQUESTS),
            Edge(c, f, Channel.OUTPUTS),
        ]
        for w in self.workers:
            edges += [Edge(c, w, Channel.RPC), Edge(c, w, Channel.OVERFLOW), Edge(w, c, Channel.RESPONSE)]
            edges += [Edge(w, c, Channel.OVERFLOW)]
            edges += [Edge(w, other, Channel.COLLECTIVE) for other in self.workers if other != w]
        for k in range(self.subscribers):
            s = subscriber(k)
            edges += [Edge(c, s, Channel.KV), Edge(s, c, Channel.REPLAY), Edge(c, s, Channel.REPLAY)]
        return tuple(edges)

    def sites(self) -> tuple[str, ...]:
        """Every site of the first life, in a stable order."""
        names = [at(edge, op) for edge in self.edges if edge.channel is not Channel.COLLECTIVE
                 for op in ("send", "receive")]
        names += [at(edge, "wire") for edge in self.edges if edge.channel in MESSAGE_CHANNELS]
        if self.workers:
            names += [at(f"{core()}/rpc", f"store.{s}") for s in WRITER_STORES] + [at(f"{core()}/rpc", "doorbell")]
        for w in self.workers:
            names += [at(f"{w}/rpc", f"store.{s}") for s in READER_STORES]
            names += [at(f"{w}/response", f"store.{s}") for s in WRITER_STORES]
            names += [at(f"{w}/response", "doorbell"), at(f"{w}/collective", "enter")]
            names += [at(f"{core()}/response.{w.index}", f"store.{s}") for s in READER_STORES]
        names += [mark_site(node, mark) for node in self.nodes for mark in Mark]
        return tuple(names)


_LIFE_RE = re.compile(r"@\d+")


def is_site(topology: Topology, name: str) -> bool:
    """Whether a plan may name this site. Later lives of a node have the sites of its first."""
    return _LIFE_RE.sub("", name) in topology.sites()


def tensor_parallel(tp: int, *, subscribers: int = 0) -> Topology:
    return Topology(tp=tp, subscribers=subscribers)

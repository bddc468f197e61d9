"""Every process, channel and place where something can go wrong, by name.

Names are frozen: plans on disk refer to them.

    node     frontend.0   core.0   worker.1   subscriber.0          with @life after a restart: core.0@1
             coordinator.0                                          of cores 0, 1, ..., for all of their clients
             launcher.0                                             whose they are, where they have several clients
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
             worker.1->core.0/birth:receive                          what a child says on the pipe it was born with

An engine is a core with its workers. `worker.R` is the only written name of rank R of engine 0, `worker.E.R` names the
ranks of engines E from 1. A play has one or more engines, one or more clients of them, and subscribers; cores of one
client may have a coordinator.

Sends, arrivals, stores, marks, collectives and what goes from stage to stage are counted. Polls and flag reads never
are, because their number is not reproducible.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

import msgspec


class NodeKind(StrEnum):
    FRONTEND = "frontend"
    CORE = "core"
    WORKER = "worker"
    SUBSCRIBER = "subscriber"
    COORDINATOR = "coordinator"
    LAUNCHER = "launcher"


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
    STATS = "stats"  # what a coordinator tells its clients, and how they ask for it
    WAVE = "wave"  # the same of its cores
    REPORT = "report"  # what cores tell the coordinator
    BIRTH = "birth"  # the pipe between a process and whoever started it: its recipe, and what it says of itself


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
    FETCHING = "fetching"  # it is about to wait for what was sampled, on its way from the device
    COPIED = "copied"  # it is about to give it
    DUMMY = "dummy"  # core: about to have a dummy batch executed
    WAVE_DONE = "wave-done"  # core: all ranks have agreed that nothing is left, nothing was reported yet
    PAUSED = "paused"  # core: all ranks rest, nothing is in flight, nothing was answered yet
    RESUMED = "resumed"  # core: all ranks go on


#: Marks of cores that step together.
LOCKSTEP_MARKS = (Mark.DUMMY, Mark.WAVE_DONE, Mark.PAUSED, Mark.RESUMED)

#: Site operations on an edge, by channel.
RING_CHANNELS = (Channel.RPC, Channel.RESPONSE)
MESSAGE_CHANNELS = (
    Channel.HANDSHAKE, Channel.REQUESTS, Channel.OUTPUTS, Channel.OVERFLOW, Channel.KV, Channel.REPLAY,
    Channel.STATS, Channel.WAVE, Channel.REPORT, Channel.BIRTH,
)

#: Their crossings are counted by the process, whoever is at the other end.
UNCOUNTED = (Channel.COLLECTIVE, Channel.CONSENSUS, Channel.PIPE)

#: The stores of one ring write, in order, and the one store of a read.
WRITER_STORES = ("reset", "data", "readers", "written")
READER_STORES = ("read",)

_NODE_RE = re.compile(r"^(?P<kind>frontend|core|worker|subscriber|coordinator|launcher)"
                      r"\.(?:(?P<engine>[1-9]\d*)\.(?=\d))?(?P<index>\d+)(?:@(?P<life>\d+))?$")
_EDGE_RE = re.compile(r"^(?P<source>[a-z]+\.[\d.]+(?:@\d+)?)->(?P<target>[a-z]+\.[\d.]+(?:@\d+)?)/(?P<channel>[a-z]+)$")


class Node(msgspec.Struct, frozen=True, order=True):
    """One process. `life` counts its restarts; 0 is the first. `engine` is whose rank a worker is, else 0."""

    kind: NodeKind
    index: int
    life: int = 0
    engine: int = 0

    def __str__(self) -> str:
        engine = f"{self.engine}." if self.engine else ""
        return f"{self.kind}.{engine}{self.index}" + (f"@{self.life}" if self.life else "")

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


def coordinator(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.COORDINATOR, index, life)


def launcher(index: int = 0, life: int = 0) -> Node:
    return Node(NodeKind.LAUNCHER, index, life)


class Edge(msgspec.Struct, frozen=True, order=True):
    """A directed channel between two nodes."""

    source: Node
    target: Node
    channel: Channel

    def __str__(self) -> str:
        return f"{self.source}->{self.target}/{self.channel}"

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
    return f"{node}/mark:{mark}"


# -- an engine by itself ------------------------------------------------------------------------------------------


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
            edges += [Edge(w, c, Channel.OVERFLOW), Edge(c, w, Channel.BIRTH), Edge(w, c, Channel.BIRTH)]
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


# -- who has to do with engines, and all of them together ---------------------------------------------------------


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
    """Who owns these engines and asks nothing of them: with their coordinator, where they have several clients, or
    headless, where they have only one that was started elsewhere.
    """

    index: int = 0
    engines: tuple[int, ...] = (0,)

    @property
    def node(self) -> Node:
        return launcher(self.index)


class Offline(msgspec.Struct, frozen=True, kw_only=True):
    """These engines step together, and each has a client of its own: no coordinator, and nobody wakes anybody."""

    engines: tuple[int, ...]


class Deployment(msgspec.Struct, frozen=True):
    """Engines and clients that are joined: what is started, serves and goes as a whole. Subscribers outlive it."""

    engines: tuple[Engine, ...]
    clients: tuple[Client, ...]
    coordinators: tuple[Coordinator, ...] = ()
    launcher: Launcher | None = None
    headless: tuple[Launcher, ...] = ()  # who owns those of the engines that were started elsewhere

    @property
    def index(self) -> int:
        return self.engines[0].index

    @property
    def nodes(self) -> frozenset[Node]:
        return frozenset((*(node for engine in self.engines for node in engine.nodes),
                          *(client.node for client in self.clients), *(one.node for one in self.coordinators),
                          *([self.launcher.node] if self.launcher else []), *(one.node for one in self.headless)))

    @property
    def followers(self) -> tuple[tuple[Node, Engine], ...]:
        """Its subscribers, each with whom it follows."""
        return tuple((node, engine) for engine in self.engines for node in engine.followers)

"""The seam: all that a process of the engine may touch, as small protocols.

Every process entry point takes its `Ports`. `engine/process/real_ports.py` implements them with ZMQ, shared memory
and processes; `faults/real/ports.py` wraps one `Ports` in another and plays a plan; nothing else in `engine`
opens a socket, a segment or a process. Nothing here waits, except `Doorbell.wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from engine.topology import Channel, Mark, Node, NodeKind


class Clock(Protocol):
    def monotonic(self) -> float: ...
    def time(self) -> float: ...


class Memory(Protocol):
    """Shared bytes behind a ring: slices in, slices out, and a full fence.

    A plain `memoryview` has the first two; the ring takes the fence as a separate argument so that
    production code pays nothing for the seam.
    """

    def __getitem__(self, where: Any) -> Any: ...
    def __setitem__(self, where: Any, value: Any) -> None: ...
    def __len__(self) -> int: ...


class RingMemory(msgspec.Struct, frozen=True):
    """An opened segment: its memory and the fence that belongs to it."""

    memory: Any
    fence: Callable[[], None]


class RingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which ring: enough to name its sites and to size its segment."""

    channel: Channel  # RPC or RESPONSE
    writer: Node
    readers: tuple[Node, ...]
    max_chunks: int
    max_chunk_bytes: int


@runtime_checkable
class Doorbell(Protocol):
    """A wake-up that may be lost: who sleeps on it re-checks within a bound."""

    def ring(self) -> None: ...

    def seen(self) -> int:
        """A ticket to take before looking at the condition that one is about to sleep for."""

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Sleep until rung since `seen` was taken, or the time-out. -> whether it rang"""

    def close(self) -> None: ...


SocketKind = Literal["ROUTER", "DEALER", "PUSH", "PULL", "PUB", "SUB", "XPUB", "XSUB"]
#: Reads off a message who sent it: the index, or None where it does not say. Pure, and never raises.
SenderOf = Callable[[Sequence[Any]], int | None]


class SocketSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One socket of one process. Peers are numbered: a ROUTER's peer index is its identity, little-endian.

    `send_channel` and `receive_channel` name the edges: what node A sends to peer k travels on
    `A->peer_kind.k/send_channel`.
    """

    name: str  # unique in the process: "requests", "outputs", "kv", ...
    kind: SocketKind
    peer_kind: NodeKind
    send_channel: Channel | None = None
    receive_channel: Channel | None = None
    bind: bool
    address: str  # ipc://path or tcp://host:port; a bound tcp address may end in :*
    identity: bytes | None = None
    peer: int = 0  # the peer's index where the socket has exactly one
    send_hwm: int = 0
    receive_hwm: int = 0
    linger_s: float = 0.0
    buffer_bytes: int | None = 0  # of the system, each way; 0: as it is set; None: by the memory of the machine
    heartbeat_s: float = 0.0  # tcp: the peer is asked so often, and gone if it says nothing for five of these; 0: never
    topic: bytes | None = b""  # SUB: what a message has to begin with; None: subscribes to nothing
    more_topics: tuple[bytes, ...] = ()
    conflate: bool = False  # SUB: of what waits, the last message alone is kept
    #: CURVE keys, Z85: own public, own secret, the other end's public. A connected socket then notices its peer's end.
    curve: tuple[str, str, str] | None = None
    mandatory: bool = True  # ROUTER: an unroutable frame is an error
    handover: bool = True  # ROUTER: a returning identity replaces the old connection
    #: `was_cut` of one that connects, and `is_over`, tell of its connections; one that connects lingers for nobody.
    watched: bool = False
    raw_identities: bool = False  # ROUTER that serves strangers: peers are their identities, as bytes
    verbose: bool = True  # XPUB: hears every subscription, and not only the first one of a topic
    verboser: bool = False  # XPUB: hears every unsubscription too, and not only the last one of a topic
    #: Where several peers send to an XPUB or PULL, which cannot tell which one did. Given to both ends: what it answers
    #: None to crosses no edge.
    sender_of: SenderOf | None = None

    @property
    def heard_from(self) -> SenderOf | None:
        """What tells the receiving end who sent a message; None: see `peer`, or the identity on a ROUTER."""
        return self.sender_of if self.kind in ("XPUB", "PULL") else None

    @property
    def says_from(self) -> SenderOf | None:
        """The same of what the other end will make of what this one sends."""
        return self.sender_of if self.kind in ("XSUB", "PUSH") else None


class Socket(Protocol):
    """A message channel. Neither half ever waits."""

    address: str  # where it is bound, wildcard resolved

    def send(self, frames: Sequence[Any], peer: int = 0) -> None:
        """Queue one message. Buffers of 64 KiB and more go without a copy and are kept alive until sent.

        What a PUB, XPUB or XSUB has no room for is lost to that peer, without a word. Raises Unroutable when the
        socket knows that the peer is not connected, ValueError for an XSUB's message that would arrive in pieces.
        """

    def try_receive(self) -> tuple[int | None, list[Any]] | None:
        """(peer index, frames) or None when nothing is there. Malformed identities never reach the caller.

        A peer of None: several may have sent it, and it does not say which one did (`SocketSpec.sender_of`).
        """

    def was_cut(self) -> bool:
        """Whether a connection of a `watched` socket has ended since the last call; known before the next one brings
        messages."""

    def is_over(self) -> bool:
        """Whether somebody was connected to a `watched` socket, nobody is, and all that came was received."""

    def fileno(self) -> int:
        """Readable when a message may be there. Edge-triggered: after each wake, receive until None."""

    def close(self, linger_s: float | None = None) -> None:
        """What is unsent stays as the spec has it, but no longer than `linger_s`. Safe to call twice."""


class Unroutable(Exception):
    """A socket's word that nobody is connected under that identity."""


class Child(Protocol):
    """A started child process. Its recipe is sent when its turn in the start-up order has come."""

    node: Node
    pid: int
    sentinel: int  # readable (EOF) when the process is gone, however it died

    def send_recipe(self, recipe: bytes) -> None: ...
    def try_receive(self) -> bytes | None:
        """A message the child sent on its pipe (its READY), None when there is none yet. EOFError if closed."""

    def fileno(self) -> int: ...
    def ended(self) -> bool:
        """Whether it does nothing more, as far as is known: it is looked again only now and then."""

    def gone(self) -> bool:
        """Whether the system has taken from it all that it had, too."""

    def exitcode(self) -> int | None:
        """Of one that has ended, as `multiprocessing` has it."""

    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def join(self, timeout_s: float) -> bool: ...

    def hang_up(self) -> None:
        """Close the pipe: the child takes it as its parent's end."""


class Parent(Protocol):
    """The pipe to whoever started this process."""

    def take(self, recipe: bytes) -> bytes | None:
        """The recipe has come, and with it these ports. -> what there is to read, None: the parent went before"""

    def send(self, message: bytes) -> None: ...

    def wait_until_gone(self) -> None:
        """Until the parent is no more. From one thread."""


#: Makes of a view of a chunk what a reader keeps of it.
ReadAs = Callable[[Any], Any]
#: Is told something about a ring's end, in one argument; what it returns is of no interest.
Told = Callable[[Any], object]


class Ports(Protocol):
    node: Node
    clock: Clock
    parent: Parent | None

    def open_socket(self, spec: SocketSpec) -> Socket:
        """Raises ConfigError for a tcp address that this host does not have."""

    def reserve_address(self, address: str) -> str:
        """Of tcp, with a port that the system picks; it picks that one for nobody else while this process lives."""

    def create_ring(self, spec: RingSpec, name: str) -> RingMemory: ...
    def attach_ring(self, spec: RingSpec, name: str) -> RingMemory: ...
    def shared_word(self, name: str, *, create: bool) -> memoryview:
        """64 bytes that two processes share: a heartbeat."""

    def doorbell(self, name: str, memory: Any, offset: int) -> Doorbell: ...
    def ring_crossing(self, spec: RingSpec, operation: str, position: int, parts: Sequence[Any],
                      overflow: bool) -> None:
        """A message is about to be written ("send"), or was read and is about to be used ("receive")."""

    def ring_writer(self, spec: RingSpec, name: str, position: Callable[[], int],
                    parts_of: Callable[[Sequence[Any]], Sequence[Any]]) -> tuple[Told, Told]:
        """For an end that writes without a loop. -> (what it calls with the chunk of each message, before the write,
        what it calls after a wait, with when it began, its deadline or None, when it ended, and how)

        `position` tells the number of that message, `parts_of` its buffers as framed.
        """

    def ring_reader(self, spec: RingSpec, name: str, position: Callable[[], int], objects: ReadAs, buffers: ReadAs,
                    ) -> tuple[ReadAs, Told, Told]:
        """For an end that reads without a loop. -> (how it takes a message, what it calls with each, after the read,
        what it calls after a wait, as for `ring_writer`)

        Taken as `objects` a message is decoded where it lies, as `buffers` it can be looked at. `position` tells the
        number of the next message.
        """

    def process_group(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float,
                      communicator: str, tp: int | None = None) -> Any: ...
    def introduce(self, card: Any, size: int, where: str, deadline: float, wait: Callable[[list[int], float], object],
                  ) -> Any:
        """Meet those who come to this address, and hear who they are: `engine.process.consensus.introductions`."""

    def consensus_group(self, name: str, rank: int, members: Sequence[Any], where: str) -> Any:
        """A place in a group of processes, which meets the others: `engine.process.consensus.group.ConsensusGroup`."""

    def start_child(self, node: Node, target: str, start_method: str) -> Child: ...
    def mark(self, mark: Mark, **data: Any) -> None: ...
    def observe(self, name: str, **data: Any) -> None: ...
    def describe(self, name: str, describe: Callable[[], dict[str, Any]]) -> None: ...
    def close(self) -> None: ...

"""The ports of a real process: ZMQ, shared memory, processes, and the `time` module.

Nothing else in `engine` opens one of these. Imports of ZMQ and torch happen at first use, so a process has
only what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from engine.ports import ReadAs, RingMemory, RingSpec, SocketSpec, Told
from engine.process.children import Bootstrap, PipeParent, RealChild, start_child
from engine.topology import Mark, Node

#: The cheapest call with one argument that does nothing.
nobody_counts = bool
#: A cache line: the writer of a shared word disturbs nobody else.
WORD_BYTES = 64


class RealPorts:
    """See `engine.ports.Ports`."""

    clock = time

    def __init__(self, node: Node, factory: str = "", argument: bytes = b"", parent: PipeParent | None = None,
                 io_threads: int = 1) -> None:
        """`io_threads`: how many carry the messages of all sockets, here and in the children that it starts."""
        self.node = node
        self.parent = parent
        self._factory = factory
        self._argument = argument
        self._io_threads = io_threads
        self._context: Any = None
        self._segments: list[Any] = []
        self._reserved: list[Any] = []
        self._children: list[RealChild] = []

    # -- messages

    def open_socket(self, spec: SocketSpec) -> Any:
        import zmq

        from engine.wire.sockets import ZmqSocket

        if spec.address.startswith("inproc://"):  # its peers are in this process, in the context that all share
            return ZmqSocket(zmq.Context.instance(), spec)
        if spec.curve is not None and spec.bind:
            from engine.wire.curve import GuardedSocket

            return GuardedSocket(spec)
        if self._context is None:
            self._context = zmq.Context(self._io_threads)
        return ZmqSocket(self._context, spec)

    def reserve_address(self, address: str) -> str:
        from engine.wire.reserved import reserve

        taken, address = reserve(address)
        self._reserved.append(taken)
        return address

    # -- shared memory

    def create_ring(self, spec: RingSpec, name: str, size: int = 0) -> RingMemory:
        from engine.ipc.segment import create_segment

        return self._keep(create_segment(name, size or ring_bytes(spec)))

    def attach_ring(self, spec: RingSpec, name: str) -> RingMemory:
        from engine.ipc.segment import attach_segment

        return self._keep(attach_segment(name))

    def shared_word(self, name: str, *, create: bool) -> memoryview:
        from engine.ipc.segment import attach_segment, create_segment

        segment = create_segment(name, WORD_BYTES) if create else attach_segment(name)
        self._segments.append(segment)
        return segment.memory

    def doorbell(self, name: str, memory: Any, offset: int) -> Any:
        from engine.ipc.wait import FutexDoorbell

        return FutexDoorbell(memory, offset)

    def ring_crossing(self, spec: RingSpec, operation: str, position: int, parts: Sequence[Any],
                      overflow: bool) -> None:
        """Nobody counts."""

    def ring_writer(self, spec: RingSpec, name: str, position: Callable[[], int],
                    parts_of: Callable[[Sequence[Any]], Sequence[Any]]) -> tuple[Told, Told]:
        return nobody_counts, nobody_counts

    def ring_reader(self, spec: RingSpec, name: str, position: Callable[[], int], objects: ReadAs, buffers: ReadAs,
                    ) -> tuple[ReadAs, Told, Told]:
        return objects, nobody_counts, nobody_counts

    # -- collectives and processes

    def process_group(self, rank: int, world_size: int, init_method: str, device: str, timeout_s: float,
                      communicator: Any, tp: int | None = None) -> Any:
        from engine.worker.parallel.distributed import ProcessGroup

        return ProcessGroup(rank, world_size, init_method, device, timeout_s, communicator, tp)

    def introduce(self, card: Any, size: int, where: str, deadline: float, wait: Callable[[list[int], float], object],
                  ) -> Any:
        from engine.process.consensus.introductions import introduce

        return introduce(card, size, where, deadline, wait, self.clock.monotonic)

    def consensus_group(self, name: str, rank: int, members: Sequence[Any], where: str) -> Any:
        from engine.process.consensus.group import ConsensusGroup

        return ConsensusGroup(name, rank, members, where, partial(self.shared_word, create=False), self.clock.monotonic)

    def start_child(self, node: Node, target: str, start_method: str) -> RealChild:
        child = start_child(node, target, start_method, self._envelope)
        self._children.append(child)
        return child

    def _envelope(self, recipe: bytes) -> bytes:
        return msgspec.msgpack.encode(Bootstrap(self._factory, self._argument, recipe, self._io_threads))

    # -- what only a fault layer uses

    def mark(self, mark: Mark, **data: Any) -> None:
        """Nobody counts."""

    def observe(self, name: str, **data: Any) -> None:
        """Nobody records."""

    def describe(self, name: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Nobody records."""

    # -- the end

    def close(self) -> None:
        """Let ZMQ deliver what lingers, then release the mappings. Sockets must be closed before."""
        if self._context is not None:
            self._context.term()
            self._context = None
        for taken in self._reserved:
            taken.close()
        self._reserved.clear()
        for child in self._children:
            child.close()
        self._children.clear()
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def _keep(self, segment: Any) -> RingMemory:
        from engine.ipc.segment import fence

        self._segments.append(segment)
        return RingMemory(segment.memory, fence)


def ring_bytes(spec: RingSpec) -> int:
    from engine.ipc.ring import RingLayout

    return RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks).total_bytes

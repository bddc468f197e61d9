"""What a queue gives out about itself: how a reader opens its end, and what an end has counted. Plain data (pure).

A handle has vLLM's fields, then ours, which are optional. It must travel by a pipe that is trusted: it holds the key by
which a remote reader proves who it is.
"""

from __future__ import annotations

import msgspec

from engine.errors import QueueError
from engine.ipc.ring import RingLayout


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    local_reader_ranks: list[int] = []
    buffer_handle: tuple[int, int, int, str] | None = None  # local readers, max_chunk_bytes, max_chunks, segment
    local_subscribe_addr: str | None = None
    local_notify_addr: str | None = None  # vLLM's doorbell (`notify`), if it was chosen; ours is in the segment
    remote_subscribe_addr: str | None = None
    remote_addr_ipv6: bool = False
    ring: str = "ring"
    bell: tuple[str, int] | None = None  # (segment, offset) of the readers' bell where it is not the ring's own
    epoch: int = 0  # the segment holds the same number; 0 is not looked at
    remote_reader_ranks: list[int] = []
    remote_keys: tuple[str, str, str] | None = None  # CURVE, Z85: server's public, reader's public, reader's secret


class QueueStats(msgspec.Struct, kw_only=True):
    """One end of one queue, since it was opened. `msgspec.to_builtins` makes a dict of it."""

    ring: str
    end: str  # "writer" or "reader"
    messages: int = 0
    bytes: int = 0  # of pickles and their buffers, without headers as far as the end sees them
    overflows: int = 0  # messages of at least a chunk, which went beside the ring
    waits: int = 0  # for room or for a message, however they ended; a glance is none
    wait_s: float = 0.0
    longest_wait_s: float = 0.0
    depth: int = 0  # published messages that this reader, or some reader of this writer, has not read yet

    def waited(self, seconds: float) -> None:
        self.waits += 1
        self.wait_s += seconds
        self.longest_wait_s = max(self.longest_wait_s, seconds)


def writer_bell_of(handle: Handle) -> tuple[str, int]:
    """(segment, offset) of the word on which this queue's writer sleeps: the `bell` of the queues that it reads."""
    if handle.buffer_handle is None:
        raise QueueError(f"{handle.ring}: a queue without local readers has no bell in shared memory")
    *sizes, segment = handle.buffer_handle
    return segment, RingLayout(*sizes).writer_bell_offset


def check_rank(handle: Handle, rank: int) -> None:
    """Raises QueueError for a rank that has no place in this queue, or none that may be taken."""
    if rank in handle.local_reader_ranks and handle.buffer_handle is not None:
        return
    if rank not in handle.remote_reader_ranks or handle.remote_subscribe_addr is None:
        raise QueueError(f"{handle.ring}: rank {rank} is neither one of its local readers {handle.local_reader_ranks} "
                         f"nor of its remote ones {handle.remote_reader_ranks}")
    if handle.remote_keys is None:
        raise QueueError(f"{handle.ring}: refused: the handle has no CURVE keys, so what comes from "
                         f"{handle.remote_subscribe_addr} would be unpickled unauthenticated")


def remote_ranks(ranks: list[int], count: int, given: list[int] | None) -> list[int]:
    """The ranks of the `count` readers on other hosts: as given, else the smallest that are not local."""
    if given is None:
        given = [rank for rank in range(len(ranks) + count) if rank not in ranks][:count]
    return given

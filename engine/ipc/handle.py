"""What a reader needs to open its end of a queue. Plain data: vLLM's fields, then ours, which are optional.

A handle must travel by a pipe that is trusted: it holds the key by which a remote reader proves who it is.
"""

from __future__ import annotations

import msgspec

from engine.errors import QueueError


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

"""What it takes to open the ends of a queue: from a constructor's arguments, or a handle, to a reader or writer.

Promises
- Each function opens step by step through a `QueueEnd`, which can be closed after any of them.
- What fits nowhere is refused before anything is opened: ranks that are no ranks, a spec of another size.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from engine.errors import QueueError
from engine.ipc import remote
from engine.ipc.end import BELL, OVERFLOW_SOCKET, REMOTE_SOCKET, SPACE, QueueEnd
from engine.ipc.framing import object_taker, rehearsal, unpack
from engine.ipc.handle import Handle
from engine.ipc.notify import NotifySocket
from engine.ipc.presence import PEER_CHECK_S, LocalReaders, RemoteReaders
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ring import RingReader, RingWriter
from engine.ipc.wait import full_fence
from engine.ports import RingSpec
from engine.process.runtime_dir import sweep
from engine.topology import Channel, core, worker


def spec_of(ranks: Sequence[int], max_chunks: int, max_chunk_bytes: int) -> RingSpec:
    """Of a queue whose ring has no name in a topology."""
    return RingSpec(channel=Channel.RPC, writer=core(), readers=tuple(map(worker, ranks)),
                    max_chunks=max_chunks, max_chunk_bytes=max_chunk_bytes)


def checked_spec(name: str, n_reader: int, n_local_reader: int, local: list[int], others: list[int],
                 spec: RingSpec | None, max_chunks: int, max_chunk_bytes: int) -> RingSpec:
    """Raises QueueError where these make no queue."""
    if n_reader < 1 or len(local) != n_local_reader or len(local) + len(others) != n_reader \
            or len({*local, *others}) != n_reader:
        raise QueueError(f"{name}: {n_local_reader} local readers of {n_reader} need as many different ranks, got "
                         f"{local} and {others} on other hosts")
    spec = spec or spec_of(local, max_chunks, max_chunk_bytes)
    if (len(spec.readers), spec.max_chunks, spec.max_chunk_bytes) != (len(local), max_chunks, max_chunk_bytes):
        raise QueueError(f"{name}: the ring's spec does not fit {len(local)} readers and {max_chunks} chunks of "
                         f"{max_chunk_bytes} bytes")
    return spec


def open_writer(end: QueueEnd, spec: RingSpec, local: list[int], others: list[int], *, segment: str | None,
                overflow_address: str | None, connect_ip: str | None, bell: tuple[str, int] | None,
                ) -> tuple[QueueWriter, Handle]:
    """What is not named gets a name of its own. Raises SpaceError, QueueError."""
    name, epoch = end.name, secrets.randbits(63) | 1
    notifies = bool(local) and isinstance(end.strategy, NotifySocket)
    notify = None
    if local and (segment is None or overflow_address is None or notifies):
        sweep()
        room = end.make_room()
        segment = segment or room.segment("ring")
        overflow_address = overflow_address or room.socket("overflow")
        notify = room.socket("notify") if notifies else None
    ring: Any
    if segment is not None and overflow_address is not None and local:
        end.open_ring(spec, segment, local, None, bell, epoch, notify)
        overflow_address = end.open_overflow(overflow_address, segment)
        ring = RingWriter(end.layout, end.memory, end.fence)
    else:
        end.open_no_ring(spec)
        ring = remote.NoRing()
    queue = QueueWriter(name, ring, len(local) + len(others), bell=BELL, space_bell=SPACE,
                        overflow_outbox=OVERFLOW_SOCKET if local else None,
                        readers=LocalReaders(end.presence) if end.presence is not None else None)
    address, ipv6, keys = None, False, None
    if others:
        secret, keys = remote.new_keys()
        wanted, ipv6 = remote.address_of(connect_ip)
        queue.remotes, queue.remote_outbox = RemoteReaders(name, others), REMOTE_SOCKET
        address = end.open_remote(remote.writer_socket(f"{name}.{REMOTE_SOCKET}", wanted, secret, keys), queue.remotes)
    return queue, Handle(
        local_reader_ranks=local,
        buffer_handle=(len(local), spec.max_chunk_bytes, spec.max_chunks, segment) if local else None,
        local_subscribe_addr=overflow_address if local else None, local_notify_addr=notify,
        remote_subscribe_addr=address, remote_addr_ipv6=ipv6,
        ring=name, bell=bell, epoch=epoch, remote_reader_ranks=others, remote_keys=keys)


def open_local_reader(end: QueueEnd, handle: Handle, reader: int, spec: RingSpec) -> tuple[QueueReader, Any]:
    """-> (reader number `reader`, what it calls with each message that it reads without a loop)"""
    overflow = handle.local_subscribe_addr
    end.open_ring(spec, handle.buffer_handle[3], handle.local_reader_ranks, reader, handle.bell, handle.epoch,
                  handle.local_notify_addr)
    if overflow:
        end.open_overflow(overflow, handle.buffer_handle[3])
    ring = RingReader(end.layout, end.memory, end.fence, reader)
    take, cross, end.waited = end.ports.ring_reader(
        spec, handle.ring, lambda: ring.position, object_taker(end.buffers.own), unpack)
    end.doorbells[BELL].rehearse = rehearsal(take)
    return QueueReader(
        handle.ring, ring, bell=BELL, space_bell=SPACE, overflow_inbox=OVERFLOW_SOCKET if overflow else None,
        recheck_s=PEER_CHECK_S, take=take, full_fence=full_fence, presence=end.presence), cross


def open_remote_reader(end: QueueEnd, handle: Handle, rank: int, spec: RingSpec) -> remote.RemoteReader:
    end.open_no_ring(spec)
    topic = remote.topic_of(rank)
    end.open_remote(remote.reader_socket(f"{handle.ring}.{REMOTE_SOCKET}", handle.remote_subscribe_addr, topic,
                                         handle.remote_keys))
    return remote.RemoteReader(handle.ring, inbox=REMOTE_SOCKET, topic=topic, check=end.check, recheck_s=PEER_CHECK_S)

"""`MessageQueue`: one writer, many readers, any object; vLLM's names, arguments and memory layout.

Promises
- Every reader gets every object once, in order, also those of at least a chunk, also across time-outs.
- No wait outlives its time-out; a wait without one ends by `cancel`, by `shutdown`, or by the death of the other end,
  with `QueueCancelledError` or its `PeerDeadError`. What was published before a death is handed out first; a payload
  beside the ring only if it, or the word where it lies, had left the killed writer.
- An object that cannot be decoded is a `QueueDecodeError` and counts as read; one that cannot be pickled is pickle's
  own error and was not sent. The queue is usable after either.
- Nothing that came over a network is unpickled before its sender has proven its key; without keys a remote reader is
  refused.
- An exception out of a signal handler (Ctrl-C) leaves that message sent or not, handed out or not; this end goes on in
  step with the others. A payload beside the ring that it swallowed is a `QueueDecodeError` after `QueueReader.gap_s`.
- `shutdown` leaves nothing behind; what a killed writer left goes with the next writer's start.
- Bad use (wrong end, foreign rank, another queue's segment, second reader of a rank, use after shutdown, negative
  time-out, two threads at once, a forked child's copy) is an error at once.

    enqueue:  pickle -> try_write -> spin, sleep, again -> bell      the fast path: nobody records or is remote
              otherwise the loop of `queue.QueueWriter`, driven by `engine.process.shell`
    dequeue:  try_read -> glance -> spin, sleep, again    the fast path: nobody records; bell if the writer may wait
              otherwise the loop of `queue.QueueReader` or `remote.RemoteReader`

    writer    ring + bells        -> local readers        objects of less than a chunk
              XPUB on ipc         -> local readers        larger ones: their place in shared memory (`spill`), or bytes
              XPUB on tcp, CURVE  -> remote readers       all
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import QueueCancelledError, QueueDecodeError, QueueError
from engine.ipc import presence, remote
from engine.ipc.end import BELL, OVERFLOW_SOCKET, PEER_CHECK_S, REMOTE_SOCKET, SPACE, QueueEnd
from engine.ipc.framing import OVERFLOW, decode, encode_chunk, object_taker, pack, parts_of_small, rehearsal, unpack
from engine.ipc.handle import Handle, check_rank, remote_ranks
from engine.ipc.notify import NotifySocket
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ready import wait_for_readers, wait_for_writer
from engine.ipc.ring import EMPTY, MOVE_BYTES, RingReader, RingWriter
from engine.ipc.wait import SpinThenSleep, WaitStrategy, full_fence
from engine.ports import Ports, RingSpec
from engine.process.runtime_dir import RuntimeDir, sweep
from engine.topology import Channel, core, worker

__all__ = ["Handle", "MessageQueue"]

#: `wait_until_ready` without a time-out.
READY_BOUND_S = 600.0


class MessageQueue(QueueEnd):
    """The writing end; `create_from_handle` makes a reading end. One thread at a time uses an end.

    `max_chunk_bytes` times `max_chunks` bytes of shared memory are reserved; objects whose pickle reaches a chunk's
    size are slower. Of the `n_reader` readers `n_local_reader` are on this host, those of `local_reader_ranks`; the
    others (`remote_reader_ranks`, by default the smallest ranks that are left) connect to `connect_ip`, by default
    the address by which this host reaches others. A remote reader may be `remote.REMOTE_BOUND` messages behind on each
    side of its connection; then `enqueue` waits for it as for room in the ring.

    `wait` is how this end passes the time, each end's own choice: `wait.SpinThenSleep` by default, `wait.Spin`,
    `wait.SpinThenNap`, or `notify.NotifySocket`, by which vLLM's readers are woken as well. `segment_name` and
    `overflow_address` (ipc) name what is created; by default the queue names both and removes them. `bell` = (segment,
    offset) lets several queues ring one bell of a common reader, such as `bell_address` of the queue that it writes.
    Raises SpaceError, QueueError.
    """

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: Sequence[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        *,
        remote_reader_ranks: Sequence[int] | None = None,
        ports: Ports | None = None,
        spec: RingSpec | None = None,
        name: str = "ring",
        segment_name: str | None = None,
        overflow_address: str | None = None,
        bell: tuple[str, int] | None = None,
        wait: WaitStrategy | None = None,
    ) -> None:
        ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        others = remote_ranks(ranks, n_reader - n_local_reader,
                              None if remote_reader_ranks is None else list(remote_reader_ranks))
        if n_reader < 1 or len(ranks) != n_local_reader or len(ranks) + len(others) != n_reader \
                or len({*ranks, *others}) != n_reader:
            raise QueueError(f"{name}: {n_local_reader} local readers of {n_reader} need as many different ranks, got "
                             f"{ranks} and {others} on other hosts")
        spec = spec or _spec(ranks, max_chunks, max_chunk_bytes)
        if (len(spec.readers), spec.max_chunks, spec.max_chunk_bytes) != (len(ranks), max_chunks, max_chunk_bytes):
            raise QueueError(f"{name}: the ring's spec does not fit {len(ranks)} readers and {max_chunks} chunks of "
                             f"{max_chunk_bytes} bytes")
        secret, keys = remote.new_keys() if others else ("", None)
        epoch = secrets.randbits(63) | 1
        notifies = bool(ranks) and isinstance(wait, NotifySocket)
        if ranks and (segment_name is None or overflow_address is None or notifies):
            sweep()
            self._runtime = RuntimeDir.create()
            self._remove = weakref.finalize(self, _remove_as, os.getpid(), self._runtime)
            segment_name = segment_name or self._runtime.segment("ring")
            overflow_address = overflow_address or self._runtime.socket("overflow")
        notify_address = self._runtime.socket("notify") if notifies else None
        try:
            self._begin(name, ports, spec.writer, wait, writes=True)
            sockets = self._process.sockets
            if ranks:
                self._open_ring(spec, segment_name, None, bell, epoch, notify_address)
                self._open_overflow(overflow_address, segment_name)
                ring: Any = RingWriter(self._layout, self._memory, self._fence)
            else:
                self._open_no_ring(spec)
                ring = remote.NoRing()
            self._queue = QueueWriter(name, ring, n_reader, bell=BELL, space_bell=SPACE,
                                      overflow_outbox=OVERFLOW_SOCKET if ranks else None)
            self._direct = self._unwatched and not others
            ipv6 = False
            if others:
                address, ipv6 = remote.address_of(connect_ip)
                sockets[REMOTE_SOCKET] = self._ports.open_socket(
                    remote.writer_socket(f"{name}.{REMOTE_SOCKET}", address, secret, keys))
                self._remotes = remote.RemoteReaders(name, others)
                self._queue.remote_outbox = REMOTE_SOCKET
        except BaseException:
            self.shutdown()
            raise
        self.handle = Handle(
            local_reader_ranks=ranks,
            buffer_handle=(len(ranks), max_chunk_bytes, max_chunks, segment_name) if ranks else None,
            local_subscribe_addr=sockets[OVERFLOW_SOCKET].address if ranks else None, local_notify_addr=notify_address,
            remote_subscribe_addr=sockets[REMOTE_SOCKET].address if others else None, remote_addr_ipv6=ipv6,
            ring=name, bell=bell, epoch=epoch, remote_reader_ranks=others, remote_keys=keys)
        self._opened()

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, *, ports: Ports | None = None, spec: RingSpec | None = None,
                           wait: WaitStrategy | None = None) -> MessageQueue:
        """The reading end of `rank`, in any process of the same host, or of another one if the rank is remote.

        Raises QueueError for a rank without a place in this queue or whose place a living process has, for a segment
        of another queue, and for a remote writer without keys.
        """
        check_rank(handle, rank)
        self = MessageQueue.__new__(MessageQueue)
        self.handle = handle
        try:
            if rank in handle.local_reader_ranks:
                self._open_local(handle, handle.local_reader_ranks.index(rank), ports, spec, wait)
            else:
                self._open_remote(handle, rank, ports, spec, wait)
        except BaseException:
            self.shutdown()
            raise
        self._opened()
        return self

    def _open_local(self, handle: Handle, reader: int, ports: Ports | None, spec: RingSpec | None,
                    wait: WaitStrategy | None) -> None:
        _, max_chunk_bytes, max_chunks, segment = handle.buffer_handle
        spec = spec or _spec(handle.local_reader_ranks, max_chunks, max_chunk_bytes)
        self._begin(handle.ring, ports, spec.readers[reader], wait, writes=False)
        self._open_ring(spec, segment, reader, handle.bell, handle.epoch, handle.local_notify_addr)
        if handle.local_subscribe_addr:
            self._open_overflow(handle.local_subscribe_addr, segment)
        self._direct, self._take = self._unwatched, object_taker(self._buffers.own)
        if self._direct:
            self._doorbells[BELL].rehearse = rehearsal(self._take)
        self._glances = isinstance(self._strategy, SpinThenSleep)
        self._queue = QueueReader(
            handle.ring, RingReader(self._layout, self._memory, self._fence, reader), bell=BELL, space_bell=SPACE,
            overflow_inbox=OVERFLOW_SOCKET if handle.local_subscribe_addr else None, recheck_s=PEER_CHECK_S,
            take=self._take if self._unwatched else unpack, full_fence=full_fence)

    def _open_remote(self, handle: Handle, rank: int, ports: Ports | None, spec: RingSpec | None,
                     wait: WaitStrategy | None) -> None:
        self._begin(handle.ring, ports, worker(rank), wait, writes=False)
        self._open_no_ring(spec or _spec([rank], 1, 8))
        topic = remote.topic_of(rank)
        self._process.sockets[REMOTE_SOCKET] = self._ports.open_socket(remote.reader_socket(
            f"{handle.ring}.{REMOTE_SOCKET}", handle.remote_subscribe_addr, topic, handle.remote_keys))
        self._queue = remote.RemoteReader(handle.ring, inbox=REMOTE_SOCKET, topic=topic, check=self._raise_if_over,
                                          recheck_s=PEER_CHECK_S)

    @staticmethod
    def create_from_process_group(pg: Any, max_chunk_bytes: int, max_chunks: int, writer_rank: int = 0,
                                  external_writer_handle: Handle | None = None, blocking: bool = True,
                                  **options: Any) -> MessageQueue:
        """Every rank of a torch process group calls this: see `engine.ipc.group`."""
        from engine.ipc.group import from_process_group

        return from_process_group(pg, max_chunk_bytes, max_chunks, writer_rank, external_writer_handle, blocking,
                                  **options)

    # -- vLLM's methods

    def export_handle(self) -> Handle:
        return self.handle

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Writer: until every reader is there, then tells them. Reader: until told.

        Readers that exist are counted: each must live and have subscribed, by name; of those that say no name (vLLM's),
        as many subscriptions. May be repeated, after a time-out and when all is ready.
        Raises QueueTimeoutError naming who is missing (None: after READY_BOUND_S), PeerDeadError.
        """
        self._enter("wait_until_ready")
        try:
            if self._ready:
                return
            deadline = self._deadline(READY_BOUND_S if timeout is None else timeout)
            if self._writes:
                wait_for_readers(self, deadline)
                if self._layout is not None and presence.all_known(self._layout, self._memory)():
                    self._queue.writer.moves_from = MOVE_BYTES
            elif self._process.sockets:
                wait_for_writer(self, deadline)
            self._ready = True
        finally:
            self._leave()

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Send an object to all readers. Waits for room at most `timeout` seconds (None: until shutdown or a death).

        Raises QueueTimeoutError or QueueCancelledError with nothing sent, PeerDeadError when a remote reader is gone,
        and what pickle raises.
        """
        if not self._writes or self._closed or self._inside or not self._busy.acquire(False):
            self._enter("enqueue", reads=False)
        try:
            self._inside = True
            deadline = None if timeout is None else self._deadline(timeout)
            queue, encoded, remotes = self._queue, encode_chunk(obj), self._remotes
            small = type(encoded) is bytes
            packed = [encoded] if small else pack(encoded)
            size = len(encoded) if small else sum(map(len, packed))
            fits = size <= queue.writer.layout.max_chunk_bytes
            if fits and self._direct and queue.unsent is None and (
                    queue.writer.try_write(packed) or self._write_on(packed, deadline)):
                self._bells[BELL].ring()
                queue.stats.bytes += size
                return
            parts = parts_of_small(encoded) if small else encoded
            if not self._ready and (remotes is not None or not fits):
                raise QueueError(f"{queue.name}: an object of at least a chunk, or for a reader on another host, can "
                                 "be sent after wait_until_ready")
            if remotes is not None:
                self._look_at_remotes()
                parts = [parts[0], *map(bytes, parts[1:])]  # the socket sends later what the caller may change now
            self._process.run(queue.enqueue(parts, deadline))
        finally:
            self._inside = False
            self._busy.release()

    def dequeue(self, timeout: float | None = None, cancel: threading.Event | None = None,
                indefinite: bool = False) -> Any:
        """The next object. Waits at most `timeout` seconds (None: until `cancel` is set, shutdown or a death).

        `indefinite` is vLLM's word for "a long wait is no reason to warn"; nothing is logged here either way.
        Raises QueueTimeoutError (nothing was lost), QueueCancelledError, QueueDecodeError (that object was).
        """
        if self._writes or self._closed or self._inside or not self._busy.acquire(False):
            self._enter("dequeue", reads=True)
        try:
            self._inside = True
            queue, message = self._queue, EMPTY
            if self._direct and queue.owed is None and not (timeout and timeout < 0):
                bell = self._doorbells[BELL]
                seen = bell.seen()
                message = self._look()
                if message is EMPTY and timeout != 0 and self._glances and bell.glance(seen):
                    seen = bell.seen()
                    message = self._look()
            if message is EMPTY or message is OVERFLOW:
                self._cancel = cancel
                deadline = self._deadline(timeout)
                if self._direct and queue.owed is None:
                    message = self._look_on(BELL, seen, self._look, deadline)
                if message is EMPTY or message is OVERFLOW:
                    message = self._process.run(queue.dequeue(deadline))
            return message[0] if type(message) is tuple else decode(message)
        finally:
            self._cancel = None
            self._inside = False
            self._busy.release()

    def try_dequeue(self) -> Any:
        """The next object, or `ring.EMPTY`. Raises QueueDecodeError."""
        self._enter("try_dequeue", reads=True)
        try:
            message = self._process.run(self._queue.try_dequeue())
            if message is EMPTY:
                return EMPTY
            return message[0] if type(message) is tuple else decode(message)
        finally:
            self._leave()

    def broadcast_object(self, obj: Any = None) -> Any:
        """The writer sends `obj`, a reader receives it. -> the object, at both ends"""
        if self._writes:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    # -- waiting

    def _look_on(self, key: str, seen: int, look: Callable[[], Any], deadline: float | None) -> Any:
        """Wait for that bell and look. -> what was found, or EMPTY: the deadline is over, or this end was shut down

        Raises QueueCancelledError as `_raise_if_over` does, after a last look that found nothing.
        """
        bell, monotonic, found = self._doorbells[key], self._ports.clock.monotonic, EMPTY
        began = now = monotonic()
        try:
            while found is EMPTY and self._process.cancelled is None:
                if now - self._checked_at >= PEER_CHECK_S or (self._cancel is not None and self._cancel.is_set()):
                    self._checked_at = now
                    try:
                        self._raise_if_over()
                    except QueueCancelledError:
                        if (found := look()) is EMPTY:
                            raise
                        break
                left = PEER_CHECK_S if deadline is None else min(deadline - now, PEER_CHECK_S)
                if left <= 0:
                    break
                self._strategy.wait(bell, seen, left)
                seen = bell.seen()
                found = look()
                now = monotonic()
        finally:
            self._queue.stats.waited(now - began)
        return found

    def _write_on(self, packed: list[Any], deadline: float | None) -> bool:
        """There was no room: wait for it and write. -> whether that came about"""
        def look() -> Any:
            return True if try_write(packed) else EMPTY

        try_write = self._queue.writer.try_write
        seen = self._doorbells[SPACE].seen()
        return (look() or self._look_on(SPACE, seen, look, deadline)) is True

    def _look(self) -> Any:
        """-> (object, bytes), EMPTY, or OVERFLOW where a payload is owed"""
        queue = self._queue
        try:
            message = queue.reader.try_read(self._take)
        except QueueDecodeError:
            self._bells[SPACE].ring()
            raise
        if message is EMPTY:
            return EMPTY
        if not full_fence() or queue.reader.writer_may_wait():
            self._bells[SPACE].ring()
        if message is OVERFLOW:
            queue.owe_payload()
            return OVERFLOW
        queue.stats.bytes += message[1]
        return message


def _spec(ranks: Sequence[int], max_chunks: int, max_chunk_bytes: int) -> RingSpec:
    return RingSpec(channel=Channel.RPC, writer=core(), readers=tuple(map(worker, ranks)),
                    max_chunks=max_chunks, max_chunk_bytes=max_chunk_bytes)


def _remove_as(pid: int, runtime: RuntimeDir) -> None:
    if os.getpid() == pid:  # a forked child that drops its copy removes nothing
        runtime.remove()

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

    enqueue:  pickle -> try_write -> spin, sleep, again -> bell      the fast path: a small object, no remote reader
              otherwise the loop of `queue.QueueWriter`, driven by `engine.process.shell`
    dequeue:  try_read -> glance -> spin, sleep, again    the fast path: from a ring; bell if the writer may wait
              otherwise the loop of `queue.QueueReader` or `remote.RemoteReader`
    Either path crosses, marks and tells the same in the same order: one call of the ports per message, given them by
    `ports.ring_writer` and `ports.ring_reader`.

    writer    ring + bells        -> local readers        objects of less than a chunk
              XPUB on ipc         -> local readers        larger ones: their place in shared memory (`spill`), or bytes
              XPUB on tcp, CURVE  -> remote readers       all
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.effects import CreateRing, OpenRing
from engine.errors import QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc.end import BELL, OVERFLOW_SOCKET, REMOTE_SOCKET, SPACE, QueueEnd
from engine.ipc.framing import OVERFLOW, bytes_of, decode, encode_chunk, pack, parts_of, unpack
from engine.ipc.group import from_process_group
from engine.ipc.handle import Handle, QueueStats, check_rank, remote_ranks, writer_bell_of
from engine.ipc.opening import checked_spec, open_local_reader, open_remote_reader, open_writer, spec_of
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.readiness import look_at_remotes, wait_for_readers, wait_for_writer
from engine.ipc.remote import RemoteReader
from engine.ipc.ring import EMPTY
from engine.ipc.wait import SpinThenSleep, WaitStrategy, full_fence
from engine.ports import Ports, RingSpec
from engine.process.shell import Process
from engine.topology import Mark, worker

__all__ = ["Handle", "MessageQueue"]

#: `wait_until_ready` without a time-out.
READY_BOUND_S = 600.0


class MessageQueue:
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

    #: A reader whose objects come out of shared memory.
    _from_ring = False

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
        spec = checked_spec(name, n_reader, n_local_reader, ranks, others, spec, max_chunks, max_chunk_bytes)
        self._begin(QueueEnd(name, ports, spec.writer, wait, writes=True))
        try:
            self._queue, self.handle = queue, _ = open_writer(
                self._end, spec, ranks, others, segment=segment_name, overflow_address=overflow_address,
                connect_ip=connect_ip, bell=bell)
            self._cross, self._end.waited = self._end.ports.ring_writer(
                spec, name, lambda: queue.position, parts_of)
        except BaseException:
            self.shutdown()
            raise
        self._opened()

    def _begin(self, end: QueueEnd) -> None:
        self._end, self._turn, self._writes = end, end.turn, end.writes
        self._queue: Any = None
        self._cross: Any = None
        #: Whether the first looks of a wait are the bell's own.
        self._glances = isinstance(end.strategy, SpinThenSleep)

    def _opened(self) -> None:
        """From here on it may be dropped. (Its sockets' context, collected with them, would wait for them.)"""
        #: Rung by the writer, slept on by a reader. (At hand: looked up, each would cost every message a little.)
        self._readers_bell: Any = (self._end.bells if self._writes else self._end.doorbells)[BELL]
        self._writers_bell: Any = self._end.bells[SPACE]
        self._dropped = weakref.finalize(self, self._end.drop)
        self._dropped.atexit = False
        weakref.finalize(self, self._end.remove_room)

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, *, ports: Ports | None = None, spec: RingSpec | None = None,
                           wait: WaitStrategy | None = None) -> MessageQueue:
        """The reading end of `rank`, in any process of the same host, or of another one if the rank is remote.

        Raises QueueError for a rank without a place in this queue or whose place a living process has, for a segment
        of another queue, and for a remote writer without keys.
        """
        check_rank(handle, rank)
        local = rank in handle.local_reader_ranks
        if spec is None:
            ranks, (_, chunk_bytes, chunks, _) = (handle.local_reader_ranks, handle.buffer_handle) if local else (
                [rank], (1, 8, 1, ""))
            spec = spec_of(ranks, chunks, chunk_bytes)
        reader = handle.local_reader_ranks.index(rank) if local else 0
        self = MessageQueue.__new__(MessageQueue)
        self.handle, self._from_ring = handle, local
        self._begin(QueueEnd(handle.ring, ports, spec.readers[reader] if local else worker(rank), wait, writes=False))
        try:
            if local:
                self._queue, self._cross = open_local_reader(self._end, handle, reader, spec)
            else:
                self._queue = open_remote_reader(self._end, handle, rank, spec)
        except BaseException:
            self.shutdown()
            raise
        self._opened()
        return self

    @staticmethod
    def create_from_process_group(pg: Any, max_chunk_bytes: int, max_chunks: int, writer_rank: int = 0,
                                  external_writer_handle: Handle | None = None, blocking: bool = True,
                                  **options: Any) -> MessageQueue:
        """Every rank of a torch process group calls this: see `engine.ipc.group`."""
        return from_process_group(MessageQueue, pg, max_chunk_bytes, max_chunks, writer_rank, external_writer_handle,
                                  blocking, **options)

    # -- vLLM's methods

    def export_handle(self) -> Handle:
        return self.handle

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Writer: until every reader is there, then tells them. Reader: until told.

        Readers that exist are counted: each must live and have subscribed, by name; of those that say no name (vLLM's),
        as many subscriptions. May be repeated, after a time-out and when all is ready.
        Raises QueueTimeoutError naming who is missing (None: after READY_BOUND_S), PeerDeadError.
        """
        end, queue = self._end, self._queue
        self._turn.take("wait_until_ready")
        try:
            if not end.ready:
                deadline = self._deadline(READY_BOUND_S if timeout is None else timeout)
                end.process.run((wait_for_readers if self._writes else wait_for_writer)(queue, deadline))
                end.ready = True
        finally:
            self._turn.give()

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Send an object to all readers. Waits for room at most `timeout` seconds (None: until shutdown or a death).

        Raises QueueTimeoutError or QueueCancelledError with nothing sent, PeerDeadError when a remote reader is gone,
        and what pickle raises.
        """
        turn = self._turn
        if not self._writes or turn.closed or turn.inside or not turn.busy.acquire(False):
            self._take_turn("enqueue", self._writes)
        try:
            turn.inside = True
            deadline = None if timeout is None else self._deadline(timeout)
            queue, encoded = self._queue, encode_chunk(obj)
            small, writer, remotes = type(encoded) is bytes, queue.writer, queue.remotes
            packed = [encoded] if small else pack(encoded)
            size = len(encoded) if small else sum(map(len, packed))
            fits = size <= writer.layout.max_chunk_bytes
            if fits and remotes is None and queue.unsent is None:
                if not writer.try_write(packed, self._cross):
                    self._wait_for_room(deadline)
                    writer.try_write(packed, self._cross)
                self._readers_bell.ring()
                queue.stats.bytes += size
                return
            if not self._end.ready and (remotes is not None or not fits):
                raise QueueError(f"{queue.name}: an object of at least a chunk, or for a reader on another host, can "
                                 "be sent after wait_until_ready")
            parts = parts_of(packed)
            if remotes is not None:
                self._end.process.run(look_at_remotes(remotes, REMOTE_SOCKET))
                parts = [parts[0], *map(bytes, parts[1:])]  # the socket sends later what the caller may change now
            self._end.process.run(queue.enqueue(parts, deadline))
        finally:
            turn.inside = False
            turn.busy.release()

    def dequeue(self, timeout: float | None = None, cancel: threading.Event | None = None,
                indefinite: bool = False) -> Any:
        """The next object. Waits at most `timeout` seconds (None: until `cancel` is set, shutdown or a death).

        `indefinite` is vLLM's word for "a long wait is no reason to warn"; nothing is logged here either way.
        Raises QueueTimeoutError (nothing was lost), QueueCancelledError, QueueDecodeError (that object was).
        """
        turn = self._turn
        if self._writes or turn.closed or turn.inside or not turn.busy.acquire(False):
            self._take_turn("dequeue", not self._writes)
        try:
            turn.inside = True
            queue, message = self._queue, EMPTY
            if self._from_ring and queue.owed is None and not (timeout and timeout < 0):
                bell = self._readers_bell
                seen = bell.seen()
                message = self._look()
                if message is EMPTY and timeout != 0 and self._glances and bell.glance(seen):
                    seen = bell.seen()
                    message = self._look()
            if message is EMPTY or message is OVERFLOW:
                turn.cancel = cancel
                deadline = self._deadline(timeout)
                if self._from_ring and queue.owed is None:
                    message = self._end.look_on(BELL, seen, self._look, deadline, queue.stats)
                if message is EMPTY or message is OVERFLOW:
                    message = self._end.process.run(queue.dequeue(deadline))
            return message[0] if type(message) is tuple else decode(message)
        finally:
            turn.cancel = None
            turn.inside = False
            turn.busy.release()

    def try_dequeue(self) -> Any:
        """The next object, or `ring.EMPTY`. Raises QueueDecodeError."""
        self._take_turn("try_dequeue", not self._writes)
        try:
            message = self._end.process.run(self._queue.try_dequeue())
            if message is EMPTY:
                return EMPTY
            return message[0] if type(message) is tuple else decode(message)
        finally:
            self._turn.give()

    def broadcast_object(self, obj: Any = None) -> Any:
        """The writer sends `obj`, a reader receives it. -> the object, at both ends"""
        if self._writes:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    # -- what one may ask

    @property
    def name(self) -> str:
        return self._end.name

    @property
    def position(self) -> int:
        """The number of the next object that this end writes or reads, from 0."""
        return self._opened_queue().position

    @property
    def bell_address(self) -> tuple[str, int]:
        """(segment, offset) of the word on which this queue's writer sleeps: the `bell` of the queues that it reads."""
        return writer_bell_of(self.handle)

    def stats(self) -> QueueStats:
        """What this end counted so far, and how many messages lie in the ring."""
        self._turn.take("stats")
        try:
            queue = self._queue
            return msgspec.structs.replace(queue.stats, messages=queue.position, depth=queue.depth())
        finally:
            self._turn.give()

    def check_integrity(self) -> list[str]:
        """Sentences about what is wrong with the ring, empty when all is well."""
        return self._opened_queue().check_integrity()

    def shutdown(self) -> None:
        """End all waits of this end, wake the other ends, release everything. From any thread; safe to repeat."""
        self._end.close()

    def drive_by(self, process: Process, *, bell: str = "", space_bell: str = "") -> Any:
        """Hand this end to a process whose loops will read or write it. -> its `QueueReader` or `QueueWriter`

        The process answers the end's effects from now on: its bells, its sockets and its ring are entered there under
        the queue's name; `bell` and `space_bell` name bells that the process shares among queues. Nobody else may
        use this end any more, but `shutdown` is still its owner's.
        """
        queue = self._queue
        queue.owner = self  # an end is not collected while its queue is in use
        names = self._end.lend(process, bell, space_bell)
        if isinstance(queue, RemoteReader):
            queue.inbox = names[REMOTE_SOCKET]
            return queue
        queue.bell, queue.space_bell = names[BELL], names[SPACE]
        if isinstance(queue, QueueReader):
            queue.overflow_inbox, queue.take = names.get(OVERFLOW_SOCKET), unpack
        else:
            queue.overflow_outbox, queue.remote_outbox = names.get(OVERFLOW_SOCKET), names.get(REMOTE_SOCKET)
        return queue

    def _opened_queue(self) -> Any:
        if self._end.released:
            raise self._turn.over()
        return self._queue

    # -- one operation

    def _take_turn(self, what: str, may: bool) -> None:
        if not may:
            raise QueueError(f"{self.name}: the {'writer' if self._writes else 'reader'} cannot {what}")
        self._turn.take(what)

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None:
            return None
        if not timeout >= 0:
            raise QueueError(f"{self.name}: a time-out of {timeout} seconds; a deadline that is over is 0")
        return self._end.ports.clock.monotonic() + timeout

    # -- waiting

    def _wait_for_room(self, deadline: float | None) -> None:
        end, queue = self._end, self._queue
        free = queue.writer.free
        end.ports.mark(Mark.RING_FULL, ring=end.name)
        seen = end.doorbells[SPACE].seen()
        if not free() and end.look_on(SPACE, seen, lambda: free() or EMPTY, deadline, queue.stats) is EMPTY:
            raise QueueTimeoutError(f"{end.name}: {queue.no_room()}")

    def _look(self) -> Any:
        """-> a message as `take` made it, EMPTY, or OVERFLOW where a payload is owed"""
        queue = self._queue
        reader = queue.reader
        try:
            message = reader.try_read(queue.take)
        except QueueDecodeError:
            self._writers_bell.ring()
            raise
        if message is EMPTY:
            return EMPTY
        if not full_fence() or reader.writer_may_wait():
            self._writers_bell.ring()
        if message is OVERFLOW:
            queue.owe_payload()
            return OVERFLOW
        self._cross(message)
        queue.stats.bytes += message[1] if type(message) is tuple else bytes_of(message)  # a call saved
        return message


def create_ring(process: Process, wanted: CreateRing, bell: tuple[str, int] | None) -> tuple[MessageQueue, QueueWriter]:
    """Answer `CreateRing`: open the writing end with the process's ports and let the process drive it.

    `bell` is that of `wanted.rings`. -> (the end, for its `handle` and for `shutdown`; what its loops write to)
    """
    spec = wanted.spec
    end = MessageQueue(len(spec.readers), len(spec.readers), max_chunk_bytes=spec.max_chunk_bytes,
                       max_chunks=spec.max_chunks, ports=process.ports, spec=spec, name=wanted.name,
                       segment_name=wanted.segment, overflow_address=wanted.overflow_address, bell=bell)
    return end, end.drive_by(process, space_bell=wanted.space_bell)


def open_ring(process: Process, wanted: OpenRing) -> tuple[MessageQueue, QueueReader]:
    """Answer `OpenRing`, as above: the reading end. -> (the end, for `shutdown`; what its loops read from)"""
    handle = msgspec.msgpack.decode(wanted.handle, type=Handle)
    end = MessageQueue.create_from_handle(handle, wanted.rank, ports=process.ports, spec=wanted.spec)
    return end, end.drive_by(process, bell=wanted.bell)

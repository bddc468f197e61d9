"""`MessageQueue`: one writer, many readers, any object; vLLM's names, arguments and memory layout.

Promises
- Every reader gets every object once, in order, also those of at least a chunk, also across time-outs.
- No wait outlives its time-out; a wait without one ends by `cancel`, by `shutdown`, or by the death of the other end,
  with `QueueCancelledError` or its `PeerDeadError`. What was published before a death is handed out first.
- An object that cannot be decoded is a `QueueDecodeError` and counts as read; one that cannot be pickled is pickle's
  own error and was not sent. The queue is usable after either.
- `shutdown` leaves nothing behind; what a killed writer left goes with the next writer's start.
- Bad use (wrong end, foreign rank, second reader of a rank, use after shutdown, negative time-out, two threads at once)
  is an error at once.

    enqueue:  pickle -> try_write -> bell          the fast path, when there is room and nobody records
              otherwise the loop of `queue.QueueWriter`, driven by `engine.shell`
    dequeue:  try_read -> short spin -> try_read   the fast path
              otherwise the loop of `queue.QueueReader`

All that is opened comes from `ports`. Readers on other hosts are refused: their bytes would have to be unpickled from
a network socket.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.effects import Receive
from engine.errors import PeerDeadError, QueueCancelledError, QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc import presence
from engine.ipc.framing import OVERFLOW, decode, encode, is_overflow, pack, unpack, unpack_object
from engine.ipc.queue import READY, QueueReader, QueueWriter
from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from engine.ipc.segment import unlink_segment
from engine.ipc.wait import SPIN_TURNS, SpinThenSleep, WaitStrategy
from engine.ports import Doorbell, Ports, RingSpec
from engine.real_ports import RealPorts
from engine.runtime_dir import RuntimeDir, sweep
from engine.shell import Process
from engine.topology import Channel, core, worker
from engine.wiring import overflow_socket

#: While nothing rings, an end looks this often whether the other one lives and whether it was cancelled.
PEER_CHECK_S = 0.1
#: `wait_until_ready` without a time-out.
READY_BOUND_S = 600.0
#: How long `shutdown` waits for a thread that it has just woken.
LEAVE_S = 5.0

_BELL, _SPACE, _OVERFLOW = "bell", "space", "overflow"


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to open its end: vLLM's fields, then ours. Plain data."""

    local_reader_ranks: list[int] = []
    buffer_handle: tuple[int, int, int, str] | None = None  # n_reader, max_chunk_bytes, max_chunks, segment
    local_subscribe_addr: str | None = None
    local_notify_addr: str | None = None  # vLLM's doorbell; ours is in the segment
    remote_subscribe_addr: str | None = None
    remote_addr_ipv6: bool = False
    ring: str = "ring"
    bell: tuple[str, int] | None = None  # (segment, offset) of the readers' bell where it is not the ring's own


class _WatchedBell:
    """A doorbell that, while nothing rings, looks whether the wait should end."""

    def __init__(self, inner: Doorbell, strategy: WaitStrategy, end: MessageQueue) -> None:
        self._inner = inner
        self._strategy = strategy
        self._end = weakref.proxy(end)
        self._clock = end._ports.clock
        self._checked_at = -PEER_CHECK_S
        self.ring, self.seen, self.close = inner.ring, inner.seen, inner.close

    def wait(self, seen: int, timeout_s: float) -> bool:
        rang = self._strategy.wait(self._inner, seen, min(timeout_s, PEER_CHECK_S))
        if not rang and (now := self._clock.monotonic()) - self._checked_at >= PEER_CHECK_S:
            self._checked_at = now
            self._end._raise_if_over()
        return rang


class MessageQueue:
    """The writing end; `create_from_handle` makes a reading end. One thread at a time uses an end.

    `max_chunk_bytes` times `max_chunks` bytes of shared memory are reserved; objects whose pickle reaches a chunk's
    size are slower. `segment_name` and `overflow_address` (ipc) name what is created; by default the queue names both
    and removes them. `bell` = (segment, offset) lets several queues ring one bell of a common reader, such as
    `bell_address` of the queue that it writes. Raises SpaceError, QueueError.
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
        ports: Ports | None = None,
        spec: RingSpec | None = None,
        name: str = "ring",
        segment_name: str | None = None,
        overflow_address: str | None = None,
        bell: tuple[str, int] | None = None,
        wait: WaitStrategy | None = None,
    ) -> None:
        ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        if n_reader != n_local_reader or connect_ip is not None:
            raise QueueError(f"{name}: {n_reader - n_local_reader} readers are on other hosts; this queue serves "
                             "readers on its own host only")
        if len(set(ranks)) != n_local_reader or len(ranks) != n_local_reader:
            raise QueueError(f"{name}: {n_local_reader} local readers need as many different ranks, got {ranks}")
        spec = spec or RingSpec(channel=Channel.RPC, writer=core(), readers=tuple(worker(r) for r in ranks),
                                max_chunks=max_chunks, max_chunk_bytes=max_chunk_bytes)
        if (len(spec.readers), spec.max_chunks, spec.max_chunk_bytes) != (n_reader, max_chunks, max_chunk_bytes):
            raise QueueError(f"{name}: the ring's spec does not fit {n_reader} readers and {max_chunks} chunks of "
                             f"{max_chunk_bytes} bytes")
        if segment_name is None or overflow_address is None:
            sweep()
            self._runtime = RuntimeDir.create()
            self._remove = weakref.finalize(self, _remove_as, os.getpid(), self._runtime)
            segment_name = segment_name or self._runtime.segment("ring")
            overflow_address = overflow_address or self._runtime.socket("overflow")
        try:
            self._open(spec, segment_name, name, None, bell, ports, wait, create=True)
            self._unlinks = segment_name
            self._add_socket(overflow_address, bind=True)
        except BaseException:
            self.shutdown()
            raise
        self.handle = Handle(
            local_reader_ranks=ranks, buffer_handle=(n_reader, max_chunk_bytes, max_chunks, segment_name),
            local_subscribe_addr=self._process.sockets[_OVERFLOW].address, ring=name, bell=bell)
        self._queue: Any = QueueWriter(name, RingWriter(self._layout, self._memory, self._fence), n_reader,
                                       bell=_BELL, space_bell=_SPACE, overflow_outbox=_OVERFLOW)

    @staticmethod
    def create_from_handle(handle: Handle, rank: int, *, ports: Ports | None = None, spec: RingSpec | None = None,
                           wait: WaitStrategy | None = None) -> MessageQueue:
        """The reading end of `rank`, in any process of the same host.

        Raises QueueError for a rank without a place in this queue or whose place a living process has.
        """
        if rank not in handle.local_reader_ranks or handle.buffer_handle is None:
            raise QueueError(f"{handle.ring}: rank {rank} is not one of its local readers {handle.local_reader_ranks}")
        n_reader, max_chunk_bytes, max_chunks, segment = handle.buffer_handle
        reader = handle.local_reader_ranks.index(rank)
        spec = spec or RingSpec(channel=Channel.RPC, writer=core(),
                                readers=tuple(worker(r) for r in handle.local_reader_ranks),
                                max_chunks=max_chunks, max_chunk_bytes=max_chunk_bytes)
        self = MessageQueue.__new__(MessageQueue)
        self.handle = handle
        try:
            self._open(spec, segment, handle.ring, reader, handle.bell, ports, wait, create=False)
            if handle.local_subscribe_addr:
                self._add_socket(handle.local_subscribe_addr, bind=False)
        except BaseException:
            self.shutdown()
            raise
        self._queue = QueueReader(
            handle.ring, RingReader(self._layout, self._memory, self._fence, reader), bell=_BELL, space_bell=_SPACE,
            overflow_inbox=_OVERFLOW if handle.local_subscribe_addr else None, recheck_s=PEER_CHECK_S,
            take=_take_object if self._unwatched else unpack)
        return self

    # -- vLLM's methods

    def export_handle(self) -> Handle:
        return self.handle

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Writer: until every reader is there, then tells them. Reader: until told.

        Readers that exist are counted: each must live and have subscribed to the overflow socket. Raises
        QueueTimeoutError naming who is missing (None: after READY_BOUND_S), PeerDeadError.
        """
        self._enter("wait_until_ready")
        try:
            deadline = self._deadline(READY_BOUND_S if timeout is None else timeout)
            if self._reader is None:
                self._wait_for_readers(deadline)
            elif self.handle.local_subscribe_addr:
                self._wait_for_writer(deadline)
            self._ready = True
        finally:
            self._busy.release()

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Send an object to all readers. Waits for room at most `timeout` seconds (None: until shutdown or a death).

        Raises QueueTimeoutError or QueueCancelledError with nothing sent, and what pickle raises.
        """
        self._enter("enqueue", reads=False)
        try:
            queue, parts = self._queue, encode(obj)
            if is_overflow(parts, self._layout.max_chunk_bytes):
                if not self._ready:
                    raise QueueError(f"{queue.name}: an object of at least a chunk can be sent after wait_until_ready")
                # ZMQ sends after we return: it gets a copy of what the caller may change meanwhile.
                parts = [parts[0], *map(bytes, parts[1:])]
            elif self._unwatched and not (timeout and timeout < 0) and queue.writer.try_write(pack(parts)):
                self._bells[_BELL].ring()
                return
            self._process.run(queue.enqueue(parts, self._deadline(timeout)))
        finally:
            self._busy.release()

    def dequeue(self, timeout: float | None = None, cancel: threading.Event | None = None,
                indefinite: bool = False) -> Any:
        """The next object. Waits at most `timeout` seconds (None: until `cancel` is set, shutdown or a death).

        `indefinite` is vLLM's word for "a long wait is no reason to warn"; nothing is logged here either way.
        Raises QueueTimeoutError (nothing was lost), QueueCancelledError, QueueDecodeError (that object was).
        """
        self._enter("dequeue", reads=True)
        try:
            deadline = None if timeout is None else self._deadline(timeout)
            message = self._take_at_once(spin=timeout != 0) if self._unwatched else EMPTY
            if message is EMPTY:
                self._cancel = cancel
                try:
                    message = self._process.run(self._queue.dequeue(deadline))
                finally:
                    self._cancel = None
            return message[0] if type(message) is tuple else decode(message)
        finally:
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
            self._busy.release()

    def broadcast_object(self, obj: Any = None) -> Any:
        """The writer sends `obj`, a reader receives it. -> the object, at both ends"""
        if self._reader is None:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    def shutdown(self) -> None:
        """End all waits of this end, wake the other ends, release everything. From any thread; safe to repeat."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._process is not None:
            self._process.cancel(QueueCancelledError(f"{self.name} was shut down"))
            free = self._busy.acquire(timeout=LEAVE_S)
            if self._layout is not None:
                presence.withdraw(self._layout, self._memory, self._reader)
                for bell in self._bells.values():
                    bell.ring()
            if free:
                self._queue = self._memory = None
                self._process.close()
                if self._owns_ports:
                    self._ports.close()
        if self._unlinks is not None:
            unlink_segment(self._unlinks)
        if self._runtime is not None:
            self._remove()

    # -- what else one may ask

    @property
    def name(self) -> str:
        return self._name

    @property
    def position(self) -> int:
        """The number of the next object that this end writes or reads, from 0."""
        return self._queue.position

    @property
    def bell_address(self) -> tuple[str, int]:
        """(segment, offset) of the word on which this queue's writer sleeps: the `bell` of the queues that it reads."""
        return self.handle.buffer_handle[3], self._layout.writer_bell_offset

    def drive_by(self, process: Process, *, bell: str = "", space_bell: str = "") -> Any:
        """Hand this end to a process whose loops will read or write it. -> its `QueueReader` or `QueueWriter`

        The process answers the end's effects from now on: its bells, its socket and its ring are entered there under
        the queue's name; `bell` and `space_bell` name bells that the process shares among queues. Nobody else may
        use this end any more, but `shutdown` is still its owner's.
        """
        queue, name = self._queue, self._name
        for attribute, shared, own in (("bell", bell, _BELL), ("space_bell", space_bell, _SPACE)):
            key = shared or f"{name}.{own}"
            if key not in process.bells:
                process.add_bell(key, self._doorbells[own])
            setattr(queue, attribute, key)
        process.rings[name] = self._process.rings[name]
        if _OVERFLOW in self._process.sockets:
            process.sockets[f"{name}.{_OVERFLOW}"] = self._process.sockets[_OVERFLOW]
            setattr(queue, "overflow_outbox" if self._reader is None else "overflow_inbox", f"{name}.{_OVERFLOW}")
        if self._reader is not None:
            queue._take = unpack
        return queue

    def check_integrity(self) -> list[str]:
        """Sentences about what is wrong with the ring, empty when all is well."""
        end = self._queue
        return (end.writer if self._reader is None else end.reader).check_integrity()

    # -- opening

    def __new__(cls, *_: Any, **__: Any) -> MessageQueue:
        """Both ends begin here, so that `shutdown` finds its way from any half-opened state."""
        self = super().__new__(cls)
        self._busy, self._closing = threading.Lock(), threading.Lock()
        self._closed = self._ready = self._owns_ports = False
        self._process: Process | None = None
        self._layout: RingLayout | None = None
        self._runtime: RuntimeDir | None = None
        self._unlinks: str | None = None
        self._cancel: threading.Event | None = None
        self._bells: dict[str, Doorbell] = {}
        return self

    def _open(self, spec: RingSpec, segment: str, name: str, reader: int | None, bell: tuple[str, int] | None,
              ports: Ports | None, wait: WaitStrategy | None, *, create: bool) -> None:
        self._name, self._reader = name, reader
        self._owns_ports = ports is None
        self._ports = ports or RealPorts(spec.writer if reader is None else spec.readers[reader])
        self._unwatched = getattr(type(self._ports), "ring_crossing", None) is RealPorts.ring_crossing
        self._process = Process(self._ports)
        opened = (self._ports.create_ring if create else self._ports.attach_ring)(spec, segment)
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        if len(opened.memory) < layout.vllm_bytes:
            raise QueueError(f"{name}: segment {segment!r} has {len(opened.memory)} bytes, too few for its ring")
        if len(opened.memory) < layout.total_bytes:
            raise QueueError(f"{name}: segment {segment!r} has no bells; its writer is of another kind")
        self._memory, self._fence = opened.memory, opened.fence
        if reader is not None and presence.state(layout, self._memory, reader) == "alive":
            raise QueueError(f"{name}: reader {reader} is there already")
        presence.announce(layout, self._memory, reader)
        self._layout = layout
        strategy = wait or SpinThenSleep()
        self._spin = SPIN_TURNS if isinstance(strategy, SpinThenSleep) else 0
        where, offset = self._memory, layout.readers_bell_offset
        if bell is not None:
            where, offset = self._ports.attach_ring(spec, bell[0]).memory, bell[1]
        self._bells = self._doorbells = {
            _BELL: self._ports.doorbell(f"{name}.{_BELL}", where, offset),
            _SPACE: self._ports.doorbell(f"{name}.{_SPACE}", self._memory, layout.writer_bell_offset),
        }
        for key, doorbell in self._bells.items():
            self._process.add_bell(key, _WatchedBell(doorbell, strategy, self))
        self._process.rings[name] = spec

    def _add_socket(self, address: str, *, bind: bool) -> None:
        spec = self._process.rings[self._name]
        self._process.sockets[_OVERFLOW] = self._ports.open_socket(
            overflow_socket(spec, address, f"{self._name}.{_OVERFLOW}", writer=bind))

    # -- waiting

    def _enter(self, what: str, reads: bool | None = None) -> None:
        """Take this end for one operation; `self._busy.release()` ends it. (A context manager would cost 1 us.)"""
        if reads is not None and reads is (self._reader is None):
            raise QueueError(f"{self._name}: the {'writer' if reads else 'reader'} cannot {what}")
        if not self._busy.acquire(False):
            if self._closed:
                raise QueueCancelledError(f"{self._name} was shut down")
            raise QueueError(f"{self._name}: {what} while another thread uses this end")
        if self._closed:
            self._busy.release()
            raise QueueCancelledError(f"{self._name} was shut down")

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None:
            return None
        if timeout < 0:
            raise QueueError(f"{self._name}: a time-out of {timeout} seconds; a deadline that is over is 0")
        return self._ports.clock.monotonic() + timeout

    def _take_at_once(self, spin: bool) -> Any:
        """The fast path of a reader: what is there, or comes while it pays to spin."""
        queue, bell = self._queue, self._bells[_BELL]
        if queue.owed is not None:
            return EMPTY
        try:
            seen = bell.seen()
            message = queue.reader.try_read(_take_object)
            if message is EMPTY and spin:
                for _ in range(self._spin):
                    if bell.seen() != seen:
                        message = queue.reader.try_read(_take_object)
                        break
                    os.sched_yield()
        except QueueDecodeError:
            self._bells[_SPACE].ring()
            raise
        if message is EMPTY:
            return EMPTY
        self._bells[_SPACE].ring()
        if message is OVERFLOW:
            queue.owe_payload()
            return EMPTY
        return message

    def _raise_if_over(self) -> None:
        """Ends a wait: cancelled by its caller, or the other end is gone."""
        if self._cancel is not None and self._cancel.is_set():
            raise QueueCancelledError(f"{self._name}: the wait was cancelled")
        others = range(self._layout.n_reader) if self._reader is None else (None,)
        for other in others:
            state = presence.state(self._layout, self._memory, other)
            if state in ("dead", "left"):
                who = "the writer" if other is None else f"the reader of rank {self.handle.local_reader_ranks[other]}"
                raise PeerDeadError(f"{self._name}: {who} {'has died' if state == 'dead' else 'was shut down'}")

    def _wait_for_readers(self, deadline: float) -> None:
        subscribed, count = 0, self._layout.n_reader
        while True:
            self._raise_if_over()
            states = [presence.state(self._layout, self._memory, k) for k in range(count)]
            missing = [self.handle.local_reader_ranks[k] for k in range(count) if states[k] != "alive"]
            if subscribed >= count and (not missing or set(states) == {"unknown"}):  # vLLM's readers only subscribe
                self._process.sockets[_OVERFLOW].send([READY])
                return
            arrived = self._receive(deadline)
            if arrived is not None:
                subscribed += bytes(arrived[0][:1]) == b"\x01"
            elif self._ports.clock.monotonic() >= deadline:
                raise QueueTimeoutError(f"{self._name}: {len(missing)} of {count} readers did not come, ranks "
                                        f"{missing}; {subscribed} have subscribed")

    def _wait_for_writer(self, deadline: float) -> None:
        while (arrived := self._receive(deadline)) != [READY]:
            if arrived is not None:
                self._queue.keep_payload(arrived)
                continue
            self._raise_if_over()
            if self._ports.clock.monotonic() >= deadline:
                raise QueueTimeoutError(f"{self._name}: the writer did not say that all readers are there")

    def _receive(self, deadline: float) -> list[Any] | None:
        until = min(deadline, self._ports.clock.monotonic() + PEER_CHECK_S)

        def loop():
            return (yield Receive((_OVERFLOW,), until))

        arrived = self._process.run(loop())
        return None if arrived is None else arrived[2]


def _take_object(view: Any) -> Any:
    """A one-tuple of the decoded object (any object, so it needs a wrapping), or OVERFLOW."""
    found = unpack_object(view)
    return OVERFLOW if found is OVERFLOW else (found,)


def _remove_as(pid: int, runtime: RuntimeDir) -> None:
    if os.getpid() == pid:  # a forked child that drops its copy removes nothing
        runtime.remove()

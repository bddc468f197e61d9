"""One end of a `MessageQueue`: opened from any half-opened state, entered by one thread at a time, ended from any.

Promises
- A wait ends when the other end has died or left, when it is cancelled, and when this end is shut down.
- `shutdown` releases all that was opened, in whatever state it finds the end. An end that is dropped without it does
  the same when it is collected, by whichever thread.

All that is opened comes from `ports`. Which methods an end has to offer is `message_queue`'s matter.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

import msgspec

from engine.effects import Receive
from engine.errors import PeerDeadError, QueueCancelledError, QueueError
from engine.ipc import presence
from engine.ipc.buffers import ReceiveBuffers
from engine.ipc.framing import unpack
from engine.ipc.handle import Handle
from engine.ipc.notify import NotifiedBell, NotifyingBell, NotifySocket
from engine.ipc.ready import OVERFLOW_SOCKET, REMOTE_SOCKET, LocalReaders
from engine.ipc.remote import BYE, NoBell, RemoteReader, RemoteReaders, topic_of
from engine.ipc.ring import RingLayout
from engine.ipc.segment import unlink_segment
from engine.ipc.spill import SpillReader, SpillWriter
from engine.ipc.stats import QueueStats
from engine.ipc.wait import SpinThenSleep, WaitStrategy
from engine.ports import Doorbell, Ports, RingSpec, Unroutable
from engine.process.real_ports import RealPorts
from engine.process.runtime_dir import RuntimeDir
from engine.process.shell import Process
from engine.wire.wiring import notify_socket, overflow_socket

#: While nothing rings, an end looks this often whether the other one lives and whether it was cancelled.
PEER_CHECK_S = 0.1
#: How long `shutdown` waits for a thread that it has just woken.
LEAVE_S = 5.0

BELL, SPACE = "bell", "space"

_WENT = {"dead": "has died", "left": "was shut down"}


class _WatchedBell:
    """A doorbell that, while nothing rings, looks whether the wait should end."""

    def __init__(self, inner: Doorbell, strategy: WaitStrategy, end: QueueEnd) -> None:
        self._inner = inner
        self._strategy = strategy
        self._end = weakref.proxy(end)
        self._clock = end._ports.clock
        self._checked_at = -PEER_CHECK_S
        self.ring, self.seen, self.close = inner.ring, inner.seen, inner.close

    def wait(self, seen: int, timeout_s: float) -> bool:
        rang = self._strategy.wait(self._inner, seen, min(timeout_s, PEER_CHECK_S))
        if (now := self._clock.monotonic()) - self._checked_at >= PEER_CHECK_S:
            self._checked_at = now
            self._end._raise_if_over()
        return rang


class QueueEnd:
    """See `message_queue.MessageQueue`."""

    handle: Handle

    def __new__(cls, *_: Any, **__: Any) -> QueueEnd:
        """Both ends begin here, so that `shutdown` finds its way from any half-opened state."""
        self = super().__new__(cls)
        #: A lock that its thread may take again: an exception out of a signal handler may come just after it was taken.
        self._busy, self._closing = threading.RLock(), threading.Lock()
        self._closed = self._ready = self._owns_ports = self._writes = False
        self._direct = self._glances = self._inside = False
        self._why_closed = "was shut down"
        self._process: Process | None = None
        self._layout: RingLayout | None = None
        self._runtime: RuntimeDir | None = None
        self._remotes: RemoteReaders | None = None
        self._subscribers = LocalReaders()
        self._reader: int | None = None
        self._queue: Any = None
        self._memory: Any = None
        self._unlinks: str | None = None
        self._remove: Any = None
        self._dropped: Any = None
        self._cancel: threading.Event | None = None
        self._bells: dict[str, Doorbell] = {}  # what is rung
        self._doorbells: dict[str, Any] = {}  # what lies in shared memory
        self._checked_at = 0.0
        _ENDS.add(self)
        return self

    # -- opening

    def _begin(self, name: str, ports: Ports | None, node: Any, wait: WaitStrategy | None, *, writes: bool) -> None:
        self._name, self._writes = name, writes
        self._owns_ports = ports is None
        self._ports = ports or RealPorts(node)
        self._unwatched = getattr(type(self._ports), "ring_crossing", None) is RealPorts.ring_crossing
        self._process = Process(self._ports)
        self._strategy = wait or SpinThenSleep()
        self._buffers = ReceiveBuffers()

    def _open_ring(self, spec: RingSpec, segment: str, reader: int | None, bell: tuple[str, int] | None,
                   epoch: int, notify: str | None) -> None:
        """The segment, created by the writer (reader None), and its bells."""
        name, self._reader = self._name, reader
        notifies = isinstance(self._strategy, NotifySocket)
        if notifies and notify is None:
            raise QueueError(f"{name}: its writer publishes no notices; open it with wait=NotifySocket(), too")
        if notifies and not self._unwatched:
            raise QueueError(f"{name}: a notify socket is no site of a fault plan; choose another way to wait")
        opened = (self._ports.create_ring if self._writes else self._ports.attach_ring)(spec, segment)
        if self._writes:
            self._unlinks = segment
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        if len(opened.memory) < layout.vllm_bytes:
            raise QueueError(f"{name}: segment {segment!r} has {len(opened.memory)} bytes, too few for its ring")
        if len(opened.memory) < layout.total_bytes:
            raise QueueError(f"{name}: segment {segment!r} has no bells; its writer is of another kind")
        self._memory, self._fence = opened.memory, opened.fence
        if self._writes:
            self._memory[layout.epoch] = epoch.to_bytes(8, "little")
        elif epoch and int.from_bytes(bytes(self._memory[layout.epoch]), "little") != epoch:
            raise QueueError(f"{name}: segment {segment!r} belongs to another queue than this handle")
        if reader is not None and (before := presence.state(layout, self._memory, reader)) != "unknown":
            raise QueueError(f"{name}: reader {reader} is there already" if before == "alive" else
                             f"{name}: reader {reader} was there before and {_WENT[before]}; who came in its place "
                             "would begin in the middle")
        presence.announce(layout, self._memory, reader)
        self._layout = layout
        where, offset = self._memory, layout.readers_bell_offset
        if bell is not None:
            where, offset = self._ports.attach_ring(spec, bell[0]).memory, bell[1]
        self._bells = self._doorbells = {
            BELL: self._ports.doorbell(f"{name}.{BELL}", where, offset),
            SPACE: self._ports.doorbell(f"{name}.{SPACE}", self._memory, layout.writer_bell_offset),
        }
        if notifies:
            self._open_notify(spec, notify)
        for key, doorbell in self._bells.items():
            self._process.add_bell(key, _WatchedBell(doorbell, self._strategy, self))
        self._process.rings[name] = spec

    def _open_no_ring(self, spec: RingSpec) -> None:
        self._bells = self._doorbells = {BELL: NoBell(), SPACE: NoBell()}
        for key, bell in self._bells.items():
            self._process.add_bell(key, _WatchedBell(bell, self._strategy, self))
        self._process.rings[self._name] = spec

    def _open_notify(self, spec: RingSpec, address: str) -> None:
        socket = self._ports.open_socket(notify_socket(spec, address, f"{self._name}.notify", writer=self._writes))
        if self._writes:
            self._bells = self._doorbells | {BELL: NotifyingBell(self._doorbells[BELL], socket)}
        else:
            self._doorbells[BELL] = NotifiedBell(self._doorbells[BELL], socket, PEER_CHECK_S)

    def _open_overflow(self, address: str, segment: str) -> None:
        spec, layout, prefix = self._process.rings[self._name], self._layout, f"{segment}-spill"
        wanted = overflow_socket(spec, address, f"{self._name}.{OVERFLOW_SOCKET}", writer=self._writes)
        if not self._writes:
            wanted = msgspec.structs.replace(wanted, more_topics=(topic_of(self._reader),))
        inner = self._ports.open_socket(wanted)
        self._process.sockets[OVERFLOW_SOCKET] = (
            SpillWriter(inner, prefix, layout.n_reader, layout.max_chunks,
                        presence.all_known(layout, self._memory)) if self._writes
            else SpillReader(inner, prefix, layout.n_reader, self._reader, self._buffers.own))

    def _opened(self) -> None:
        """From here on the end may be dropped. (Its sockets' context, collected with them, would wait for them.)"""
        self._dropped = weakref.finalize(
            self, _drop, os.getpid(), self._process, self._ports if self._owns_ports else None, self._layout,
            self._memory, self._reader, self._doorbells, self._unlinks)
        self._dropped.atexit = False

    # -- what one may ask

    @property
    def name(self) -> str:
        return self._name

    @property
    def position(self) -> int:
        """The number of the next object that this end writes or reads, from 0."""
        return self._opened_queue().position

    @property
    def bell_address(self) -> tuple[str, int]:
        """(segment, offset) of the word on which this queue's writer sleeps: the `bell` of the queues that it reads."""
        if self._layout is None:
            raise QueueError(f"{self._name}: a queue without local readers has no bell in shared memory")
        return self.handle.buffer_handle[3], self._layout.writer_bell_offset

    def stats(self) -> QueueStats:
        """What this end counted so far, and how many messages lie in the ring."""
        self._enter("stats")
        try:
            queue = self._queue
            return msgspec.structs.replace(queue.stats, messages=queue.position, depth=queue.depth())
        finally:
            self._leave()

    def check_integrity(self) -> list[str]:
        """Sentences about what is wrong with the ring, empty when all is well."""
        queue = self._opened_queue()
        return getattr(queue, "writer", None if self._writes else getattr(queue, "reader", queue)).check_integrity()

    def _opened_queue(self) -> Any:
        queue = self._queue
        if queue is None:
            raise self._over()
        return queue

    def _over(self) -> QueueCancelledError:
        return QueueCancelledError(f"{self._name} {self._why_closed}")

    def drive_by(self, process: Process, *, bell: str = "", space_bell: str = "") -> Any:
        """Hand this end to a process whose loops will read or write it. -> its `QueueReader` or `QueueWriter`

        The process answers the end's effects from now on: its bells, its sockets and its ring are entered there under
        the queue's name; `bell` and `space_bell` name bells that the process shares among queues. Nobody else may
        use this end any more, but `shutdown` is still its owner's.
        """
        queue, name = self._queue, self._name
        queue.driven = self  # an end is not collected while its queue is in use
        process.rings[name] = self._process.rings[name]
        for socket in self._process.sockets:
            process.sockets[f"{name}.{socket}"] = self._process.sockets[socket]
        if isinstance(queue, RemoteReader):
            queue.inbox = f"{name}.{REMOTE_SOCKET}"
            return queue
        for attribute, shared, own in (("bell", bell, BELL), ("space_bell", space_bell, SPACE)):
            key = shared or f"{name}.{own}"
            if key not in process.bells:
                process.add_bell(key, self._bells[own])
            setattr(queue, attribute, key)
        if OVERFLOW_SOCKET in self._process.sockets:
            setattr(queue, "overflow_outbox" if self._writes else "overflow_inbox", f"{name}.{OVERFLOW_SOCKET}")
        if self._remotes is not None:
            queue.remote_outbox = f"{name}.{REMOTE_SOCKET}"
        if not self._writes:
            queue._take = unpack
        return queue

    # -- one operation

    def _enter(self, what: str, reads: bool | None = None) -> None:
        """Take this end for one operation, which `_leave` ends. (A context manager would cost 1 us.)"""
        if reads is not None and reads is self._writes:
            raise QueueError(f"{self._name}: the {'writer' if reads else 'reader'} cannot {what}")
        if not self._busy.acquire(False):
            raise self._over() if self._closed else QueueError(
                f"{self._name}: {what} while another thread uses this end")
        if self._closed or self._inside:
            self._busy.release()
            raise self._over() if self._closed else QueueError(
                f"{self._name}: {what} while this thread uses the same end, from a signal handler")
        self._inside = True

    def _leave(self) -> None:
        self._inside = False
        self._busy.release()

    def _deadline(self, timeout: float | None) -> float | None:
        if timeout is None:
            return None
        if not timeout >= 0:
            raise QueueError(f"{self._name}: a time-out of {timeout} seconds; a deadline that is over is 0")
        return self._ports.clock.monotonic() + timeout

    def _raise_if_over(self) -> None:
        """Ends a wait: cancelled by its caller, or the other end is gone."""
        if self._cancel is not None and self._cancel.is_set():
            raise QueueCancelledError(f"{self._name}: the wait was cancelled")
        if self._remotes is not None:
            self._look_at_remotes()
        if self._layout is None:
            if not self._writes:
                self._raise_if_remote_writer_is_gone()
            return
        for other in range(self._layout.n_reader) if self._writes else (None,):
            state = presence.state(self._layout, self._memory, other)
            if state in ("dead", "left"):
                who = "the writer" if other is None else f"the reader of rank {self.handle.local_reader_ranks[other]}"
                raise PeerDeadError(f"{self._name}: {who} {_WENT[state]}")

    def _look_at_remotes(self) -> None:
        socket = self._process.sockets[REMOTE_SOCKET]
        while (arrived := socket.try_receive()) is not None:
            self._note_remote(arrived[1][0])
        self._remotes.check()

    def _note_remote(self, frame: Any) -> None:
        for refusal in self._remotes.note(frame):
            with contextlib.suppress(Unroutable):  # so many messages wait that it will find no READY either
                self._process.sockets[REMOTE_SOCKET].send([refusal])

    def _raise_if_remote_writer_is_gone(self) -> None:
        if self._queue.ended:
            raise PeerDeadError(f"{self._name}: the writer was shut down")
        lost = getattr(self._process.sockets[REMOTE_SOCKET], "lost_peer", None)
        if lost is not None and lost():
            raise PeerDeadError(f"{self._name}: the connection to the writer at {self.handle.remote_subscribe_addr} "
                                "has ended, or did not authenticate")

    def _receive(self, socket: str, deadline: float) -> list[Any] | None:
        """The next frames at this socket, or None by the deadline or the next look at the peers."""
        until = min(deadline, self._ports.clock.monotonic() + PEER_CHECK_S)

        def loop():
            return (yield Receive((socket,), until))

        arrived = self._process.run(loop())
        return None if arrived is None else arrived[2]

    # -- the end

    def shutdown(self) -> None:
        """End all waits of this end, wake the other ends, release everything. From any thread; safe to repeat."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        free = True
        if self._process is not None:
            self._process.cancel(self._over())
            free = self._busy.acquire(timeout=LEAVE_S)
            if free and self._inside:  # out of a signal handler: what it interrupted ends by the cancellation
                self._busy.release()
                free = False
            if self._layout is not None:
                presence.withdraw(self._layout, self._memory, self._reader)
                for bell in self._doorbells.values():  # their sockets may be in use
                    bell.ring()
            if free:
                if self._remotes is not None and self._ready:
                    with contextlib.suppress(Unroutable):  # they will see that the connection ends
                        self._process.sockets[REMOTE_SOCKET].send([BYE])
                self._queue = self._memory = None
                self._process.close()
                if self._owns_ports:
                    self._ports.close()
        if free and self._dropped is not None:  # else what is left is given back when the end is collected
            self._dropped.detach()
        if self._unlinks is not None:
            unlink_segment(self._unlinks)
        if self._remove is not None:
            self._remove()

    def _inherited(self) -> None:
        """This is a forked child's copy: its parent's end goes on, and nothing of it may be touched from here."""
        self._closed, self._why_closed = True, "belongs to the process that opened it; open an end of your own"


#: All ends of this process.
_ENDS: weakref.WeakSet[QueueEnd] = weakref.WeakSet()


def _after_fork() -> None:
    for end in list(_ENDS):
        end._inherited()


os.register_at_fork(after_in_child=_after_fork)


def _drop(pid: int, process: Process, ports: Ports | None, layout: RingLayout | None, memory: Any, reader: int | None,
          bells: dict[str, Doorbell], unlinks: str | None) -> None:
    """Nobody can use this end any more."""
    if os.getpid() != pid:  # a forked child's copy
        return
    if layout is not None:
        presence.withdraw(layout, memory, reader)
        for bell in bells.values():
            bell.ring()
    process.close()
    if ports is not None:
        ports.close()
    if unlinks is not None:
        unlink_segment(unlinks)

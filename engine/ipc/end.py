"""What one end of a `MessageQueue` has open, whose turn it is, and how it ends.

Promises
- One thread at a time uses an end; `close` comes from any, in whatever state it finds the end, and releases all that
  was opened. So does `drop`, when the end is collected by whichever thread.
- A wait ends when the other end has died or left, when it is cancelled, and when this end is closed.

All that is opened comes from `ports`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.errors import PeerDeadError, QueueCancelledError, QueueError
from engine.ipc import remote
from engine.ipc.framing import ReceiveBuffers
from engine.ipc.handle import QueueStats
from engine.ipc.notify import NotifiedBell, NotifyingBell, NotifySocket
from engine.ipc.presence import ALIVE, PEER_CHECK_S, UNKNOWN, WENT, Presence, RemoteReaders
from engine.ipc.readiness import look_at_remotes
from engine.ipc.remote import BYE, NoBell
from engine.ipc.ring import EMPTY, RingLayout
from engine.ipc.segment import unlink_segment
from engine.ipc.spill import SpillReader, SpillWriter
from engine.ipc.wait import SpinThenSleep, WaitStrategy
from engine.ports import Doorbell, Ports, RingSpec, SocketSpec, Told, Unroutable
from engine.process.identity import own_identity
from engine.process.real_ports import RealPorts
from engine.process.runtime_dir import RuntimeDir
from engine.process.shell import Process
from engine.wire.wiring import notify_socket, overflow_socket

#: How long `close` waits for a thread that it has just woken.
LEAVE_S = 5.0

BELL, SPACE = "bell", "space"
OVERFLOW_SOCKET, REMOTE_SOCKET = "overflow", "remote"


class Turn:
    """Whose turn an end is. A thread takes it for one operation; closed, nobody gets it any more."""

    __slots__ = ("_name", "_why", "busy", "cancel", "closed", "inside")  # little to touch after a long sleep

    def __init__(self, name: str) -> None:
        self._name = name
        #: A lock that its thread may take again: an exception out of a signal handler may come just after it was taken.
        self.busy = threading.RLock()
        self.inside = self.closed = False
        #: By which whoever is inside may be told to stop.
        self.cancel: threading.Event | None = None
        self._why = "was shut down"

    def take(self, what: str) -> None:
        """For one operation, which `give` ends. Raises QueueError where another one has not ended."""
        if not self.busy.acquire(False):
            raise self.over() if self.closed else QueueError(f"{self._name}: {what} while another thread uses this end")
        if self.closed or self.inside:
            self.busy.release()
            raise self.over() if self.closed else QueueError(
                f"{self._name}: {what} while this thread uses the same end, from a signal handler")
        self.inside = True

    def give(self) -> None:
        self.inside = False
        self.busy.release()

    def close(self, why: str = "was shut down") -> None:
        self.closed, self._why = True, why

    def take_to_end(self) -> bool:
        """After the end's waits were ended: wait for whoever is inside. -> whether nobody is"""
        free = self.busy.acquire(timeout=LEAVE_S)
        if free and self.inside:  # out of a signal handler: what it interrupted ends by the cancellation
            self.busy.release()
            free = False
        return free

    def over(self) -> QueueCancelledError:
        return QueueCancelledError(f"{self._name} {self._why}")


class _CheckedBell:
    """A doorbell that, while nothing rings, looks whether the wait should end."""

    def __init__(self, inner: Doorbell, strategy: WaitStrategy, end: QueueEnd) -> None:
        self._inner, self._strategy, self._end = inner, strategy, end
        self._clock = end.ports.clock
        self._checked_at = -PEER_CHECK_S
        self.ring, self.seen, self.close = inner.ring, inner.seen, inner.close

    def wait(self, seen: int, timeout_s: float) -> bool:
        rang = self._strategy.wait(self._inner, seen, min(timeout_s, PEER_CHECK_S))
        if (now := self._clock.monotonic()) - self._checked_at >= PEER_CHECK_S:
            self._checked_at = now
            self._end.check()
        return rang


class QueueEnd:
    """Opened step by step; what is not there yet is None.

    It does not know its queue: whoever reads or writes that keeps this open, not the other way round.
    """

    def __init__(self, name: str, ports: Ports | None, node: Any, wait: WaitStrategy | None, *, writes: bool) -> None:
        self.name, self.writes = name, writes
        self.turn = Turn(name)
        self.owns_ports = ports is None
        self.ports: Any = ports or RealPorts(node)
        self.process = Process(self.ports)
        self.strategy = wait or SpinThenSleep()
        self.buffers = ReceiveBuffers()
        self.layout: RingLayout | None = None
        self.memory: Any = None
        self.fence: Any = None
        self.presence: Presence | None = None
        self.remotes: RemoteReaders | None = None
        self.bells: dict[str, Doorbell] = {}  # what is rung
        self.doorbells: dict[str, Any] = {}  # what lies in shared memory
        #: Is told of each wait: see `Ports.ring_writer`.
        self.waited: Told = bool
        self.ready = self.released = False
        self._reader: int | None = None
        self._checked_at = 0.0
        self._removes: RuntimeDir | None = None
        self._unlinks: str | None = None
        self._closing = threading.Lock()
        self._pid = os.getpid()
        _ENDS.add(self)

    # -- opening

    def open_ring(self, spec: RingSpec, segment: str, ranks: Sequence[int], reader: int | None,
                  bell: tuple[str, int] | None, epoch: int, notify: str | None) -> None:
        """The segment, created by the writer (reader None), and its bells."""
        name = self.name
        notifies = isinstance(self.strategy, NotifySocket)
        if notifies and notify is None:
            raise QueueError(f"{name}: its writer publishes no notices; open it with wait=NotifySocket(), too")
        opened = (self.ports.create_ring if self.writes else self.ports.attach_ring)(spec, segment)
        if self.writes:
            self._unlinks = segment
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        if len(opened.memory) < layout.vllm_bytes:
            raise QueueError(f"{name}: segment {segment!r} has {len(opened.memory)} bytes, too few for its ring")
        if len(opened.memory) < layout.total_bytes:
            raise QueueError(f"{name}: segment {segment!r} has no bells; its writer is of another kind")
        memory, self.fence = opened.memory, opened.fence
        if self.writes:
            memory[layout.epoch] = epoch.to_bytes(8, "little")
        elif epoch and int.from_bytes(bytes(memory[layout.epoch]), "little") != epoch:
            raise QueueError(f"{name}: segment {segment!r} belongs to another queue than this handle")
        presence = Presence(name, layout, memory, ranks, reader)
        if reader is not None and (before := self.process.run(presence.state(reader))) != UNKNOWN:
            raise QueueError(f"{name}: reader {reader} is there already" if before == ALIVE else
                             f"{name}: reader {reader} was there before and {WENT[before]}; who came in its place "
                             "would begin in the middle")
        self.layout, self.memory, self._reader = layout, memory, reader
        where, offset = memory, layout.readers_bell_offset
        if bell is not None:
            where, offset = self.ports.attach_ring(spec, bell[0]).memory, bell[1]
        self.bells = self.doorbells = {
            BELL: self.ports.doorbell(f"{name}.{BELL}", where, offset),
            SPACE: self.ports.doorbell(f"{name}.{SPACE}", memory, layout.writer_bell_offset),
        }
        presence.announce(own_identity())
        self.presence = presence
        if notify is not None and notifies:
            self._open_notify(spec, notify)
        self._enter_bells(spec)

    def open_no_ring(self, spec: RingSpec) -> None:
        self.bells = self.doorbells = {BELL: NoBell(), SPACE: NoBell()}
        self._enter_bells(spec)

    def open_overflow(self, address: str, segment: str) -> str:
        """-> the address where it is bound"""
        layout, presence, prefix = self.layout, self.presence, f"{segment}-spill"
        assert layout is not None and presence is not None
        wanted = overflow_socket(self.spec, address, f"{self.name}.{OVERFLOW_SOCKET}", writer=self.writes)
        if self._reader is None:
            inner = self.ports.open_socket(wanted)
            self.process.sockets[OVERFLOW_SOCKET] = SpillWriter(
                inner, prefix, layout.n_reader, layout.max_chunks, presence.all_known)
        else:
            inner = self.ports.open_socket(msgspec.structs.replace(
                wanted, more_topics=(remote.topic_of(self._reader),)))
            self.process.sockets[OVERFLOW_SOCKET] = SpillReader(
                inner, prefix, layout.n_reader, self._reader, self.buffers.own)
        return str(inner.address)

    def open_remote(self, wanted: SocketSpec, remotes: RemoteReaders | None = None) -> str:
        """The socket to readers, or to the writer, on another host. -> the address where it is bound"""
        socket = self.process.sockets[REMOTE_SOCKET] = self.ports.open_socket(wanted)
        self.remotes = remotes
        return str(socket.address)

    def make_room(self) -> RuntimeDir:
        """A directory and names of its own, which go with this end."""
        self._removes = RuntimeDir.create()
        return self._removes

    @property
    def spec(self) -> RingSpec:
        return self.process.rings[self.name]

    def _open_notify(self, spec: RingSpec, address: str) -> None:
        socket = self.ports.open_socket(notify_socket(spec, address, f"{self.name}.notify", writer=self.writes))
        if self.writes:
            self.bells = self.doorbells | {BELL: NotifyingBell(self.doorbells[BELL], socket)}
        else:
            self.doorbells[BELL] = NotifiedBell(self.doorbells[BELL], socket, PEER_CHECK_S)

    def _enter_bells(self, spec: RingSpec) -> None:
        for key, bell in self.bells.items():
            self.process.add_bell(key, _CheckedBell(bell, self.strategy, self))
        self.process.rings[self.name] = spec

    # -- while it is open

    def check(self) -> None:
        """Ends a wait: this end was closed, it was cancelled by its caller, or the other end is gone."""
        if self.turn.closed:
            raise self.turn.over()
        if self.turn.cancel is not None and self.turn.cancel.is_set():
            raise QueueCancelledError(f"{self.name}: the wait was cancelled")
        if self.remotes is not None:
            self.process.run(look_at_remotes(self.remotes, REMOTE_SOCKET))
        if self.presence is not None:
            self.process.run(self.presence.check())
        elif not self.writes:
            self._check_connection()

    def _check_connection(self) -> None:
        socket: Any = self.process.sockets[REMOTE_SOCKET]
        if socket.lost_peer():
            raise PeerDeadError(f"{self.name}: the connection to the writer at {socket.address} has ended, or did not "
                                "authenticate")

    def look_on(self, key: str, seen: int, look: Callable[[], Any], deadline: float | None, stats: QueueStats) -> Any:
        """Wait for that bell and look, and tell the judges. -> what was found, or EMPTY at the deadline

        Raises QueueCancelledError as `check` does, and when this end was closed, after a last look that found nothing.
        """
        bell, monotonic, found, outcome = self.doorbells[key], self.ports.clock.monotonic, EMPTY, "timeout"
        turn, wait = self.turn, self.strategy.wait
        error: QueueCancelledError | None = None
        began = now = monotonic()
        if deadline is not None and now >= deadline:
            return EMPTY
        try:
            while found is EMPTY and error is None and (deadline is None or now < deadline):
                if now - self._checked_at >= PEER_CHECK_S or turn.closed or (
                        turn.cancel is not None and turn.cancel.is_set()):
                    self._checked_at = now
                    try:
                        self.check()
                    except QueueCancelledError as reason:
                        outcome, error = ("peer-dead" if isinstance(reason, PeerDeadError) else "cancelled"), reason
                if error is None:
                    wait(bell, seen, PEER_CHECK_S if deadline is None else min(deadline - now, PEER_CHECK_S))
                    seen = bell.seen()
                found = look()
                now = monotonic()
        finally:
            stats.waited(now - began)
        self.waited((began, deadline, now, "ok" if found is not EMPTY else outcome))
        if error is not None and found is EMPTY:
            raise error
        return found

    def lend(self, process: Process, bell: str, space_bell: str) -> dict[str, str]:
        """Enter what is open in another process, under this queue's name. -> what each thing is called there"""
        process.rings[self.name] = self.spec
        names = {key: f"{self.name}.{key}" for key in (*self.bells, *self.process.sockets)}
        names |= {key: shared for key, shared in ((BELL, bell), (SPACE, space_bell)) if shared}
        for key, socket in self.process.sockets.items():
            process.sockets[names[key]] = socket
        for key, rung in self.bells.items():
            if names[key] not in process.bells:
                process.add_bell(names[key], rung)
        return names

    # -- the end

    def close(self) -> None:
        """End all waits of this end, wake the other ends, release everything. From any thread; safe to repeat.

        What a thread that does not come out still uses is given back by `drop`.
        """
        with self._closing:
            if self.turn.closed:
                return
            self.turn.close()
        self.process.cancel(self.turn.over())
        free = self.turn.take_to_end()
        self._say_goodbye()
        if free:
            if self.remotes is not None and self.ready:
                with contextlib.suppress(Unroutable):  # they will see that the connection ends
                    self.process.sockets[REMOTE_SOCKET].send([BYE])
            self._release()
        self._remove()

    def drop(self) -> None:
        """Nobody can use this end any more."""
        if os.getpid() != self._pid:  # a forked child's copy
            return
        if not self.turn.closed:
            self.turn.close()
            self._say_goodbye()
        self._release()
        self._remove()

    def inherited(self) -> None:
        """This is a forked child's copy: its parent's end goes on, and nothing of it may be touched from here."""
        self.turn.close("belongs to the process that opened it; open an end of your own")

    def _say_goodbye(self) -> None:
        if self.presence is not None:
            self.presence.withdraw()
            for bell in self.doorbells.values():  # their sockets may be in use
                bell.ring()

    def _release(self) -> None:
        if self.released:
            return
        self.released = True
        self.memory = self.presence = None
        self.process.close()
        if self.owns_ports:
            self.ports.close()

    def _remove(self) -> None:
        if self._unlinks is not None:
            unlink_segment(self._unlinks)
        self.remove_room()

    def remove_room(self) -> None:
        """Also at the end of a program that shuts nothing down."""
        if self._removes is not None and os.getpid() == self._pid:
            self._removes.remove()
            self._removes = None


#: All ends of this process.
_ENDS: weakref.WeakSet[QueueEnd] = weakref.WeakSet()


def _after_fork() -> None:
    for end in list(_ENDS):
        end.inherited()


os.register_at_fork(after_in_child=_after_fork)

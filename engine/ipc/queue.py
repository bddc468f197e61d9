"""Reading and writing a ring with deadlines: the loops that every world drives.

Promises
- `enqueue` either publishes its message or raises and has published nothing.
- `dequeue` hands out every message once and in order, those that overflow included. A time-out anywhere, also between
  the flag of an overflow and its payload, loses and misplaces nothing: the next call continues there.
- An expired deadline looks once and then is a `QueueTimeoutError`; it never turns into "for ever".
- A lost doorbell costs at most the re-check bound of whoever answers `WaitBell`; each wake-up leads to a new look.
- The death of the peer ends the wait, after one last look: what it had published before is still handed out.

    writer    look for room -> cross "send" -> write (reset, data, readers, written) -> payload, if it overflows -> bell
    reader    look -> read flag -> bell, if it may wait -> payload, if it overflows -> cross "receive" -> hand out

State of a reader: `owed` is the number of a message whose flag was read and whose payload was not. Payloads that come
early are kept until their flag is read, late ones of messages that are over are dropped. When a later payload has been
here for `gap_s` and the owed one has not, the owed one counts as lost: an error, and the queue goes on behind it. So it
does when for `gap_s` nothing comes behind an exception out of a signal handler, which may have swallowed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from engine.effects import Attempt, Loop, MarkPoint, Now, Observe, Receive, RingBell, RingCrossing, Send, WaitBell
from engine.errors import PeerDeadError, QueueCancelledError, QueueDecodeError, QueueError, QueueTimeoutError
from engine.ipc.framing import (
    OVERFLOW,
    OVERFLOW_CHUNK,
    READY_FRAME,
    bytes_of,
    ends_with_ready,
    from_overflow_frames,
    is_overflow,
    overflow_frames,
    pack,
    unpack,
)
from engine.ipc.handle import QueueStats
from engine.ipc.presence import LocalReaders, Presence, RemoteReaders
from engine.ipc.ring import EMPTY, RingReader, RingWriter
from engine.ports import Unroutable
from engine.topology import Mark

#: A socket does not say when it has room again: its writer looks this often.
REMOTE_LOOK_S = 0.005
#: A deadline that is over: look once.
_AT_ONCE = 0.0


class Within(NamedTuple):
    """A deadline that is counted from where a wait begins: whoever need not wait asks no clock."""

    seconds: float


Deadline = float | Within | None  # monotonic, or counted from now; None: until cancelled


class QueueWriter:
    """The writing end. `bell` wakes the readers, the writer sleeps on `space_bell`; both are names of bells.

    Messages of at least a chunk are sent by the socket named `overflow_outbox`; without one they are an error.
    """

    def __init__(self, name: str, writer: RingWriter, n_readers: int, *, bell: str, space_bell: str,
                 overflow_outbox: str | None = None, readers: LocalReaders | None = None) -> None:
        self.name = name
        self.writer = writer
        self.n_readers = n_readers
        self.bell = bell
        self.space_bell = space_bell
        self.overflow_outbox = overflow_outbox
        #: Who reads on this host; who reads on others, and where: every message goes there too.
        self.readers = readers
        self.remotes: RemoteReaders | None = None
        self.remote_outbox: str | None = None
        #: Whoever opened this end: it stays open while this is used.
        self.owner: object = None
        self.stats = QueueStats(ring=name, end="writer")
        #: What to do while there is no room: readers may wait for this process before they read on.
        self.meanwhile: Callable[[], Loop[bool]] | None = None
        self._room = Attempt(name, writer.free)
        self.unsent: tuple[int, list[Any]] | None = None  # a payload whose flag is about to be published, or was
        self._begun: tuple[int, list[Any]] | None = None  # what readers on other hosts may have, and the ring has not

    @property
    def position(self) -> int:
        """The number of the next message, from 0."""
        return self.writer.position

    def enqueue(self, parts: list[Any], deadline: Deadline) -> Loop[int]:
        """Publish one message (the buffers of `framing.encode`) to all readers. -> its number

        Raises QueueTimeoutError when there is no room by `deadline`, QueueCancelledError when the wait is ended; then
        nothing was published. Raises QueueError for a message of at least a chunk where there is no overflow socket.
        """
        if self.unsent is not None or self._begun is not None:
            yield from self._go_on(deadline)
        position = self.writer.position
        overflow = is_overflow(parts, self.writer.layout.max_chunk_bytes)
        if overflow and self.overflow_outbox is None:
            raise QueueError(f"{self.name}: a message of {sum(map(len, parts))} bytes does not fit into a chunk of "
                             f"{self.writer.layout.max_chunk_bytes}, and this queue has no overflow socket")
        # There is one writer: room that was seen once stays. So the crossing comes after the wait, once per message.
        if not self.writer.has_room and not (yield self._room) and (yield from self._look_on()) is EMPTY:
            yield MarkPoint(Mark.RING_FULL, {"ring": self.name})
            yield from wait_until(self.name, self._look, self._sleep, deadline, self.no_room, self.stats)
        yield RingCrossing(self.name, "send", position, parts, overflow)
        if self.remote_outbox is not None:
            self._begun = position, parts
            try:
                yield from self._send_remote(overflow_frames(parts, position), deadline)
            except (QueueTimeoutError, QueueCancelledError):
                self._begun = None
                raise
        yield from self._publish(position, parts, overflow)
        return position

    def _publish(self, position: int, parts: list[Any], overflow: bool) -> Loop[None]:
        chunk = OVERFLOW_CHUNK if overflow else pack(parts)
        self.unsent = (position, parts) if overflow else None
        written = yield Attempt(self.name, lambda: self.writer.try_write(chunk))
        assert written, f"{self.name}: room for message {position} was taken away"
        self._begun = None
        if overflow:
            yield from self._send_payload()
        self.stats.bytes += bytes_of(parts)
        self.stats.overflows += overflow
        yield RingBell(self.bell)

    def _go_on(self, deadline: Deadline) -> Loop[None]:
        """What an exception out of a signal handler broke off, to its end. READY_FRAME ends a half-sent message."""
        if self.unsent is not None:
            yield from self._send_payload([READY_FRAME])
        if self._begun is not None:
            position, parts = self._begun
            yield from self._send_remote([READY_FRAME], deadline)
            yield from self._send_remote(overflow_frames(parts, position), deadline)  # who has it drops this one
            if position == self.writer.position:
                yield from self._publish(position, parts, is_overflow(parts, self.writer.layout.max_chunk_bytes))
            self._begun = None

    def _send_payload(self, before: list[bytes] | None = None) -> Loop[None]:
        """What belongs to the last flag. Kept from leaving by an exception out of a signal handler, it goes again."""
        assert self.unsent is not None and self.overflow_outbox is not None
        position, parts = self.unsent
        if before is not None:
            yield Send(self.overflow_outbox, before)
        if position < self.writer.position:
            yield Send(self.overflow_outbox, overflow_frames(parts, position))
        self.unsent = None

    def _send_remote(self, frames: list[Any], deadline: Deadline) -> Loop[None]:
        """To the readers on other hosts first: they may have to be waited for, room in the ring that was seen stays."""
        outbox = self.remote_outbox
        assert outbox is not None

        def attempt() -> Loop[Any]:
            try:
                yield Send(outbox, frames)
            except Unroutable:
                return EMPTY
            return True

        def sleep(deadline: float | None) -> Loop[None]:
            until = (yield Now()) + REMOTE_LOOK_S
            yield WaitBell(self.space_bell, until if deadline is None else min(until, deadline))

        if (yield from attempt()) is EMPTY:
            yield MarkPoint(Mark.RING_FULL, {"ring": self.name})
            yield from wait_until(self.name, attempt, sleep, deadline, lambda: f"message {self.writer.position} was "
                                  "not sent: a reader on another host is too far behind", self.stats)

    def depth(self) -> int:
        """How many published messages some reader has not read yet."""
        return self.writer.depth()

    def check_integrity(self) -> list[str]:
        return self.writer.check_integrity()

    def no_room(self) -> str:
        """Why a wait ends at its deadline."""
        position = self.writer.position
        oldest = position - self.writer.layout.max_chunks
        return (f"message {position} found no room and was not sent: not all of its {self.n_readers} readers have read "
                f"message {oldest}")

    def _look(self) -> Loop[Any]:
        return True if (yield self._room) else (yield from self._look_on())

    def _look_on(self) -> Loop[Any]:
        while self.meanwhile is not None and (yield from self.meanwhile()):
            if (yield self._room):
                return True
        return EMPTY

    def _sleep(self, deadline: float | None) -> Loop[None]:
        yield WaitBell(self.space_bell, deadline)


class QueueReader:
    """One reading end. The reader sleeps on `bell`, `space_bell` wakes the writer; both are names of bells.

    `recheck_s` bounds how long it waits for an owed payload before it asks again whether the writer lives.
    `take` makes a message of a chunk: its copied buffers (`framing.unpack`), or OVERFLOW. `full_fence` is that of the
    memory: -> whether no load below it is done before a store above it is seen. Only then a writer that does not
    wait is left asleep: see `RingReader.writer_may_wait`.
    """

    def __init__(self, name: str, reader: RingReader, *, bell: str, space_bell: str, overflow_inbox: str | None = None,
                 take: Callable[[Any], Any] = unpack, recheck_s: float = 1.0, gap_s: float = 5.0,
                 full_fence: Callable[[], bool] = lambda: True, presence: Presence | None = None) -> None:
        self.name = name
        self.reader = reader
        self.bell = bell
        self.space_bell = space_bell
        self.overflow_inbox = overflow_inbox
        self.recheck_s = recheck_s
        self.gap_s = gap_s
        self.owed: int | None = None
        #: The writer has said that all its readers have subscribed.
        self.heard_ready = False
        self.take = take
        self.presence = presence
        #: As `QueueWriter.owner`.
        self.owner: object = None
        self._payloads: dict[int, list[Any]] = {}
        self._unmarked: deque[list[Any]] = deque()
        self._gap_began: float | None = None
        self._torn = False  # an exception may have swallowed the owed payload
        self._full_fence = full_fence
        self._rings = False
        self._read = Attempt(name, self._try_read)
        self.stats = QueueStats(ring=name, end="reader")

    @property
    def position(self) -> int:
        """The number of the next message to hand out, from 0."""
        return self.reader.position if self.owed is None else self.owed

    def dequeue(self, deadline: Deadline) -> Loop[Any]:
        """Wait for the next message. -> its buffers, for `framing.decode`, or what `take` made of it

        Raises QueueTimeoutError at `deadline`, QueueCancelledError when the wait is ended, QueueDecodeError for a
        message that was damaged or lost; the next call then continues behind it.
        """
        message = yield from self.try_dequeue()
        if message is EMPTY:
            message = yield from wait_until(self.name, self.try_dequeue, self._sleep, deadline,
                                            lambda: f"message {self.position} did not come", self.stats, last_look=True)
        return message

    def try_dequeue(self) -> Loop[Any]:
        """-> the next message's buffers, or EMPTY. Raises QueueDecodeError as `dequeue` does."""
        if self.owed is None:
            try:
                message = yield self._read
            except QueueDecodeError:
                yield RingBell(self.space_bell)
                raise
            if message is EMPTY:
                return EMPTY
            overflow = message is OVERFLOW
            if overflow:
                self.owe_payload()
            if self._rings:
                yield RingBell(self.space_bell)
            if not overflow:
                yield RingCrossing(self.name, "receive", self.reader.position - 1, message, False)
                self.stats.bytes += bytes_of(message)
                return message
        try:
            position, message = self.owed, (yield from self._claim())
            if message is not EMPTY:
                self.owed, self._gap_began, self._torn = None, None, False
        except BaseException:
            self._torn = self.owed is not None
            raise
        if message is not EMPTY and position is not None:
            yield RingCrossing(self.name, "receive", position, message, True)
            self.stats.bytes += bytes_of(message)
            self.stats.overflows += 1
        return message

    def ready(self) -> bool:
        """Whether `try_dequeue` is worth while: a message is there, or a payload is owed."""
        return self.owed is not None or self.reader.ready()

    def _try_read(self) -> Any:
        message = self.reader.try_read(self.take)
        if message is not EMPTY:
            self._rings = not self._full_fence() or self.reader.writer_may_wait()
        return message

    def depth(self) -> int:
        """How many published messages this end has not read yet."""
        return self.reader.depth() + (self.owed is not None)

    def check_integrity(self) -> list[str]:
        return self.reader.check_integrity()

    @property
    def inbox(self) -> str | None:
        """Where the writer says READY."""
        return self.overflow_inbox

    def check_writer(self) -> Loop[None]:
        """Raises PeerDeadError when the writer has died or left."""
        if self.presence is not None:
            yield from self.presence.check()

    def owe_payload(self) -> None:
        """The flag of an overflow was just read: its payload comes next."""
        self.owed = self.reader.position - 1

    def _claim(self) -> Loop[Any]:
        """The payload of the owed message, or EMPTY."""
        if self.overflow_inbox is None:
            position, self.owed = self.owed, None
            raise QueueDecodeError(f"{self.name}: message {position} overflows, and this queue has no socket for it")
        while True:
            if self.owed in self._payloads:
                return self._payloads.pop(self.owed)
            if self._unmarked:
                return self._unmarked.popleft()
            arrived = yield Receive((self.overflow_inbox,), _AT_ONCE)
            if arrived is None:
                break
            self.keep_payload(arrived[2])
        if self._payloads or self._torn:
            yield from self._give_up_lost()
        return EMPTY

    def keep_payload(self, frames: list[Any]) -> None:
        self.heard_ready = True  # payloads are sent after it
        if ends_with_ready(frames):
            return
        position, parts = from_overflow_frames(frames)
        if position is None:
            self._unmarked.append(parts)
        elif position >= self.position:
            self._payloads[position] = parts

    def _give_up_lost(self) -> Loop[None]:
        """Payloads come in order, so one that is overtaken is lost, unless the wire reorders: hence the patience."""
        now = yield Now()
        if self._gap_began is None:
            self._gap_began = now
        elif now - self._gap_began >= self.gap_s:
            position, self.owed, self._gap_began = self.owed, None, None
            raise QueueDecodeError(f"{self.name}: the payload of message {position} was lost on its way")

    def _sleep(self, deadline: float | None) -> Loop[None]:
        if self.owed is None or self.overflow_inbox is None:
            yield WaitBell(self.bell, deadline)
            return
        until = (yield Now()) + min(self.recheck_s, self.gap_s)
        try:
            arrived = yield Receive((self.overflow_inbox,), until if deadline is None else min(until, deadline))
            if arrived is not None:
                self.keep_payload(arrived[2])
        except BaseException:
            self._torn = True
            raise
        if arrived is None:
            yield WaitBell(self.bell, _AT_ONCE)  # raises when the writer is dead or this process shuts down


def wait_until(name: str, look: Callable[[], Loop[Any]], sleep: Callable[[float | None], Loop[None]],
               deadline: Deadline, refusal: Callable[[], str], stats: QueueStats, *,
               last_look: bool = False) -> Loop[Any]:
    """Sleep and look until `look` finds something. -> what it found

    Raises QueueTimeoutError, which says the refusal, at the deadline. A cancellation passes through, with `last_look`
    after one more look. A wait that slept is told to the judges.
    """
    began = now = yield Now()
    deadline = now + deadline.seconds if isinstance(deadline, Within) else deadline
    if deadline is not None and now >= deadline:
        raise QueueTimeoutError(f"{name}: {refusal()}")
    outcome, found = "ok", EMPTY
    error: Exception | None = None
    while found is EMPTY and error is None:
        try:
            yield from sleep(deadline)
        except QueueCancelledError as reason:
            outcome, error = ("peer-dead" if isinstance(reason, PeerDeadError) else "cancelled"), reason
        if error is None or last_look:
            found = yield from look()
        now = yield Now()
        if found is EMPTY and error is None and deadline is not None and now >= deadline:
            outcome, error = "timeout", QueueTimeoutError(f"{name}: {refusal()}")
    stats.waited(now - began)
    yield Observe("queue-wait", {"ring": name, "began": began, "deadline": deadline, "ended": now,
                                 "outcome": "ok" if found is not EMPTY else outcome})
    if found is EMPTY and error is not None:
        raise error
    return found

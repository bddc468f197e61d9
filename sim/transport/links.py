"""One direction of one ZMQ connection: the sender's pipe, the system's buffer, the receiver's pipe.

    sender's pipe   messages that `send` accepted and the sender's I/O thread has not handed on      (send HWM)
    buffer          what the system takes beyond both pipes; how much is one of several allowed answers
    receiver's pipe messages that `try_receive` has not taken yet, kept in the socket               (receive HWM)

Promises, as measured against libzmq (tests/contracts/test_zmq_model.py)
- Order is kept. A high-water mark of 0 is no bound. A full pipe opens again once half of it was taken, so what a
  PUB drops lies in several gaps.
- A stopped receiver's I/O thread is stopped too: nothing reaches its pipe, the sender's fills.
- At the sender's death any prefix of what had not left its pipe arrives, what the buffer held arrives; at the
  receiver's death all of it is lost, and of a connecting sender's pipe any prefix.

A burst costs one happening, not one per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from engine.ports import SocketSpec
from sim.kernel.kernel import Kernel

#: Frames from here on take time by their length (and travel without a copy in a real process).
LARGE_BYTES = 64 << 10
#: What the system may let the two buffers of a tcp connection grow to, where nobody has set their size.
TCP_GROWS_TO = 10 << 20
#: Flags and length of a frame on the wire, about.
_FRAME_BYTES = 9


class Message:
    """What travels: frames, their length, and their digest where somebody computed it."""

    __slots__ = ("digest", "frames", "size")

    def __init__(self, frames: list[Any], digest: str = "") -> None:
        self.frames = frames
        self.digest = digest
        size = 0
        for frame in frames:
            size += len(frame) if type(frame) is bytes else memoryview(frame).nbytes
        self.size = size


class Command(Message):
    """What a socket says to its peer by itself: no message on the wire."""

    __slots__ = ()


class LinkOwner(Protocol):
    """What a link knows of the process at one of its ends."""

    name: str
    running: bool  # alive and not stopped


class Endpoint(Protocol):
    """What a link knows of the socket at one of its ends."""

    spec: SocketSpec
    arrived: deque[tuple[Link | None, Message]]

    @property
    def owner(self) -> LinkOwner: ...

    def announce(self) -> None:
        """Something has arrived."""

    def link_is_empty(self, link: Link) -> None:
        """All that this socket gave the link is on its way."""


class Link:
    """From `source` to `target`, which is None while there is no connection. `peer` is how the target knows us."""

    __slots__ = ("_buffer_full", "_busy_until", "_capacity", "_cut_befalls", "_in_buffer", "_kernel", "_ready_before",
                 "_reading", "_sent", "_taken", "accepts", "blocked", "buffer", "cut_site", "hwm", "last_words",
                 "opposite", "peer", "pipe", "pumping", "read", "silent", "source", "target", "topics", "when_empty")

    def __init__(self, kernel: Kernel, source: Endpoint, cut_befalls: Callable[[Link], bool]) -> None:
        """`cut_befalls` counts a message at the link's `cut_site`. -> whether the connection is cut there"""
        self._kernel = kernel
        self._cut_befalls = cut_befalls
        self.source = source
        self.target: Endpoint | None = None
        self.peer: Any = 0
        self.hwm = source.spec.send_hwm
        self.opposite: Link | None = None  # the other way of the same connection
        self.topics: list[bytes] | None = None  # what the target subscribed to; None: takes everything
        self.pipe: deque[tuple[float, Message]] = deque()
        self.buffer: deque[Message] = deque()
        self.when_empty: Callable[[], None] | None = None  # called once, when last words are through
        self.last_words = False  # the source is gone; what is here still arrives, then nothing
        self.accepts = True  # False: the target is gone, and nobody has noticed yet
        self.blocked = False  # the receiver's pipe is full or its process stopped
        self.silent = False  # what is sent vanishes, and neither end is told
        self.pumping = False  # a happening that calls `pump` is on its way
        self.cut_site = ""  # counted where a plan cuts this edge on the wire
        self.read = 0
        self._sent = 0
        self._taken = 0
        self._reading = 0
        self._busy_until = 0.0
        self._ready_before = 0.0
        self._in_buffer = 0
        self._buffer_full = False
        self._capacity: int | None = None

    # -- the sender's side

    def full(self) -> bool:
        """Whether the sender's pipe has reached its mark; readers report in halves of the mark, as libzmq's do."""
        if not self.hwm:
            return False
        half = (self.hwm + 1) // 2
        return self._sent - self._taken // half * half >= self.hwm

    def offer(self, message: Message) -> bool:
        """Accept a message, or not, where the pipe is full."""
        if self.hwm and self.full():
            return False
        kernel = self._kernel
        now = kernel.time._now
        if message.size >= LARGE_BYTES:
            begin = self._busy_until if self._busy_until > now else now
            self._busy_until = begin + message.size / kernel.costs.bytes_per_s
            ready = self._busy_until + kernel.costs.hop_s
        else:
            ready = now + kernel.costs.hop_s
        ready = max(ready, self._ready_before)
        self._ready_before = ready
        self._sent += 1
        self.pipe.append((ready, message))
        if not self.pumping and not (self.blocked and self._buffer_full) and self.target is not None:
            self.pumping = True
            kernel.call_at(ready, self.pump)
        return True

    # -- on its way

    def pump(self) -> None:
        """Move what is due, as far as it goes."""
        self.pumping = False
        target, pipe, buffer = self.target, self.pipe, self.buffer
        if self.silent:
            self.lose(len(pipe))
            self._through()
            return
        if target is None or not self.accepts:
            return
        now = self._kernel.time._now
        mark = target.spec.receive_hwm
        self.blocked = self._buffer_full = False
        delivered = False
        if target.owner.running:
            while buffer or pipe:
                if mark and self._reading - self.read // ((mark + 1) // 2) * ((mark + 1) // 2) >= mark:
                    self.blocked = True
                    break
                if buffer:
                    message = buffer.popleft()
                    self._in_buffer -= message.size
                else:
                    ready, message = pipe[0]
                    if ready > now:
                        self.pumping = True
                        self._kernel.call_at(ready, self.pump)
                        break
                    pipe.popleft()
                    self._taken += 1
                if self.cut_site and type(message) is not Command and self._cut_befalls(self):
                    break
                self._reading += 1
                target.arrived.append((self, message))
                delivered = True
        else:
            self.blocked = True
        if self.blocked and pipe:
            self._fill_buffer(now)
        if delivered:
            target.announce()
        if not pipe:
            self._through()

    def _through(self) -> None:
        """The sender has nothing here any more."""
        self.source.link_is_empty(self)
        if not self.buffer and self.when_empty is not None:
            told, self.when_empty = self.when_empty, None
            told()

    def look_again(self) -> None:
        """The receiver read, or goes on after a stop."""
        if not self.pumping and self.target is not None and (self.pipe or self.buffer):
            self.pumping = True
            self._kernel.after(self._kernel.costs.hop_s, self.pump)

    def took(self) -> None:
        """The receiver's process took one message of this link."""
        self.read += 1
        if self.blocked:
            half = (self.target.spec.receive_hwm + 1) // 2 if self.target is not None else 1
            if not half or self.read % half == 0:
                self.look_again()

    def _fill_buffer(self, now: float) -> None:
        capacity = self._capacity
        if capacity is None:
            bounded = self.hwm or (self.target is not None and self.target.spec.receive_hwm)
            usual = self._kernel.costs.buffer_bytes
            options = [usual, 0, usual // 4]
            if self.source.spec.address.startswith("tcp://") and not self.source.spec.buffer_bytes:
                options.append(TCP_GROWS_TO)
            picked = self._kernel.choose(len(options), f"system buffer of {self}") if bounded else 0
            capacity = self._capacity = options[picked]
        while self.pipe and self.pipe[0][0] <= now:
            size = self.pipe[0][1].size + _FRAME_BYTES
            if self._in_buffer + size > capacity:
                self._buffer_full = True
                break
            message = self.pipe.popleft()[1]
            self._taken += 1
            self._in_buffer += message.size
            self.buffer.append(message)
        if self.pipe and self.pipe[0][0] > now and not self.pumping:
            self.pumping = True
            self._kernel.call_at(self.pipe[0][0], self.pump)

    # -- ends

    def source_died(self, keeps: int) -> None:
        """The sender is gone; of its pipe the first `keeps` messages had left."""
        while len(self.pipe) > keeps:
            self.pipe.pop()
        self.last_words = True

    def lose(self, amount: int) -> None:
        """The connection is gone: what the buffer held, and the first `amount` messages of the pipe."""
        self.buffer.clear()
        self._in_buffer = 0
        for _ in range(min(amount, len(self.pipe))):
            self.pipe.popleft()
            self._taken += 1

    def connect_to(self, target: Endpoint, peer: Any) -> None:
        """A connection stands (again): the pipe's content follows."""
        self.target, self.peer, self.accepts, self.blocked = target, peer, True, False
        self.silent = False
        self._reading = self.read = 0
        self._ready_before = 0.0
        if self.pipe:
            now = self._kernel.now
            hop_s = self._kernel.costs.hop_s
            self.pipe = deque((max(ready, now + hop_s), message) for ready, message in self.pipe)
            self._ready_before = self.pipe[-1][0]
            if not self.pumping:
                self.pumping = True
                self._kernel.call_at(self.pipe[0][0], self.pump)

    def wants(self, frames: list[Any]) -> bool:
        """Whether the target subscribed to this message."""
        topics = self.topics
        if topics is None:
            return True
        first = bytes(frames[0]) if frames else b""
        return any(first.startswith(topic) for topic in topics)

    def __str__(self) -> str:
        target = self.target.owner.name if self.target is not None else "?"
        return f"{self.source.owner.name}->{target}/{self.source.spec.name}"

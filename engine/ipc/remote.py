"""Readers on other hosts: every message travels by a CURVE socket, in order or as an error.

Promises
- A message is unpickled only if it came from the owner of the server key in the handle: CURVE encrypts and
  authenticates each frame, and a socket without keys is not opened at all.
- A gap in the numbers is a `QueueDecodeError` that names what is missing; the queue goes on behind it.
- At most `REMOTE_BOUND` messages wait on each side of a connection: a writer whose reader is further behind waits.
- The end of the writer is noticed: by its word when it shuts down, by the lost connection when it died, by missing
  heartbeats when its host did.

    writer    XPUB, bound to one address, CURVE server, lets in the reader's key alone
    reader    SUB to everything and to "RTrank" + its rank + ":" + a random name, so that the writer knows who is there
    frames    buffer 0 (the pickle) | buffer 1 | ... | "RTpos" + position
              READY, BYE and "RTtaken" + what a refused reader has subscribed to are single frames
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.effects import Attempt, Loop, Now, Receive, RingCrossing
from engine.errors import PeerDeadError, QueueDecodeError, QueueError
from engine.ipc.framing import ends_with_ready, from_overflow_frames
from engine.ipc.handle import QueueStats
from engine.ipc.presence import TAKEN, TOPIC
from engine.ipc.queue import REMOTE_LOOK_S, wait_until
from engine.ipc.ring import EMPTY, MAX_CHUNK_BYTES, RingLayout
from engine.ports import SocketSpec
from engine.topology import Channel, core, worker

#: The writer's last word.
BYE = b"BYE"
#: A writer that ends waits so long for its last messages to leave.
REMOTE_LINGER_S = 2.0
#: Messages that may wait on each side of a connection, sockets' buffers apart. (vLLM's socket drops what is beyond.)
REMOTE_BOUND = 1000


class NoRing:
    """In place of `RingWriter` where no reader is local: there is always room."""

    layout = RingLayout(1, MAX_CHUNK_BYTES, 1)
    has_room = True

    def __init__(self) -> None:
        self.position = 0

    def free(self) -> bool:
        return True

    def try_write(self, parts: Any) -> bool:
        self.position += 1
        return True

    def depth(self) -> int:
        return 0

    def check_integrity(self) -> list[str]:
        return []


class NoBell:
    """The bell of a queue without a ring: nobody sleeps on it."""

    def ring(self) -> None: ...

    def seen(self) -> int:
        return 0

    def wait(self, seen: int, timeout_s: float) -> bool:
        time.sleep(max(0.0, min(timeout_s, REMOTE_LOOK_S)))
        return False

    def close(self) -> None: ...


def new_keys() -> tuple[str, tuple[str, str, str]]:
    """-> the writer's secret, and what goes into the handle. Raises QueueError where ZMQ has no CURVE."""
    import zmq

    if not zmq.has("curve"):
        raise QueueError("readers on other hosts are refused: this libzmq was built without CURVE, and what comes from "
                         "a network would be unpickled unauthenticated")
    public, secret = zmq.curve_keypair()
    reader_public, reader_secret = zmq.curve_keypair()
    return secret.decode(), (public.decode(), reader_public.decode(), reader_secret.decode())


def address_of(connect_ip: str | None) -> tuple[str, bool]:
    """-> (address to bind, any port, whether it is IPv6). None: the address by which this host reaches others."""
    ip = (connect_ip or _own_ip()).strip("[]")
    return (f"tcp://[{ip}]:*", True) if ":" in ip else (f"tcp://{ip}:*", False)


def _own_ip() -> str:
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # chooses a route and sends nothing
            try:
                probe.connect((outside, 9))
                return probe.getsockname()[0]
            except OSError:
                continue
    return "127.0.0.1"


def writer_socket(name: str, address: str, secret: str, keys: tuple[str, str, str]) -> SocketSpec:
    return SocketSpec(name=name, kind="XPUB", peer_kind=worker(0).kind, send_channel=Channel.OVERFLOW, bind=True,
                      address=address, linger_s=REMOTE_LINGER_S, send_hwm=REMOTE_BOUND,
                      curve=(keys[0], secret, keys[1]))


def topic_of(rank: int) -> bytes:
    """What a reader subscribes to so that the writer knows it, different for each reader."""
    return b"%s%d:%s" % (TOPIC, rank, secrets.token_hex(8).encode())


def reader_socket(name: str, address: str, topic: bytes, keys: tuple[str, str, str]) -> SocketSpec:
    server, public, secret = keys
    return SocketSpec(name=name, kind="SUB", peer_kind=core().kind, receive_channel=Channel.OVERFLOW, bind=False,
                      address=address, receive_hwm=REMOTE_BOUND, more_topics=(topic,), curve=(public, secret, server))


class RemoteReader:
    """A reading end without a ring; loops as `QueueReader`'s. `check` raises PeerDeadError for a lost connection."""

    owed = None

    def __init__(self, name: str, *, inbox: str, topic: bytes, check: Callable[[], None], recheck_s: float) -> None:
        self.name, self._topic = name, topic
        self.inbox = inbox
        self.owner: object = None
        self.heard_ready = self._ended = False
        self.stats = QueueStats(ring=name, end="reader")
        self._check, self._recheck_s = check, recheck_s
        self._arrived: deque[tuple[int | None, list[Any]]] = deque()
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    def depth(self) -> int:
        return len(self._arrived)

    def dequeue(self, deadline: float | None) -> Loop[list[Any]]:
        message = yield from self.try_dequeue()
        if message is EMPTY:
            message = yield from wait_until(self.name, self.try_dequeue, self._sleep, deadline,
                                            lambda: f"message {self._position} did not come", self.stats,
                                            last_look=True)
        return message

    def try_dequeue(self) -> Loop[Any]:
        while not self._arrived:
            arrived = yield Receive((self.inbox,), 0.0)
            if arrived is None:
                return EMPTY
            self.keep_payload(arrived[2])
        position, parts = self._arrived[0]
        expected, position = self._position, self._position if position is None else position
        if position > expected:
            self._position = position
            raise QueueDecodeError(f"{self.name}: messages {expected} to {position - 1} were lost on their way")
        self._arrived.popleft()
        if position < expected:
            return (yield from self.try_dequeue())
        self._position += 1
        self.stats.bytes += sum(map(len, parts))
        yield RingCrossing(self.name, "receive", position, parts, True)
        return parts

    def keep_payload(self, frames: list[Any]) -> None:
        if ends_with_ready(frames):
            self.heard_ready = True
        elif len(frames) == 1:
            self._ended |= bytes(frames[0]) == BYE
            if bytes(frames[0]) == TAKEN + self._topic:
                raise QueueError(f"{self.name}: refused: a reader with this rank is there already")
        else:
            self._arrived.append(from_overflow_frames(frames))

    def check_integrity(self) -> list[str]:
        return []

    def check_writer(self) -> Loop[None]:
        """Raises PeerDeadError when the writer is gone."""
        if self._ended:
            raise PeerDeadError(f"{self.name}: the writer was shut down")
        yield Attempt(self.name, self._check)

    def _sleep(self, deadline: float | None) -> Loop[None]:
        until = (yield Now()) + self._recheck_s
        arrived = yield Receive((self.inbox,), until if deadline is None else min(until, deadline))
        if arrived is not None:
            self.keep_payload(arrived[2])
        else:
            yield from self.check_writer()

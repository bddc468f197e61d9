"""ZMQ sockets behind `ports.Socket`: options set in one place, sends and receives that never wait.

Promises
- HWM, linger, identity and buffers are what the `SocketSpec` says, set before bind or connect.
- Frames of 64 KiB and more travel without a copy. Of each pyzmq holds the buffer until libzmq has sent it, and no
  longer: who keeps such a Frame itself keeps it for ever, because libzmq then counts one that is not done.
- A ROUTER never drops in silence: an unconnected peer is `Unroutable`.
- tcp speaks IPv6 where its address does; a name may be either. An address that no host here has is a ConfigError.
- With CURVE keys a bound socket takes only its client's bytes, a connected one only its server's.
- An exception out of a signal handler in the middle of a message loses that message, and never hands out its rest as
  the next one.
- A peer with an identity that is not one of ours is nobody to the caller (None), unless `raw_identities` is set.
- What an XSUB sends arrives whole: libzmq would tear apart what `engine.wire.subscriptions` refuses.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from engine.ports import SocketSpec, Unroutable
from engine.wire.places import SILENT_BEATS
from engine.wire.reserved import not_here
from engine.wire.subscriptions import check_upward, topics_of
from engine.wire.wiring import IDENTITY_BYTES, identity_of

#: Below this, copying is cheaper than tracking.
ZERO_COPY_BYTES = 64 << 10
#: Authenticated connections cross a network: they are asked so often.
HEARTBEAT_MS = 1000
#: What binding an address says that no interface of this host has.
_NOT_OF_THIS_HOST = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENODEV})
#: The buffers of a machine with more memory than this, and more than this of it to spare.
LARGE_BUFFER_BYTES, MUCH_MEMORY_BYTES, SPARE_MEMORY_BYTES = 1 << 29, 32 << 30, 16 << 30
#: Plain integers: taking apart and joining zmq's own enums costs more than sending a short frame.
_NOW = int(zmq.NOBLOCK)
_NOW_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)


def buffer_bytes_for(total: int, available: int) -> int:
    """How large the system's buffers of a socket shall be on a machine with so much memory; 0: as they are set.

    A large message then waits for nobody to read it piece by piece. The system gives what its own limits allow.
    """
    return LARGE_BUFFER_BYTES if total > MUCH_MEMORY_BYTES and available > SPARE_MEMORY_BYTES else 0


def memory_of(meminfo: str) -> tuple[int, int]:
    """(total, available) in bytes, of the text of /proc/meminfo; 0 for what it does not tell."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s*(\d+) kB$", meminfo, re.MULTILINE))
    return int(found.get("MemTotal", 0)) << 10, int(found.get("MemAvailable", 0)) << 10


def _buffer_bytes_here() -> int:
    try:
        return buffer_bytes_for(*memory_of(Path("/proc/meminfo").read_text()))
    except OSError:
        return 0


def _may_be_ipv6(address: str) -> bool:
    """Whether libzmq is to look for IPv6, too: a plain IPv4 address it would tell in another form."""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    return address.startswith("tcp://") and host != "*" and not host.replace(".", "").isdigit()


class ZmqSocket:
    """One socket, used by one thread. Raises zmq.ZMQError for misuse only."""

    def __init__(self, context: zmq.Context, spec: SocketSpec) -> None:
        self.spec = spec
        self._socket = socket = context.socket(getattr(zmq, spec.kind))
        #: The same without conveniences that cost as much as sending a short frame does.
        self._send, self._receive = super(zmq.Socket, socket).send, super(zmq.Socket, socket).recv
        self._option = super(zmq.Socket, socket).get
        self._routes = spec.kind == "ROUTER"
        self._heard_from = spec.heard_from
        self._lost = self._torn = False
        self._monitor: zmq.Socket | None = None
        self._came = self._went = 0  # connections of a watched socket
        self._cut = False
        try:
            self._open()
        except BaseException:
            self.close(0)  # or the context would wait for it
            raise
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT) if spec.bind else spec.address
        self._fd = socket.getsockopt(zmq.FD)

    def _open(self) -> None:
        socket, spec = self._socket, self.spec
        socket.setsockopt(zmq.SNDHWM, spec.send_hwm)
        socket.setsockopt(zmq.RCVHWM, spec.receive_hwm)
        socket.setsockopt(zmq.LINGER, round(spec.linger_s * 1000))
        buffer_bytes = _buffer_bytes_here() if spec.buffer_bytes is None else spec.buffer_bytes
        if buffer_bytes:
            socket.setsockopt(zmq.SNDBUF, buffer_bytes)
            socket.setsockopt(zmq.RCVBUF, buffer_bytes)
        if spec.identity is not None:
            socket.setsockopt(zmq.IDENTITY, spec.identity)
        if self._routes:
            socket.setsockopt(zmq.ROUTER_MANDATORY, int(spec.mandatory))
            socket.setsockopt(zmq.ROUTER_HANDOVER, int(spec.handover))
        if spec.kind == "XPUB":
            socket.setsockopt(zmq.XPUB_VERBOSER if spec.verboser else zmq.XPUB_VERBOSE,
                              int(spec.verbose or spec.verboser))
        if spec.kind == "SUB":
            socket.setsockopt(zmq.CONFLATE, int(spec.conflate))
            for topic in topics_of(spec):
                socket.setsockopt(zmq.SUBSCRIBE, topic)
        if _may_be_ipv6(spec.address):
            socket.setsockopt(zmq.IPV6, 1)
        if spec.heartbeat_s and spec.address.startswith("tcp://"):
            self._expect_answers(round(spec.heartbeat_s * 1000))
        if spec.curve is not None:
            self._authenticate(*spec.curve)
        if spec.watched:
            self._monitor = socket.get_monitor_socket(
                zmq.EVENT_DISCONNECTED | (zmq.EVENT_ACCEPTED if spec.bind else zmq.EVENT_CONNECTED))
        if spec.bind:
            self._bind(spec.address)
        else:
            socket.connect(spec.address)

    def send(self, frames: Sequence[Any], peer: int | bytes = 0) -> None:
        *parts, last = [frame if type(frame) is bytes and len(frame) < ZERO_COPY_BYTES else self._as_frame(frame)
                        for frame in frames]
        if parts and self.spec.kind == "XSUB":
            check_upward(frames)
        send = self._send
        try:
            if self._routes:
                send(peer if isinstance(peer, bytes) else identity_of(peer), _NOW_AND_MORE, False)
            for part in parts:
                send(part, _NOW_AND_MORE, False)
            send(last, _NOW, False)
        except zmq.Again:
            if self.spec.kind != "ROUTER":
                raise
            raise Unroutable(f"{self.spec.name}: peer {peer!r} has reached its high-water mark") from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise Unroutable(f"{self.spec.name}: peer {peer!r} is not connected") from None

    def try_receive(self) -> tuple[Any, list[Any]] | None:
        while True:
            if self._torn:
                while self._socket.getsockopt(zmq.RCVMORE):
                    self._receive(_NOW, False)
                self._torn = False
            if not self._option(_EVENTS) & _READABLE:
                return None  # an empty look, of which there are many, raises nothing
            try:
                frames = [self._receive(_NOW, False)]
                while frames[-1].more:
                    frames.append(self._receive(_NOW, False))
            except zmq.Again:
                return None
            except BaseException:
                self._torn = True
                raise
            peer: Any = self.spec.peer
            if self._routes:
                identity = frames.pop(0).bytes
                if self.spec.raw_identities:
                    peer = identity
                else:
                    peer = int.from_bytes(identity, "little") if len(identity) == IDENTITY_BYTES else None
            message = [f.buffer if len(f) >= ZERO_COPY_BYTES else f.bytes for f in frames]
            return peer if self._heard_from is None else self._heard_from(message), message

    def fileno(self) -> int:
        return self._fd

    def poll(self, timeout_ms: int) -> bool:
        """Wait for a message. -> whether there is one"""
        return bool(self._socket.poll(timeout_ms))

    def lost_peer(self) -> bool:
        """Whether the connection to an authenticated peer was refused or has ended; what arrived before stays."""
        if self._monitor is not None and self._monitor.poll(0):
            self._lost = True
        return self._lost

    def was_cut(self) -> bool:
        """Whether a connection of a watched socket has ended since the last call."""
        self._look()
        cut, self._cut = self._cut, False
        return cut

    def is_over(self) -> bool:
        """Whether nobody is connected any more to a watched socket, and all that came was received.

        An end is told behind what came before it, so nothing is on its way where none is here.
        """
        self._look()
        return 0 < self._came <= self._went and not self._socket.poll(0)

    def _look(self) -> None:
        """Take what is known of a watched socket's connections."""
        if self.spec.watched and self._monitor is not None:
            while self._monitor.poll(0):
                event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)
                ended = event == zmq.EVENT_DISCONNECTED
                self._came, self._went, self._cut = self._came + (not ended), self._went + ended, self._cut or ended

    def close(self, linger_s: float | None = None) -> None:
        if self._socket.closed:
            return
        if self._monitor is not None:
            if self.spec.watched and not self.spec.bind:
                self._look()
                linger_s = 0.0 if self._came <= self._went else linger_s
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(None if linger_s is None else round(min(linger_s, self.spec.linger_s) * 1000))

    def _bind(self, address: str) -> None:
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            if not address.startswith("tcp://") or error.errno not in _NOT_OF_THIS_HOST:
                raise
            raise not_here(address, error.strerror) from None

    def _expect_answers(self, every_ms: int) -> None:
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, every_ms)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_BEATS * every_ms)

    def _authenticate(self, public: str, secret: str, other: str) -> None:
        socket = self._socket
        socket.curve_publickey, socket.curve_secretkey = public.encode(), secret.encode()
        self._expect_answers(HEARTBEAT_MS)
        if self.spec.bind:
            socket.curve_server = True
        else:
            socket.curve_serverkey = other.encode()
            self._monitor = socket.get_monitor_socket(
                zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)

    def _as_frame(self, data: Any) -> Any:
        if memoryview(data).nbytes < ZERO_COPY_BYTES:
            return bytes(data)
        return zmq.Frame(data, copy=False)

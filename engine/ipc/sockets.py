"""ZMQ sockets behind `ports.Socket`: options set in one place, sends and receives that never wait.

Promises
- HWM, linger, identity and buffers are what the `SocketSpec` says, set before bind or connect.
- Frames of 64 KiB and more travel without a copy; each such frame is kept, with its own tracker, until ZMQ is
  done with it. (A tracker of the whole message would cover its last frame only.)
- A ROUTER never drops in silence: an unconnected peer is `Unroutable`.
- A peer with an identity that is not one of ours never reaches the caller, unless `raw_identities` is set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from engine.ports import SocketSpec, Unroutable

#: Below this, copying is cheaper than tracking.
ZERO_COPY_BYTES = 64 << 10
#: Linux: sizeof(sockaddr_un.sun_path) is 108 with its end mark.
IPC_PATH_BYTES = 107
_IDENTITY_BYTES = 2


def identity_of(index: int) -> bytes:
    """The identity of peer `index`: two bytes, little-endian."""
    return index.to_bytes(_IDENTITY_BYTES, "little")


class ZmqSocket:
    """One socket, used by one thread. Raises zmq.ZMQError for misuse only."""

    def __init__(self, context: zmq.Context, spec: SocketSpec) -> None:
        self.spec = spec
        self._socket = socket = context.socket(getattr(zmq, spec.kind))
        self._routes = spec.kind == "ROUTER"
        self._kept: deque[zmq.Frame] = deque()
        socket.setsockopt(zmq.SNDHWM, spec.send_hwm)
        socket.setsockopt(zmq.RCVHWM, spec.receive_hwm)
        socket.setsockopt(zmq.LINGER, round(spec.linger_s * 1000))
        if spec.buffer_bytes:
            socket.setsockopt(zmq.SNDBUF, spec.buffer_bytes)
            socket.setsockopt(zmq.RCVBUF, spec.buffer_bytes)
        if spec.identity is not None:
            socket.setsockopt(zmq.IDENTITY, spec.identity)
        if self._routes:
            socket.setsockopt(zmq.ROUTER_MANDATORY, int(spec.mandatory))
            socket.setsockopt(zmq.ROUTER_HANDOVER, int(spec.handover))
        if spec.kind == "XPUB":
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        if spec.kind == "SUB":
            socket.setsockopt(zmq.SUBSCRIBE, spec.topic)
        if spec.address.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        try:
            if spec.bind:
                socket.bind(spec.address)
            else:
                socket.connect(spec.address)
        except BaseException:
            socket.close(0)
            raise
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT) if spec.bind else spec.address
        self._fd = socket.getsockopt(zmq.FD)

    def send(self, frames: Sequence[Any], peer: int | bytes = 0) -> None:
        if self._kept:
            self._forget_sent()
        parts = [self._as_frame(frame) for frame in frames]
        if self._routes:
            parts.insert(0, peer if isinstance(peer, bytes) else identity_of(peer))
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
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
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            peer: Any = self.spec.peer
            if self._routes:
                identity = frames.pop(0).bytes
                if self.spec.raw_identities:
                    peer = identity
                elif len(identity) == _IDENTITY_BYTES:
                    peer = int.from_bytes(identity, "little")
                else:
                    continue
            return peer, [f.buffer if len(f) >= ZERO_COPY_BYTES else f.bytes for f in frames]

    def fileno(self) -> int:
        return self._fd

    def close(self, linger_s: float | None = None) -> None:
        self._socket.close(None if linger_s is None else round(linger_s * 1000))

    def _as_frame(self, data: Any) -> Any:
        if isinstance(data, bytes) and len(data) < ZERO_COPY_BYTES:
            return data
        if memoryview(data).nbytes < ZERO_COPY_BYTES:
            return bytes(data)
        frame = zmq.Frame(data, track=True, copy=False)
        self._kept.append(frame)
        return frame

    def _forget_sent(self) -> None:
        while self._kept and self._kept[0].tracker.done:
            self._kept.popleft()

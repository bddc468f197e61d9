"""A socket bound to a network, which lets in one key and nobody else.

libzmq asks a handler inside the process (ZAP) whether a client whose key is proven may come in; without one it lets
in whoever knows the server's public key. The handler is a thread with a context of its own; both end with the socket.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils import z85

from engine.ports import SocketSpec, Unroutable
from engine.wire.sockets import ZmqSocket

_ZAP = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class GuardedSocket(ZmqSocket):
    """A bound CURVE socket. `spec.curve` = (own public, own secret, the client's public), Z85.

    Where some reader of an XPUB is `spec.send_hwm` messages behind, `send` raises Unroutable and nobody gets anything.
    """

    def __init__(self, spec: SocketSpec) -> None:
        self._own_context = context = zmq.Context()
        doorman = context.socket(zmq.REP)
        doorman.linger = 0
        doorman.bind(_ZAP)
        self._doorman = threading.Thread(target=_answer, args=(context, doorman, z85.decode(spec.curve[2])), name="zap",
                                         daemon=True)
        self._doorman.start()
        try:
            super().__init__(context, spec)
            if spec.kind == "XPUB":
                self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        except BaseException:
            self._end()
            raise

    def send(self, frames: Sequence[Any], peer: int | bytes = 0) -> None:
        try:
            super().send(frames, peer)
        except zmq.Again:
            raise Unroutable(f"{self.spec.name}: a reader is {self.spec.send_hwm} messages behind") from None

    def close(self, linger_s: float | None = None) -> None:
        super().close(linger_s)
        self._end()

    def _end(self) -> None:
        if threading.current_thread() is self._doorman:  # collected there: it cannot wait for itself
            threading.Thread(target=self._end, name="zap-end", daemon=True).start()
            return
        self._own_context.term()  # ends the doorman's receive
        self._doorman.join()


def _answer(context: zmq.Context, doorman: zmq.Socket, allowed: bytes) -> None:
    """`context` is held so that only `close` ends it: collected with its sockets, it would wait for this thread."""
    try:
        while True:
            version, request, _domain, _address, _identity, mechanism, *keys = doorman.recv_multipart()
            welcome = version == _VERSION and mechanism == b"CURVE" and keys == [allowed]
            code, text = (b"200", b"OK") if welcome else (b"400", b"unknown key")
            doorman.send_multipart([_VERSION, request, code, text, b"", b""])
    except zmq.ContextTerminated:
        pass
    finally:
        doorman.close(0)

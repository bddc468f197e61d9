"""A doorbell that is a ZMQ socket, as vLLM's is: the writer publishes a byte behind each message.

Promises
- Who sleeps on it needs no futex. vLLM's readers do, once they have spun for a second.
- What a reader waits for is still the word in shared memory. A byte that is lost costs it one look at its writer at the
  most (`end.PEER_CHECK_S`), one that came early a look for nothing.
- The writer never waits: a reader keeps the last byte alone, and what is still on its way to it, or to one that stands
  still, is no more than the ring holds.
- Who shuts a writer down from another thread does not touch its socket while it is in use.

    writer    message -> word changed, futex woken -> byte published    PUB
    reader    look -> the bell's own short spin -> poll -> look         SUB that keeps one message
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from engine.ipc.wait import SPIN_S, FutexDoorbell, SpinThenSleep
from engine.ports import Doorbell

if TYPE_CHECKING:
    from engine.wire.sockets import ZmqSocket

#: The byte: vLLM's.
_NOTICE = (b"\x00",)


class NotifySocket(SpinThenSleep):
    """The choice. A writer publishes, and waits for room as by default; a reader sleeps on what its writer publishes.

    One reader may choose it and another not: a writer that publishes rings its bell as well.
    """


class NotifyingBell:
    """A writer's bell, and its socket."""

    def __init__(self, bell: Doorbell, socket: ZmqSocket) -> None:
        self._bell, self._socket = bell, socket
        self._sending = threading.RLock()  # its thread may take it again, as in `end.QueueEnd`
        self.seen, self.wait = bell.seen, bell.wait

    def ring(self) -> None:
        self._bell.ring()
        if self._sending.acquire(False):  # else another thread is sending: one of the two shuts down
            try:
                self._socket.send(_NOTICE)
            finally:
                self._sending.release()

    def close(self) -> None:
        self._socket.close()
        self._bell.close()


class NotifiedBell:
    """A reader's bell, and the socket that it sleeps on: at most `look_s`, for others ring the bell alone."""

    def __init__(self, bell: FutexDoorbell, socket: ZmqSocket, look_s: float) -> None:
        self._bell, self._socket, self._look_s = bell, socket, look_s
        self.seen, self.glance, self.ring = bell.seen, bell.glance, bell.ring

    def wait(self, seen: int, timeout_s: float) -> bool:
        if self._bell.wait(seen, min(SPIN_S, timeout_s)):
            return True
        if self._socket.poll(max(0, math.ceil((min(timeout_s, self._look_s) - SPIN_S) * 1000))):
            self._socket.try_receive()
        return self._bell.seen() != seen

    def close(self) -> None:
        self._socket.close()
        self._bell.close()

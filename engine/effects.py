"""What a pure loop may ask of the world.

The loops of the core, the executor, the workers, the handshake and the subscriber are generators: they
decide, yield one of these effects, and are sent its result. `engine/process/shell.py` answers them with the ports
of a real process, `sim/process/thread.py` answers the same effects on SimPy. So each loop is written once,
it can be stepped by hand in a test, and a process can be stopped or killed exactly between two effects.

An effect that fails is thrown into the loop as an exception of `engine.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec

from engine.topology import Mark

Result = TypeVar("Result")
#: A pure loop: yields effects, returns its result.
Loop = Generator["Effect", Any, Result]


class Effect(msgspec.Struct, gc=False):
    """Base of all effects."""


class Now(Effect):
    """-> seconds of a monotonic clock."""


class MarkPoint(Effect):
    """A crash point that is no message. -> None"""

    mark: Mark
    data: dict[str, Any] | None = None


class Observe(Effect):
    """Something a judge wants to know. Not counted, costs nothing where nobody records. -> None"""

    name: str
    data: dict[str, Any]


class Beat(Effect):
    """The process is alive and got this far. Written to a shared word, never counted. -> None"""

    count: int


class Send(Effect):
    """Put one message on an outbox. Never waits. `peer` is an index where the socket has several. -> None

    Raises UnroutableError-like `engine.errors` where the socket knows that nobody will get it.
    """

    outbox: str
    frames: list[Any]
    peer: int = 0


class Receive(Effect):
    """Wait for a message on any of the named inboxes until `deadline` (monotonic; None: until closed).

    -> (inbox name, peer index, frames), or None at the deadline. A deadline in the past looks once.
    """

    inboxes: tuple[str, ...]
    deadline: float | None


class Put(Effect):
    """Append to a queue inside the process. Never waits. -> None"""

    queue: str
    item: Any


class Take(Effect):
    """Wait until a queue inside the process has items, then take all. -> list, empty at the deadline"""

    queue: str
    deadline: float | None


class Attempt(Effect):
    """Run one `try_write` or `try_read` of a ring against shared memory. -> what `operation` returns

    `ring` is the name of the ring (for sites). The twin re-executes the operation from recorded loads
    when the process is to be stopped between two stores.
    """

    ring: str
    operation: Callable[[], Any]


class RingCrossing(Effect):
    """A ring message is about to be written (`send`), or was read and is about to be used (`receive`). -> None

    `parts` are the message's buffers as framed, `position` its number in the ring from 0. This is where a
    plan stops a process around a ring message; without a fault layer it costs nothing.
    """

    ring: str
    operation: str
    position: int
    parts: list[Any]
    overflow: bool = False


class RingBell(Effect):
    """Wake whoever sleeps on this bell. -> None"""

    bell: str


class WaitBell(Effect):
    """Sleep until the bell rings, the loop is cancelled, or `deadline`. -> True if it may have rung

    Raises QueueCancelledError when the process is shutting down or the peer is known to be dead.
    """

    bell: str
    deadline: float | None


class Call(Effect):
    """Execute a method of the worker object. -> its result; its exception is thrown into the loop"""

    method: str
    args: tuple
    kwargs: dict[str, Any]

"""What a play of the queue does to the queue's own loops: it breaks them off, or changes what they ask for (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from engine.effects import Loop, RingCrossing, Send
from engine.errors import QueueDecodeError
from engine.ports import SocketSpec

_MARK = b"RTpos"
_LOST = "lost on "
#: How many messages may wait at each end of the connection to another host.
_BOUND = 2
#: The parts of what is no message.
NOTHING = [b""]


class Interrupted(BaseException):
    """As a signal handler raises it."""


def interrupted(loop: Loop[Any], after: int, done: bool) -> Loop[Any]:
    """The loop, until it has yielded so many effects. `done`: one more is answered, and it does not hear of that."""
    return _passing(loop, lambda effect: effect, after, done)


def without_marks(loop: Loop[Any]) -> Loop[Any]:
    """The loop of a writer that does not say to which message a payload belongs, as vLLM's."""
    def without(effect: Any) -> Any:
        if not isinstance(effect, Send):
            return effect
        return Send(effect.outbox, [frame for frame in effect.frames if bytes(frame[:len(_MARK)]) != _MARK])

    return _passing(loop, without)


def in_parts(loop: Loop[Any], queue: Any, taken: list[Any]) -> Loop[Any]:
    """The loop of a reader that takes objects, with each crossing told in `taken`, the parts of what was taken last:
    so the fault layer of a real process knows them. What cannot be decoded was read before that was seen."""
    position = queue.position
    taken.clear()

    def told(effect: Any) -> Any:
        if not isinstance(effect, RingCrossing) or effect.overflow or not taken:
            return effect
        return RingCrossing(effect.ring, effect.operation, effect.position, taken[0])

    try:
        return (yield from _passing(loop, told))
    except QueueDecodeError as error:
        if _LOST not in str(error):
            yield RingCrossing(queue.name, "receive", position, taken[0] if taken else NOTHING)
        raise


def _passing(loop: Loop[Any], change: Callable[[Any], Any], after: int | None = None, done: bool = False) -> Loop[Any]:
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = loop.send(answer) if error is None else loop.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        if after == 0 and not done:
            loop.throw(Interrupted())
        try:
            answer = yield change(effect)
        except Exception as failed:
            error = failed
        if after is not None:
            if after == 0:
                loop.throw(Interrupted())
            after -= 1


def no_edge(spec: SocketSpec) -> SocketSpec:
    """No edge of a topology leads to another host: what goes there is known by the crossings of the queue."""
    return msgspec.structs.replace(spec, send_channel=None, receive_channel=None, send_hwm=min(spec.send_hwm, _BOUND),
                                   receive_hwm=min(spec.receive_hwm, _BOUND))

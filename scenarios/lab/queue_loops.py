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
#: In how many places a put is broken off, before it is said that there is room, and from then on.
_BEFORE, _BEHIND = 4, 5
#: The parts of what is no message.
NOTHING = [b""]


class Interrupted(BaseException):
    """As a signal handler raises it."""


class Halves(dict[str, list[Any]]):
    """By outbox: what was sent of a message that was broken off in its middle. What is sent next goes on with it."""

    def put(self, loop: Loop[Any], number: int) -> Loop[Any]:
        """The loop that puts an object of this number: every other one is interrupted, each somewhere else."""
        turn, odd = divmod(number, 2)
        if not odd:
            return _passing(loop, _unchanged, halves=self)
        place = turn % (_BEFORE + _BEHIND)
        if place < _BEFORE:
            return _passing(loop, _unchanged, place, turn % 2 == 0, self)
        return _passing(loop, _unchanged, place - _BEFORE, turn % 2 == 0, self, RingCrossing)


def interrupted(loop: Loop[Any], after: int, done: bool) -> Loop[Any]:
    """The loop, until it has yielded so many effects. `done`: one more is answered, and it does not hear of that."""
    return _passing(loop, _unchanged, after, done)


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


def _passing(loop: Loop[Any], change: Callable[[Any], Any], after: int | None = None, done: bool = False,
             halves: Halves | None = None, since: type[Any] = object) -> Loop[Any]:
    """`after`: so many effects, from the first of kind `since` on."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect: Any = loop.send(answer) if error is None else loop.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        since = object if isinstance(effect, since) else since
        now = after if since is object else None
        half = halves.setdefault(effect.outbox, []) if halves is not None and isinstance(effect, Send) else []
        if now == 0 and not done:
            if halves is not None and isinstance(effect, Send):
                half += effect.frames[:-1]
            loop.throw(Interrupted())
        try:
            answer = yield Send(effect.outbox, [*half, *effect.frames]) if half else change(effect)
            half.clear()
        except Exception as failed:
            error = failed
        if now is not None:
            if now == 0:
                loop.throw(Interrupted())
            after = now - 1


def _unchanged(effect: Any) -> Any:
    return effect


def no_edge(spec: SocketSpec) -> SocketSpec:
    """No edge of a topology leads to another host: what goes there is known by the crossings of the queue."""
    return msgspec.structs.replace(spec, send_channel=None, receive_channel=None, send_hwm=min(spec.send_hwm, _BOUND),
                                   receive_hwm=min(spec.receive_hwm, _BOUND))

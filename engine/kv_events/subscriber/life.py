"""The life of a subscriber process, from its birth to its last words, in both worlds. Pure.

    born -> sockets -> follow, until it may leave or is told to -> mirror -> bye

Promises
- It leaves in order at SIGTERM and when whoever started it is gone: it tells what it mirrors, and why it left.
- What it reads and asks, it reads and asks as `KVEventSubscriber` does for a program (reading.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.effects import (
    AwaitParent,
    Cancel,
    Close,
    Loop,
    MarkPoint,
    Observe,
    OnTerminate,
    OpenSocket,
    Put,
    Take,
    WhoAmI,
)
from engine.errors import QueueCancelledError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.subscriber.follow import follow
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.process.beside import beside
from engine.topology import Mark
from engine.wire.wiring import subscriber_sockets

#: The queue of what ends a life: why, or None when it is over anyway.
ENDINGS = "endings"


class SubscriberRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscriber follows. `replay_endpoint` None: it cannot ask."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    poll_s: float = 5.0
    answer_s: float = 5.0
    tries: int = 3
    hwm: int = 100_000
    socket_buffer_bytes: int = 0
    core_index: int = 0


def reading_of(recipe: SubscriberRecipe, new_tag: Callable[[], int]) -> Reading:
    """`new_tag()`: where the tags of a reader begin, so that no answer to an earlier one is taken for its own."""
    return Reading(lambda: KVEventFollower(
        topic=recipe.topic, replay=recipe.replay_endpoint is not None, poll_s=recipe.poll_s, answer_s=recipe.answer_s,
        tries=recipe.tries, tag=new_tag()))


def open_sockets(recipe: SubscriberRecipe, identity: bytes | None) -> Loop[None]:
    """`identity` None: the publisher chooses one. Raises what `OpenSocket` does for an address that is none."""
    for spec in subscriber_sockets(recipe.endpoint, recipe.replay_endpoint, recipe.topic, hwm=recipe.hwm,
                                   buffer_bytes=recipe.socket_buffer_bytes, identity=identity,
                                   core_index=recipe.core_index):
        yield OpenSocket(spec)


def subscriber_life(recipe: SubscriberRecipe, identity: bytes, new_tag: Callable[[], int], *,
                    until: Callable[[KVEventFollower], bool] | None = None) -> Loop[None]:
    """`until(follower)`: whether it may leave by itself."""
    me = yield WhoAmI()
    yield OnTerminate(ENDINGS, "SIGTERM")
    yield Observe("born", {"pid": me.pid, "ppid": me.ppid, "start_time": me.start_time, "segments": [], "paths": []})
    yield MarkPoint(Mark.BORN)
    yield from open_sockets(recipe, identity)
    yield beside("endings", _leave_when_told())
    yield beside("parent", _leave_with_the_parent())
    reason = yield from follow(reading_of(recipe, new_tag), KVCacheMirror(), until=until)
    yield Observe("bye", {"reason": reason})
    yield Put(ENDINGS, None)
    yield Close()


def _leave_when_told() -> Loop[None]:
    why, *_ = yield Take(ENDINGS, None)
    if why is not None:
        yield Cancel(QueueCancelledError(why))


def _leave_with_the_parent() -> Loop[None]:
    yield AwaitParent()
    yield Put(ENDINGS, "the parent is gone")

"""A KV-cache subscriber of a play (pure): whom it follows, and the engine's own loop that both worlds run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from engine.config import EngineConfig
from engine.effects import Close, Describe, Loop, MarkPoint, Now, Observe, WhoAmI
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.subscriber.follow import LOOK_S, feed, mirror_data, observed
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE, KVEventFollower
from engine.kv_events.subscriber.life import SubscriberRecipe, open_sockets, reading_of, subscriber_life
from engine.topology import Mark
from engine.wire.wiring import identity_of
from faults.malformed import IDENTITY, amid_noise, rudely
from scenarios.history.play import Options
from scenarios.lab.publishers import impossible, misnumbered, without_epochs
from scenarios.worlds.addresses import address_of_rank


class Following(msgspec.Struct, frozen=True, kw_only=True):
    recipe: SubscriberRecipe
    identity: bytes
    rude: bool = False  # it asks what no subscriber asks, too
    without_epochs: bool = False  # it hears its publisher as the original's
    noise: bool = False  # it hears what no publisher says, too
    impossible: bool = False  # it hears of blocks that no cache has
    misnumbered: bool = False  # it hears a batch by a number that nobody has given
    polls: bool = False  # a real one is a program that polls a `KVEventSubscriber`


def following(config: EngineConfig, engine: int, index: int, options: Options) -> Following:
    """What subscriber number `index` does that follows this engine, configured as it is."""
    events, bounds, rank = config.kv_events, config.bounds, config.data_parallel_rank
    assert events.endpoint is not None and events.replay_endpoint is not None, "the lab chooses where events go"
    recipe = SubscriberRecipe(
        endpoint=address_of_rank(events.endpoint, rank),
        replay_endpoint=address_of_rank(events.replay_endpoint, rank) if events.replay else None, topic=events.topic,
        poll_s=bounds.replay_s, answer_s=bounds.replay_s, hwm=events.subscriber_hwm,
        socket_buffer_bytes=events.socket_buffer_bytes, core_index=engine)
    rude = options.rude_subscriber and index == 0
    return Following(recipe=recipe, identity=IDENTITY if rude else identity_of(index), rude=rude,
                     without_epochs=options.without_epochs, noise=options.noisy_publisher and index == 0,
                     impossible=options.impossible_events and index == 0,
                     misnumbered=options.misnumbered_batch and index == 0, polls=options.polling)


def follow(what: Following, life: int, told: Callable[[], bool], is_ready: Callable[[], None]) -> Loop[None]:
    """One life of it. `told()`: whether it shall leave once nothing is missing any more."""
    until = UntilCaughtUp(told, is_ready)
    living = _polling_life if what.polls else subscriber_life
    loop = living(what.recipe, what.identity, lambda: life * TAGS_OF_A_LIFE, until=until)
    if what.without_epochs:
        loop = without_epochs(loop)
    if what.impossible:
        loop = impossible(loop)
    if what.misnumbered:
        loop = misnumbered(loop)
    if what.noise:
        loop = amid_noise(loop, what.recipe.topic.encode())
    yield from rudely(loop) if what.rude else loop


def _polling_life(recipe: SubscriberRecipe, identity: bytes, new_tag: Callable[[], int], *,
                  until: Callable[[KVEventFollower], bool]) -> Loop[None]:
    """A program that polls, as `KVEventSubscriber.poll` does: a real one is `scenarios.worlds.listener`'s."""
    me = yield WhoAmI()
    yield Observe("born", {"pid": me.pid, "ppid": me.ppid, "start_time": me.start_time, "segments": [], "paths": []})
    yield MarkPoint(Mark.BORN)
    yield from open_sockets(recipe, identity)
    reading, mirror = reading_of(recipe, new_tag), KVCacheMirror()
    while not until(reading.follower):
        began = yield Now()
        yield from reading.until_told(began + LOOK_S)
        yield Observe("polled", polled(len(reading.told), (yield Now()) - began))
        while reading.told:
            report = reading.told.popleft()
            feed(mirror, report)
            observation = observed(report)
            if observation is not None:
                yield observation
    yield Describe("kv-mirror", partial(mirror_data, mirror))
    yield Observe("bye", {"reason": "done"})
    yield Close()


def polled(told: int, took_s: float) -> dict[str, float]:
    """What is observed of a poll: how many reports it brought, and how long it took of what it had."""
    return {"told": told, "took": took_s, "most": LOOK_S}


class UntilCaughtUp:
    """When a subscriber may leave that is told to stop: the `until` of `follow`.

    It stays until an answer came after it was told, and nothing is missing. One that cannot ask leaves at once.
    `told()`: whether it was told. `ready()` is called once: when the publisher has answered, or at once.
    """

    def __init__(self, told: Callable[[], bool], ready: Callable[[], None]) -> None:
        self._told = told
        self._ready = ready
        self._said_ready = False
        self._answers_when_told: int | None = None

    def __call__(self, follower: KVEventFollower) -> bool:
        if not self._said_ready and (not follower.replay or follower.answers):
            self._said_ready = True
            self._ready()
        if not self._told():
            return False
        if not follower.replay:
            return True
        if self._answers_when_told is None:
            self._answers_when_told = follower.answers
        return follower.answers > self._answers_when_told and follower.caught_up

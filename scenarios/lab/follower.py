"""A KV-cache subscriber of a play (pure): whom it follows, and the engine's own loop that both worlds run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.config import EngineConfig
from engine.effects import Loop
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE, KVEventFollower
from engine.kv_events.subscriber.life import SubscriberRecipe, subscriber_life
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
    loop = subscriber_life(what.recipe, what.identity, lambda: life * TAGS_OF_A_LIFE, until=until)
    if what.without_epochs:
        loop = without_epochs(loop)
    if what.impossible:
        loop = impossible(loop)
    if what.misnumbered:
        loop = misnumbered(loop)
    if what.noise:
        loop = amid_noise(loop, what.recipe.topic.encode())
    yield from rudely(loop) if what.rude else loop


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

"""A KV-cache subscriber of the twin: the engine's own, whole life."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.effects import Loop
from engine.kv_events.subscriber.follow import UntilCaughtUp
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE
from engine.kv_events.subscriber.life import SubscriberRecipe, subscriber_life
from engine.wire.wiring import identity_of
from faults.malformed import IDENTITY, rudely
from sim.process.process import SimProcess


def subscriber_main(process: SimProcess, config: EngineConfig, live: str, replay: str, core_index: int,
                    told: Callable[[], bool], is_ready: Callable[[], None], rude: bool) -> Loop[None]:
    """The subscriber's main thread. `told()`: whether it shall leave once nothing is missing any more."""
    events, bounds = config.kv_events, config.bounds
    recipe = SubscriberRecipe(
        endpoint=live, replay_endpoint=replay if events.replay else None, poll_s=bounds.replay_s,
        answer_s=bounds.replay_s, hwm=events.subscriber_hwm, socket_buffer_bytes=events.socket_buffer_bytes,
        core_index=core_index)
    loop = subscriber_life(recipe, IDENTITY if rude else identity_of(process.node.index),
                           lambda: process.life * TAGS_OF_A_LIFE, until=UntilCaughtUp(told, is_ready))
    yield from rudely(loop) if rude else loop

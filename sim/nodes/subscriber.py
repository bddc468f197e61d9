"""A KV-cache subscriber of the twin: the engine's own, whole life.

One that is killed is started again, once, without a memory and under its old name. The lab waits for its first life
only, so the second one leaves with its publisher.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.effects import Loop
from engine.errors import QueueCancelledError
from engine.kv_events.subscriber.follow import UntilCaughtUp
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE
from engine.kv_events.subscriber.life import SubscriberRecipe, subscriber_life
from engine.topology import core
from engine.wire.wiring import KV, REPLAY, identity_of
from faults.malformed import IDENTITY, rudely
from sim.process.process import SIGKILL, SimProcess
from sim.stage import Stage


def subscriber_main(process: SimProcess, stage: Stage, where: Callable[[str], str], is_ready: Callable[[], None],
                    is_done: Callable[[], None], rude: bool = False) -> Loop[None]:
    """The subscriber's main thread. Told to stop (`context["stop"]`), it leaves once nothing is missing any more.

    `where(KV)` and `where(REPLAY)` are the addresses of its publisher.
    """
    if process.life == 0:
        _start_again_if_killed(process, stage, where, rude)
    events, bounds = stage.config.kv_events, stage.config.bounds
    recipe = SubscriberRecipe(
        endpoint=where(KV), replay_endpoint=where(REPLAY) if events.replay else None, poll_s=bounds.replay_s,
        answer_s=bounds.replay_s, hwm=events.subscriber_hwm, socket_buffer_bytes=events.socket_buffer_bytes)
    until = UntilCaughtUp(lambda: process.context.get("stop", False), is_ready)
    loop = subscriber_life(recipe, IDENTITY if rude else identity_of(process.node.index),
                           lambda: process.life * TAGS_OF_A_LIFE, until=until)
    yield from rudely(loop) if rude else loop
    is_done()


def _start_again_if_killed(process: SimProcess, stage: Stage, where: Callable[[str], str], rude: bool) -> None:
    """What the keeper of a real subscriber does; it is no node of the play, so nobody but this watch sees it."""
    sim = stage.sim
    keeper = SimProcess(sim, process.node, None, process.pid)

    def ended() -> None:
        publisher = sim.process(str(stage.node(core())))
        if process.exitcode != SIGKILL or process.context.get("stop") or publisher is None or not publisher.alive:
            return
        again = sim.start_process(
            msgspec.structs.replace(process.node, life=1),
            lambda life: subscriber_main(life, stage, where, lambda: None, lambda: None, rude))
        again.watch(publisher, lambda: again.cancel(QueueCancelledError("the publisher is gone")))

    keeper.watch(process, ended)

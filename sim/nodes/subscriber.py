"""A KV-cache subscriber of the twin: the engine's own follower, mirror and loop.

One that is killed is started again, once, without a memory and under its old name. The lab waits for its first life
only, so the second one leaves with its publisher.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.effects import Loop, MarkPoint, Observe
from engine.errors import QueueCancelledError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.subscriber.follow import UntilCaughtUp, follow
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE, KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.topology import Mark, core
from engine.wire.wiring import KV, REPLAY, identity_of, subscriber_sockets
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
    process.observe("born", {"pid": process.pid, "ppid": 1, "start_time": process.pid, "segments": [], "paths": []})
    yield MarkPoint(Mark.BORN)
    for spec in subscriber_sockets(where(KV), where(REPLAY) if events.replay else None,
                                   hwm=events.subscriber_hwm, buffer_bytes=events.socket_buffer_bytes,
                                   identity=IDENTITY if rude else identity_of(process.node.index)):
        process.open_socket(spec)
    reading = Reading(lambda: KVEventFollower(replay=events.replay, poll_s=bounds.replay_s, answer_s=bounds.replay_s,
                               tag=process.life * TAGS_OF_A_LIFE))
    until = UntilCaughtUp(lambda: process.context.get("stop", False), is_ready)
    loop = follow(reading, KVCacheMirror(), until=until)
    yield from rudely(loop) if rude else loop
    yield Observe("bye", {"reason": "done"})
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

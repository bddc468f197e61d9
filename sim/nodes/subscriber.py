"""A KV-cache subscriber of the twin: the engine's own follower, mirror and loop."""

from __future__ import annotations

from collections.abc import Callable

from engine.config import EngineConfig
from engine.effects import Loop, MarkPoint, Observe
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.subscriber.follower import TAGS_OF_A_LIFE, KVEventFollower
from engine.kv_events.subscriber.loop import UntilCaughtUp, subscriber_loop
from engine.topology import Mark
from engine.wire.wiring import identity_of, subscriber_sockets
from faults.malformed import IDENTITY, rudely
from sim.process.process import SimProcess


def subscriber_main(process: SimProcess, config: EngineConfig, live: str, replay: str, core_index: int,
                    told: Callable[[], bool], is_ready: Callable[[], None], rude: bool) -> Loop[None]:
    """The subscriber's main thread. `told()`: whether it shall leave once nothing is missing any more."""
    events, bounds = config.kv_events, config.bounds
    process.observe("born", {"pid": process.pid, "ppid": 1, "start_time": process.pid, "segments": [], "paths": []})
    yield MarkPoint(Mark.BORN)
    for spec in subscriber_sockets(live, replay if events.replay else None, hwm=events.subscriber_hwm,
                                   buffer_bytes=events.socket_buffer_bytes, core_index=core_index,
                                   identity=IDENTITY if rude else identity_of(process.node.index)):
        process.ports.open_socket(spec)
    follower = KVEventFollower(replay=events.replay, poll_s=bounds.replay_s, answer_s=bounds.replay_s,
                               tag=process.life * TAGS_OF_A_LIFE)
    loop = subscriber_loop(follower, KVCacheMirror(), until=UntilCaughtUp(told, is_ready))
    yield from rudely(loop) if rude else loop
    yield Observe("bye", {"reason": "done"})

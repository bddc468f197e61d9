"""A KV-cache subscriber of the twin: the engine's own follower, mirror and loop."""

from __future__ import annotations

from collections.abc import Callable

from engine.effects import Loop, MarkPoint, Observe
from engine.kv_follow import subscriber_loop
from engine.kv_mirror import KVCacheMirror
from engine.kv_subscriber import KVEventFollower
from engine.topology import Mark
from engine.wiring import identity_of, subscriber_sockets
from sim.processes import SimProcess
from sim.stage import Stage


def subscriber_main(process: SimProcess, stage: Stage, is_ready: Callable[[], None],
                    is_done: Callable[[], None]) -> Loop[None]:
    """The subscriber's main thread. Told to stop (`context["stop"]`), it leaves once nothing is missing any more."""
    events, bounds = stage.config.kv_events, stage.config.bounds
    process.observe("born", {"pid": process.pid, "ppid": 1, "start_time": process.pid, "segments": [], "paths": []})
    yield MarkPoint(Mark.BORN)
    for spec in subscriber_sockets(stage.address("kv"), stage.address("replay") if events.replay else None,
                                   hwm=events.subscriber_hwm, buffer_bytes=events.socket_buffer_bytes,
                                   identity=identity_of(process.node.index)):
        process.open_socket(spec)
    follower = KVEventFollower(replay=events.replay, poll_s=bounds.replay_s, answer_s=bounds.replay_s)
    state = {"ready": False, "asked": None}

    def until(follower: KVEventFollower) -> bool:
        if not state["ready"] and (not follower.replay or follower.answers):
            state["ready"] = True
            is_ready()
        if not process.context.get("stop"):
            return False
        if not follower.replay:
            return True
        if state["asked"] is None:
            state["asked"] = follower.answers
        return follower.answers > state["asked"] and follower.caught_up

    yield from subscriber_loop(follower, KVCacheMirror(), until=until)
    yield Observe("bye", {"reason": "done"})
    is_done()

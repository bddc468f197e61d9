"""The life of a publisher: what it opens, starts and ends, alone in a program, in a core, and in the twin. Pure.

Promises
- When it has started both sockets are bound, or connected to, and each is served by a thread of its own: a long replay
  does not hold back live batches.
- When it has ended no thread of it runs, unless one is stuck: what was queued is published first if that takes less
  than `patience_s`, the rest is given up. The sockets are left to whoever ends the process.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.config import KVEventsConfig
from engine.effects import Cancel, JoinThread, Loop, Now, OpenSocket, Put, WallTime
from engine.errors import QueueCancelledError
from engine.kv_events.publisher.log import KVEventLog, publish_loop
from engine.kv_events.publisher.replays import replay_loop
from engine.process.beside import beside
from engine.wire.wiring import KV, kv_socket, offset_endpoint_port, replay_hwm, replay_socket

#: Its threads.
PUBLISHER, REPLAYER = "zmq-publisher", "zmq-replay"
DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"
#: What publishing the rest of the queue may take at the end.
SHUTDOWN_S = 1.0


def start_publisher(events: KVEventsConfig, data_parallel_rank: int, *, epoch: int | None = None,
                    kept: Callable[[KVEventLog], None] | None = None) -> Loop[KVEventLog | None]:
    """-> the log to `hand_over` batches to, by the queue "kv"; None where events are off.

    `kept` has it before a thread is started: whoever breaks a start off ends those that are there by it.
    `epoch`: differs between lives of the same publisher (from the clock if None). Raises ValueError for an epoch that
    is none, and what `OpenSocket` raises where an address cannot be bound.
    """
    if not events.enable_kv_cache_events or events.publisher == "null":
        return None
    wall = yield WallTime()
    log = KVEventLog(buffer_steps=events.buffer_steps, max_queue_size=events.max_queue_size, topic=events.topic,
                     data_parallel_rank=data_parallel_rank, epoch=round(wall * 1e6) if epoch is None else epoch,
                     wall_offset_s=wall - (yield Now()))
    if kept is not None:
        kept(log)
    bind = (events.endpoint is None or is_bound(events.endpoint)) if events.bind is None else events.bind
    yield OpenSocket(kv_socket(offset_endpoint_port(events.endpoint or DEFAULT_ENDPOINT, data_parallel_rank), bind=bind,
                               hwm=events.hwm, buffer_bytes=events.socket_buffer_bytes))
    replay = replay_endpoint(events)
    if replay is not None:
        yield OpenSocket(replay_socket(offset_endpoint_port(replay, data_parallel_rank),
                                       hwm=replay_hwm(events.buffer_steps), buffer_bytes=events.socket_buffer_bytes))
    yield beside(PUBLISHER, publish_loop(log))
    if replay is not None:
        yield beside(REPLAYER, replay_loop(log))
    return log


def end_publisher(log: KVEventLog, events: KVEventsConfig, *, patience_s: float = SHUTDOWN_S) -> Loop[bool]:
    """-> whether its threads have ended: a socket that is in use must not be closed

    Ends every wait of the process.
    """
    yield Put(KV, None)
    yield JoinThread(PUBLISHER, (yield Now()) + patience_s)
    log.stop()
    yield Cancel(QueueCancelledError("the publisher was shut down"))
    ended = True
    for name in (PUBLISHER,) if replay_endpoint(events) is None else (PUBLISHER, REPLAYER):
        ended = (yield JoinThread(name, (yield Now()) + patience_s)) and ended
    return ended


def replay_endpoint(events: KVEventsConfig) -> str | None:
    """Where replays are served; None where there are none."""
    return events.replay_endpoint if events.replay else None


def is_bound(endpoint: str) -> bool:
    """Stable addresses are bound, volatile ones connected to: vLLM's rule."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))

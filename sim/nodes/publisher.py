"""The publisher of KV events in the twin: the engine's own log and loops."""

from __future__ import annotations

from engine.effects import StartPublisher
from engine.kv_events.publisher.log import KVEventLog, publish_loop, replay_loop
from engine.wire.wiring import kv_socket, offset_endpoint_port, replay_hwm, replay_socket
from sim.process.process import SimProcess


def start_publisher(process: SimProcess, asked: StartPublisher) -> KVEventLog | None:
    """As `ZmqEventPublisher` does it. -> the log to hand batches to; None where events are off. Raises OSError."""
    events, rank = asked.config, asked.data_parallel_rank
    if not events.enable_kv_cache_events:
        return None
    log = KVEventLog(buffer_steps=events.buffer_steps, max_queue_size=events.max_queue_size, topic=events.topic,
                     data_parallel_rank=rank, epoch=round(process.kernel.now * 1e6) + 1)
    process.ports.open_socket(kv_socket(
        offset_endpoint_port(events.endpoint, rank), hwm=events.hwm, buffer_bytes=events.socket_buffer_bytes))
    process.start("zmq-publisher", publish_loop(log))
    if events.replay:
        process.ports.open_socket(replay_socket(
            offset_endpoint_port(events.replay_endpoint, rank), hwm=replay_hwm(events.buffer_steps),
            buffer_bytes=events.socket_buffer_bytes))
        process.start("zmq-replay", replay_loop(log))
    return log

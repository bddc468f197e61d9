"""How the lab configures the engine: the same mechanisms with shorter bounds and smaller rings.

A hang costs its detection time-out, so a lab that plays hundreds of them shrinks every bound; the guarantees
read the bounds from the run, so they are judged by what was really configured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.config import (
    Bounds,
    CacheConfig,
    DataParallelConfig,
    EngineConfig,
    KVEventsConfig,
    RingConfig,
    SchedulerConfig,
)
from engine.topology import Client, Engine, Topology

MODEL = Path(__file__).parents[1] / "model"

#: `detection_s` is five times the engine's target of 100 ms: a play shares its cores with others. The report shows
#: what was measured, and tests/benchmarks holds the target.
LAB_BOUNDS = Bounds(
    startup_s=20.0, handshake_s=5.0, step_s=1.0, rpc_s=1.0, heartbeat_s=0.1, stall_s=1.6, detection_s=0.5,
    request_s=3.0, output_gap_s=0.5, drain_s=1.0, linger_s=4.0, orphan_s=2.0, cleanup_s=5.0, ring_recheck_s=0.2,
    terminate_s=2.0, replay_s=0.3, collective_s=5.0)


def lab_config(**changes: Any) -> EngineConfig:
    """The lab's engine. Arguments are fields of EngineConfig; nested configs may be dicts of changes."""
    base = EngineConfig(
        model=str(MODEL), device="auto", start_method="fork", skip_tokenizer_init=True, bounds=LAB_BOUNDS,
        cache=CacheConfig(block_size=8, num_gpu_blocks=64),
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=16),
        data_parallel=DataParallelConfig(sync_interval=4, changed_s=0.02, unchanged_s=0.2, settle_s=0.01),
        ring=RingConfig(max_chunk_bytes=16 << 10, max_chunks=4, response_chunk_bytes=16 << 10, response_chunks=4),
        kv_events=KVEventsConfig())
    merged = {name: msgspec.structs.replace(getattr(base, name), **value) if isinstance(value, dict) else value
              for name, value in changes.items()}
    return msgspec.structs.replace(base, **merged)


def with_grid(config: EngineConfig, engine: Engine) -> EngineConfig:
    """Of as many ranks as this engine."""
    return msgspec.structs.replace(config, tensor_parallel_size=engine.tp, pipeline_parallel_size=engine.pp)


def of_topology(config: EngineConfig, topology: Topology) -> EngineConfig:
    """What a play records: as its first client is started."""
    first = topology.engines[0]
    clients = topology.clients_of(first.index)
    return _joined(with_grid(config, first), topology, clients[0])


def _joined(config: EngineConfig, topology: Topology, client: Client) -> EngineConfig:
    """With as many cores as that client has, and a coordinator where they have one."""
    hubs = topology.coordinators_of(client.engines)
    return msgspec.structs.replace(
        config, data_parallel_size=len(client.engines), data_parallel=msgspec.structs.replace(
            config.data_parallel, coordinator=bool(hubs), lockstep=any(hub.lockstep for hub in hubs)))


def config_of(config: EngineConfig, engine: Engine) -> EngineConfig:
    """The configuration of one engine of a play.

    One beside the first publishes KV events if it is a data-parallel rank: two cannot publish at one address.
    """
    rank = config.data_parallel_rank if engine.data_parallel_rank is None else engine.data_parallel_rank
    events = config.kv_events
    if engine.index and engine.data_parallel_rank is None:
        events = msgspec.structs.replace(events, enable_kv_cache_events=False)
    return msgspec.structs.replace(with_grid(config, engine), data_parallel_rank=rank, kv_events=events)


def config_for(config: EngineConfig, client: Client, topology: Topology) -> EngineConfig:
    """What a client is started with: as its first engine, for all that it has."""
    return _joined(config_of(config, topology.engine(client.engines[0])), topology, client)


def listeners_s(bounds: Bounds) -> float:
    """How long a lab waits for its subscribers, to begin and to catch up: some answers to their questions."""
    return 8 * bounds.replay_s + bounds.cleanup_s

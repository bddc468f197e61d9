"""How the lab configures the engine: the same mechanisms with shorter bounds and smaller rings.

A hang costs its detection time-out, so a lab that plays hundreds of them shrinks every bound; the guarantees
read the bounds from the run, so they are judged by what was really configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

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
from engine.topology import Client, Deployment, Engine, Launcher, Topology, data_parallel

MODEL = Path(__file__).parents[1] / "model"
#: Where ranks without a coordinator meet, below the directory of a play.
MEETS_AT = "ipc:///ranks.ipc"
#: The same of where cores greet a head that has not started them.
GREETS_AT = "ipc:///head.ipc"

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


def spread(topology: Topology, dp: int | None = None, *, clients: int | None = None, lockstep: bool = False,
           coordinator: bool = False) -> Topology:
    """The same play with `dp` engines for `clients` clients where it has one for one; None: as it was."""
    if len(topology.engines) > 1 or len(topology.clients) > 1 or (dp or 1) * (clients or 1) == 1:
        return topology
    (one,) = topology.engines
    several = data_parallel(dp or 1, tp=one.tp, pp=one.pp, clients=clients or 1, lockstep=lockstep,
                            coordinated=coordinator)
    return msgspec.structs.replace(several, engines=tuple(
        msgspec.structs.replace(engine, subscribers=one.subscribers if engine.index == 0 else (),
                                data_parallel_rank=engine.index if (dp or 1) > 1 else one.data_parallel_rank)
        for engine in several.engines))


def with_grid(config: EngineConfig, engine: Engine) -> EngineConfig:
    """Of as many ranks as this engine."""
    return msgspec.structs.replace(config, tensor_parallel_size=engine.tp, pipeline_parallel_size=engine.pp)


def of_topology(config: EngineConfig, topology: Topology) -> EngineConfig:
    """What a play records: as its first client is started."""
    first = topology.engines[0]
    clients = topology.clients_of(first.index)
    return _joined(with_grid(config, first), topology, clients[0].engines)


def _joined(config: EngineConfig, topology: Topology, owned: tuple[int, ...]) -> EngineConfig:
    """With as many cores as there are with these, which one of them owns, and a coordinator where they have one."""
    first, bounds = owned[0], config.bounds
    hubs, group = topology.coordinators_of(owned), topology.steps_with(first)
    together = next(one for one in topology.deployments if any(engine.index == first for engine in one.engines))
    if group and bounds.collective_s >= bounds.step_s:  # whoever waits for another rank gives up before it is late
        bounds = msgspec.structs.replace(bounds, collective_s=0.8 * bounds.step_s)
    options = msgspec.structs.replace(
        config.data_parallel, coordinator=bool(hubs), lockstep=bool(group),
        master_address=(config.data_parallel.master_address or MEETS_AT) if topology.is_offline(first) else None)
    if topology.is_spread(first):
        options = _spread(options, together, tuple(one for one in owned if topology.owner_of(one) ==
                                                   topology.owner_of(first)))
    return msgspec.structs.replace(
        config, bounds=bounds, data_parallel_size=len(together.engines), data_parallel=options)


def _spread(options: DataParallelConfig, together: Deployment, owned: tuple[int, ...]) -> DataParallelConfig:
    balancing: Literal["internal", "hybrid", "external"] = "internal"
    if len(together.clients) > 1:
        alone = all(len(client.engines) == 1 for client in together.clients)
        balancing = "external" if alone and options.lockstep else "hybrid"
    return msgspec.structs.replace(
        options, load_balancing=balancing, head_address=options.head_address or GREETS_AT, size_local=len(owned),
        rank_local=owned[0])


def config_of(config: EngineConfig, engine: Engine) -> EngineConfig:
    """The configuration of one engine of a play.

    One beside the first publishes KV events if it is a data-parallel rank: two cannot publish at one address.
    """
    rank = config.data_parallel_rank if engine.data_parallel_rank is None else engine.data_parallel_rank
    events = config.kv_events
    if engine.index and engine.data_parallel_rank is None:
        events = msgspec.structs.replace(events, enable_kv_cache_events=False)
    return msgspec.structs.replace(with_grid(config, engine), data_parallel_rank=rank, kv_events=events)


def config_for(config: EngineConfig, one: Client | Launcher, topology: Topology,
               differs: Mapping[str, Any] | None = None) -> EngineConfig:
    """What a client, or a launcher, is started with: as its first engine, for all that it has.

    `differs`: what the last one has instead (`Options.differs`).
    """
    config = _joined(config_of(config, topology.engine(one.engines[0])), topology, one.engines)
    if not differs or one.node != topology.owner_of(topology.engines[-1].index):
        return config
    options = DataParallelConfig.__struct_fields__
    of_group = {name: value for name, value in differs.items() if name in options}
    return msgspec.structs.replace(
        config, data_parallel=msgspec.structs.replace(config.data_parallel, **of_group),
        **{name: value for name, value in differs.items() if name not in options})


def listeners_s(bounds: Bounds) -> float:
    """How long a lab waits for its subscribers, to begin and to catch up: some answers to their questions."""
    return 8 * bounds.replay_s + bounds.cleanup_s

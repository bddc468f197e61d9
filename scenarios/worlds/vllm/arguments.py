"""From the lab's configuration to vLLM's arguments (pure). What vLLM has no word for is left out."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.topology import Topology
from scenarios.worlds.vllm.stand_in import SCHEDULER

#: A new interpreter imports vLLM for itself, one after the other.
SPAWNED_S = 120.0
#: A start that is given less fails on a machine that has other things to do.
SHORTEST_START_S = 8.0
#: vLLM's time-out of a start begins when a core has got ready; so much of ours may have passed before that.
GETTING_READY_S = 4
#: Where the configuration does not say: blocks of the cache, and tokens of a request.
BLOCKS, LONGEST = 64, 400
#: vLLM counts its time-out of a step in whole seconds, and gives its workers 5 s to leave.
BOUNDS: dict[str, float] = {"startup_s": 20.0, "step_s": 2.0, "rpc_s": 2.0, "stall_s": 3.0, "request_s": 5.0,
                            "detection_s": 1.0, "cleanup_s": 3.0, "terminate_s": 6.0, "orphan_s": 6.0, "drain_s": 2.0}


#: A start that has failed gives its cores 5 s to leave, and these their workers, before they are killed.
LEAVE_S = 10.0
#: A client of several engines tells nobody of the death of one before the others have left, or were killed because
#: they did not leave in this time.
OTHERS_LEAVE_S = 5.0


def with_bounds(config: EngineConfig, topology: Topology = Topology()) -> EngineConfig:  # noqa: B008
    """What is documented of vLLM, or was configured, instead of our engine's own bounds."""
    startup_s = SPAWNED_S if config.start_method == "spawn" else max(
        SHORTEST_START_S, min(config.bounds.startup_s, BOUNDS["startup_s"]))
    others_s = OTHERS_LEAVE_S if len(topology.engines) > 1 else 0.0
    return msgspec.structs.replace(config, bounds=msgspec.structs.replace(
        config.bounds, **{**BOUNDS, "startup_s": startup_s + LEAVE_S, "detection_s": BOUNDS["detection_s"] + others_s}))


def _in_step(config: EngineConfig) -> dict[str, Any]:
    """vLLM has engines step together where a model has experts. The stand-in's has none: it says that it had."""
    return {"hf_overrides": {"num_experts": 2}, "dp_sync_interval": config.data_parallel.sync_interval}


def arguments_of(config: EngineConfig, topology: Topology) -> dict[str, Any]:
    """Of `AsyncEngineArgs`, for the first client's engines."""
    engine, engines = topology.engines[0], topology.clients[0].engines
    scheduler, cache = config.scheduler, config.cache
    is_async = scheduler.async_scheduling
    blocks = cache.num_gpu_blocks or BLOCKS
    return {
        "model": config.model, "skip_tokenizer_init": True, "enforce_eager": True, "disable_log_stats": True,
        "tensor_parallel_size": engine.tp, "pipeline_parallel_size": engine.pp, "data_parallel_size": len(engines),
        "block_size": cache.block_size, "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "max_num_seqs": scheduler.max_num_seqs, "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": longest(config), "async_scheduling": is_async,
        "generation_config": "vllm", "scheduling_policy": scheduler.policy,
        "max_num_queued_reqs": config.limits.max_requests,
        "distributed_executor_backend": "mp" if engine.workers else "uni",
        "scheduler_cls": f"{SCHEDULER}.{'CountedAsyncScheduler' if is_async else 'CountedScheduler'}",
        **(_in_step(config) if topology.steps_with(engine.index) else {}),
        **(_with_events(config) if config.kv_events.enable_kv_cache_events else {}),
    }


def _with_events(config: EngineConfig) -> dict[str, Any]:
    """Of its `KVEventsConfig`: where, and how much is kept."""
    events = config.kv_events
    return {"kv_events_config": {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events.endpoint, "topic": events.topic,
        "replay_endpoint": events.replay_endpoint if events.replay else None, "hwm": events.hwm,
        "buffer_steps": events.buffer_steps, "max_queue_size": events.max_queue_size}}


def longest(config: EngineConfig) -> int:
    """How many tokens a request may have: vLLM wants room for one of them in its cache, beside the block of nobody."""
    blocks = config.cache.num_gpu_blocks or BLOCKS
    return config.scheduler.max_model_len or min(LONGEST, config.cache.block_size * (blocks - 1))


def environment_of(config: EngineConfig, sockets: str) -> dict[str, str]:
    """`sockets`: a folder for them."""
    spawned = config.start_method == "spawn"
    return {
        "VLLM_RPC_BASE_PATH": sockets, "TMPDIR": sockets,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn" if spawned else "fork",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(math.ceil(config.bounds.step_s)),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(config.bounds.startup_s - LEAVE_S) - GETTING_READY_S),
    }

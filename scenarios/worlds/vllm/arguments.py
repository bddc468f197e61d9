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


def with_bounds(config: EngineConfig) -> EngineConfig:
    """What is documented of vLLM, or was configured, instead of our engine's own bounds."""
    startup_s = SPAWNED_S if config.start_method == "spawn" else max(
        SHORTEST_START_S, min(config.bounds.startup_s, BOUNDS["startup_s"]))
    return msgspec.structs.replace(config, bounds=msgspec.structs.replace(
        config.bounds, **{**BOUNDS, "startup_s": startup_s}))


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
        "generation_config": "vllm", "scheduling_policy": scheduler.policy, "distributed_executor_backend": "mp",
        "scheduler_cls": f"{SCHEDULER}.{'CountedAsyncScheduler' if is_async else 'CountedScheduler'}",
    }


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
        "VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(config.bounds.startup_s) - GETTING_READY_S),
    }

"""`VLLM_PYTHON -m scenarios.worlds.vllm.host.fit`: whether the lab's adapter fits the vLLM of this interpreter.

The table names all that the host, the callers and the stand-in use of vLLM: each must be there, and take the arguments
that it is given. Nothing is called, and no engine is started. Its last line is `FITS`, or `MISFIT` and the first that
does not fit; vLLM may print lines of its own before.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

#: How the last line begins.
FITS, MISFIT = "fits", "does not fit: "


class Need(NamedTuple):
    """A name of a module, by dots within it, and the arguments that it is given by name."""

    module: str
    name: str
    takes: tuple[str, ...] = ()


_ARGUMENTS = (
    "model", "skip_tokenizer_init", "enforce_eager", "disable_log_stats", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "block_size", "num_gpu_blocks_override", "enable_prefix_caching",
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "async_scheduling", "generation_config",
    "scheduling_policy", "max_num_queued_reqs", "distributed_executor_backend", "scheduler_cls", "additional_config",
    "kv_events_config", "hf_overrides", "dp_sync_interval")
_V1 = "vllm.v1"
_SCHEDULER = f"{_V1}.core.sched.scheduler"
_ASYNC = f"{_V1}.engine.async_llm"

NEEDS: tuple[Need, ...] = (
    Need("vllm", "__version__"),
    Need("vllm", "AsyncEngineArgs", _ARGUMENTS),
    Need("vllm", "LLM.generate", ("prompts", "sampling_params")),
    Need("vllm", "SamplingParams", ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed",
                                    "stop_token_ids", "ignore_eos", "detokenize")),
    Need("vllm", "ModelRegistry.register_model"),
    Need("vllm.config", "KVEventsConfig", ("enable_kv_cache_events", "publisher", "endpoint", "topic",
                                           "replay_endpoint", "hwm", "buffer_steps", "max_queue_size")),
    Need("vllm.envs", "VLLM_ENGINE_READY_TIMEOUT_S"),
    Need("vllm.exceptions", "GracefulHTTPError"),
    Need("vllm.platforms.interface", "Platform"),
    Need("vllm.platforms.interface", "PlatformEnum.OOT"),
    Need(_ASYNC, "AsyncLLM.from_engine_args", ("engine_args",)),
    Need(_ASYNC, "AsyncLLM.generate", ("prompt", "sampling_params", "request_id", "priority", "data_parallel_rank")),
    Need(_ASYNC, "AsyncLLM.abort", ("request_id",)),
    Need(_ASYNC, "AsyncLLM.pause_generation", ("mode", "clear_cache")),
    Need(_ASYNC, "AsyncLLM.resume_generation"),
    Need(_ASYNC, "AsyncLLM.is_paused"),
    Need(_ASYNC, "AsyncLLM.reset_prefix_cache"),
    Need(_ASYNC, "AsyncLLM.collective_rpc", ("method", "timeout", "args")),
    Need(_ASYNC, "AsyncLLM.check_health"),
    Need(_ASYNC, "AsyncLLM.errored"),
    Need(_ASYNC, "AsyncLLM.shutdown"),
    Need(f"{_V1}.engine.core_client", "VLLM_ENGINE_READY_TIMEOUT_S"),
    Need(f"{_V1}.engine.core_client", "AsyncMPClient.add_request_async", ("request",)),
    Need(f"{_V1}.engine.exceptions", "EngineDeadError"),
    Need(f"{_V1}.engine.exceptions", "EngineGenerateError"),
    Need(f"{_V1}.engine.utils", "CoreEngineProcManager", ("handshake_address", "client_handshake_address")),
    Need(f"{_V1}.core.kv_cache_utils", "get_block_hash"),
    Need(f"{_V1}.core.kv_cache_utils", "maybe_convert_block_hash"),
    Need(f"{_V1}.core.sched.async_scheduler", "AsyncScheduler"),
    Need(f"{_V1}.core.sched.interface", "PauseState.PAUSED_ALL"),
    Need(_SCHEDULER, "Scheduler.schedule"),
    Need(_SCHEDULER, "Scheduler.update_from_output", ("scheduler_output",)),
    Need(_SCHEDULER, "Scheduler.set_pause_state"),
    Need(_SCHEDULER, "Scheduler.get_num_unfinished_requests"),
    Need(_SCHEDULER, "Scheduler.has_unfinished_requests"),
    Need(f"{_V1}.executor.multiproc_executor", "MultiprocExecutor"),
    Need(f"{_V1}.kv_cache_interface", "FullAttentionSpec", ("block_size", "num_kv_heads", "head_size", "dtype")),
    Need(f"{_V1}.outputs", "EMPTY_MODEL_RUNNER_OUTPUT"),
    Need(f"{_V1}.outputs", "AsyncModelRunnerOutput"),
    Need(f"{_V1}.outputs", "ModelRunnerOutput", ("req_ids", "req_id_to_index", "sampled_token_ids")),
    Need(f"{_V1}.worker.gpu_worker", "init_worker_distributed_environment"),
    Need(f"{_V1}.worker.worker_base", "CompilationTimes", ("language_model", "encoder")),
    Need(f"{_V1}.worker.worker_base", "WorkerBase"),
    Need("vllm.entrypoints.common.cli_args", "make_arg_parser"),
    Need("vllm.entrypoints.launchers.api_server.entry", "run_server"),
    Need("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
)


def misfit(needs: Iterable[Need] = NEEDS) -> str | None:
    """The first of them that this interpreter's vLLM does not have as it is used, in a line; None: all are there."""
    return next((why for need in needs if (why := _why_not(need)) is not None), None)


def _why_not(need: Need) -> str | None:
    try:
        found: Any = importlib.import_module(need.module)
    except Exception as error:  # a module may fail in any way as it is imported
        return f"{need.module} cannot be imported: {type(error).__name__}: {error}".splitlines()[0]
    for part in need.name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return f"{need.module} has no {need.name}"
    missing = [name for name in need.takes if not _takes(found, name)]
    return f"{need.module}: {need.name} takes no {', '.join(missing)}" if missing else None


def _takes(found: Any, name: str) -> bool:
    parameters = inspect.signature(found).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


if __name__ == "__main__":
    found = misfit()
    print(FITS if found is None else MISFIT + found)

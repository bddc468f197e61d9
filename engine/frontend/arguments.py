"""What a program says of an engine, in vLLM's flat names or in ours, made into its `EngineConfig`; or why it cannot be.

    LLM(model=DIR, max_model_len=512, gpu_memory_utilization=0.5)
    LLM(model=DIR, scheduler=SchedulerConfig(max_model_len=512), cache=CacheConfig(memory_fraction=0.5))
"""

from __future__ import annotations

import difflib
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from engine.config import EngineConfig
from engine.errors import ConfigError

#: A flat name, vLLM's or as it would have one -> the part of EngineConfig and its field.
FLAT = {
    "data_parallel_lockstep": ("data_parallel", "lockstep"),
    "data_parallel_coordinator": ("data_parallel", "coordinator"),
    "data_parallel_master_address": ("data_parallel", "master_address"),
    "data_parallel_head_address": ("data_parallel", "head_address"),
    "data_parallel_load_balancing": ("data_parallel", "load_balancing"),
    "data_parallel_size_local": ("data_parallel", "size_local"),
    "data_parallel_rank_local": ("data_parallel", "rank_local"),
    "max_model_len": ("scheduler", "max_model_len"),
    "max_num_seqs": ("scheduler", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler", "max_num_batched_tokens"),
    "scheduling_policy": ("scheduler", "policy"),
    "async_scheduling": ("scheduler", "async_scheduling"),
    "long_prefill_token_threshold": ("scheduler", "long_prefill_token_threshold"),
    "block_size": ("cache", "block_size"),
    "enable_prefix_caching": ("cache", "enable_prefix_caching"),
    "gpu_memory_utilization": ("cache", "memory_fraction"),
    "num_gpu_blocks_override": ("cache", "num_gpu_blocks"),
}
#: Taken and without a meaning here: there are no captured graphs, so every step is eager.
MEANINGLESS = ("enforce_eager",)
#: Refused where it is asked for.
REFUSED = {"trust_remote_code": "code out of a model directory is never run"}


def config_of(model: str, fields: dict[str, Any]) -> EngineConfig:
    """Raises ConfigError for what is missing, unknown, refused, or of the wrong kind."""
    if not model:
        raise ConfigError("model is missing: name a Hugging Face directory, as in LLM(model='path/to/model')")
    values: dict[str, Any] = {"model": model}
    flat: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        if name in FLAT:
            part, field = FLAT[name]
            flat.setdefault(part, {})[field] = value
        elif name in REFUSED:
            if value:
                raise ConfigError(f"{name} is refused: {REFUSED[name]}")
        elif name in EngineConfig.__struct_fields__:
            values[name] = value
        elif name not in MEANINGLESS:
            raise ConfigError(_unknown(name))
    for part, changes in flat.items():
        given = values.get(part, {})
        if isinstance(given, dict | msgspec.Struct):  # of what is neither, that is told
            values[part] = (given if isinstance(given, dict) else msgspec.structs.asdict(given)) | changes
    return _made(values)


def _unknown(name: str) -> str:
    known = [*EngineConfig.__struct_fields__, *FLAT, *MEANINGLESS]
    near = difflib.get_close_matches(name, known, 1)
    return f"{name} is nothing that can be configured{f'; is it {near[0]}?' if near else ''}"


def checked(config: EngineConfig) -> EngineConfig:
    """The same, with its parts as their Structs, where they may be dicts.

    Raises ConfigError where a value is of the wrong kind, which a Struct takes in silence, and where two contradict.
    """
    return _made({name: getattr(config, name) for name in EngineConfig.__struct_fields__})


def _made(values: dict[str, Any]) -> EngineConfig:
    for name, hint in get_type_hints(EngineConfig).items():
        if name in values and get_origin(hint) is Literal and values[name] not in get_args(hint):
            raise ConfigError(f"{name}={values[name]!r} cannot be used; it is one of {', '.join(get_args(hint))}")
    try:
        found = msgspec.convert(msgspec.to_builtins(values), EngineConfig)
    except (msgspec.ValidationError, TypeError) as error:
        where = str(error).rpartition("`$.")[2].rstrip("`")
        what = str(error).partition(" - at")[0]
        raise ConfigError(f"{where}: {what}" if "`$." in str(error) else str(error)) from None
    _check_cores(found)
    return found


def _check_cores(config: EngineConfig) -> None:
    """Raises ConfigError for what contradicts itself where there are several cores."""
    bounds, options = config.bounds, config.data_parallel
    if config.data_parallel_size == 1:
        if options.lockstep or options.coordinator:
            what = "data_parallel.lockstep" if options.lockstep else "data_parallel.coordinator"
            raise ConfigError(f"{what} is for several cores, and data_parallel_size is 1: ask for 2 or more")
    elif config.data_parallel_rank >= config.data_parallel_size:
        raise ConfigError(f"data_parallel_rank is {config.data_parallel_rank}, and the ranks of data_parallel_size "
                          f"{config.data_parallel_size} end at {config.data_parallel_size - 1}")
    if not config.is_lockstep:
        return
    if bounds.collective_s >= min(bounds.step_s, bounds.stall_s):
        raise ConfigError(f"bounds.collective_s is {bounds.collective_s:g}, and has to lie below bounds.step_s "
                          f"({bounds.step_s:g}) and bounds.stall_s ({bounds.stall_s:g}) where cores step together: a "
                          "core that waits for another one would be taken for the one that stands still")
    if options.repair and options.unchanged_s >= bounds.collective_s:
        raise ConfigError(f"data_parallel.unchanged_s is {options.unchanged_s:g}, and has to lie below "
                          f"bounds.collective_s ({bounds.collective_s:g}): a START that was lost would be repeated "
                          "when nobody waits for it any more")

"""What a program says of an engine, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.config import Bounds, CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.frontend.arguments import FLAT, checked, config_of
from engine.frontend.llm import LLM
from engine.messages import RequestOutput, SamplingParams
from engine.worker.memory import free_memory_bytes

VALUES = {"max_model_len": 64, "max_num_seqs": 3, "max_num_batched_tokens": 99, "block_size": 4,
          "enable_prefix_caching": False, "gpu_memory_utilization": 0.25, "num_gpu_blocks_override": 7,
          "scheduling_policy": "priority", "long_prefill_token_threshold": 5,
          "async_scheduling": True, "data_parallel_lockstep": True, "data_parallel_coordinator": True,
          "data_parallel_master_address": "ipc:///m", "data_parallel_head_address": "ipc:///h",
          "data_parallel_load_balancing": "hybrid", "data_parallel_size_local": 1, "data_parallel_rank_local": 1}
#: Whatever belongs to one of them.
BESIDE = {"data_parallel_load_balancing": {"data_parallel_head_address": "ipc:///h", "data_parallel_size_local": 1}}


TWO_IN_STEP = {"data_parallel_size": 2, "data_parallel_lockstep": True}


def test_flat_names_land_in_their_parts() -> None:
    assert set(VALUES) == set(FLAT)
    for name, (part, field) in FLAT.items():
        config = config_of("dir", {"data_parallel_size": 2, name: VALUES[name], **BESIDE.get(name, {})})
        assert getattr(getattr(config, part), field) == VALUES[name]
        assert getattr(getattr(EngineConfig(model="dir"), part), field) != VALUES[name]


def test_a_flat_name_changes_what_its_part_says() -> None:
    config = config_of("dir", {"cache": CacheConfig(block_size=4, memory_fraction=0.5), "block_size": 8})
    assert (config.cache.block_size, config.cache.memory_fraction) == (8, 0.5)
    assert config_of("dir", {"cache": {"memory_fraction": 0.5}, "block_size": 8}).cache == config.cache
    assert config_of("dir", {"cache": {"block_size": 4}}).cache == CacheConfig(block_size=4)


def test_what_has_no_meaning_here_is_taken() -> None:
    assert config_of("dir", {"enforce_eager": True, "trust_remote_code": False}) == EngineConfig(model="dir")


@pytest.mark.parametrize(("fields", "said"), [
    ({"dtype": "float64"}, "dtype='float64' cannot be used; it is one of auto, float32, bfloat16, float16"),
    ({"device": "tpu"}, "device='tpu' cannot be used; it is one of auto, cpu, cuda"),
    ({"tensor_parallel_size": "2"}, "tensor_parallel_size: Expected `int`, got `str`"),
    ({"max_model_len": "long"}, r"scheduler\.max_model_len: Expected `int \| null`, got `str`"),
    ({"block_size": "x"}, r"cache\.block_size: Expected `int`, got `str`"),
    ({"block_size": 0}, "block_size=0"),
    ({"gpu_memory_utilization": 1.5}, "memory_fraction must be above 0 and at most 1, got 1.5"),
    ({"scheduling_policy": "lottery"}, "scheduling_policy='lottery' cannot be used|Invalid enum value 'lottery'"),
    ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be 0"),
    ({"pipeline_parallel_size": 0}, "pipeline_parallel_size must be 1 or more, got 0"),
    ({"max_concurrent_batches": 0}, "max_concurrent_batches must be 1 or more, got 0"),
    ({"max_concurrent_batches": 1, "async_scheduling": True}, "async_scheduling needs .* max_concurrent_batches is 1"),
    ({"async_scheduling": "often"}, "async_scheduling"),
    ({"trust_remote_code": True}, "trust_remote_code is refused: code out of a model directory is never run"),
    ({"max_model_length": 5}, r"max_model_length is nothing that can be configured; is it max_model_len\?"),
    ({"quantization": "awq"}, "quantization is nothing that can be configured"),
    ({"cache": {"block_size": "3"}}, r"cache\.block_size: Expected `int`"),
    ({"cache": 3}, "cache: Expected `object`, got `int`"),
    ({"cache": 3, "block_size": 8}, "cache: Expected `object`, got `int`"),
    ({"data_parallel_size": 0}, "data_parallel_size must be 1 or more, got 0"),
    ({"data_parallel_lockstep": True}, "data_parallel.lockstep is for several cores, and data_parallel_size is 1"),
    ({"data_parallel": {"coordinator": True}}, "data_parallel.coordinator is for several cores"),
    ({"data_parallel_size": 2, "data_parallel_rank": 2}, "data_parallel_rank is 2, and the ranks .* end at 1"),
    ({**TWO_IN_STEP, "bounds": Bounds(collective_s=300.0)}, r"collective_s is 300, .* below bounds.step_s \(300\)"),
    ({**TWO_IN_STEP, "bounds": Bounds(step_s=500.0, collective_s=400.0)}, r"collective_s is 400, .*stall_s \(320\)"),
    ({**TWO_IN_STEP, "data_parallel": {"unchanged_s": 280.0}}, r"unchanged_s is 280, .* below bounds.collective_s"),
    ({**TWO_IN_STEP, "data_parallel": {"changed_s": 6.0}}, "changed_s must be above 0 and at most unchanged_s"),
    ({**TWO_IN_STEP, "data_parallel": {"sync_interval": 0}}, "sync_interval must be 1 step or more, got 0"),
    ({**TWO_IN_STEP, "data_parallel": {"wave_protocol": "oldest"}}, "wave_protocol"),
])
def test_what_is_wrong_is_told_at_once_and_in_words(fields, said) -> None:
    with pytest.raises(ConfigError, match=said) as told:
        LLM(model="nowhere", **fields)
    assert "\n" not in str(told.value)


def test_what_contradicts_in_step_only_is_taken_of_cores_that_do_not_step_together() -> None:
    bounds = Bounds(collective_s=1000.0)
    dense = config_of("dir", {"data_parallel_size": 2, "bounds": bounds, "data_parallel_coordinator": True})
    assert dense.bounds == bounds
    assert config_of("dir", TWO_IN_STEP).is_lockstep
    assert config_of("dir", {**TWO_IN_STEP, "data_parallel": {"unchanged_s": 280.0, "repair": False}}).is_lockstep


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="model is missing: name a Hugging Face directory"):
        LLM()


def test_a_config_is_said_once() -> None:
    with pytest.raises(ConfigError, match="config is given beside model, block_size"):
        LLM("dir", config=EngineConfig(model="dir"), block_size=4)


def test_a_config_that_was_made_by_hand_is_looked_at_too() -> None:
    config = EngineConfig(model="dir", dtype="float64")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="float64"):
        LLM(config=config)
    with pytest.raises(ConfigError, match=r"scheduler\.max_num_seqs: Expected `int`"):
        checked(EngineConfig(model="dir", scheduler=SchedulerConfig(max_num_seqs=1.5)))  # type: ignore[arg-type]


# -- how a request is asked for


@pytest.mark.parametrize(("given", "kept"), [
    ({"stop": "x"}, {"stop": ("x",)}), ({"stop": ["x", "y"]}, {"stop": ("x", "y")}), ({"stop": None}, {"stop": ()}),
    ({"stop_token_ids": [3, 4]}, {"stop_token_ids": (3, 4)}), ({"top_k": -1}, {"top_k": 0}),
    ({"max_tokens": None, "min_tokens": 5}, {"max_tokens": None, "min_tokens": 5}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
])
def test_parameters_are_taken_as_vllm_takes_them_and_travel(given, kept) -> None:
    params = SamplingParams(**given)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert again == params
    for name, value in kept.items():
        assert getattr(params, name) == value


@pytest.mark.parametrize(("given", "error", "said"), [
    ({"max_tokens": 0}, ValueError, "max_tokens"), ({"min_tokens": 17}, ValueError, "min_tokens"),
    ({"min_tokens": -1, "max_tokens": None}, ValueError, "min_tokens"), ({"top_k": -2}, ValueError, "top_k"),
    ({"stop": ""}, ValueError, "stop string"), ({"temperature": "hot"}, TypeError, "of the wrong kind"),
    ({"max_tokens": "8"}, TypeError, "of the wrong kind"),
])
def test_a_parameter_that_cannot_be_is_told(given, error, said) -> None:
    with pytest.raises(error, match=said):
        SamplingParams(**given)


def test_an_answer_has_vllm_s_names_too() -> None:
    output = RequestOutput(request_id="r", prompt=None, prompt_token_ids=[1], token_ids=[2, 3], text="x", finished=True,
                           finish_reason="stop", stop_reason=3)
    [answer] = output.outputs
    assert (answer.index, answer.text, answer.token_ids, answer.finish_reason, answer.stop_reason, answer.finished) == (
        0, "x", [2, 3], "stop", 3, True)


# -- the memory that is free


def test_free_memory_is_what_the_kernel_and_the_container_leave(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree:          1 kB\nMemAvailable:    50 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) == 50 << 10
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes(meminfo, tmp_path) == 50 << 10
    (tmp_path / "memory.max").write_text("3000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 2000
    assert free_memory_bytes() > 1 << 20

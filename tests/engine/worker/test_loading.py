"""Any Llama checkpoint that fits is loaded as transformers loads it; anything else is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import CacheConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.messages import SamplingParams
from engine.model_config import check_parallel, read_model_config
from engine.worker import worker as worker_module
from engine.worker.layers import Shard
from engine.worker.weights import Checkpoint
from scenarios.command.checks import gpus
from tests.engine.worker.model_driver import (
    MODEL,
    Rank0,
    Sequence_,
    both_phases,
    config_of,
    play,
    ready_worker,
    with_ranks,
)

VOCABULARY = read_model_config(MODEL).vocab_size
PROMPT = [1, 17, 42, 99, 3, 250, 7, 7, 180, 21] * 4
SHAPE = {"vocab_size": 301, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 256}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def checkpoint(directory: Path, shard_size: str = "5GB", **shape) -> list[int]:
    """Write a random Llama. -> what transformers answers to PROMPT."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(**{**SHAPE, "initializer_range": 0.2, "eos_token_id": None, **shape})
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory, max_shard_size=shard_size)
    with torch.inference_mode():
        return model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=8,
                              do_sample=False, pad_token_id=0)[0, len(PROMPT):].tolist()


def answer_of(execute) -> list[int]:
    sequence = Sequence_("r", PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))
    play(execute, [sequence], chunk=30)
    return sequence.generated


@pytest.mark.parametrize("shape", [
    pytest.param({"tie_word_embeddings": False}, id="untied head"),
    pytest.param({"tie_word_embeddings": True}, id="tied head"),
    pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
    pytest.param({"rope_scaling": {**LLAMA3, "rope_theta": 5e5}}, id="llama3 rope"),
    pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}, id="linear rope"),
    pytest.param({"num_key_value_heads": 8, "head_dim": 10}, id="one head each, its own head_dim"),
    pytest.param({"num_key_value_heads": 1}, id="one key-value head"),
])
def test_a_checkpoint_gives_the_tokens_of_transformers(tmp_path: Path, shape: dict) -> None:
    reference = checkpoint(tmp_path, **shape)
    assert answer_of(both_phases(ready_worker(config_of(model=str(tmp_path))))) == reference


def test_a_checkpoint_in_several_files_is_read_by_its_index(tmp_path: Path) -> None:
    reference = checkpoint(tmp_path, shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert answer_of(both_phases(ready_worker(config_of(model=str(tmp_path))))) == reference
    (tmp_path / "model.safetensors.index.json").unlink()
    assert answer_of(both_phases(ready_worker(config_of(model=str(tmp_path))))) == reference


def test_older_spelling_of_the_rotary_parameters_means_the_same(tmp_path: Path) -> None:
    reference = checkpoint(tmp_path, rope_scaling={**LLAMA3, "rope_theta": 5e5})
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values.pop("rope_parameters")
    older = {("type" if name == "rope_type" else name): value for name, value in LLAMA3.items()}
    path.write_text(json.dumps({**values, "rope_theta": 5e5, "rope_scaling": older}))
    assert answer_of(both_phases(ready_worker(config_of(model=str(tmp_path))))) == reference


@pytest.mark.parametrize("shape", [
    pytest.param({"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, id="2 key-value heads"),
    pytest.param({"num_key_value_heads": 1, "tie_word_embeddings": True}, id="1 key-value head"),
])
def test_fewer_key_value_heads_than_ranks_are_held_by_several(tmp_path: Path, shape: dict) -> None:
    """Four ranks over gloo; the vocabulary of 301 does not divide either."""
    reference = checkpoint(tmp_path, **shape)

    def use(rank0: Rank0) -> None:
        assert rank0.worker.runner.caches[0].shape[3] == 1
        assert answer_of(rank0.execute) == reference

    with_ranks(4, use, config_of(model=str(tmp_path)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_dtype_asked_for_is_that_of_weights_and_cache(dtype: str) -> None:
    worker = ready_worker(config_of(dtype=dtype))
    assert {worker.runner.caches[0].dtype, worker.runner.model.head.dtype} == {getattr(torch, dtype)}
    assert len(answer_of(both_phases(worker))) == 8


def test_each_rank_reads_its_own_part_and_all_parts_make_the_whole() -> None:
    with Checkpoint(MODEL, torch.float32, "cpu") as weights:
        whole = weights.read("model.embed_tokens.weight", [VOCABULARY, 64])
        parts = [weights.read("model.embed_tokens.weight", [VOCABULARY, 64],
                              rows=Shard(rank, 4).of(VOCABULARY)) for rank in range(4)]
        assert len({part.shape for part in parts}) == 1
        joined = torch.cat(parts)
        assert torch.equal(joined[: len(whole)], whole)
        assert not joined[len(whole):].any()
        name = "model.layers.0.mlp.down_proj.weight"
        columns = [weights.read(name, [64, 176], columns=Shard(rank, 2).of(176)) for rank in range(2)]
        assert torch.equal(torch.cat(columns, dim=1), weights.read(name, [64, 176]))


# -- what is refused


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(MODEL, tmp_path / "model")
    return tmp_path / "model"


def edit(directory: Path, **changes) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(directory: Path, match: str, **config) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        ready_worker(config_of(model=str(directory), **config))
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such model directory")


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "config.json: cannot be read")


def test_a_directory_without_weights_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    refused(copy, "holds no weights")


def test_a_weight_file_that_is_cut_off_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refused(copy, "model.safetensors: cannot be read")


def test_an_index_that_names_a_missing_file_is_refused(copy: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(copy, "model-00001-of-00002.safetensors: cannot be read")


def test_a_missing_tensor_is_named(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.self_attn.o_proj.weight"]
    save_file(tensors, copy / "model.safetensors")
    refused(copy, "no tensor 'model.layers.1.self_attn.o_proj.weight'")


@pytest.mark.parametrize(("changes", "said"), [
    ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "'Qwen3ForCausalLM' is not supported"),
    ({"intermediate_size": 100}, r"gate_proj.weight has shape \[176, 64\], but config.json asks for \[100, 64\]"),
    ({"tie_word_embeddings": False}, "no tensor 'lm_head.weight'"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantized"),
    ({"dtype": "int8"}, "dtype 'int8'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
    ({"hidden_size": "64"}, "hidden_size"),
    ({"vocab_size": None}, "vocab_size"),
    ({"num_key_value_heads": 3}, "3 key-value heads do not divide 8"),
])
def test_a_config_that_does_not_fit_says_what_and_where(copy: Path, changes: dict, said: str) -> None:
    edit(copy, **changes)
    refused(copy, said)


def test_a_config_that_is_not_json_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    refused(copy, "is not JSON")


@pytest.mark.parametrize(("ranks", "said"), [
    (3, "3 does not divide the model's 8 attention heads"),
    (0, "at least 1"),
    (16, "16 does not divide"),
])
def test_ranks_that_do_not_divide_the_heads_are_refused(ranks: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_parallel(read_model_config(MODEL), ranks)


@pytest.mark.skipif(gpus() > 0, reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        ready_worker(config_of(device="cuda"))


def test_a_cache_too_small_for_one_request_is_refused() -> None:
    with pytest.raises(ConfigError, match="one request of the full length needs 524288; lower max_model_len"):
        ready_worker(config_of(cache=CacheConfig(cpu_cache_bytes=100_000)))


@pytest.mark.parametrize(("least", "free", "bytes_"), [
    (1 << 20, 1 << 30, 1 << 20),  # what it takes at least
    (1000, 1 << 30, 524288),  # one request of the full length
    (1 << 20, 1_300_000, 650_000 // 8192 * 8192),  # half of what is free
], ids=["least", "full length", "half of the free memory"])
def test_a_cache_of_which_nobody_says_how_large_fits_the_machine(monkeypatch, least, free, bytes_) -> None:
    monkeypatch.setattr(worker_module, "LEAST_CACHE_BYTES", least)
    monkeypatch.setattr(worker_module, "free_memory_bytes", lambda: free)
    worker = ready_worker(config_of(cache=CacheConfig()))
    assert worker.get_num_blocks() * worker.runner.block_bytes() == bytes_


@pytest.mark.parametrize(("total", "left"), [(1 << 30, int((1 << 30) * 0.9 / 2) - (1 << 20)), (1 << 20, 0)])
def test_the_memory_of_a_device_is_its_share_less_what_the_largest_step_takes(monkeypatch, total, left) -> None:
    """Two of three ranks share one of two devices, which are told of by a stand-in."""
    worker, asked = ready_worker(config_of(cache=CacheConfig(num_gpu_blocks=None))), []
    for name, answer in {
            "reset_peak_memory_stats": lambda: asked.append("reset"), "empty_cache": lambda: asked.append("empty"),
            "max_memory_allocated": lambda: asked.append("peak") or 1 << 20, "device_count": lambda: 2,
            "get_device_properties": lambda device: SimpleNamespace(total_memory=total)}.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    worker.device, worker.world_size = "cuda:0", 3
    assert worker.determine_available_memory() == left
    assert asked == ["reset", "peak", "empty"]
    assert (worker.runner.requests, worker.runner.caches) == ({}, [])


@pytest.mark.parametrize("promises", [False, True])
@pytest.mark.parametrize("rank", range(4))
def test_a_rank_warms_up_without_the_others(rank: int, promises: bool) -> None:
    """One of two of one of two stages."""
    config = config_of(tensor_parallel_size=2, pipeline_parallel_size=2,
                       scheduler=SchedulerConfig(async_scheduling=promises))
    nobody: Any = object()
    worker = worker_module.Worker(config, rank, 4, group=nobody)
    worker.init_device()
    worker.load_model()
    worker.warm_up()
    runner = worker.runner
    assert (runner.requests, runner.caches, runner.model.group) == ({}, [], nobody)
    assert all(layer.output.group is nobody for layer in runner.model.layers)


def test_the_cache_takes_the_bytes_it_may() -> None:
    worker = ready_worker(config_of(cache=CacheConfig(cpu_cache_bytes=1 << 20)))
    cache = worker.runner.caches[0]
    assert sum(c.numel() * c.element_size() for c in worker.runner.caches) == 1 << 20
    assert list(cache.shape[2:]) == [16, 4, 8]
    assert not cache.any()

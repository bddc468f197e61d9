"""A program that serves a model as its directory says: the lab's own, told otherwise, and directories that fit nothing.

Whatever says the same gives the same answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from engine.config import EngineConfig
from engine.errors import ConfigError, StartupError
from engine.frontend.llm import LLM
from engine.frontend.text.tokenizer import load_tokenizer
from engine.messages import SamplingParams
from engine.worker.memory import free_memory_bytes
from engine.worker.sampler import Draw, sample, seed_of
from engine.worker.worker import Worker
from scenarios.programs.asking import Asking

TEXT = " Bruno is our ring."
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
#: Of a cache that a laptop has room for.
LARGE_BYTES = 256 << 20

_Weights = dict[str, torch.Tensor]


def ask_models(ask: Asking) -> None:
    _says_the_same(ask)
    _does_not_fit(ask)
    _is_a_rank(ask)
    _has_memory(ask)
    _draws(ask)


class _Model:
    """A copy of the lab's model, changed."""

    def __init__(self, ask: Asking, name: str) -> None:
        self.folder = Path(ask.folder) / name
        shutil.copytree(ask.config.model, self.folder)
        self._settings, self.weights = self.folder / "config.json", load_file(self.folder / WEIGHTS)

    def says(self, **changes: Any) -> None:
        self._settings.write_text(json.dumps(json.loads(self._settings.read_text()) | changes))

    def has(self, weights: _Weights, file: str = WEIGHTS) -> None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, self.folder / file)


def _served(ask: Asking, model: _Model, ranks: int) -> list[list[int]]:
    config: EngineConfig = msgspec.structs.replace(ask.config, model=str(model.folder), tensor_parallel_size=ranks)
    requests = ask.workload.requests
    with LLM(config=config) as llm:
        outputs = llm.generate([request.prompt_token_ids for request in requests],
                               [request.params for request in requests])
        return [output.token_ids for output in outputs]


def _says_the_same(ask: Asking) -> None:
    answers = [request.reference_token_ids for request in ask.workload.requests]
    for name, (change, ranks) in _SAME.items():
        model = _Model(ask, name.replace(" ", "-"))
        change(model)
        ask(f"a model {name}, on {ranks} ranks", lambda: _served(ask, model, ranks), answers)
    _cuts_and_fills(ask)


def _cuts_and_fills(ask: Asking) -> None:
    """A tokenizer that was saved by who cut texts, and filled them up, is asked for whole ones."""
    plain, cut = _Model(ask, "plain"), _Model(ask, "cut")
    file = cut.folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<pad>"}}))
    whole, same = (load_tokenizer(str(model.folder))(TEXT)["input_ids"] for model in (plain, cut))
    ask("the tokens of a text", lambda: [len(whole) > 2, len(whole) < 40], [True, True])
    ask("those of a tokenizer that cuts and fills", lambda: same, whole)


def _in_two_files(model: _Model) -> None:
    names = sorted(model.weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in parts.items():
        model.has({name: model.weights[name] for name in mine}, file)
    model.has({name: torch.zeros_like(tensor) for name, tensor in model.weights.items()})  # which the index leaves out
    (model.folder / INDEX).write_text(json.dumps({"weight_map": {
        name: file for file, mine in parts.items() for name in mine}}))


def _in_two_files_without_an_index(model: _Model) -> None:
    names = sorted(model.weights)
    model.has({name: model.weights[name] for name in names[::2]})
    model.has({name: model.weights[name] for name in names[1::2]}, "more.safetensors")


def _with_a_head_of_its_own(model: _Model) -> None:
    model.says(tie_word_embeddings=False)
    model.has(model.weights | {"lm_head.weight": model.weights["model.embed_tokens.weight"].clone()})


def _with_biases(model: _Model) -> None:
    """That are zero but where they change nothing: a softmax does not see what all keys have in common."""
    model.says(attention_bias=True, mlp_bias=True)
    biases = {name.replace(".weight", ".bias"): torch.zeros(tensor.shape[0]) for name, tensor in model.weights.items()
              if "_proj" in name}
    model.has(model.weights | biases)


def _with_a_neuron_more(model: _Model) -> None:
    """That does nothing."""
    wide = model.weights["model.layers.0.mlp.up_proj.weight"].shape[0]
    model.says(intermediate_size=wide + 1)
    padding = {"gate_proj": (0, 0, 0, 1), "up_proj": (0, 0, 0, 1), "down_proj": (0, 1, 0, 0)}  # a row, or a column
    model.has({name: functional.pad(tensor, padding[name.split(".")[-2]]) if ".mlp." in name else tensor
               for name, tensor in model.weights.items()})


def _turned(**scaling: Any) -> Callable[[_Model], None]:
    return lambda model: model.says(rope_parameters={"rope_theta": 500_000.0, **scaling})


_SAME: dict[str, tuple[Callable[[_Model], None], int]] = {
    "in two files with an index": (_in_two_files, 1),
    "in two files without an index": (_in_two_files_without_an_index, 1),
    "with a head of its own": (_with_a_head_of_its_own, 2),
    "with biases": (_with_biases, 2),
    "with a neuron more": (_with_a_neuron_more, 1),
    "turned evenly": (_turned(rope_type="linear", factor=1.0), 1),
    "turned as a longer one": (_turned(**LLAMA3, factor=1.0, original_max_position_embeddings=64), 1),
    "turned as one that was long": (_turned(**LLAMA3, factor=8.0, original_max_position_embeddings=1 << 40), 1),
    "with fewer heads than ranks": (lambda model: None, 8),
}


def _does_not_fit(ask: Asking) -> None:
    """Each is refused, and says what is wrong."""
    for name, change, parts in (
            ("lacks a tensor", lambda model: model.has({
                name: tensor for name, tensor in model.weights.items() if name != "model.norm.weight"}),
             ("model.norm.weight",)),
            ("has a tensor of another shape", lambda model: model.has(
                model.weights | {"model.norm.weight": torch.zeros(63)}), ("model.norm.weight", "[63]", "[64]")),
            ("has weights that are none", lambda model: (model.folder / WEIGHTS).write_bytes(b"none"), (WEIGHTS,)),
            ("has an index that is none", lambda model: (model.folder / INDEX).write_text("[]"), (INDEX,)),
            ("names files in its index that are not there", lambda model: (model.folder / INDEX).write_text(
                '{"weight_map": {"a": "gone.safetensors"}}'), ("gone.safetensors",)),
            ("has no weights", lambda model: (model.folder / WEIGHTS).unlink(), (str(ask.folder),)),
            ("is another architecture", lambda model: model.says(model_type="other"), ("config.json",))):
        model = _Model(ask, name.replace(" ", "-"))
        change(model)
        ask.raised(f"a directory that {name}", lambda: _served(ask, model, 1), (ConfigError, StartupError), *parts)
    model = _Model(ask, "odd")
    _with_a_neuron_more(model)
    ask.raised("more ranks than shares of one size", lambda: _served(ask, model, 2), ConfigError, "177", "2")
    alone = Worker(msgspec.structs.replace(ask.config, model=str(model.folder)), world_size=2)
    ask.raised("a rank of them by itself", alone.init_device, ConfigError, "177", "2")
    model = _Model(ask, "tokens")
    (model.folder / "tokenizer.json").write_text("none")
    with_text = msgspec.structs.replace(ask.config, model=str(model.folder), skip_tokenizer_init=False)
    ask.raised("a tokenizer that is none", lambda: LLM(config=with_text), ConfigError, str(model.folder))


# -- a rank by itself -------------------------------------------------------------------------------------------------


def _is_a_rank(ask: Asking) -> None:
    """It holds as many blocks as its memory does: that of a CPU as configured, that of a GPU what is left of it."""
    length = 1001
    needed = -(-length // ask.config.cache.block_size)
    block = 2 * 2 * 4 * 8 * 4 * ask.config.cache.block_size  # keys and values, layers, heads, their size, bytes of each
    for spare in (0, block - 1, block, -1):
        config = _with_memory(ask.config, length, needed * block + spare)
        worker = _worker(config)
        if spare < 0:
            ask.raised("less memory than one request takes", worker.get_num_blocks, ConfigError, "max_model_len",
                       str(needed * block), str(needed * block + spare))
        else:
            ask(f"the blocks of {spare} bytes more than one request takes", worker.get_num_blocks,
                needed + spare // block)
    with LLM(config=_with_memory(ask.config, length, (needed + 3) * block)) as llm:
        ask("the blocks of a whole engine", lambda: llm.client.num_gpu_blocks, needed + 3)
    worker = Worker(ask.config)
    ask("the health of a rank without a model", worker.check_health, RuntimeError)
    ask("how many requests it knows", worker.num_requests, 0)
    torch.set_num_threads(2)
    worker = _worker(ask.config)
    ask("how many threads a small model computes with", torch.get_num_threads, 1)
    ask("the health of a rank that has one", worker.check_health, None)
    ask("its blocks where they are configured", worker.get_num_blocks, ask.config.cache.num_gpu_blocks)
    ask("a cache without a block", lambda: worker.initialize_cache(0), ConfigError)
    before = _resident_bytes()
    worker.initialize_cache(LARGE_BYTES // block)
    with _no_more_than(LARGE_BYTES // 2):
        ask("a cache anew, where there is room for one", lambda: worker.initialize_cache(LARGE_BYTES // block), None)
    ask("whether a large cache takes memory before it is used", lambda: _resident_bytes() - before > LARGE_BYTES // 4,
        False)
    ask("how often it can be shut down", lambda: [worker.shutdown(), worker.shutdown(), worker.group], [None] * 3)
    ask("its health then", worker.check_health, RuntimeError)


@contextlib.contextmanager
def _no_more_than(size: int) -> Iterator[None]:
    """As where memory is scarce: what is there by now, and so much more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _has_memory(ask: Asking) -> None:
    """What the kernel says is available, and no more than the container's limit leaves; all of it where nobody says."""
    memory, container, nowhere = Path(ask.folder, "meminfo"), Path(ask.folder, "cgroup"), Path(ask.folder, "nowhere")
    memory.write_text("MemTotal:  9 kB\nMemFree:  2 kB\nMemAvailable:  7 kB\n")
    container.mkdir()
    ask("the memory of a machine", lambda: free_memory_bytes(memory, nowhere), 7 << 10)
    for limit, used, wanted in (("max", 5, 7 << 10), (6000, 5000, 1000), (9000, 500, 7 << 10), (5000, 6000, 0)):
        (container / "memory.max").write_text(f"{limit}\n")
        (container / "memory.current").write_text(f"{used}\n")
        ask(f"the memory of a container that uses {used} of {limit}", lambda: free_memory_bytes(memory, container),
            wanted)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ask("the memory where nobody says", lambda: free_memory_bytes(nowhere, nowhere), whole)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _with_memory(config: EngineConfig, length: int, count: int) -> EngineConfig:
    cache, scheduler = config.cache, config.scheduler
    return msgspec.structs.replace(
        config, device="cpu", cache=msgspec.structs.replace(cache, num_gpu_blocks=None, cpu_cache_bytes=count),
        scheduler=msgspec.structs.replace(scheduler, max_model_len=length))


def _worker(config: EngineConfig) -> Worker:
    worker = Worker(config)
    worker.init_device()
    worker.load_model()
    return worker


# -- what is drawn ----------------------------------------------------------------------------------------------------


def _draws(ask: Asking) -> None:
    """As often as it is probable, by what is left of that; whoever is drawn beside it, and whenever."""
    chances = [0.15, 0.5, 0.05, 0.3]
    for wanted, params, banned in (
            (chances, {}, ()), ([0.0, 0.625, 0.0, 0.375], {"top_k": 2}, ()),
            ([0.0, 0.625, 0.0, 0.375], {"top_p": 0.75}, ()),
            ([0.0, 1.0, 0.0, 0.0], {"top_p": 0.5}, ()), ([0.0, 1.0, 0.0, 0.0], {"top_p": 0.9, "top_k": 1}, ()),
            ([0.25] * 4, {"temperature": 1e9}, ()), ([0.3, 0.0, 0.1, 0.6], {}, (1,))):
        ask(f"how often each of four is drawn by {params} without {list(banned)}",
            lambda: _is_as_probable(chances, wanted, params, banned), True)
    logits = torch.linspace(-1.0, 1.0, 50).repeat(12, 1)
    draws = [Draw(SamplingParams(temperature=0.5 + number % 4, top_k=5 * (number % 3)), 3 + number, number)
             for number in range(12)] + [Draw(SamplingParams(temperature=0.0), 0, 0)]
    logits = torch.cat([logits, logits[:1]])
    ask("whether all are drawn together as each alone", lambda: sample(logits.clone(), draws) == [
        sample(logits[row:row + 1].clone(), draws[row:row + 1])[0] for row in range(13)], True)
    seeds = [seed_of(SamplingParams(seed=seed), name, engine) for seed, name, engine in (
        (None, "a", 0), (None, "a", 0), (None, "b", 0), (None, "a", 1), (5, "a", 0), (5, "b", 1))]
    ask("how many of six have seeds of their own", lambda: [len(set(seeds)), seeds[0] == seeds[1], seeds[4:]],
        [4, True, [5, 5]])


def _is_as_probable(chances: list[float], wanted: list[float], params: dict[str, Any], banned: tuple[int, ...]) -> bool:
    count = 2000
    asked = SamplingParams(**{"temperature": 1.0, **params})
    tokens = sample(torch.tensor(chances).log().repeat(count, 1), [
        Draw(asked, 7, position, banned) for position in range(count)])
    return all(abs(tokens.count(token) / count - chance) < (0.03 if chance else 1e-9)
               for token, chance in enumerate(wanted))

"""Steps a second of vLLM's control plane beside ours, with the same pretend device of no cost, in turns in one run.

    RINGTWIN_VLLM_PYTHON=... pytest tests/benchmarks/test_vllm_steps.py -s                      one turn
    RINGTWIN_VLLM_PYTHON=... RINGTWIN_TURNS=7 pytest tests/benchmarks/test_vllm_steps.py -s     the measurement

Two ranks in processes of their own, asked by `LLM` without a tokenizer; all prompts have room in the first step. A
worker says one token for whatever is scheduled and computes nothing: what is left are scheduler, rings, sockets and
frontend. Idle processes of vLLM's go on looking at their rings: they are stopped while ours has its turn. Skipped
where no interpreter with vLLM is named. What is asserted is that the tokens are the same, never a time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine.frontend.llm import LLM
from engine.messages import ModelRunnerOutput, SamplingParams
from scenarios.lab.settings import MODEL, lab_config
from scenarios.worlds.vllm.environment import VARIABLE, VARIABLES, make_path, obstacle

pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")
pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ or obstacle() is not None, reason=f"{VARIABLE} names no interpreter with vLLM")

TURNS = int(os.environ.get("RINGTWIN_TURNS", "1"))
TOKENS, PROMPT = 150, 8
SIZES = (8, 64)
BLOCK, BLOCKS, BUDGET = 16, 1024, 1024
#: Processes of the other one that look at their rings take the machine for seconds.
PATIENT = {"step_s": 30.0, "rpc_s": 30.0, "stall_s": 40.0, "request_s": 60.0, "collective_s": 24.0}
#: Ours beside theirs.
AIM = 1.0

Generate = Callable[[int], float]  # number of requests -> seconds


def _pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forked processes inherit it."""
    from engine.worker.async_output import AsyncModelRunnerOutput
    from engine.worker.model_runner import ModelRunner

    steps: list[Any] = []

    def execute(runner: ModelRunner, output: Any) -> Any:
        if not output.num_scheduled_tokens:
            return ModelRunnerOutput(output.step, {}) if runner.stage.is_output else None
        steps.append(output)
        return None

    def sample(runner: ModelRunner, grammar_output: None = None) -> Any:
        if not steps:
            return None
        output = steps.pop()
        if not (runner.keeps_samples or runner.stage.is_output):
            return None
        sampled = {name: [7] for name in output.num_scheduled_tokens}
        kind = AsyncModelRunnerOutput if runner.keeps_samples else ModelRunnerOutput
        return kind(output.step, sampled) if runner.stage.is_output else None

    monkeypatch.setattr(ModelRunner, "execute_model", execute)
    monkeypatch.setattr(ModelRunner, "sample_tokens", sample)


@contextmanager
def _ours(asynchronous: bool) -> Iterator[Generate]:
    with LLM(config=lab_config(
            device="cpu", tensor_parallel_size=2, start_method="fork",
            cache={"block_size": BLOCK, "num_gpu_blocks": BLOCKS}, ring={"max_chunk_bytes": 1 << 20}, bounds=PATIENT,
            scheduler={"max_num_batched_tokens": BUDGET, "max_num_seqs": max(SIZES), "max_model_len": 400,
                       "async_scheduling": asynchronous})) as llm:
        def generate(size: int) -> float:
            prompts = [[number + 1] * PROMPT for number in range(size)]
            began = time.perf_counter()
            outputs = llm.generate(prompts, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
            took = time.perf_counter() - began
            assert [output.token_ids for output in outputs] == [[7] * TOKENS] * size
            return took

        yield generate


@contextmanager
def _theirs(asynchronous: bool, folder: Path) -> Iterator[Generate]:
    arguments = {
        "model": str(MODEL), "tensor_parallel_size": 2, "distributed_executor_backend": "mp", "max_model_len": 400,
        "skip_tokenizer_init": True, "enforce_eager": True, "disable_log_stats": True, "block_size": BLOCK,
        "num_gpu_blocks_override": BLOCKS, "max_num_seqs": max(SIZES), "max_num_batched_tokens": BUDGET,
        "async_scheduling": asynchronous, "generation_config": "vllm"}
    asked = json.dumps({"arguments": arguments, "tokens": TOKENS, "prompt": PROMPT})
    with open(folder / "vllm.log", "w") as log, subprocess.Popen(
            [os.environ[VARIABLE], str(Path(__file__).with_name("vllm_steps.py")), asked], text=True, stderr=log,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env={
                **os.environ, **VARIABLES, "PYTHONPATH": str(make_path(folder)), "VLLM_LOGGING_LEVEL": "CRITICAL",
                "VLLM_WORKER_MULTIPROC_METHOD": "fork"}) as process:
        assert process.stdin is not None and process.stdout is not None
        told, asks = process.stdout, process.stdin

        def heard(is_it: Callable[[str], bool]) -> str:
            """vLLM may print lines of its own."""
            return next(line for line in told if is_it(line))

        def generate(size: int) -> float:
            os.killpg(process.pid, signal.SIGCONT)
            asks.write(f"{size}\n")
            asks.flush()
            took = float(heard(lambda line: line[:1].isdigit()))
            os.killpg(process.pid, signal.SIGSTOP)
            return took

        try:
            heard(lambda line: line == "ready\n")
            yield generate
        finally:
            asks.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            process.wait(60.0)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one step at a time", "async scheduling"])
def test_steps_of_two_control_planes(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                     asynchronous: bool) -> None:
    _pretend(monkeypatch)
    with _theirs(asynchronous, tmp_path) as theirs, _ours(asynchronous) as ours:
        taken: dict[tuple[str, int], list[float]] = {}
        for size in SIZES:  # once without being counted
            for name, generate in (("vLLM", theirs), ("ours", ours)):
                generate(size)
                taken[name, size] = []
        for _ in range(TURNS):
            for size in SIZES:
                for name, generate in (("vLLM", theirs), ("ours", ours)):
                    taken[name, size].append(TOKENS / generate(size))
    benchmark.pedantic(lambda: None, rounds=1)
    for size in SIZES:
        mine, its = (statistics.median(taken[name, size]) for name in ("ours", "vLLM"))
        spread = ", ".join(f"{name} {min(values):.0f} to {max(values):.0f}" for (name, count), values in taken.items()
                           if count == size)
        benchmark.extra_info.update({f"ours_{size}": mine, f"vllm_{size}": its, f"ratio_{size}": mine / its})
        print(f"\n  {size} requests: {mine:.0f} steps a second beside {its:.0f} of vLLM, {mine / its:.2f} times, "
              f"{spread}; aim {AIM}")

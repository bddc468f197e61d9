"""Whether overlap is worth it: tokens a second with async scheduling beside one step at a time, in turns in one run.

    pytest tests/benchmarks/test_overlap.py -s

A pretend device takes 10 ms a step and no processor, and a core 2 ms of its own; then the shipped model computes. The
engines are those of one rank in a process of its own. What is asserted is that the tokens are the same, never a time.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

import pytest

from engine.core.scheduler import Scheduler
from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from scenarios.lab.settings import lab_config

pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")

TURNS = 7
TOKENS = 60
PROMPTS = [[number + 1] * 12 for number in range(8)]
DEVICE_S, CORE_S = 10e-3, 2e-3
#: Tokens a second beside one step at a time: where a device computes, and where the same processors do.
AIMS = {"pretended": 1.1, "computed": 0.95}


def generate(llm: LLM) -> tuple[float, Any]:
    """-> tokens per second, tokens"""
    began = time.perf_counter()
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    return TOKENS * len(PROMPTS) / (time.perf_counter() - began), [output.token_ids for output in outputs]


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forked processes inherit it."""
    from engine.worker.model_runner import ModelRunner

    execute, schedule = ModelRunner.execute_model, Scheduler.schedule

    def slow(runner: ModelRunner, output: Any) -> Any:
        time.sleep(DEVICE_S)
        return execute(runner, output)

    def busy(scheduler: Scheduler) -> Any:
        until = time.perf_counter() + CORE_S
        while time.perf_counter() < until:
            pass
        return schedule(scheduler)

    monkeypatch.setattr(ModelRunner, "execute_model", slow)
    monkeypatch.setattr(Scheduler, "schedule", busy)


@pytest.mark.parametrize("device", list(AIMS))
def test_async_scheduling(benchmark: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "pretended":
        pretend(monkeypatch)
    with ExitStack() as stack:
        engines = {promises: stack.enter_context(LLM(config=lab_config(
            device="cpu", distributed_executor_backend="mp", start_method="fork",
            scheduler={"async_scheduling": promises}))) for promises in (False, True)}
        wanted = generate(engines[False])[1]
        assert generate(engines[True])[1] == wanted
        ratios = []
        for _ in range(TURNS):
            rates = {promises: generate(llm) for promises, llm in engines.items()}
            assert all(tokens == wanted for _, tokens in rates.values())
            ratios.append(rates[True][0] / rates[False][0])
    ratio = statistics.median(ratios)
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(lambda: None, rounds=1)
    print(f"\n  {device}: async scheduling {ratio:.2f} times the tokens a second of one step at a time, "
          f"{min(ratios):.2f} to {max(ratios):.2f}; aim {AIMS[device]}")

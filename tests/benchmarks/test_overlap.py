"""Whether overlap is worth it: tokens a second with async scheduling beside one step at a time, and with two stages
beside one, in turns in one run.

    pytest tests/benchmarks/test_overlap.py -s                      one turn
    RINGTWIN_TURNS=7 pytest tests/benchmarks/test_overlap.py -s     the measurement

A pretend device takes 10 ms for a token of each of 8 requests and no processor, half of that in each of two stages, and
a core 2 ms of its own; then the shipped model computes. Who has no stages is one rank in a process of its own. Where a
step has room for half of the requests both stages are at work; with one step for all each of them stands idle while
that is in the other one. What is asserted is that the tokens are the same, never a time.
"""

from __future__ import annotations

import os
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

TURNS = int(os.environ.get("RINGTWIN_TURNS", "1"))
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
        time.sleep(DEVICE_S * sum(output.num_scheduled_tokens.values()) / len(PROMPTS) / runner.stage.count)
        return execute(runner, output)

    def busy(scheduler: Scheduler) -> Any:
        until = time.perf_counter() + CORE_S
        while time.perf_counter() < until:
            pass
        return schedule(scheduler)

    monkeypatch.setattr(ModelRunner, "execute_model", slow)
    monkeypatch.setattr(Scheduler, "schedule", busy)


def beside(benchmark: Any, *configs: dict[str, Any]) -> tuple[float, str]:
    """Tokens a second of the second engine beside those of the first. -> (median, how they spread)"""
    with ExitStack() as stack:
        first, second = (stack.enter_context(LLM(config=lab_config(
            device="cpu", distributed_executor_backend="mp", start_method="fork", **changes))) for changes in configs)
        wanted = generate(first)[1]
        assert generate(second)[1] == wanted
        ratios = []
        for _ in range(TURNS):
            (before, tokens), (now, others) = generate(first), generate(second)
            assert tokens == others == wanted
            ratios.append(now / before)
    ratio = statistics.median(ratios)
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(lambda: None, rounds=1)
    return ratio, f"{min(ratios):.2f} to {max(ratios):.2f}"


@pytest.mark.parametrize("device", list(AIMS))
def test_async_scheduling(benchmark: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "pretended":
        pretend(monkeypatch)
    ratio, spread = beside(benchmark, *({"scheduler": {"async_scheduling": promises}} for promises in (False, True)))
    print(f"\n  {device}: async scheduling {ratio:.2f} times the tokens a second of one step at a time, {spread}; "
          f"aim {AIMS[device]}")


@pytest.mark.parametrize(("prompts", "budget"), [
    ("all in one step", 256), ("half of them in a step", len(PROMPTS) // 2)])
def test_two_stages(benchmark: Any, monkeypatch: pytest.MonkeyPatch, prompts: str, budget: int) -> None:
    pretend(monkeypatch)
    scheduler = {"async_scheduling": True, "max_num_batched_tokens": budget}
    ratio, spread = beside(benchmark, {"scheduler": scheduler},
                           {"scheduler": scheduler, "pipeline_parallel_size": 2})
    print(f"\n  {prompts}: two stages {ratio:.2f} times the tokens a second of one, {spread}: a stage stands idle for "
          f"about {max(0.0, 1 - ratio / 2):.0%} of the time")

"""What a decode step costs: two ranks over shared memory and over gloo, and one rank, taking turns in one run.

    pytest tests/benchmarks/test_steps.py -s                      one turn
    RINGTWIN_TURNS=7 pytest tests/benchmarks/test_steps.py -s     the measurement

The shipped model with 8 requests, no fault layer. What is asserted is that the tokens are the same, never a time.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack
from typing import Any

import pytest

from engine.frontend.llm import LLM
from engine.messages import SamplingParams
from scenarios.lab.settings import lab_config

pytest.importorskip("torch")
pytest.importorskip("pytest_benchmark")

TURNS = int(os.environ.get("RINGTWIN_TURNS", "1"))
TOKENS = 60
PROMPTS = [[number + 1] * 12 for number in range(8)]
ENGINES = {
    "shared memory": {"tensor_parallel_size": 2, "device_communicator": "shm"},
    "gloo": {"tensor_parallel_size": 2, "device_communicator": "gloo"},
    "one rank": {"tensor_parallel_size": 1},
}
#: Milliseconds of a step of two ranks over shared memory.
AIM_MS = 2.0


def decode(llm: LLM) -> tuple[float, Any]:
    """-> milliseconds per step, tokens"""
    began = time.perf_counter()
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    return (time.perf_counter() - began) / TOKENS * 1e3, [output.token_ids for output in outputs]


def test_a_decode_step(benchmark: Any) -> None:
    with ExitStack() as stack:
        engines = {name: stack.enter_context(LLM(config=lab_config(device="cpu", **fields)))
                   for name, fields in ENGINES.items()}
        wanted = {name: decode(llm)[1] for name, llm in engines.items()}
        assert all(tokens == wanted["one rank"] for tokens in wanted.values())
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(TURNS):
            for name, llm in engines.items():
                taken[name].append(decode(llm)[0])
    medians = {name: statistics.median(times) for name, times in taken.items()}
    benchmark.extra_info.update(medians)
    benchmark.pedantic(lambda: None)
    print("\n  ms a step: " + ", ".join(f"{name} {median:.2f}" for name, median in medians.items())
          + f"; aim over shared memory {AIM_MS}")

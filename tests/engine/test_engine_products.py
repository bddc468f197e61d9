"""The whole engine, real processes: grids of ranks, steps in flight and promised tokens answer as transformers does.

    PRODUCTS=all pytest tests/engine/test_engine_products.py        all of them; else one of each kind
"""

from __future__ import annotations

import asyncio
import os
from itertools import product
from typing import Any, NamedTuple

import pytest

from engine.frontend.async_llm import AsyncLLM
from engine.frontend.llm import LLM
from engine.topology import Grid
from engine.worker.models.made_up import largest_step
from engine.worker.worker import Worker
from scenarios.lab.settings import MODEL
from scenarios.workloads.workload import RecordedRequest, recorded
from tests.engine.engine_lab import ENDLESS, SIXTY_FOUR, async_llm, config, run, wrong_answers

DEEP = str(MODEL.parent / "recorded" / "deep" / "model")
GIVEN_UP = 8  # requests that are aborted, each after one token more than the one before it


class Settings(NamedTuple):
    grid: Grid
    depth: int
    promises: bool
    communicator: str = "shm"
    deep: bool = False
    lockstep: bool = False  # two engines of that grid, which step together

    def __str__(self) -> str:
        words = (f"tp {self.grid.tp}", f"pp {self.grid.pp}", f"depth {self.depth}", "promised" * self.promises,
                 self.communicator, "deep" * self.deep, "in step" * self.lockstep)
        return ", ".join(word for word in words if word)


EVERY_ONE = [Settings(grid, depth, promises, communicator, grid.pp > 2, lockstep)
             for grid in (Grid(1, 1), Grid(2, 1), Grid(4, 1), Grid(1, 2), Grid(2, 2), Grid(1, 4))
             for promises, communicator, lockstep in product((False, True), ("shm", "gloo"), (False, True))
             for depth in sorted({1, 2, grid.pp + 1} - ({1} if promises else set()))
             if not lockstep or grid.size <= 2]
SAMPLED = [
    Settings(Grid(1, 2), 1, False), Settings(Grid(1, 2), 2, False, deep=True), Settings(Grid(1, 2), 3, True),
    Settings(Grid(1, 4), 4, False, deep=True), Settings(Grid(1, 4), 5, True, deep=True),
    Settings(Grid(2, 2), 3, True, deep=True), Settings(Grid(2, 2), 2, False, "gloo"),
    Settings(Grid(1, 1), 1, False, lockstep=True), Settings(Grid(2, 1), 2, True, lockstep=True),
    Settings(Grid(1, 2), 2, False, "gloo", lockstep=True)]


@pytest.mark.parametrize("settings", EVERY_ONE if os.environ.get("PRODUCTS") == "all" else SAMPLED, ids=str)
def test_64_prompts_among_some_that_are_given_up(settings: Settings) -> None:
    """In pieces, with preemptions: one cache for a few of them."""
    asked = config(
        settings.grid.tp, pipeline_parallel_size=settings.grid.pp, max_concurrent_batches=settings.depth,
        data_parallel_size=2 if settings.lockstep else 1,
        data_parallel={"lockstep": settings.lockstep, "unchanged_s": 0.2},
        model=DEEP if settings.deep else str(MODEL), device_communicator=settings.communicator,
        cache={"num_gpu_blocks": 150}, scheduler={
            "max_num_batched_tokens": 96, "max_num_seqs": 8, "async_scheduling": settings.promises})
    requests = recorded("deep/sixty-four").requests if settings.deep else SIXTY_FOUR

    async def main() -> dict[int, list[int]]:
        with async_llm(asked) as llm:
            answers = await asyncio.gather(
                *(tokens_of(llm, request) for request in requests),
                *(give_up(llm, request, number + 1) for number, request in enumerate(requests[:GIVEN_UP])))
            free = (await llm.call_utility("get_stats"))[2:]
            assert free == [150, 150], "all blocks are free again"
        return {request.index: answer for request, answer in zip(requests, answers, strict=False)}

    told = run(main(), 120.0)
    wrong = [request.index for request in requests if told[request.index] != request.reference_token_ids]
    assert wrong == []


def measure(worker: Worker) -> None:
    largest_step(worker.runner, worker.config.scheduler, 512)


@pytest.mark.parametrize("before", [measure, Worker.warm_up])
@pytest.mark.parametrize("promises", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 1), Grid(1, 2), Grid(2, 2)], ids=str)
def test_what_a_gpu_computes_before_it_serves_leaves_nothing_behind(monkeypatch, grid: Grid, promises: bool,
                                                                    before: Any) -> None:
    """Here the ranks of a CPU do it: what is measured all together, and each one alone what is loaded first."""
    asked: Any = Worker.get_num_blocks
    monkeypatch.setattr(Worker, "get_num_blocks", lambda worker: before(worker) or asked(worker))
    with LLM(config=config(grid.tp, pipeline_parallel_size=grid.pp, scheduler={"async_scheduling": promises})) as llm:
        assert wrong_answers(llm, SIXTY_FOUR[:16]) == []


async def tokens_of(llm: AsyncLLM, request: RecordedRequest) -> list[int]:
    found: list[int] = []
    async for output in llm.generate(request.prompt_token_ids, request.params, f"r{request.index}"):
        found = output.token_ids
    return found


async def give_up(llm: AsyncLLM, request: RecordedRequest, tokens: int) -> Any:
    """An endless answer to the same prompt, until it has so many tokens."""
    name, asked = f"given-up-{request.index}", False
    async for output in llm.generate(request.prompt_token_ids, ENDLESS, name):
        if len(output.token_ids) >= tokens and not asked:
            asked = True
            llm.abort(name)
    assert asked

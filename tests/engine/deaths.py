"""Kills one process of a serving engine and measures how long each caller waited to hear of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from engine.errors import EngineDeadError
from engine.frontend.async_llm import AsyncLLM
from engine.messages import SamplingParams
from tests.engine.engine_lab import SIXTY_FOUR, engine_processes, gone_within

CALLERS = 8
ENDLESS = SamplingParams(max_tokens=900, ignore_eos=True)


class Death:
    """`told_s[k]`: from the signal until caller k had its error. `reasons`: what it said."""

    def __init__(self) -> None:
        self.told_s: list[float] = []
        self.reasons: set[str] = set()
        self.survivors: list[Any] = []


async def kill_while_serving(llm: AsyncLLM, victim: int, number: int = signal.SIGKILL) -> Death:
    """`victim`: 0 is the core, 1 + r is worker.r. All callers have begun to receive when it dies.

    Raises AssertionError where a caller's stream ends in another way.
    """
    death, killed_at = Death(), 0.0
    begun = asyncio.Semaphore(0)

    async def caller(index: int) -> None:
        received = 0
        try:
            async for output in llm.generate(SIXTY_FOUR[index].prompt_token_ids[:12], ENDLESS, f"r{index}"):
                if not received:
                    begun.release()
                received = len(output.token_ids)
        except EngineDeadError as error:
            death.told_s.append(time.monotonic() - killed_at)
            death.reasons.add(error.reason)
            assert received >= 1
        else:
            raise AssertionError(f"r{index} ended without an error after {received} tokens")

    processes = engine_processes(llm)
    tasks = [asyncio.create_task(caller(index)) for index in range(CALLERS)]
    for _ in range(CALLERS):
        await begun.acquire()
    killed_at = time.monotonic()
    os.kill(processes[victim][0], number)
    await asyncio.gather(*tasks)
    death.survivors = await asyncio.to_thread(gone_within, processes, llm.config.bounds.orphan_s)
    return death

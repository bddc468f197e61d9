"""Kills one process of a serving engine and measures how long each caller waited to hear of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import EngineDeadError
from engine.frontend.async_llm import AsyncLLM
from tests.engine.engine_lab import ENDLESS, SIXTY_FOUR, async_llm, config, engine_processes, gone_within, run

CALLERS = 8


async def ask_for_ever(llm: AsyncLLM, place: int, begun: Callable[[], None]) -> None:
    """One long request behind the other, so that one of this caller's runs at whatever moment it is looked at.

    `begun` is called with each output. Ends with the error of the engine or by being cancelled only.
    """
    for number in itertools.count():
        async for _ in llm.generate(SIXTY_FOUR[place].prompt_token_ids[:12], ENDLESS, f"r{place}.{number}"):
            begun()


class Death:
    """`told_s[k]`: from the signal until caller k had its error. `reasons`: what it said."""

    def __init__(self) -> None:
        self.told_s: list[float] = []
        self.reasons: set[str] = set()
        self.survivors: list[Any] = []


async def kill_while_serving(llm: AsyncLLM, victim: int, number: int = signal.SIGKILL) -> Death:
    """`victim`: 0 is the core, 1 + r is worker.r. All callers have begun to receive when it dies."""
    death, killed_at = Death(), 0.0
    begun = [asyncio.Event() for _ in range(CALLERS)]

    async def caller(index: int) -> None:
        try:
            await ask_for_ever(llm, index, begun[index].set)
        except EngineDeadError as error:
            death.told_s.append(time.monotonic() - killed_at)
            death.reasons.add(error.reason)

    processes = engine_processes(llm)
    tasks = [asyncio.create_task(caller(index)) for index in range(CALLERS)]
    for each in begun:
        await each.wait()
    killed_at = time.monotonic()
    os.kill(processes[victim][0], number)
    await asyncio.gather(*tasks)
    death.survivors = await asyncio.to_thread(gone_within, processes, llm.config.bounds.orphan_s)
    return death


def told_of_kills(count: int, victims: Sequence[str], settings: dict[str, Any]) -> dict[str, list[float]]:
    """Kills them in turn, each in a new engine of these settings. -> by victim, when the last caller was told of each

    `victims` are in the order of `kill_while_serving`. Raises AssertionError where one is not named to all callers, or
    a process is left.
    """
    told: dict[str, list[float]] = {victim: [] for victim in victims}
    for turn in range(count):
        victim = turn % len(victims)
        told[victims[victim]].append(run(_told_of_one(victim, victims[victim], settings)))
    return told


async def _told_of_one(victim: int, name: str, settings: dict[str, Any]) -> float:
    with async_llm(config(**settings)) as llm:
        death = await kill_while_serving(llm, victim)
    assert len(death.told_s) == CALLERS
    assert death.survivors == []
    assert all(name in reason for reason in death.reasons), death.reasons
    return max(death.told_s)

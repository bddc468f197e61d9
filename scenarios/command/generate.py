"""`ringtwin generate`: one prompt through the engine alone, its text as it comes.

Promise: whatever cannot be served is said before a process is started, and the engine is gone when this returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.frontend.async_llm import AsyncLLM
from engine.frontend.text.tokenizer import inputs_of
from engine.messages import SamplingParams
from scenarios.command import checks


def stream(prompt: str, sampling: dict[str, Any], write: Callable[[str], Any], config: EngineConfig) -> None:
    """Raises ConfigError, BadRequestError, SpaceError, StartupError, EngineDeadError, BadInputError."""
    try:
        params = SamplingParams(**sampling)
    except ValueError as error:
        raise checks.BadInputError(str(error)) from None
    checks.servable(config)
    inputs_of(config).process("prompt", prompt, params)
    checks.enough_shared_memory(config.ring, config.grid.size)
    llm = AsyncLLM(config)
    try:
        asyncio.run(_say(llm, prompt, params, write))
    finally:
        llm.shutdown()


async def _say(llm: AsyncLLM, prompt: str, params: SamplingParams, write: Callable[[str], Any]) -> None:
    said = 0
    try:
        async for output in llm.generate(prompt, params, "prompt"):
            write(output.text[said:])
            said = len(output.text)
    finally:
        write("\n")
        llm.shutdown()  # here, while the loop that it is attached to still runs


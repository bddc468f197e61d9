"""An engine is shut down while a request runs: does its stream end?"""

from __future__ import annotations

import asyncio

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, engine, leave, prepared, told


async def main() -> bool:
    """-> whether it does"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    running = asyncio.create_task(told("the request that ran", ask(llm, "two", 190)))
    await asyncio.sleep(0.03)
    llm.shutdown()
    return await running is not None


if __name__ == "__main__":
    with prepared("streams-end-with-their-client"):
        kept = awaited(main())
    leave(kept)

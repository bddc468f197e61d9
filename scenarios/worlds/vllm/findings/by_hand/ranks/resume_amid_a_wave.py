"""Two engines in step at rest are told to go on, right behind a request: does it end?"""

from __future__ import annotations

import asyncio

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, leave, prepared, told, two_engines


async def main() -> bool:
    """-> whether it does"""
    llm = two_engines(hf_overrides={"num_experts": 2})
    await told("a request", ask(llm, "one", rank=0))
    await asyncio.sleep(1.0)  # the wave is over
    request = asyncio.create_task(told("the request", ask(llm, "two", rank=0), 15.0))
    while not llm.engine_core.reqs_in_flight:
        await asyncio.sleep(0)
    went_on = asyncio.create_task(told("the call to go on", llm.resume_generation(), 15.0))
    came, _ = await asyncio.gather(request, went_on)
    return came is not None


if __name__ == "__main__":
    with prepared("who-has-not-paused-asks-nobody"):
        kept = awaited(main())
    leave(kept)

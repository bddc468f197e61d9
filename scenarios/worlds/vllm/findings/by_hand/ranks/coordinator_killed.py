"""The coordinator of two engines in step at rest is killed: does a request end?"""

from __future__ import annotations

import asyncio
import os
import signal

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, leave, prepared, told, two_engines


async def main() -> bool:
    """-> whether it does"""
    llm = two_engines(hf_overrides={"num_experts": 2})
    await told("a request", ask(llm, "one", rank=0))
    await asyncio.sleep(1.0)  # the wave is over
    os.kill(llm.engine_core.resources.coordinator.proc.pid, signal.SIGKILL)
    await asyncio.sleep(1.0)
    print(f"errored: {llm.errored}")
    return await told("a request afterwards", ask(llm, "two", rank=0), 15.0) is not None


if __name__ == "__main__":
    with prepared("coordinator-is-watched"):
        kept = awaited(main())
    leave(kept)

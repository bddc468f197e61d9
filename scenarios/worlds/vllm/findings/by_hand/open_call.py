"""The core is killed while a call is open: is its caller told?"""

from __future__ import annotations

import asyncio
import os
import signal

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, core_of, engine, leave, prepared, told


async def main() -> bool:
    """-> whether it is"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    os.kill(core_of(llm), signal.SIGSTOP)  # so that the call is open
    call = asyncio.create_task(told("the call that was open", llm.collective_rpc("check_health")))
    await asyncio.sleep(0.3)
    os.kill(core_of(llm), signal.SIGKILL)
    came = await call
    await told("what is asked later", llm.collective_rpc("check_health"))
    return came is not None


if __name__ == "__main__":
    with prepared("open-calls-end-with-the-core"):
        kept = awaited(main())
    leave(kept)

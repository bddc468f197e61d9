"""A worker stands still. The step's time-out ends the engine; its caller shuts it down: do the workers end?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from scenarios.worlds.vllm.findings.by_hand.common import STEP_S, ask, called, engine, family, left, prepared

#: From the shutdown. Workers are given 5 s and 4 s to leave.
BOUND_S = 15.0


async def main() -> bool:
    """-> whether all ended"""
    llm = engine()
    await ask(llm, "one")
    engines = called(family(os.getpid()), "VLLM::")
    os.kill(called(engines, "VLLM::Worker_TP1")[0], signal.SIGSTOP)
    began = time.monotonic()
    try:
        await ask(llm, "two")
    except Exception as error:
        print(f"{time.monotonic() - began:.1f} s after the stop, with a time-out of {STEP_S} s, the caller was told: "
              f"{type(error).__name__}")
    llm.shutdown()
    print(f"shut down after {time.monotonic() - began:.1f} s")
    outlived = left(engines, BOUND_S)
    print(f"{len(engines)} processes of the engine; {BOUND_S:.0f} s after its shutdown live: {outlived or 'none'}")
    return not outlived


if __name__ == "__main__":
    with prepared("core-ends-its-workers"):
        kept = asyncio.run(main())
    sys.exit(not kept)

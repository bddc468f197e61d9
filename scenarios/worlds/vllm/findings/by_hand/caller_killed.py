"""The process that owns an engine is killed: do its core and its workers end?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from scenarios.worlds.vllm.findings.by_hand.common import ask, called, engine, family, left, prepared

#: Workers are given 5 s and 4 s to leave.
BOUND_S = 15.0


async def _served(ready: int) -> None:
    llm = engine()
    os.write(ready, bytes([(await ask(llm, "one"))[1]]))
    await asyncio.Event().wait()


def main() -> bool:
    """-> whether all ended"""
    hears, ready = os.pipe()
    caller = os.fork()
    if not caller:
        asyncio.run(_served(ready))
    os.close(ready)
    if not os.read(hears, 1):
        raise SystemExit("the engine did not start")
    engines = called(family(caller), "VLLM::")
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    outlived = left(engines, BOUND_S)
    print(f"{len(engines)} processes of the engine; {BOUND_S:.0f} s after its caller's end live: {outlived or 'none'}")
    return not outlived


if __name__ == "__main__":
    with prepared("core-watches-its-caller"):
        kept = main()
    sys.exit(not kept)

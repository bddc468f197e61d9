"""One of two engines is killed: do requests of the other one say so?"""

from __future__ import annotations

import asyncio
import os
import signal

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, core_of, leave, prepared, told, two_engines


async def main() -> bool:
    """-> whether they do"""
    llm = two_engines(max_model_len=1000, num_gpu_blocks_override=600)
    await asyncio.gather(told("a request", ask(llm, "one", rank=0)), told("a request", ask(llm, "two", rank=1)))
    streams = [asyncio.create_task(told(f"a request of engine {rank}", ask(llm, f"long-{rank}", 990, rank=rank)))
               for rank in range(2)]
    await asyncio.sleep(0.02)
    os.kill(core_of(llm, 1), signal.SIGKILL)
    return all(isinstance(came, Exception) for came in await asyncio.gather(*streams))


if __name__ == "__main__":
    with prepared("death-is-told-first"):
        kept = awaited(main())
    leave(kept)

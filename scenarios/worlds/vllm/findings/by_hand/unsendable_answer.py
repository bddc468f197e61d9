"""A call whose answer cannot be encoded: is its caller told, and are others served?"""

from __future__ import annotations

import asyncio
import sys

from scenarios.worlds.vllm.findings.by_hand.common import ask, engine, prepared, told


async def main() -> bool:
    """-> whether they are"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    odd = await told("a call", llm.collective_rpc("odd"))
    later = await told("a request afterwards", ask(llm, "two"))
    return odd is not None and later is not None


if __name__ == "__main__":
    with prepared("unsendable-answer-is-told"):
        kept = asyncio.run(main())
    sys.exit(not kept)

"""A call whose answer cannot be encoded: is its caller told, and are others served?"""

from __future__ import annotations

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, engine, leave, prepared, told


async def main() -> bool:
    """-> whether they are"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    odd = await told("a call", llm.collective_rpc("odd"))
    later = await told("a request afterwards", ask(llm, "two"))
    return odd is not None and later is not None


if __name__ == "__main__":
    with prepared("unsendable-answer-is-told"):
        kept = awaited(main())
    leave(kept)

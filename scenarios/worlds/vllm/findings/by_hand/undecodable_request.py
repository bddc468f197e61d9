"""A request that the core cannot decode: are others served after it?"""

from __future__ import annotations

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, engine, leave, prepared, told


async def main() -> bool:
    """-> whether they are"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    odd = await told("one with a fraction for its seed", ask(llm, "odd", seed=1.5))
    later = await told("a request afterwards", ask(llm, "two"))
    print(f"health: {await llm.check_health()}, errored: {llm.errored}")
    return odd is not None and later is not None


if __name__ == "__main__":
    with prepared("undecodable-request-fails-alone"):
        kept = awaited(main())
    leave(kept)

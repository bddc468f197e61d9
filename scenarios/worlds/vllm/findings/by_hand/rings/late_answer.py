"""A collective_rpc fails on all ranks: is the next one told its own answer?"""

from __future__ import annotations

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, engine, leave, prepared, told


async def main() -> bool:
    """-> whether it is"""
    llm = engine()
    await told("a request", ask(llm, "one"))
    await told("a call that fails on all ranks", llm.collective_rpc("fails", None, (1,)))
    return bool(await told("the next call, told(2)", llm.collective_rpc("told", None, (2,))) == [2, 2])


if __name__ == "__main__":
    with prepared("answers-in-their-turn"):
        kept = awaited(main())
    leave(kept)

"""Two requests that cannot be sent, where two may be in flight: is a good one taken afterwards?"""

from __future__ import annotations

from scenarios.worlds.vllm.findings.by_hand.common import ask, awaited, engine, leave, prepared, told


async def main() -> bool:
    """-> whether it is"""
    llm = engine(max_num_queued_reqs=2)
    await told("a request", ask(llm, "one"))
    for number in range(2):
        await told("one that cannot be encoded", ask(llm, f"odd-{number}", extra_args={"odd": object()}))
    return isinstance(await told("a request afterwards", ask(llm, "two")), tuple)


if __name__ == "__main__":
    with prepared("unsent-request-is-forgotten"):
        kept = awaited(main())
    leave(kept)

"""LLM.generate fails of a request that cannot be sent: does the next one end?"""

from __future__ import annotations

from scenarios.worlds.vllm.findings.by_hand.common import leave, params, prepared, program, told_of


def main() -> bool:
    """-> whether it does"""
    llm = program()
    prompts = [{"prompt_token_ids": [5, 6]}]
    odd = params(extra_args={"odd": object()})
    told_of("one that cannot be encoded", lambda: llm.generate(prompts, odd, use_tqdm=False))
    return told_of("a good one", lambda: len(llm.generate(prompts, params(), use_tqdm=False))) is not None


if __name__ == "__main__":
    with prepared("unsent-request-is-not-waited-for"):
        kept = main()
    leave(kept)

"""The core is killed amid LLM.generate: does it end?"""

from __future__ import annotations

import os
import signal
import threading

from scenarios.worlds.vllm.findings.by_hand.common import core_of, leave, params, prepared, program, told_of


def main() -> bool:
    """-> whether it does"""
    llm = program()
    threading.Timer(0.05, os.kill, (core_of(llm), signal.SIGKILL)).start()
    prompts = [{"prompt_token_ids": [5 + number, 6]} for number in range(8)]
    return told_of("generate", lambda: len(llm.generate(prompts, params(190), use_tqdm=False))) is not None


if __name__ == "__main__":
    with prepared("waits-and-looks"):
        kept = main()
    leave(kept)

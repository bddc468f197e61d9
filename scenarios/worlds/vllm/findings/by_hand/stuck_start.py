"""The core stands still as soon as it is there, and a start may take 5 s: does the start end?"""

from __future__ import annotations

import os
import signal
import threading
import time

from scenarios.worlds.vllm.findings.by_hand.common import called, engine, family, leave, prepared, within

READY_S, BOUND_S = 5, 30.0


def main() -> bool:
    """-> whether it does"""
    os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] = str(READY_S)
    told: list[str] = []

    def start() -> None:
        try:
            engine()
            told.append("it has started")
        except Exception as error:
            told.append(f"{type(error).__name__}: {str(error)[:150]}")

    began = time.monotonic()
    threading.Thread(target=start, daemon=True).start()
    if not within(60.0, lambda: bool(told or called(family(os.getpid()), "VLLM::EngineCore"))) or told:
        raise SystemExit(f"no core was started: {told}")
    os.kill(called(family(os.getpid()), "VLLM::EngineCore")[0], signal.SIGSTOP)
    ended = within(BOUND_S, lambda: bool(told))
    print(f"{time.monotonic() - began:.1f} s after it began, with a time-out of {READY_S} s, the start "
          f"{f'ended: {told[0]}' if ended else 'still waits'}")
    return ended


if __name__ == "__main__":
    with prepared("start-has-a-bound"):
        kept = main()
    leave(kept)

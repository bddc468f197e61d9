"""The core is killed as soon as it has forked a worker: is who started it told, and does the worker end?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from scenarios.worlds.vllm.findings.by_hand.common import called, engine, family, left, prepared, title_of, within

#: A core that ends while nothing else happens fails a start at once.
BOUND_S = 20.0


async def _started(told: list[str]) -> None:
    try:
        engine()
        told.append("it has started")
    except Exception as error:
        told.append(f"{type(error).__name__}: {str(error)[:150]}")


def main() -> bool:
    """-> whether the start ended, and the worker"""
    told: list[str] = []
    hears, tells = os.pipe()
    caller = os.fork()
    if not caller:  # it keeps what it is told to itself until it is told something
        asyncio.run(_started(told))
        os.write(tells, told[0].encode())
        threading.Event().wait()
    os.close(tells)
    workers: list[int] = []

    def has_forked() -> bool:
        for core in called(family(caller), "VLLM::EngineCore"):
            workers[:] = [pid for pid in family(core) if "resource_tracker" not in title_of(pid)]
        return bool(workers)

    if not within(60.0, has_forked):
        raise SystemExit("the core has forked no worker")
    os.kill(called(family(caller), "VLLM::EngineCore")[0], signal.SIGKILL)
    began = time.monotonic()
    os.set_blocking(hears, False)

    def is_told() -> bool:
        try:
            told.append(os.read(hears, 4096).decode())
        except BlockingIOError:
            return False
        return True

    is_heard, outlived = within(BOUND_S, is_told), left(workers, 1.0)
    said = f"was told ({told[0]})" if is_heard else "still waits"
    print(f"{time.monotonic() - began:.1f} s after the core's end its caller {said}; "
          f"workers that live: {outlived or 'none'}")
    return is_heard and not outlived


if __name__ == "__main__":
    with prepared("start-looks-at-the-core-itself"):
        kept = main()
    sys.exit(not kept)

"""Child processes for tests of queues, and what a wait of theirs costs."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import QueueTimeoutError
from engine.ipc.presence import PEER_CHECK_S

processes = multiprocessing.get_context("fork")


def child(opened: Callable[..., Any], body: Callable[..., None], *args: Any) -> tuple[Any, Any]:
    """-> a pipe to a child process that runs body(pipe, *args), and the process. `opened`: the fixture."""
    ours, theirs = processes.Pipe()
    started = opened(lambda: processes.Process(target=body, args=(theirs, *args), daemon=True))
    started.start()
    theirs.close()
    return ours, started


def rests(wait: Callable[[float], Any], wait_s: float = 2.0) -> None:
    """What waits in vain for that long sleeps, and wakes for nothing but its looks at the peers.

    Counted in wake-ups: what one costs is the machine's affair, a virtual one that has gone cold takes 2 ms for it.
    """
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD)
    with pytest.raises(QueueTimeoutError):
        wait(wait_s)
    after, took_s = resource.getrusage(resource.RUSAGE_THREAD), time.monotonic() - began
    assert after.ru_nvcsw - before.ru_nvcsw <= took_s / PEER_CHECK_S + 5
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < took_s / 10  # a spinner: all of it

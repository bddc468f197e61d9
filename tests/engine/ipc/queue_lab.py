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


def used_s(work: Callable[[], Any]) -> float:
    """Processor time of this thread."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    work()
    after = resource.getrusage(resource.RUSAGE_THREAD)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wake_costs_s() -> float:
    """What waking costs here where nothing else is done: processor time of a plain sleep of 0.1 s."""
    return used_s(lambda: [time.sleep(0.1) for _ in range(5)]) / 5


def rests(wait: Callable[[float], Any], wait_s: float = 2.0) -> None:
    """What waits in vain for that long sleeps, and wakes for nothing but its looks at the peers.

    Beside a hundredth of a core it may use what so many looks cost here, each some plain wake-ups: where a virtual
    machine goes cold in between, one takes 0.5 ms.
    """
    def waits() -> None:
        with pytest.raises(QueueTimeoutError):
            wait(wait_s)

    a_wake_s, looks = wake_costs_s(), wait_s / PEER_CHECK_S
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    spent_s = used_s(waits)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before <= looks + 5
    assert spent_s < 0.01 * wait_s + 8 * looks * a_wake_s

"""What threads of one process hand each other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from engine.process.shell import LocalQueue, LocalQueues


def test_two_threads_that_ask_for_a_queue_at_once_have_the_same(monkeypatch) -> None:
    """What the one puts in, while the other one makes it, must not be lost."""
    made, together = LocalQueue.__init__, Barrier(2)

    def slowly(queue: LocalQueue) -> None:
        together.wait(5.0)
        time.sleep(0)
        made(queue)

    monkeypatch.setattr(LocalQueue, "__init__", slowly)
    queues = LocalQueues()
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda name: queues[name], ["input", "input"])
    assert one is other is queues["input"]

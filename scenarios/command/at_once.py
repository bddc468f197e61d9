"""One piece of work for each number, on all cores: in forked processes, which see what this one has in memory.

Promises
- The answers are those that this process alone would give, in order of their numbers.
- What another process did not do, because it was killed or had no memory, is done here.
- Nobody stays: who works for this process ends with it, however it ends.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from scenarios.command.playing.forked import ends_with
from scenarios.worlds.base import without_collector

Answer = TypeVar("Answer")
#: Fewer than so many for each are not worth a process.
LEAST = 30


def at_once(count: int, work: Callable[[int], Answer], cores: int | None = None) -> list[Answer]:
    """-> `work(0)` to `work(count - 1)`. `cores` None: those that this process may use."""
    shares = max(1, min(cores or len(os.sched_getaffinity(0)), count // LEAST))
    others = [_Other(range(share, count, shares), work) for share in range(1, shares)]
    found: dict[int, Answer] = {}
    try:
        with without_collector():  # as in the others: a third of the time would go into it
            found.update((number, work(number)) for number in range(0, count, shares))
            for other in others:
                found.update(other.answers())
    finally:
        for other in others:
            other.end()
    return [found[number] if number in found else work(number) for number in range(count)]


class _Other:
    """This process's end of one."""

    def __init__(self, numbers: range, work: Callable[[int], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._answers, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_main, args=(theirs, os.getpid(), numbers, work), daemon=True)
        self._process.start()
        theirs.close()

    def answers(self) -> dict[int, Any]:
        """Of all its numbers, or none."""
        with contextlib.suppress(EOFError, OSError):
            return self._answers.recv()  # type: ignore[no-any-return]
        return {}

    def end(self) -> None:
        self._answers.close()
        self._process.kill()
        self._process.join()


def _main(answers: Connection, parent: int, numbers: range, work: Callable[[int], Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not ends_with(parent):
        return
    gc.disable()  # what was in memory before stays shared
    with contextlib.suppress(Exception):  # the parent comes upon it, too
        answers.send({number: work(number) for number in numbers})

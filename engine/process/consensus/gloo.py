"""A gloo group of its own, beside torch.distributed's default one, driven by a thread of its own.

Promises
- Nothing here is waited for: what was begun is over when `done` is readable, and then `outcome` has it.
- gloo cannot be called off. Whoever waits no more closes the group: its thread lets go of it when gloo does, at the
  latest at the time-out of what was begun, and keeps no process from ending.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from engine.process.consensus.meeting import meeting_at

Frames = list[list[int]]

#: An idle thread lets go of its group well within this. Where gloo does not, nobody is kept: others that step together
#: miss whoever leaves when its process is gone, and no sooner.
_CLOSE_S = 0.2


class GlooGroup:
    """The member of place `rank` of `size`. `token`: what all of them know, and no other group."""

    def __init__(self, rank: int, size: int, where: str, token: str) -> None:
        self._rank, self._size, self._where, self._token = rank, size, where, token
        self._jobs: SimpleQueue[Callable[[], Frames] | None] = SimpleQueue()
        self._outcome: Frames | BaseException | None = None
        self._group: Any = None
        self._busy = False
        self._lock = threading.Lock()  # the thread may be late to tell, when `done` is another file's number
        self.done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="gloo", daemon=True)
        self._thread.start()

    def meet(self, frame: Sequence[int], timeout_s: float) -> None:
        """Begin to meet the others, and bring this to the first collective."""
        def meet() -> Frames:
            ends = time.monotonic() + timeout_s
            with joined(self._rank, self._size, self._where, self._token, ends) as self._group:
                return gather(self._group, frame, _left(ends))  # whoever hears of all knows that all have met

        self._begin(meet)

    def gather(self, frame: Sequence[int], timeout_s: float) -> None:
        """Begin to bring `frame`, and to hear the others'."""
        self._begin(lambda: gather(self._group, frame, timeout_s))

    def outcome(self) -> Frames | None:
        """What each member brought to what was begun last; None: it is not over. Raises what gloo raised."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done)
            self._busy = False
            if isinstance(self._outcome, BaseException):
                raise self._outcome
            return self._outcome
        return None

    def close(self) -> None:
        """Safe to call twice."""
        self._jobs.put(None)
        if not self._busy:
            self._thread.join(_CLOSE_S)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.done)

    def _begin(self, job: Callable[[], Frames]) -> None:
        self._busy = True
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._outcome = job()
            except BaseException as error:
                self._outcome = error
            del job
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self.done, 1)
        self._group = self._outcome = None


@contextlib.contextmanager
def joined(rank: int, size: int, where: str, token: str, ends: float) -> Iterator[Any]:
    """-> the group, once this member is joined with the others; what they meet by is there until all of them have."""
    if "torch" not in sys.modules:
        import torch

        torch.set_num_threads(1)  # a few numbers: no pool of threads is worth it
    from torch.distributed import ProcessGroupGloo

    with meeting_at(where, rank, size, token, ends) as (store, address):
        left = timedelta(seconds=_left(ends))
        store.set_timeout(left)
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._threads, options._timeout = 1, left
        yield ProcessGroupGloo(store, rank, size, options)


def _left(ends: float) -> float:
    return max(0.001, ends - time.monotonic())


def gather(group: Any, frame: Sequence[int], timeout_s: float) -> Frames:
    """-> what each member brought, all of one length. Raises RuntimeError where one is gone, or late."""
    import torch
    from torch._C._distributed_c10d import AllgatherOptions

    mine = torch.tensor(frame, dtype=torch.int64)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    options = AllgatherOptions()
    options.timeout = timedelta(seconds=timeout_s)
    group.allgather([parts], [mine], options).wait()
    return [part.tolist() for part in parts]

"""Queues that a program opens, and how it waits at them, for those who ask about them."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from engine.errors import QueueTimeoutError
from engine.ipc.message_queue import MessageQueue
from engine.ipc.notify import NotifySocket
from engine.ipc.ring import EMPTY
from engine.ipc.wait import Spin, SpinThenNap, SpinThenSleep
from scenarios.programs.asking import LATE_S, PATIENCE_S

LOOPBACK = "127.0.0.1"
CHUNKS, CHUNK_BYTES = 3, 256
#: For a wait that lasts, and for one that is ended from outside.
WAIT_S, SOON_S = 0.2, 0.1
#: Of an object that travels without a copy.
LARGE = 100_000
WAYS: dict[str, Callable[[], Any]] = {
    "sleeps": SpinThenSleep, "spins": Spin, "naps": lambda: SpinThenNap(busy_s=0.01), "is notified": NotifySocket}


@contextlib.contextmanager
def opened(local: int = 1, remote: int = 0, *, way: str = "sleeps", ip: str | None = LOOPBACK,
            ) -> Iterator[list[MessageQueue]]:
    """The writer, then its readers by rank; all are ready."""
    ends = made(local, remote, way=way, ip=ip)
    try:
        yield ends
    finally:
        for end in ends:
            end.shutdown()


def made(local: int = 1, remote: int = 0, *, way: str = "sleeps", ip: str | None = LOOPBACK) -> list[MessageQueue]:
    """The same, for who shuts them down, or forgets to."""
    ends = [MessageQueue(local + remote, local, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS, connect_ip=ip,
                         wait=WAYS[way]())]
    for rank in range(local + remote):
        ends.append(MessageQueue.create_from_handle(ends[0].export_handle(), rank, wait=WAYS[way]()))
    with beside(lambda: ends[0].wait_until_ready(PATIENCE_S)):
        for reader in ends[1:]:
            reader.wait_until_ready(PATIENCE_S)
    return ends


@contextlib.contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def after(seconds: float, work: Callable[[], Any]) -> contextlib.AbstractContextManager[None]:
    def later() -> None:
        time.sleep(seconds)
        work()

    return beside(later)


def nothing(reader: MessageQueue, seconds: float) -> None:
    with contextlib.suppress(QueueTimeoutError):
        reader.dequeue(seconds)


def lateness(writer: MessageQueue, reader: MessageQueue) -> float:
    """How long after it was put in an object is there, for one that sleeps: the middle of some."""
    late = []
    for _ in range(5):
        with after(0.02, lambda: writer.enqueue(time.monotonic())):
            late.append(-(reader.dequeue(PATIENCE_S) - time.monotonic()))
    return statistics.median(late)


def all_of(reader: MessageQueue) -> list[Any]:
    found = []
    while (one := reader.try_dequeue()) is not EMPTY:
        found.append(one)
    return found


def lasts(wait: Callable[[], Any]) -> bool:
    """Whether it is over when it was to end, and not much later."""
    began = time.monotonic()
    wait()
    return SOON_S - 1e-3 <= time.monotonic() - began < SOON_S + 0.4


def ended(wait: Callable[[], Any]) -> str:
    """By which error it ended, soon after it was to end."""
    began = time.monotonic()
    try:
        wait()
        name = "nothing"
    except Exception as error:
        name = type(error).__name__
    lasted = time.monotonic() - began
    return name if SOON_S - LATE_S <= lasted < 5.0 else f"{name} after {lasted:.2f} s"

"""What a program asks of the parts of the engine, as any program may use them, and what it must be answered.

Promises: what is asked is on record as soon as it is answered, an exception by its name; so a judge sees what a program
saw, and one that hangs has said how far it came.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.effects import Loop
from engine.process.shell import Process

#: For whatever must come about on a busy machine, and for what only has to go; how often it is looked for.
PATIENCE_S, GONE_S, LOOK_S = 20.0, 5.0, 0.002
#: What a wait that sleeps takes of a processor at most, how often it wakes, and what is too late for one that was rung.
MOST_OF_A_WAIT, MOST_WAKES_PER_S, LATE_S = 0.25, 200, 0.06
#: Python loses what a handler raises amid an object's end (pyzmq's `Frame` has one): it is raised again after this.
AGAIN_S = 1.0


class Asking:
    """`folder`: for files. `workload`: what a model is asked, and what it must answer."""

    def __init__(self, ports: Any, folder: str, config: Any, workload: Any) -> None:
        self._ports = ports
        self.folder, self.config, self.workload = folder, config, workload

    def __call__(self, words: str, ask: Callable[[], Any], wanted: Any) -> Any:
        """`wanted`: an answer, or the class of an error. -> the answer, None for an error"""
        answer = None
        try:
            answer = told = ask()
        except Exception as error:
            told = type(error).__name__
        name = getattr(wanted, "__name__", wanted)
        self._ports.observe("asked", words=words, answer=_plain(told), wanted=_plain(name))
        return answer

    def raised(self, words: str, ask: Callable[[], Any], wanted: Any, *parts: str) -> None:
        """It must raise this, or one of these, and say the parts."""
        any_of = wanted if isinstance(wanted, tuple) else (wanted,)
        name, missing = "nothing", list(parts)
        try:
            ask()
        except Exception as error:
            name, missing = type(error).__name__, [part for part in parts if part not in str(error)]
        right = name if name in [one.__name__ for one in any_of] else any_of[0].__name__
        self._ports.observe("asked", words=words, answer=[name, missing], wanted=[right, []])

    def run(self, loop: Loop[None]) -> None:
        """What both worlds play."""
        Process(self._ports).run(loop)

    def took(self, words: str, seconds: float, bound: float) -> None:
        """How long that may take: a machine that starves is excused."""
        self._ports.observe("took", words=words, measured=seconds, bound=bound)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict) or value is None else repr(value)


def until(condition: Callable[[], Any], most_s: float = PATIENCE_S) -> bool:
    """Wait until then. -> whether it came"""
    end = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_S)
    return True


def held() -> list[int]:
    """How many descriptors this process has open, and how many threads."""
    gc.collect()
    return [len(os.listdir("/proc/self/fd")), threading.active_count()]


def no_more(before: list[int]) -> bool:
    """Whether it comes to have no more of anything than it had."""
    return until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), GONE_S)


@contextmanager
def interrupting(seconds: float, work: Callable[[], Any] | None = None) -> Iterator[None]:
    """After so long a signal handler does this, and raises; later again, as somebody at a terminal would."""
    def handler(*_: object) -> None:
        if work is not None:
            work()
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Turns:
    """A task beside others of an event loop: `count` tells how often it had its turn."""

    def __init__(self, every_s: float) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._take(every_s))

    async def _take(self, every_s: float) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(every_s)

    def end(self) -> None:
        self._task.cancel()


def is_mapped(name: str) -> bool:
    """Whether this process has such a file in its memory."""
    return name in Path("/proc/self/maps").read_text()


def nobodys(files: set[str]) -> set[str]:
    """Those that are there, and in the memory of no process: another play beside may have some of its own."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has gone
            mapped += maps.read_text()
    return {name for name in files if name not in mapped and Path(name).exists()}


def is_near(lasted: float, seconds: float) -> bool:
    """Whether what was to last so long did, and soon ended then."""
    return seconds - 1e-2 <= lasted < seconds + 1.8


def sleeps(wait: Callable[[], Any], seconds: float, *, naps: bool = False) -> bool:
    """Whether this wait lasts so long, and this thread is not busy meanwhile: nor does it look up again and again, but
    for one that `naps`."""
    began, busy, woken = time.monotonic(), time.thread_time(), _wakes()
    wait()
    lasted = time.monotonic() - began
    rests = naps or _wakes() - woken < MOST_WAKES_PER_S * seconds
    return rests and lasted >= seconds - 1e-3 and time.thread_time() - busy < MOST_OF_A_WAIT * seconds


def _wakes() -> int:
    """How often this thread has slept so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or nobody but its parent has still to hear of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def has_ipv6() -> bool:
    """Whether this host speaks IPv6 with itself."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False

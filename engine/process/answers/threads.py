"""The threads of a real process, one loop each, and what its SIGTERM does.

Promise: a SIGTERM that is to raise does so where nothing is half done and somebody sees it: in the midst of an effect
that may be broken off, or else as soon as the effect is done. Python's own handlers raise between any two instructions,
also where the exception is lost, or what was just opened; out of pyzmq's own code it ends the process without a word.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from engine.effects import (
    ClaimFiles,
    Close,
    Effect,
    HoldFiles,
    JoinThread,
    Loop,
    Now,
    Observe,
    OnTerminate,
    OpenHeartbeat,
    OpenSocket,
    Put,
    RemoveFiles,
    StartThread,
    ThreadFailed,
)
from engine.errors import QueueCancelledError

logger = logging.getLogger(__name__)
#: What opens, starts or puts something on record is done whole, and takes no time. All else may wait.
_WHOLE = frozenset({ClaimFiles, Close, HoldFiles, Now, Observe, OnTerminate, OpenHeartbeat, OpenSocket, Put,
                    RemoveFiles, StartThread})
#: Where pyzmq looks for signals itself.
_ZMQ = re.compile(r"(zmq|engine\.wire\.sockets)\b")


class Interruption:
    """What breaks off the loop of the thread that has made this, by SystemExit(`item`)."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self._thread = threading.get_ident()
        self._may_raise = self._is_due = False

    def strike(self, frame: FrameType | None) -> None:
        """In a signal handler, which interrupts that thread there."""
        self._is_due = True
        if self._may_raise and not (frame is not None and _ZMQ.match(frame.f_globals.get("__name__", ""))):
            self._raise()

    def check(self) -> None:
        """Before a wait. Raises SystemExit."""
        if self._is_due and self._may_raise and threading.get_ident() == self._thread:
            self._raise()

    def answered(self, answer: Callable[[Any], Any], effect: Effect) -> Any:
        """-> what `answer(effect)` returns. Raises what it raises, and SystemExit."""
        if threading.get_ident() != self._thread:
            return answer(effect)
        outer, self._may_raise = self._may_raise, type(effect) not in _WHOLE
        try:
            self.check()
            value = answer(effect)
        except SystemExit:
            self._is_due = False
            raise
        finally:
            self._may_raise = outer
        if self._is_due:  # it was left alone, or a callback that met it has swallowed the exception
            self._is_due = False
            self._raise()
        return value

    def _raise(self) -> None:
        self._may_raise = False
        raise SystemExit(self._item)


class Threads:
    """`run` drives a loop, `put(queue, item)` tells a queue of the process, `left(deadline)` is the time until then.

    `breaks_off` is told of what breaks off the loops from now on.
    """

    def __init__(self, run: Callable[[Loop[Any]], Any], put: Callable[[str, Any], None],
                 left: Callable[[float | None, float], float],
                 breaks_off: Callable[[Interruption | None], None]) -> None:
        self._run = run
        self._breaks_off = breaks_off
        self._put = put
        self._left = left
        self._threads: dict[str, _Thread] = {}
        self.answers: dict[type, Callable[[Any], Any]] = {
            StartThread: self._start, JoinThread: self._join, OnTerminate: self._on_terminate}

    def _start(self, effect: StartThread) -> None:
        def run() -> None:
            try:
                self._run(effect.loop)
            except QueueCancelledError:
                return
            except BaseException as error:  # never in silence
                logger.exception("the %s thread failed", effect.name)
                if effect.told is not None:
                    self._put(effect.told, ThreadFailed(effect.name, error))

        thread = self._threads[effect.name] = _Thread(effect.name, run)
        thread.start()

    def _join(self, effect: JoinThread) -> bool:
        thread = self._threads.get(effect.name)
        return thread is None or thread.join(self._left(effect.deadline, threading.TIMEOUT_MAX))

    def _on_terminate(self, effect: OnTerminate) -> None:
        queue, item = effect.queue, effect.item
        interruption = Interruption(item) if queue is None else None

        def handle(number: int, frame: Any) -> None:
            if interruption is not None:
                interruption.strike(frame)
            else:
                self._put(queue, item)

        self._breaks_off(interruption)
        signal.signal(signal.SIGTERM, handle)


class _Thread:
    """A signal may break off its start at any point: then it runs if it has begun to before it is joined, or never."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._begin, name=name, daemon=True)
        self._run = run
        self._turn = threading.Lock()  # taken once, by it or by who joins it
        self._was_started = self._never_runs = False

    def start(self) -> None:
        self._thread.start()
        self._was_started = True

    def join(self, timeout_s: float) -> bool:
        """-> whether it has ended, or never will begin"""
        if not self._was_started and not self._never_runs:
            self._never_runs = self._turn.acquire(blocking=False)
        if self._never_runs:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _begin(self) -> None:
        if self._turn.acquire(blocking=False):
            self._run()

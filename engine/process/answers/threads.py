"""The threads of a real process, one loop each, and what its SIGTERM does."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from engine.effects import JoinThread, Loop, OnTerminate, StartThread, ThreadFailed
from engine.errors import QueueCancelledError

logger = logging.getLogger(__name__)


class Threads:
    """`run` drives a loop, `put(queue, item)` tells a queue of the process, `left(deadline)` is the time until then."""

    def __init__(self, run: Callable[[Loop[Any]], Any], put: Callable[[str, Any], None],
                 left: Callable[[float | None, float], float]) -> None:
        self._run = run
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
        def handle(number: int, frame: Any) -> None:
            if effect.queue is None:
                raise SystemExit(effect.item)
            self._put(effect.queue, effect.item)

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

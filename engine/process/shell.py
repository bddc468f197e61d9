"""Answers the effects of pure loops with the ports of a real process.

A `Process` holds what the threads of one process share: ports, sockets, queues, bells, rings. Each thread runs
one loop by `process.run(loop)`. All waiting of the engine happens here, in `children` and in `threads`, and every wait
ends: at its deadline, at a wake-up, or because the process is told to stop (`cancel`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

from engine.effects import (
    Attempt,
    Beat,
    Call,
    Cancel,
    Describe,
    Effect,
    IsOver,
    LogLine,
    Loop,
    MarkPoint,
    Now,
    Observe,
    Put,
    ReadHeartbeat,
    Receive,
    RingBell,
    RingCrossing,
    Send,
    Take,
    WaitBell,
    Waiting,
    WallTime,
    Warn,
    WasCut,
)
from engine.errors import QueueCancelledError
from engine.ports import Doorbell, Ports, RingSpec, Socket
from engine.process.answers.belongings import Belongings
from engine.process.answers.family import Family
from engine.process.answers.threads import Interruption, Threads
from engine.process.children import readable
from engine.process.operator_log import OperatorLog
from engine.topology import Node

logger = logging.getLogger(__name__)
#: A heartbeat in its shared word: the count, and the host's monotonic clock in nanoseconds when it was written.
BEAT = struct.Struct("<QQ")
#: A wait without a deadline still looks up this often: a bound against lost wake-ups, not a poll.
LOOK_UP_S = 1.0


class LocalQueue:
    """A queue between threads of one process, and from its signal handlers: put never waits and is reentrant."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put = self._items.put

    def take(self, timeout_s: float) -> list[Any]:
        """Everything that is there; waits for the first item at most `timeout_s`."""
        items: list[Any] = []
        try:
            items.append(self._items.get(timeout_s > 0, timeout_s if timeout_s > 0 else None))
            while True:
                items.append(self._items.get_nowait())
        except queue.Empty:
            return items

    def __len__(self) -> int:
        return self._items.qsize()


class LocalQueues(dict[str, LocalQueue]):
    """By name, each made by whoever asks for it first: of two threads that do so at once both have the same."""

    def __missing__(self, name: str) -> LocalQueue:
        return self.setdefault(name, LocalQueue())


class Process:
    """What the threads of one process share, and the interpreter of their loops."""

    def __init__(self, ports: Ports, recheck_s: float = LOOK_UP_S) -> None:
        self.ports = ports
        self.recheck_s = recheck_s
        self.sockets: dict[str, Socket] = {}
        self.queues = LocalQueues()
        self.bells: dict[str, Doorbell] = {}
        self.rings: dict[str, RingSpec] = {}
        self.worker: Any = None
        self.heartbeat: memoryview | None = None
        self.beats: dict[Node, memoryview] = {}  # of others
        self.cancelled: Exception | None = None
        self.children = Family(ports, self.left)
        self._tickets: dict[str, int] = {}
        self._operator_log = OperatorLog(ports.clock.monotonic)
        self._closed = False
        self._waking = threading.RLock()  # the pipe's writing end may be somebody else's once it is closed
        self._interruption: Interruption | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.answers: dict[type[Effect], Callable[[Any], Any]] = {
            Now: lambda effect: ports.clock.monotonic(),
            WallTime: lambda effect: ports.clock.time(),
            MarkPoint: lambda effect: ports.mark(effect.mark, **(effect.data or {})),
            Observe: lambda effect: ports.observe(effect.name, **effect.data),
            Describe: lambda effect: ports.describe(effect.name, effect.describe),
            LogLine: self._log,
            Warn: self._warn,
            Beat: self._beat,
            ReadHeartbeat: self._read_heartbeat,
            Send: lambda effect: self.sockets[effect.outbox].send(effect.frames, effect.peer),
            Receive: self._receive,
            IsOver: lambda effect: self.sockets[effect.inbox].is_over(),
            WasCut: lambda effect: self.sockets[effect.inbox].was_cut(),
            Put: lambda effect: self._put(effect.queue, effect.item),
            Take: self._take,
            Waiting: lambda effect: len(self.queues[effect.queue]),
            Attempt: lambda effect: effect.operation(),
            RingCrossing: lambda effect: ports.ring_crossing(
                self.rings[effect.ring], effect.operation, effect.position, effect.parts, effect.overflow),
            RingBell: lambda effect: self.bells[effect.bell].ring(),
            WaitBell: self._wait_bell,
            Call: lambda effect: getattr(self.worker, effect.method)(*effect.args, **effect.kwargs),
            Cancel: lambda effect: self.cancel(effect.error),
            **self.children.answers, **Belongings(self).answers,
            **Threads(self.run, self._put, self.left, self._break_off_by).answers,
        }

    def add_bell(self, name: str, bell: Doorbell) -> None:
        self.bells[name] = bell
        self._tickets[name] = bell.seen()

    def run(self, loop: Loop[Any]) -> Any:
        """Drive a loop to its end. -> its result; raises what it raises."""
        answers = self.answers
        try:
            effect = next(loop)
            while True:
                try:
                    answer, interruption = answers[type(effect)], self._interruption
                    effect = loop.send(
                        answer(effect) if interruption is None else interruption.answered(answer, effect))
                except StopIteration:
                    raise
                except (Exception, SystemExit) as error:
                    if loop.gi_frame is None:
                        raise
                    effect = loop.throw(error)  # the loop decides what a failed effect means, or a signal beside it
        except StopIteration as stop:
            return stop.value

    def cancel(self, error: Exception) -> None:
        """End every wait on a bell with `error`, now and later. From any thread; the first reason stays."""
        if self.cancelled is None:
            self.cancelled = error
        for bell in list(self.bells.values()):  # another thread may close them
            bell.ring()
        with self._waking:
            if not self._closed:
                os.write(self._wake_write, b"x")

    def close(self) -> None:
        """May be called twice."""
        with self._waking:
            if self._closed:
                return
            self._closed = True
        if self._interruption is not None:
            self._break_off_by(None)
        for socket in self.sockets.values():
            socket.close()
        self.sockets.clear()
        for bell in self.bells.values():
            bell.close()
        self.bells.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _break_off_by(self, interruption: Interruption | None) -> None:
        """A signal that comes just before a wait begins ends it, too: its byte is there to be read."""
        self._interruption = interruption
        signal.set_wakeup_fd(-1 if interruption is None else self._wake_write, warn_on_full_buffer=False)
        if interruption is None:
            self._sleep_on()

    def _sleep_on(self) -> None:
        """A signal's byte has woken who waits: the next wait is none of its."""
        if self.cancelled is None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, select.PIPE_BUF)
            if self.cancelled is not None:  # meanwhile
                os.write(self._wake_write, b"x")

    def _put(self, queue: str, item: Any) -> None:
        self.queues[queue].put(item)

    def _warn(self, effect: Warn) -> None:
        line = self._operator_log.line(effect.name, effect.data)
        self.ports.observe("warned", kind=effect.name, data=effect.data, line=line)
        if line is not None:
            logger.warning("%s", line)

    def _log(self, effect: LogLine) -> None:
        logger.error("%s", effect.text, exc_info=effect.error)

    def _beat(self, effect: Beat) -> None:
        if self.heartbeat is not None:
            now_ns = int(self.ports.clock.monotonic() * 1e9)
            self.heartbeat[:BEAT.size] = BEAT.pack(effect.count, now_ns)

    def _read_heartbeat(self, effect: ReadHeartbeat) -> tuple[int, float | None]:
        beat, at_ns = BEAT.unpack_from(self.beats[effect.of])
        return beat, at_ns / 1e9 if at_ns else None

    # -- waiting

    def left(self, deadline: float | None, most_s: float = LOOK_UP_S) -> float:
        """How long to wait until this deadline, at most `most_s`."""
        if deadline is None:
            return most_s
        return min(most_s, max(0.0, deadline - self.ports.clock.monotonic()))

    def await_any(self, descriptors: list[int], timeout_s: float) -> None:
        """Wait until one is readable, at most so long. Raises QueueCancelledError once the process is cancelled."""
        self._check()
        if self._wake_read in readable([self._wake_read, *descriptors], timeout_s):
            self._sleep_on()
        self._check()

    def _check(self) -> None:
        error = self.cancelled
        if error is not None:
            raise error if isinstance(error, QueueCancelledError) else QueueCancelledError(str(error))

    def _receive(self, effect: Receive) -> Any:
        sockets = [(name, self.sockets[name]) for name in effect.inboxes]
        poller = None
        ends = [self.children.sentinel(node) for node in effect.ends]
        while True:
            for name, socket in sockets:
                message = socket.try_receive()
                if message is not None:
                    return name, *message
            if self.cancelled is not None:
                raise self.cancelled
            if self._interruption is not None:
                self._interruption.check()
            left_s = self.left(effect.deadline)
            if left_s <= 0:
                return None
            if poller is None:
                poller = select.poll()
                poller.register(self._wake_read, select.POLLIN)
                for descriptor in [*ends, *(socket.fileno() for _, socket in sockets)]:
                    poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll(max(1, left_s * 1000)):
                if descriptor in ends:
                    return None
                if descriptor == self._wake_read:  # whoever's signal it was
                    self._sleep_on()

    def _take(self, effect: Take) -> list[Any]:
        queue = self.queues[effect.queue]
        while True:
            items = queue.take(self.left(effect.deadline))
            if items or (effect.deadline is not None and self.left(effect.deadline) <= 0):
                return items

    def _wait_bell(self, effect: WaitBell) -> bool:
        """Sleeps on the ticket taken before the loop last looked, so a ring in between is not lost."""
        self._check()
        bell = self.bells[effect.bell]
        rang = bell.wait(self._tickets[effect.bell], self.left(effect.deadline, self.recheck_s))
        self._tickets[effect.bell] = bell.seen()
        return rang

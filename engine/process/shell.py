"""Answers the effects of pure loops with the ports of a real process.

A `Process` holds what the threads of one process share: ports, sockets, queues, bells, rings. Each thread runs
one loop by `process.run(loop)`. All waiting of the engine happens here, and every wait ends: at its
deadline, at a wake-up, or because the process is told to stop (`cancel`).
"""

from __future__ import annotations

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
    AwaitParent,
    Beat,
    Call,
    Cancel,
    Close,
    Effect,
    Identity,
    JoinThread,
    Loop,
    MarkPoint,
    Now,
    Observe,
    OnTerminate,
    OpenSocket,
    Put,
    Receive,
    RingBell,
    RingCrossing,
    Send,
    StartThread,
    Take,
    ThreadFailed,
    WaitBell,
    WallTime,
    Warn,
    WasCut,
    WhoAmI,
)
from engine.errors import QueueCancelledError
from engine.ipc.presence import start_time
from engine.ports import Doorbell, Ports, RingSpec, Socket
from engine.process.operator_log import OperatorLog

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


class Process:
    """What the threads of one process share, and the interpreter of their loops."""

    def __init__(self, ports: Ports, recheck_s: float = LOOK_UP_S) -> None:
        self.ports = ports
        self.recheck_s = recheck_s
        self.sockets: dict[str, Socket] = {}
        self.queues: dict[str, LocalQueue] = {}
        self.bells: dict[str, Doorbell] = {}
        self.rings: dict[str, RingSpec] = {}
        self.worker: Any = None
        self.heartbeat: memoryview | None = None
        self.cancelled: Exception | None = None
        #: Descriptors that end every Receive when they become readable: what a death means to this process.
        self.sentinels: dict[int, Callable[[], Exception]] = {}
        self.threads: dict[str, threading.Thread] = {}
        self._tickets: dict[str, int] = {}
        self._operator_log = OperatorLog(ports.clock)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._answers: dict[type[Effect], Callable[[Any], Any]] = {
            Now: lambda effect: ports.clock.monotonic(),
            MarkPoint: lambda effect: ports.mark(effect.mark, **(effect.data or {})),
            Observe: lambda effect: ports.observe(effect.name, **effect.data),
            Warn: lambda effect: self._operator_log.warn(effect.name, effect.data),
            Beat: self._beat,
            Send: lambda effect: self.sockets[effect.outbox].send(effect.frames, effect.peer),
            Receive: self._receive,
            WasCut: lambda effect: self.sockets[effect.inbox].was_cut(),
            Put: lambda effect: self.queues[effect.queue].put(effect.item),
            Take: self._take,
            Attempt: lambda effect: effect.operation(),
            RingCrossing: lambda effect: ports.ring_crossing(
                self.rings[effect.ring], effect.operation, effect.position, effect.parts, effect.overflow),
            RingBell: lambda effect: self.bells[effect.bell].ring(),
            WaitBell: self._wait_bell,
            Call: lambda effect: getattr(self.worker, effect.method)(*effect.args, **effect.kwargs),
            WhoAmI: lambda effect: Identity(os.getpid(), start_time(os.getpid()) or 0, os.getppid()),
            WallTime: lambda effect: ports.clock.time(),
            OnTerminate: self._on_terminate,
            AwaitParent: self._await_parent,
            Cancel: lambda effect: self.cancel(effect.error),
            StartThread: self._start_thread,
            JoinThread: self._join_thread,
            OpenSocket: self._open_socket,
            Close: self._close,
        }

    def add_bell(self, name: str, bell: Doorbell) -> None:
        self.bells[name] = bell
        self._tickets[name] = bell.seen()

    def run(self, loop: Loop[Any]) -> Any:
        """Drive a loop to its end. -> its result; raises what it raises."""
        answers = self._answers
        try:
            effect = next(loop)
            while True:
                try:
                    result = answers[type(effect)](effect)
                except Exception as error:  # the loop decides what a failed effect means
                    effect = loop.throw(error)
                else:
                    effect = loop.send(result)
        except StopIteration as stop:
            return stop.value

    def cancel(self, error: Exception) -> None:
        """End every wait on a bell with `error`, now and later. From any thread; the first reason stays."""
        if self.cancelled is None:
            self.cancelled = error
        for bell in self.bells.values():
            bell.ring()
        os.write(self._wake_write, b"x")

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()
        self.sockets.clear()
        for bell in self.bells.values():
            bell.close()
        self.bells.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- the life of the process

    def _open_socket(self, effect: OpenSocket) -> str:
        socket = self.sockets[effect.spec.name] = self.ports.open_socket(effect.spec)
        return socket.address

    def _start_thread(self, effect: StartThread) -> None:
        def run() -> None:
            try:
                self.run(effect.loop)
            except QueueCancelledError:
                pass
            except BaseException as error:
                if effect.told is None:
                    raise
                self.queues[effect.told].put(ThreadFailed(effect.name, error))

        thread = self.threads[effect.name] = threading.Thread(target=run, name=effect.name, daemon=True)
        thread.start()

    def _join_thread(self, effect: JoinThread) -> bool:
        thread = self.threads[effect.name]
        thread.join(max(0.0, effect.deadline - self.ports.clock.monotonic()))
        return not thread.is_alive()

    def _on_terminate(self, effect: OnTerminate) -> None:
        def handle(number: int, frame: Any) -> None:
            if effect.queue is None:
                raise SystemExit(effect.item)
            self.queues[effect.queue].put(effect.item)

        signal.signal(signal.SIGTERM, handle)

    def _await_parent(self, effect: AwaitParent) -> None:
        gone = threading.Event()
        if self.ports.parent is not None:
            self.ports.parent.watch(gone.set)
        gone.wait()

    def _close(self, effect: Close) -> None:
        for socket in self.sockets.values():
            socket.close(effect.linger_s)
        self.sockets.clear()
        self.close()
        self.ports.close()

    def _beat(self, effect: Beat) -> None:
        if self.heartbeat is not None:
            now_ns = int(self.ports.clock.monotonic() * 1e9)
            self.heartbeat[:BEAT.size] = BEAT.pack(effect.count, now_ns)

    # -- waiting

    def _left(self, deadline: float | None, most_s: float) -> float:
        if deadline is None:
            return most_s
        return min(most_s, max(0.0, deadline - self.ports.clock.monotonic()))

    def _receive(self, effect: Receive) -> Any:
        sockets = [(name, self.sockets[name]) for name in effect.inboxes]
        poller = None
        while True:
            for name, socket in sockets:
                message = socket.try_receive()
                if message is not None:
                    return name, *message
            if self.cancelled is not None:
                raise self.cancelled
            left_s = self._left(effect.deadline, LOOK_UP_S)
            if left_s <= 0:
                return None
            if poller is None:
                poller = select.poll()
                poller.register(self._wake_read, select.POLLIN)
                for descriptor in [*self.sentinels, *(socket.fileno() for _, socket in sockets)]:
                    poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll(max(1, left_s * 1000)):
                if descriptor in self.sentinels:
                    raise self.sentinels[descriptor]()

    def _take(self, effect: Take) -> list[Any]:
        queue = self.queues[effect.queue]
        while True:
            items = queue.take(self._left(effect.deadline, LOOK_UP_S))
            if items or (effect.deadline is not None and self._left(effect.deadline, LOOK_UP_S) <= 0):
                return items

    def _wait_bell(self, effect: WaitBell) -> bool:
        """Sleeps on the ticket taken before the loop last looked, so a ring in between is not lost."""
        if self.cancelled is not None:
            raise self.cancelled if isinstance(self.cancelled, QueueCancelledError) else QueueCancelledError(
                str(self.cancelled))
        bell = self.bells[effect.bell]
        rang = bell.wait(self._tickets[effect.bell], self._left(effect.deadline, self.recheck_s))
        self._tickets[effect.bell] = bell.seen()
        return rang

"""One process as whoever started it has it (pure): heard, watched, known dead, ended; a core, or a coordinator.

Promises
- Its death is known from its sentinel, whatever it could still say; what it told its parent names the reason.
- Its workers, which it named when they were born, are ended with it should it not have done so itself.
"""

from __future__ import annotations

from engine.config import Bounds
from engine.effects import (
    AwaitEnds,
    EndChild,
    EndProcesses,
    Gone,
    HearChildren,
    Identity,
    IsOver,
    Loop,
    Now,
    ReadHeartbeat,
    StartChild,
)
from engine.errors import ConfigError, StartupError
from engine.frontend.handles.monitor import CoreMonitor
from engine.process.recipes import Garbled, Leaving, StartFailure, WorkersBorn, misread
from engine.topology import Node


class Handle:
    """Of the process `node`."""

    monitor: CoreMonitor  # from the moment on when it serves
    inbox: str | None = None  # what it says comes there
    beats_at: str  # the shared word of its heartbeat, once it is opened

    def __init__(self, node: Node, bounds: Bounds) -> None:
        self.node = node
        self.name = str(node.first_life)
        self.process: Identity | None = None  # once it was started
        self.serves = False
        self.reason = ""  # by which its client has told that it is dead
        self._bounds = bounds
        self._workers: tuple[Identity, ...] = ()
        self._told: StartFailure | Leaving | Garbled | None = None
        self._dead_since: float | None = None

    # -- start

    def start(self, start_method: str) -> Loop[None]:
        self.process = yield StartChild(self.node, start_method)

    def why_start_failed(self) -> Loop[Exception]:
        """It is gone: what it wrote on its pipe before, or what is known from outside."""
        code = yield from self.listen()
        if isinstance(self._told, StartFailure):
            return (ConfigError if self._told.kind == "ConfigError" else StartupError)(self._told.reason)
        text = f"{self.name} died while starting (exit code {code})"
        if isinstance(self._told, Garbled):
            text = f"{text}, and what it says cannot be read: {self._told.error}"
        return StartupError(f"{text}: {self._told.reason}" if isinstance(self._told, Leaving) else text)

    def why_it_failed(self) -> Loop[Exception]:
        """The same where it is one of several: by its name."""
        error = yield from self.why_start_failed()
        return error if self.name in str(error) else type(error)(f"{self.name}: {error}")

    @property
    def has_given_up(self) -> bool:
        """Whether it was heard to say why it cannot start."""
        return isinstance(self._told, StartFailure)

    @property
    def has_said_why(self) -> bool:
        """Whether it told its parent why it leaves, and not that another one does: on another host it has none."""
        return self._told is not None and not (isinstance(self._told, Leaving) and self._told.follows)

    def watch(self, now: float) -> None:
        """It is ready."""
        self.monitor = CoreMonitor(self.name, self._bounds.stall_s, now)
        self.serves = True

    @property
    def identity(self) -> Identity:
        """Of a process that was started."""
        assert self.process is not None
        return self.process

    # -- watch

    def listen(self) -> Loop[int | None]:
        """What it wrote on its pipe: who its workers are, why it could not start, why it leaves.

        -> its exit code, if it is gone
        """
        while True:
            heard = yield HearChildren((self.node,), 0.0)
            if heard is None:
                return None
            if isinstance(heard[1], Gone):
                return heard[1].exitcode
            if isinstance(heard[1], Garbled):
                yield misread(heard[1].error)
            self.hear(heard[1])

    def hear(self, word: object) -> None:
        if isinstance(word, WorkersBorn):
            self._workers = word.identities
        elif isinstance(word, StartFailure | Leaving) or (isinstance(word, Garbled) and self._told is None):
            self._told = word  # of the reason and of what cannot be read, the reason

    def gone(self) -> str | None:
        """Why nothing can be sent to it any more, where that is known."""
        return self.monitor.gone() if self.serves else None

    def beat(self, now: float) -> Loop[str | None]:
        """-> why it counts as dead, by its heartbeat or by the time since it was gone"""
        count, beaten_at = yield ReadHeartbeat(self.node)
        return self.monitor.on_tick(count, now, beaten_at)

    def last_word(self) -> Loop[str | None]:
        """-> why it counts as dead, if it is gone and all that came of it was read"""
        return self.monitor.on_last_word() if self.inbox is None or (yield IsOver(self.inbox)) else None

    def in_its_words(self, reason: str) -> Loop[str]:
        """Of one that is gone or leaves: with what it told its parent, if it did."""
        yield from self.listen()
        return f"{reason}: {self._told.reason}" if isinstance(self._told, Leaving) else reason

    # -- the end

    @property
    def dead(self) -> bool:
        return bool(self.reason)

    def bury(self, reason: str, notice_read: bool) -> Loop[None]:
        """It is dead, by this reason."""
        self.reason = reason
        self._dead_since = yield Now()
        if not notice_read and not (yield AwaitEnds((self.node,), 0.0)):
            yield EndChild(self.node, "kill")  # it stands still: nothing else would end it

    def terminate(self) -> Loop[None]:
        if self.process is not None:
            yield EndChild(self.node, "terminate")

    def end(self, deadline: float) -> Loop[None]:
        """It was asked to leave, and has until then."""
        if self.process is None:
            return
        if not (yield AwaitEnds((self.node,), deadline, gone=True)):
            yield EndChild(self.node, "kill")
            yield AwaitEnds((self.node,), (yield Now()) + self._bounds.terminate_s, gone=True)
        yield from self.listen()
        yield from self.end_workers()

    def end_workers(self) -> Loop[None]:
        """Of a core that is gone: they go by themselves, unless they are stopped."""
        workers, self._workers = self._workers, ()
        patience_s = 0.0 if (yield from self._is_long_dead()) else self._bounds.orphan_s
        if workers:
            yield EndProcesses(workers, patience_s)

    @property
    def has_orphans(self) -> bool:
        """Whether it is dead and its workers may still be there."""
        return self.dead and bool(self._workers)

    def end_orphans(self) -> Loop[None]:
        if self._workers and (yield from self._is_long_dead()):
            yield from self.end_workers()

    def kill(self) -> Loop[None]:
        if self.process is not None:
            yield EndChild(self.node, "kill")

    def _is_long_dead(self) -> Loop[bool]:
        return self._dead_since is not None and (yield Now()) - self._dead_since > self._bounds.orphan_s

"""A process that others have started, as a client has it (pure): watched, and nothing else.

Promises: that it is gone is known from its process, that it stands still from its heartbeat, both as whoever started
it knows them; it is never ended from here.
"""

from __future__ import annotations

from engine.config import Bounds
from engine.effects import IsAlive, Loop, OpenHeartbeat
from engine.frontend.attachment import Running
from engine.frontend.handles.handle import Handle
from engine.process.consensus.effects import Member
from engine.topology import Node
from engine.wire.wiring import outputs_of


class RemoteHandle(Handle):
    """Of the process `node`. `running` None: who that is comes later (`meet`)."""

    def __init__(self, node: Node, bounds: Bounds, running: Running | None = None) -> None:
        super().__init__(node, bounds)
        self._running = running

    def meet(self, member: Member | None) -> None:
        """This is it, as it has introduced itself."""
        if member is not None and member.process is not None:
            self._running = Running(identity=member.process, beat=member.word)

    @property
    def running(self) -> Running:
        assert self._running is not None
        return self._running

    def open(self) -> Loop[None]:
        yield OpenHeartbeat(self.running.beat, create=False, of=self.node)

    def look(self, now: float) -> Loop[None]:
        """Whether it is still there."""
        if self.monitor.gone() is None and not (yield IsAlive(self.running.identity)):
            self.monitor.on_gone("", now)

    def beat(self, now: float) -> Loop[str | None]:
        yield from self.look(now)
        return (yield from super().beat(now))

    def in_its_words(self, reason: str) -> Loop[str]:
        """They went to whoever started it."""
        return reason
        yield

    def bury(self, reason: str, notice_read: bool) -> Loop[None]:
        self.reason = reason
        return
        yield


class RemoteCore(RemoteHandle):
    def __init__(self, node: Node, bounds: Bounds, running: Running | None = None) -> None:
        super().__init__(node, bounds, running)
        self.inbox: str = outputs_of(node.index)

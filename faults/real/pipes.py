"""The pipe between a process and whoever started it, on which a plan is played.

Promises: a sender's fates come before the word is written, an arriving word's fates when it is taken from the pipe, as
on a socket. A cut closes the pipe both ways before that word: what was written before it is still read, and then both
ends read that nobody is there. A recipe is met by the child once its ports are open, before it is read.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from engine.topology import Channel, Edge, at
from faults.arrivals import Held, Inbox
from faults.plan import PROCESS_FATES, Fate
from faults.real.crossings import Crossings
from faults.real.processes import HOLD_LOOK_S
from faults.real.timer import Timer
from faults.told import said_of

_BIRTH = Channel.BIRTH


class _End:
    """One end of a pipe: `inner` is what the process has of it, `says` and `hears` the edges that leave and come."""

    def __init__(self, inner: Any, crossings: Crossings, says: Edge, hears: Edge) -> None:
        self.inner = inner
        self._crossings = crossings
        self._send, self._wire, self._receive = at(says, "send"), at(says, "wire"), at(hears, "receive")
        self._inbox = Inbox(crossings.is_over, lambda held: _released(crossings, held))
        self._said = said_of(_BIRTH)

    def _say(self, message: bytes, say: Callable[[bytes], None]) -> None:
        self._crossings.cross(self._send, frames=[message], channel=_BIRTH, data=self._tells(message))
        if self._crossings.judge.names(self._wire):
            fault, nth = self._crossings.cross(self._wire)
            if fault is not None:
                _close_both_ways(self.inner.fileno())
                self._crossings.released(fault, self._wire, nth)
                return
        say(message)

    def _arrive(self, message: bytes) -> None:
        fault, nth = self._crossings.note(self._receive, frames=[message], channel=_BIRTH, data=self._tells(message))
        hits_process = fault is not None and fault.fate in PROCESS_FATES
        self._inbox.arrive(self._receive, (None, [message]), None if hits_process else fault, nth,
                           self._crossings.clock.monotonic())
        if fault is not None and hits_process:
            self._crossings.perform(fault, self._receive, nth)  # should it go on, the word is still there

    def _next(self) -> bytes | None:
        """Of what has arrived the next that may be read."""
        if self._inbox.holding:
            self._inbox.release(self._crossings.clock.monotonic())
        found = self._inbox.take()
        return None if found is None else bytes(found[1][0])

    def _tells(self, message: bytes) -> dict[str, Any] | None:
        return self._said([message]) if self._said is not None else None


def _released(crossings: Crossings, held: Held) -> None:
    crossings.released(held.fault, held.edge, held.nth)


def _close_both_ways(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as end:
        end.shutdown(socket.SHUT_RDWR)


class FaultyParent(_End):
    """See `engine.ports.Parent`."""

    def take(self, recipe: bytes) -> bytes | None:
        self._arrive(recipe)
        while (read := self._next()) is None:
            if not self._inbox.holding:  # it is lost, and no other one will come
                self.inner.wait_until_gone()
            if self.inner.is_gone():
                return None
            time.sleep(HOLD_LOOK_S)
        return read

    def send(self, message: bytes) -> None:
        self._say(message, self.inner.send)

    def wait_until_gone(self) -> None:
        self.inner.wait_until_gone()


class FaultyChild(_End):
    """See `engine.ports.Child`."""

    def __init__(self, inner: Any, crossings: Crossings, says: Edge, hears: Edge) -> None:
        super().__init__(inner, crossings, says, hears)
        self.node, self.pid, self.sentinel = inner.node, inner.pid, inner.sentinel
        self.ended, self.gone, self.exitcode, self.join = inner.ended, inner.gone, inner.exitcode, inner.join
        self.terminate, self.kill = inner.terminate, inner.kill
        self._timer: Timer | None = None
        self._epoll: Any = None
        if Fate.DELAY in crossings.judge.fates_at(self._receive):
            self._timer, self._epoll = Timer(), select.epoll()
            self._epoll.register(inner.fileno(), select.EPOLLIN)
            self._epoll.register(self._timer.fd, select.EPOLLIN)

    def send_recipe(self, recipe: bytes) -> None:
        self._say(recipe, self.inner.send_recipe)

    def try_receive(self) -> bytes | None:
        if self._timer is not None:
            self._timer.forget()
        while (word := self._next()) is None:
            arrived = self.inner.try_receive()
            if arrived is None:
                break
            self._arrive(arrived)
        if self._timer is not None:
            self._timer.arm(HOLD_LOOK_S if self._inbox.holding else 0)
        return word

    def fileno(self) -> int:
        return int(self.inner.fileno()) if self._epoll is None else int(self._epoll.fileno())

    def hang_up(self) -> None:
        self.inner.hang_up()
        self.close()

    def close(self) -> None:
        """What it has beside the pipe."""
        if self._epoll is not None and self._timer is not None:
            self._epoll.close()
            os.close(self._timer.fd)
            self._epoll = self._timer = None

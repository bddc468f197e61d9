"""A socket on which a plan is played.

Promises: a sender's fates come before the put, an arriving message's fates when it is taken from the inner
socket, per edge, without a thread and without holding up the sender. While a delayed message is held,
`fileno()` becomes readable every `HOLD_LOOK_S`, so that who waits on it looks again and gets the message as
soon as its fault is over; where no plan delays anything, it is the inner socket's own descriptor.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Any

from engine.ports import SocketSpec, Unroutable
from engine.topology import Channel
from faults.arrivals import Held, Inbox
from faults.plan import PROCESS_FATES, Fate
from faults.real.crossings import Crossings
from faults.real.processes import HOLD_LOOK_S
from faults.real.timer import Timer
from faults.sites import SocketSites
from faults.told import said_of


class FaultySocket:
    """See `engine.ports.Socket`. `sites`: what its messages cross."""

    def __init__(self, inner: Any, spec: SocketSpec, crossings: Crossings, sites: SocketSites) -> None:
        self.inner = inner
        self.spec = spec
        self.address = spec.address if not spec.bind else inner.address
        self._crossings = crossings
        self._inbox = Inbox(crossings.is_over, self._release)
        self._sites = sites
        self._says, self._hears = said_of(spec.send_channel), said_of(spec.receive_channel)
        self._timer: Timer | None = None
        self._epoll: Any = None
        if spec.receive_channel is not None and self._may_delay(spec.receive_channel):
            self._timer = Timer()
            self._epoll = select.epoll()
            self._epoll.register(inner.fileno(), select.EPOLLIN)
            self._epoll.register(self._timer.fd, select.EPOLLIN)

    def send(self, frames: Sequence[Any], peer: Any = 0) -> None:
        channel = self.spec.send_channel
        if channel is not None:
            self._cross_sends(channel, frames, peer)
        try:
            self.inner.send(frames, peer)
        except Unroutable:
            if channel is not None:
                self._crossings.observe("not-sent", {
                    "site": (site := self._sites.to(peer)[0]), "nth": self._crossings.judge.count(site)})
            raise

    def _cross_sends(self, channel: Channel, frames: Sequence[Any], peer: Any) -> None:
        said = self._says(frames) if self._says is not None else None
        noted = [(site, *self._crossings.note(site, frames=frames, channel=channel, data=said))
                 for site in self._sites.sent(frames, peer)]
        for site, fault, nth in noted:
            if fault is not None:
                self._crossings.perform(fault, site, nth)

    def try_receive(self) -> tuple[Any, list[Any]] | None:
        channel, inbox, crossings = self.spec.receive_channel, self._inbox, self._crossings
        if channel is None:
            found: tuple[Any, list[Any]] | None = self.inner.try_receive()
            return found
        if self._timer is not None:
            self._timer.forget()
        message = inbox.take()
        while message is None:
            if inbox.holding and inbox.release(crossings.clock.monotonic()):
                message = inbox.take()
                break
            arrived = self.inner.try_receive()
            if arrived is None:
                break
            self._arrive(channel, arrived)
            message = inbox.take()
        if self._timer is not None:
            self._timer.arm(HOLD_LOOK_S if inbox.holding else 0)
        return message

    def _arrive(self, channel: Channel, arrived: tuple[Any, list[Any]]) -> None:
        site = self._sites.of(arrived[0])
        if site is None:
            self._inbox.arrive("", arrived, None, 0, self._crossings.clock.monotonic())
            return
        said = self._hears(arrived[1]) if self._hears is not None else None
        fault, nth = self._crossings.note(site, frames=arrived[1], channel=channel, data=said)
        hits_process = fault is not None and fault.fate in PROCESS_FATES
        self._inbox.arrive(site, arrived, None if hits_process else fault, nth, self._crossings.clock.monotonic())
        if fault is not None and hits_process:
            self._crossings.perform(fault, site, nth)  # should it go on, the message is still there

    def was_cut(self) -> bool:
        return bool(self.inner.was_cut())

    def is_over(self) -> bool:
        return not self._inbox.holding and bool(self.inner.is_over())

    def fileno(self) -> int:
        return int(self.inner.fileno()) if self._epoll is None else self._epoll.fileno()

    def lost_peer(self) -> bool:
        """Of an authenticated connection: no edge of a plan, so told as it is."""
        return bool(self.inner.lost_peer())

    def close(self, linger_s: float | None = None) -> None:
        self.inner.close(linger_s)
        if self._epoll is not None and self._timer is not None:
            self._epoll.close()
            os.close(self._timer.fd)
            self._epoll = self._timer = None

    def _release(self, held: Held) -> None:
        self._crossings.released(held.fault, held.edge, held.nth)

    def _may_delay(self, channel: Channel) -> bool:
        judge = self._crossings.judge
        return any(site.endswith(f"->{self._crossings.name}/{channel}:receive") and Fate.DELAY in judge.fates_at(site)
                   for site in judge.sites())

"""A socket as a process of the twin uses it: crossings on both ways, and what faults do to arriving messages.

The decisions are `faults.judge`'s and `faults.arrivals`'s, as in a real process; only waiting is different here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.ports import SocketSpec, Unroutable
from engine.topology import Channel, Topology
from faults.arrivals import Held, Inbox
from faults.journal import digest_of
from faults.plan import PROCESS_FATES, Fate
from faults.sites import socket_sites
from faults.told import said_of
from sim.process.crossings import Crossings
from sim.process.thread import WAIT, SimThread
from sim.transport.zmq_model import SimSocket


class SocketPort:
    """Wraps one `SimSocket` of one process."""

    def __init__(self, socket: SimSocket, spec: SocketSpec, topology: Topology, crossings: Crossings,
                 deliver: Callable[[Callable[[], Any]], None]) -> None:
        """`deliver` does something to the process: now, when it goes on, or never if it is gone."""
        self.crossings = crossings
        self.socket = socket
        self.spec = spec
        self.address = socket.address
        self.name = spec.name
        self._sites = socket_sites(spec, crossings.node, topology)
        said = said_of if crossings.recording else _nothing
        self._says, self._hears = said(spec.send_channel), said(spec.receive_channel)
        self._inbox: Inbox | None = None
        self._deliver = deliver
        channel = spec.receive_channel
        if channel is not None and any(
                fault.site.endswith(f"/{channel.value}:receive") for fault in crossings.kernel.plan.faults):
            self._inbox = Inbox(crossings.holds.is_over, self._let_go)

    # -- sending

    def send(self, thread: SimThread, frames: list[Any], peer: Any) -> Any:
        """-> None, or WAIT. Raises as `SimSocket.send`, and what a fault raises."""
        channel = self.spec.send_channel
        if channel is None:
            self.socket.send(frames, peer)
            return None
        note = self.crossings.note
        digest = digest_of(frames) if self.crossings.recording else ""
        said = self._says(frames) if self._says is not None else None
        met = None
        for site in self._sites.sent(frames, peer):
            fault = note(site, thread.name, digest, said, channel, frames)
            if fault is not None:
                met = [*(met or ()), (fault, site, self.crossings.counts[site])]
        if met is not None:
            return self._send_after(thread, met, frames, peer, digest)
        return self._send_now(thread, frames, peer, digest)

    def _send_after(self, thread: SimThread, met: list[Any], frames: list[Any], peer: Any, digest: str) -> Any:
        while met:
            fault, site, nth = met.pop(0)
            if thread.befall(fault, site, nth):
                return thread.go_on_with(self._send_after, thread, met, frames, peer, digest)
        return self._send_now(thread, frames, peer, digest)

    def _send_now(self, thread: SimThread, frames: list[Any], peer: Any, digest: str) -> None:
        for frame in frames:
            if type(frame) is not bytes:
                digest = ""  # a buffer: its bytes are those that it has when they arrive
        try:
            self.socket.send(frames, peer, digest)
        except Unroutable:
            site = self._sites.to(peer)[0]
            self.crossings.observe("not-sent", {"site": site, "nth": self.crossings.counts[site]}, thread.name)
            raise

    # -- receiving

    def take(self, thread: SimThread) -> Any:
        """-> (peer, frames), None when nothing is there, or WAIT."""
        inbox, crossings, channel = self._inbox, self.crossings, self.spec.receive_channel
        while True:
            if inbox is not None:
                ready = inbox.take()
                if ready is not None:
                    return ready
            raw = self.socket.take()
            if raw is None:
                return None
            peer, message = raw
            arrived = peer, [frame if type(frame) is bytes else bytes(frame) for frame in message.frames]
            if channel is None:
                return arrived
            site = self._sites.of(peer)
            if site is None:
                if inbox is None:
                    return arrived
                inbox.arrive("", arrived, None, 0, crossings.kernel.now)
                continue
            digest = message.digest
            if not digest and crossings.recording:
                digest = digest_of(arrived[1])
            said = self._hears(arrived[1]) if self._hears is not None else None
            fault = crossings.note(site, thread.name, digest, said, channel, arrived[1])
            if inbox is None:
                return arrived
            nth = crossings.counts[site]
            hits_process = fault is not None and fault.fate in PROCESS_FATES
            inbox.arrive(site, arrived, None if hits_process else fault, nth, crossings.kernel.now)
            if fault is None:
                continue
            if hits_process:
                if thread.befall(fault, site, nth):
                    return thread.go_on_with(self._take_up, thread)  # the message is still there
            elif fault.fate is Fate.DELAY:
                crossings.holds.when_over(fault, self._release)

    def _take_up(self, thread: SimThread) -> Any:
        """Go on with a `Receive` that was stopped at a message of this socket."""
        found = self.take(thread)
        return WAIT if found is WAIT else (self.name, *found)

    def _release(self) -> None:
        self._deliver(self._release_now)

    def _release_now(self) -> None:
        if self._inbox is not None and self._inbox.release(self.crossings.kernel.now):
            self.socket.announce()

    def _let_go(self, held: Held) -> None:
        self.crossings.released(held.fault, "main", held.edge, held.nth)

    # -- the rest of a socket

    def was_cut(self) -> bool:
        return self.socket.was_cut()

    def is_over(self) -> bool:
        return (self._inbox is None or not self._inbox.holding) and self.socket.is_over()

    def close(self, linger_s: float | None = None) -> None:
        self.socket.close(linger_s)


def _nothing(channel: Channel | None) -> None:
    """Nobody will read what a message says of itself."""

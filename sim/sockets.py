"""A socket as a process of the twin uses it: crossings on both ways, and what faults do to arriving messages.

The decisions are `faults.judge`'s and `faults.inbox`'s, as in a real process; only waiting is different here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ports import SocketSpec
from engine.topology import Channel, Edge, Node, at
from faults.inbox import Held, Inbox
from faults.journal import digest_of
from faults.plan import PROCESS_FATES, Fate
from sim.zmq_model import SimSocket

if TYPE_CHECKING:
    from sim.interpreter import SimThread
    from sim.processes import SimProcess

#: The thread that asked must stop here; what it asked for comes when it goes on.
WAIT: Any = object()


class SocketPort:
    """Wraps one `SimSocket` of one process."""

    def __init__(self, process: SimProcess, socket: SimSocket, spec: SocketSpec) -> None:
        self.process = process
        self.socket = socket
        self.spec = spec
        self.address = socket.address
        self.name = spec.name
        self._me = Node.parse(process.name)
        self._send_sites: dict[Any, str] = {}
        self._receive_sites: dict[Any, tuple[str, str]] = {}
        self._inbox: Inbox | None = None
        channel = spec.receive_channel
        if channel is not None and any(
                fault.site.endswith(f"/{channel.value}:receive") for fault in process.sim.plan.faults):
            self._inbox = Inbox(process.sim.holds.is_over, self._let_go)

    # -- sending

    def send(self, thread: SimThread, frames: list[Any], peer: Any) -> Any:
        """-> None, or WAIT. Raises as `SimSocket.send`, and what a fault raises."""
        channel = self.spec.send_channel
        if channel is None:
            self.socket.send(frames, peer)
            return None
        process = self.process
        if type(peer) is not int or self.spec.kind != "ROUTER":
            peer_index = self.spec.peer if type(peer) is int else self._index(peer)
        else:
            peer_index = peer
        site = self._send_sites.get(peer_index)
        if site is None:
            edge = Edge(self._me, Node(self.spec.peer_kind, peer_index), channel)
            site = self._send_sites[peer_index] = at(edge, "send")
        digest = digest_of(frames) if process.sim.record else ""
        fault, nth = process.note(site, thread.name, digest, None, channel, frames)
        if fault is not None and thread.befall(fault, site, nth):
            thread.go_on_with(self._send_now, frames, peer, digest)
            return WAIT
        self.socket.send(frames, peer, digest)
        return None

    def _send_now(self, frames: list[Any], peer: Any, digest: str) -> None:
        self.socket.send(frames, peer, digest)

    # -- receiving

    def take(self, thread: SimThread) -> Any:
        """-> (peer, frames), None when nothing is there, or WAIT."""
        inbox = self._inbox
        while True:
            if inbox is not None:
                ready = inbox.take()
                if ready is not None:
                    return ready
            raw = self.socket.take()
            if raw is None:
                return None
            peer, message = raw
            frames = [frame if type(frame) is bytes else bytes(frame) for frame in message.frames]
            channel = self.spec.receive_channel
            if channel is None or (self.socket.kind == "XPUB"):
                return peer, frames
            edge, site = self._receive_site(peer, channel)
            digest = message.digest
            if not digest and self.process.sim.record:
                digest = digest_of(frames)
            fault, nth = self.process.note(site, thread.name, digest, None, channel, frames)
            if fault is not None and fault.fate in PROCESS_FATES:
                if thread.befall(fault, site, nth):
                    thread.go_on_with(self._arrived, peer, frames)
                    return WAIT
                fault = None
            if inbox is None:
                return peer, frames
            now = self.process.sim.now
            inbox.arrive(edge, peer, frames, fault, nth, now)
            if fault is not None and fault.fate is Fate.DELAY:
                self.process.sim.holds.when_over(fault, self._release)

    def _arrived(self, peer: Any, frames: list[Any]) -> Any:
        return self.name, peer, frames

    def _receive_site(self, peer: Any, channel: Channel) -> tuple[str, str]:
        names = self._receive_sites.get(peer)
        if names is None:
            index = peer if type(peer) is int else self._index(peer)
            edge = Edge(Node(self.spec.peer_kind, index), self._me, channel)
            names = self._receive_sites[peer] = str(edge), at(edge, "receive")
        return names

    @staticmethod
    def _index(identity: bytes) -> int:
        return int.from_bytes(identity, "little") if len(identity) == 2 else 0

    def _release(self) -> None:
        self.process.deliver(self._release_now)

    def _release_now(self) -> None:
        if self._inbox is not None and self._inbox.release(self.process.sim.now):
            self.socket.announce()

    def _let_go(self, held: Held) -> None:
        self.process.released(held.fault, "main", f"{held.edge}:receive", held.nth)

    # -- the rest of a socket

    def close(self, linger_s: float | None = None) -> None:
        self.socket.close(linger_s)


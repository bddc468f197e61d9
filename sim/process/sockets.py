"""A socket as a process of the twin uses it: crossings on both ways, and what faults do to arriving messages.

The decisions are `faults.judge`'s and `faults.arrivals`'s, as in a real process; only waiting is different here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.ports import SocketSpec, Unroutable
from engine.topology import Channel, Edge, Node, NodeKind, Topology, at
from faults.arrivals import Held, Inbox
from faults.journal import digest_of
from faults.plan import PROCESS_FATES, Fate
from sim.transport.zmq_model import SimSocket

if TYPE_CHECKING:
    from sim.process.process import SimProcess
    from sim.process.thread import SimThread

#: The thread that asked must stop here; what it asked for comes when it goes on.
WAIT: Any = object()


@lru_cache(maxsize=1024)
def edge_site(source: Node, target: Node, channel: Channel, operation: str) -> str:
    """Put together once for all plays."""
    return at(Edge(source, target, channel), operation)


@lru_cache(maxsize=64)
def _nodes(topology: Topology, kind: NodeKind | None) -> tuple[Node, ...]:
    return tuple(node for node in topology.nodes if node.kind == kind)


def first_life(node: Node) -> Node:
    return Node(node.kind, node.index) if node.life else node


class SocketPort:
    """Wraps one `SimSocket` of one process."""

    def __init__(self, process: SimProcess, socket: SimSocket, spec: SocketSpec) -> None:
        self.process = process
        self.socket = socket
        self.spec = spec
        self.address = socket.address
        self.name = spec.name
        self._me = first_life(process.node)
        self._peers = _nodes(process.sim.topology, spec.peer_kind)
        self._send_sites: dict[Any, tuple[str, ...]] = {}
        self._receive_sites: dict[Any, str] = {}
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
        digest = digest_of(frames) if process.sim.record else ""
        met = None
        for site in self._sites_to(peer, channel):
            fault, nth = process.note(site, thread.name, digest, None, channel, frames)
            if fault is not None:
                met = [*(met or ()), (fault, site, nth)]
        if met is not None:
            return self._send_after(thread, met, frames, peer, digest)
        return self._send_now(thread, frames, peer, digest)

    def _send_after(self, thread: SimThread, met: list[Any], frames: list[Any], peer: Any, digest: str) -> Any:
        while met:
            fault, site, nth = met.pop(0)
            if thread.befall(fault, site, nth):
                thread.go_on_with(self._send_after, thread, met, frames, peer, digest)
                return WAIT
        return self._send_now(thread, frames, peer, digest)

    def _send_now(self, thread: SimThread, frames: list[Any], peer: Any, digest: str) -> None:
        try:
            self.socket.send(frames, peer, digest)
        except Unroutable:
            site = self._sites_to(peer, self.spec.send_channel)[0]
            self.process.observe("not-sent", {"site": site, "nth": self.process.counts[site]}, thread.name)
            raise

    def _sites_to(self, peer: Any, channel: Any) -> tuple[str, ...]:
        """One site per edge: a publisher's lead to every node of its peers' kind."""
        sites = self._send_sites.get(peer)
        if sites is None:
            if self.spec.kind in ("PUB", "XPUB"):
                peers = self._peers
            else:
                peers = [self._node(peer if self.spec.kind == "ROUTER" else self.spec.peer)]
            sites = self._send_sites[peer] = tuple(edge_site(self._me, node, channel, "send") for node in peers)
        return sites

    # -- receiving

    def take(self, thread: SimThread) -> Any:
        """-> (peer, frames), None when nothing is there, or WAIT."""
        inbox, process, channel = self._inbox, self.process, self.spec.receive_channel
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
            site = self._receive_sites.get(peer)
            if site is None:
                site = self._receive_sites[peer] = edge_site(self._node(peer), self._me, channel, "receive")
            digest = message.digest
            if not digest and process.sim.record:
                digest = digest_of(arrived[1])
            fault, nth = process.note(site, thread.name, digest, None, channel, arrived[1])
            if inbox is None:
                return arrived
            hits_process = fault is not None and fault.fate in PROCESS_FATES
            inbox.arrive(site, arrived, None if hits_process else fault, nth, process.sim.now)
            if fault is None:
                continue
            if hits_process:
                if thread.befall(fault, site, nth):
                    thread.go_on_with(thread.take_from, self)  # the message is still there
                    return WAIT
            elif fault.fate is Fate.DELAY:
                process.sim.holds.when_over(fault, self._release)

    def _node(self, peer: Any) -> Node:
        index = int.from_bytes(peer[:2], "little") if isinstance(peer, bytes) else peer
        node = Node(self.spec.peer_kind, index)
        if isinstance(peer, bytes) and (node not in self._peers or len(peer) != 2):
            return Node(self.spec.peer_kind, self.spec.peer)
        return node

    def _release(self) -> None:
        self.process.deliver(self._release_now)

    def _release_now(self) -> None:
        if self._inbox is not None and self._inbox.release(self.process.sim.now):
            self.socket.announce()

    def _let_go(self, held: Held) -> None:
        self.process.released(held.fault, "main", held.edge, held.nth)

    # -- the rest of a socket

    def was_cut(self) -> bool:
        return self.socket.was_cut()

    def close(self, linger_s: float | None = None) -> None:
        self.socket.close(linger_s)


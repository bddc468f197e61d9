"""ROUTER, DEALER, PUSH, PULL, PUB, SUB and XPUB as libzmq behaves, without libzmq.

Promises: what happens here may happen there. libzmq is no simple queue: where a death, a cut or a full buffer
leaves it several outcomes, `Simulation.choose` picks one of them, and tests/contracts/test_zmq_model.py holds the
allowed ones against the real library.

    connect side    its pipe exists from the beginning and survives a lost connection; retries every 100 ms
    bind side       a pipe per connection; unsent messages end with the connection; received ones stay readable
    ROUTER          routes by identity; unknown: dropped, or `Unroutable` if mandatory; it knows of a death once the
                    closed connection was noticed, and never of a peer that is stopped
    PUB, XPUB       to whom a subscription has arrived from; a full pipe drops, and never blocks
    PUSH, DEALER    to the next peer whose pipe is not full; without one the send fails (a bound PUSH without peers)
    close           linger bounds how long unsent messages are kept; the peer notices the end after them
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.ports import SocketSpec, Unroutable
from engine.topology import Edge, Node, at
from sim.transport.links import LARGE_BYTES, Link, Message

if TYPE_CHECKING:
    from sim.process.process import SimProcess
    from sim.simulation import Simulation

_FIRST_PORT = 49152


class SocketFullError(BlockingIOError):
    """EAGAIN: no peer takes this message now."""


class Connection:
    """One connecting and one binding socket, and a link each way."""

    __slots__ = ("alive", "back", "binder", "connector", "forth", "identity")

    def __init__(self, connector: SimSocket, binder: SimSocket, forth: Link, back: Link, identity: bytes) -> None:
        self.connector, self.binder = connector, binder
        self.forth, self.back = forth, back
        self.identity = identity
        self.alive = True


class SimSocket:
    """One socket of one process: an `engine.ports.Socket` without a descriptor. `announce` wakes `waiter`."""

    def __init__(self, network: Network, owner: SimProcess, spec: SocketSpec) -> None:
        self.network, self.owner, self.spec = network, owner, spec
        self.kind = spec.kind
        self.address = spec.address
        self.arrived: deque[tuple[Link | None, Message]] = deque()
        self.links: list[Link] = []  # to send on, in turn
        self.routes: dict[bytes, Link] = {}  # ROUTER: by identity
        self.connections: list[Connection] = []
        self.waiter: Callable[[], None] | None = None
        self.closed = False
        self.cut = False  # a connection that it made has ended since somebody last looked
        self.lingering: Callable[[], None] | None = None  # called once nothing is unsent or linger is over
        self._turn = 0
        self._publishes = spec.kind in ("PUB", "XPUB")
        self._routes_by_identity = spec.kind == "ROUTER"
        self._raw = getattr(spec, "raw_identities", False)

    # -- as the process sees it

    def send(self, frames: Sequence[Any], peer: int | bytes = 0, digest: str = "") -> None:
        """Queue one message. Raises Unroutable or SocketFullError; PUB and XPUB drop where nobody can take it."""
        if self.closed:
            raise OSError(errno.ENOTSOCK, f"{self.spec.name} is closed")
        message = Message([frame if type(frame) is bytes else _sent(frame) for frame in frames], digest)
        if self._routes_by_identity:
            self._route(message, peer)
        elif self._publishes:
            for link in self.links:
                if link.wants(message.frames):
                    link.offer(message)
        else:
            links = self.links
            for _ in range(len(links)):
                self._turn = (self._turn + 1) % len(links)
                if links[self._turn].offer(message):
                    return
            raise SocketFullError(errno.EAGAIN, f"{self.spec.name}: no peer takes a message now")

    def _route(self, message: Message, peer: int | bytes) -> None:
        identity = peer if isinstance(peer, bytes) else peer.to_bytes(2, "little")
        link = self.routes.get(identity)
        if link is not None and link.offer(message):
            return
        if self.spec.mandatory:
            what = "is not connected" if link is None else "has reached its high-water mark"
            raise Unroutable(f"{self.spec.name}: peer {peer!r} {what}")

    def take(self) -> tuple[Any, Message] | None:
        """(peer, message), or None."""
        while self.arrived:
            link, message = self.arrived.popleft()
            if link is None:
                return self.spec.peer, message
            link.took()
            if not self._routes_by_identity:
                return self.spec.peer, message
            identity: bytes = link.peer
            if self._raw:
                return identity, message
            if len(identity) == 2:
                return int.from_bytes(identity, "little"), message
        return None

    def try_receive(self) -> tuple[Any, list[Any]] | None:
        """(peer, frames), or None when nothing is there."""
        found = self.take()
        return None if found is None else (found[0], found[1].frames)

    def was_cut(self) -> bool:
        """Whether a connection of a watched socket has ended since the last call."""
        cut, self.cut = self.cut, False
        return cut

    def close(self, linger_s: float | None = None) -> None:
        """Stop receiving at once; keep what is unsent for `linger_s` (the spec's, if None)."""
        if not self.closed:
            self.network.close(self, self.spec.linger_s if linger_s is None else linger_s)

    def unsent(self) -> int:
        return sum(len(link.pipe) for link in self.all_links())

    def connected(self) -> bool:
        """As far as this end has noticed."""
        return bool(self.connections)

    # -- as the network sees it

    def all_links(self) -> list[Link]:
        return [*self.links, *self.routes.values()] if self.routes else self.links

    def announce(self) -> None:
        if self.waiter is not None:
            self.waiter()

    def untie(self) -> None:
        """The play is over."""
        self.links = []
        self.routes.clear()
        self.connections.clear()
        self.arrived.clear()
        self.waiter = self.lingering = None

    def link_is_empty(self, link: Link) -> None:
        if self.lingering is not None and not self.unsent():
            done, self.lingering = self.lingering, None
            done()


def _sent(frame: Any) -> Any:
    """Small frames are copied as they are sent; large ones travel as they are, like zero-copy frames."""
    return frame if memoryview(frame).nbytes >= LARGE_BYTES else bytes(frame)


class Network:
    """All sockets of a play, by address."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._bound: dict[str, SimSocket] = {}
        self._dialling: dict[str, list[tuple[float, SimSocket]]] = {}
        self._refused: dict[str, int] = {}
        self._by_owner: dict[int, list[SimSocket]] = {}
        self._ports = _FIRST_PORT
        self._names = 0

    def open(self, owner: SimProcess, spec: SocketSpec) -> SimSocket:
        """Raises OSError (EADDRINUSE) where a tcp address is bound already; ipc takes the path over, as libzmq does."""
        socket = SimSocket(self, owner, spec)
        self._by_owner.setdefault(owner.pid, []).append(socket)
        if spec.bind:
            self._bind(socket)
        else:
            link = Link(self, socket)
            if socket._publishes:
                link.topics = []
            if spec.kind not in ("SUB", "PULL", "ROUTER"):
                socket.links.append(link)
            self.sim.after(self.sim.costs.connect_s, self._dial, socket, link, self.sim.now)
        return socket

    # -- connections

    def _bind(self, socket: SimSocket) -> None:
        address = socket.address
        if address.startswith("tcp://"):
            host, _, port = address.rpartition(":")
            if port in ("*", "0"):
                address = f"{host}:{self._ports}"
                self._ports += 1
            if address in self._bound:
                raise OSError(errno.EADDRINUSE, f"{address} is in use")
        elif address.startswith("ipc://"):
            self.sim.paths[address[6:]] = socket.owner.label
        socket.address = address
        self._bound[address] = socket
        self._answer(address)

    def _answer(self, address: str) -> None:
        """Connections to this address are accepted from now on."""
        for began, connector, link in self._dialling.pop(address, ()):
            self._dial_at_next_try(connector, link, began)

    def _dial_at_next_try(self, connector: SimSocket, link: Link, began: float) -> None:
        """libzmq retries in fixed steps since it lost the connection or first tried."""
        step_s = self.sim.costs.reconnect_s
        tries = int((self.sim.now - began) / step_s) + 1
        self.sim.call_at(began + tries * step_s, self._dial, connector, link, began)

    def _dial(self, connector: SimSocket, link: Link, began: float) -> None:
        if (connector.closed and connector.lingering is None) or not connector.owner.alive:
            return
        address = connector.spec.address
        binder = self._bound.get(address)
        if binder is None or self._refused.get(address):
            self._dialling.setdefault(address, []).append((began, connector, link))
            return
        for owner in (binder.owner, connector.owner):
            if not owner.running:  # the kernel accepts for a stopped process; the greeting waits for it
                owner.deliver(lambda: self.sim.after(self.sim.costs.connect_s, self._dial, connector, link, began))
                return
        self._connect(connector, binder, link)

    def _connect(self, connector: SimSocket, binder: SimSocket, forth: Link) -> None:
        identity = connector.spec.identity
        if identity is None:
            self._names += 1
            identity = b"\x00" + self._names.to_bytes(4, "big")
        back = Link(self, binder)
        connection = Connection(connector, binder, forth, back, identity)
        connector.connections.append(connection)
        binder.connections.append(connection)
        taken = False
        if binder.kind == "ROUTER":
            old = binder.routes.get(identity)
            taken = old is not None and not binder.spec.handover
            if not taken:
                binder.routes[identity] = back
        elif binder._publishes:
            back.topics = []
            binder.links.append(back)
        elif binder.kind not in ("PULL", "SUB"):
            binder.links.append(back)
        if connector.kind == "ROUTER":
            connector.routes[binder.spec.identity or b""] = forth
        if not taken:  # a second holder of an identity speaks to nobody
            self._watch_cut(forth, connector, binder)
            forth.connect_to(binder, identity)
        self._watch_cut(back, binder, connector)
        back.connect_to(connector, binder.spec.identity or b"")
        for link, subscriber, publisher in ((back, connector, binder), (forth, binder, connector)):
            if subscriber.kind == "SUB" and publisher._publishes:
                self.sim.after(self.sim.costs.hop_s, self._subscribe, connection, link, subscriber, publisher)

    def _subscribe(self, connection: Connection, link: Link, subscriber: SimSocket, publisher: SimSocket) -> None:
        if not connection.alive or publisher.closed or not publisher.owner.alive:
            return
        if not publisher.owner.running:
            publisher.owner.deliver(lambda: self._subscribe(connection, link, subscriber, publisher))
            return
        link.topics = [subscriber.spec.topic]
        if publisher.kind == "XPUB":
            publisher.arrived.append((None, Message([b"\x01" + subscriber.spec.topic])))
            publisher.announce()

    # -- ends

    def close(self, socket: SimSocket, linger_s: float) -> None:
        """The process closes a socket and lives on, or waits for it (`socket.lingering`)."""
        socket.closed = True
        socket.arrived.clear()
        socket.waiter = None
        self._unbind(socket, unlink=True)
        for connection in socket.connections:
            incoming = connection.back if connection.connector is socket else connection.forth
            incoming.accepts = False

        is_over = False

        def over() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            socket.lingering = None
            for link in socket.all_links():
                amount = len(link.pipe)
                usual = amount if sum(m.size for _, m in link.pipe) <= self.sim.costs.kernel_bytes else 0
                left = self.sim.choose_amount(amount, f"sent before the end of linger on {link}", usual) \
                    if link.target is not None and link.accepts and not link.blocked else 0
                link.source_died(left)
            self._end(socket)
            socket.owner.socket_is_done()

        socket.lingering = over
        if not socket.unsent() or linger_s <= 0:
            over()
        else:
            self.sim.call_at(self.sim.now + linger_s, over)

    def owner_died(self, owner: SimProcess) -> None:
        """A process is gone in one instant: what had left it arrives, what it had not read is lost."""
        for socket in self._by_owner.pop(owner.pid, ()):
            if socket.closed and socket.lingering is None:
                continue
            socket.closed = True
            socket.lingering = None
            socket.arrived.clear()
            self._unbind(socket, unlink=False)
            for link in socket.all_links():
                amount = len(link.pipe) if link.target is not None and link.accepts else 0
                link.source_died(self.sim.choose_amount(amount, f"on its way at the death on {link}"))
            self._end(socket)

    def _end(self, socket: SimSocket) -> None:
        """The socket's descriptors are closed: each peer notices after what is still on its way."""
        for connection in list(socket.connections):
            self._disconnect(connection, socket)
        socket.connections.clear()

    def _disconnect(self, connection: Connection, ended: SimSocket | None) -> None:
        """`ended` closed its end, or None: the wire was cut."""
        if not connection.alive:
            return
        connection.alive = False
        for link in (connection.forth, connection.back):
            if link.source is not ended:
                link.accepts = False
        costs = self.sim.costs
        outgoing = connection.back if ended is connection.binder else connection.forth
        wait = costs.disconnect_s
        if ended is not None and outgoing.pipe:
            wait = max(wait, outgoing.pipe[-1][0] - self.sim.now + costs.hop_s)
        for socket in (connection.connector, connection.binder):
            if socket is not ended:
                self.sim.after(wait, self._notice, connection, socket)

    def _notice(self, connection: Connection, socket: SimSocket) -> None:
        """`socket` learns that its peer is gone."""
        if socket.closed and socket.lingering is None:
            return
        connects = socket is connection.connector
        incoming = connection.back if connects else connection.forth
        outgoing = connection.forth if connects else connection.back
        if not socket.owner.running:
            socket.owner.deliver(lambda: self.sim.after(self.sim.costs.disconnect_s, self._notice, connection, socket))
            return
        if incoming.last_words and incoming.accepts and (incoming.pipe or incoming.kernel):
            incoming.when_empty = lambda: self._notice(connection, socket)  # the end comes behind all that was sent
            return
        if connection in socket.connections:
            socket.connections.remove(connection)
        incoming.target = None
        outgoing.target = None
        if connects:
            socket.cut = socket.spec.watched
            outgoing.lose(self.sim.choose_amount(len(outgoing.pipe), f"taken before the end on {outgoing}",
                                                 len(outgoing.pipe)))
            if outgoing.topics is not None:
                outgoing.topics = []
            socket.link_is_empty(outgoing)
            self._dial_at_next_try(socket, outgoing, self.sim.now)
            return
        outgoing.pipe.clear()
        outgoing.kernel.clear()
        if outgoing in socket.links:
            socket.links.remove(outgoing)
        if socket.routes.get(connection.identity) is outgoing:
            del socket.routes[connection.identity]
        if socket.kind == "XPUB" and outgoing.topics and not socket.closed:
            for topic in outgoing.topics:
                if not any(topic in (link.topics or ()) for link in socket.links):
                    socket.arrived.append((None, Message([b"\x00" + topic])))
                    socket.announce()
        socket.link_is_empty(outgoing)

    def _unbind(self, socket: SimSocket, *, unlink: bool) -> None:
        if socket.spec.bind and self._bound.get(socket.address) is socket:
            del self._bound[socket.address]
            if unlink and socket.address.startswith("ipc://"):
                self.sim.paths.pop(socket.address[6:], None)

    def untie(self) -> None:
        """The play is over."""
        self._bound.clear()
        self._dialling.clear()
        self._by_owner.clear()

    # -- stopped processes

    def thawed(self, owner: SimProcess) -> None:
        """A stopped process goes on: its I/O thread reads what has come meanwhile."""
        for socket in self._by_owner.get(owner.pid, ()):
            for connection in socket.connections:
                incoming = connection.back if connection.connector is socket else connection.forth
                incoming.look_again()

    # -- cuts on the wire

    def _watch_cut(self, link: Link, source: SimSocket, target: SimSocket) -> None:
        channel = source.spec.send_channel
        if channel is None or not self.sim.plan:
            return
        site = at(Edge(Node(source.owner.node.kind, source.owner.node.index),
                       Node(target.owner.node.kind, target.owner.node.index), channel), "wire")
        connector = source if not source.spec.bind else target
        link.cut_site = site if connector.owner.judge.names(site) else ""

    def cut_befalls(self, link: Link) -> bool:
        """Count a message on the wire. -> whether the plan cuts the connection here; the message is lost with it"""
        assert link.target is not None
        connector, binder = (link.source, link.target) if not link.source.spec.bind else (link.target, link.source)
        owner = connector.owner
        site = link.cut_site
        fault, nth = owner.note(site, "wire")
        if fault is None:
            return False
        address = connector.spec.address
        if fault.until is not None:
            self._refused[address] = self._refused.get(address, 0) + 1

            def release() -> None:
                self._refused[address] -= 1
                owner.released(fault, "wire", site, nth)
                if not self._refused[address] and address in self._bound:
                    self._answer(address)

            self.sim.holds.when_over(fault, release)
        for connection in binder.connections:
            if connection.connector is connector and connection.alive:
                for side in (connection.forth, connection.back):
                    side.lose(len(side.pipe) if side.source.spec.bind else 0)
                self._disconnect(connection, None)
                break
        return True

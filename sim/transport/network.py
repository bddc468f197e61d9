"""Who is connected to whom: binding, dialling and greeting, ends, deaths and cuts, as libzmq and the system have them.

Promises
- A connecting socket retries in libzmq's fixed steps until somebody is bound; a tcp address belongs to one socket, and
  who binds an ipc path takes it over.
- A closed or dead end is noticed by its peer behind all that was sent before; what of it arrives is one of several
  allowed outcomes.
- A stopped process neither greets nor notices: that waits until it goes on.
"""

from __future__ import annotations

import errno
from collections.abc import MutableMapping
from functools import partial

from engine.errors import ConfigError
from engine.ports import SocketSpec
from engine.topology import Edge, Node, at
from engine.wire.places import SILENT_BEATS, is_chosen_by_the_system
from engine.wire.subscriptions import topics_of
from sim.kernel.kernel import Kernel
from sim.transport.links import Link
from sim.transport.zmq_model import Connection, SimSocket, SocketOwner

_FIRST_PORT = 49152
#: What a tcp address of the host that all processes of a play share begins with.
_HOSTS = frozenset({"tcp://127.0.0.1", "tcp://localhost", "tcp://[::1]", "tcp://*"})


class Network:
    """All sockets of a play, by address."""

    def __init__(self, kernel: Kernel, paths: MutableMapping[str, str]) -> None:
        """`paths`: the files that exist, with the name of their owner."""
        self._kernel = kernel
        self._paths = paths
        self._bound: dict[str, SimSocket] = {}
        self._dialling: dict[str, list[tuple[float, SimSocket, Link]]] = {}
        self._refused: dict[str, int] = {}
        self._by_owner: dict[int, list[SimSocket]] = {}
        self._both_ways: list[Link] = []  # of all connections that there ever were
        self._ports = _FIRST_PORT
        self._names = 0

    def open(self, owner: SocketOwner, spec: SocketSpec) -> SimSocket:
        """Raises OSError (EADDRINUSE) where a tcp address is bound already; ipc takes the path over, as libzmq does."""
        socket = SimSocket(owner, spec, self.close)
        self._by_owner.setdefault(owner.pid, []).append(socket)
        if spec.bind:
            self._bind(socket)
        else:
            link = Link(self._kernel, socket, self._cut_befalls)
            if socket.publishes:
                link.topics = []
            if spec.kind not in ("SUB", "PULL", "ROUTER"):
                socket.links.append(link)
            self._kernel.after(self._kernel.costs.connect_s, self._dial, socket, link, self._kernel.now)
        return socket

    def reserve(self, address: str) -> str:
        """A port that nobody else is given, not even once its socket is gone. Raises ConfigError for another host."""
        host = address.rpartition(":")[0]
        if host not in _HOSTS:
            raise ConfigError(f"{address} is no address of this host: set sockets.host to one that it has")
        self._ports += 1
        return f"{host}:{self._ports - 1}"

    def held_by(self, owner: SocketOwner) -> int:
        """Its open sockets and their connections: what costs a real process a descriptor each, or more. One that is
        being made has its own already.
        """
        return sum(1 + max(len(socket.connections), not socket.spec.bind)
                   for socket in self._by_owner.get(owner.pid, ()) if not socket.closed)

    # -- connections

    def _bind(self, socket: SimSocket) -> None:
        address = socket.address
        if address.startswith("tcp://"):
            if is_chosen_by_the_system(address):
                address = self.reserve(address)
            if address in self._bound:
                raise OSError(errno.EADDRINUSE, f"{address} is in use")
        elif address.startswith("ipc://"):
            self._paths[address[6:]] = socket.owner.label
        socket.address = address
        self._bound[address] = socket
        self._answer(address)

    def _answer(self, address: str) -> None:
        """Connections to this address are accepted from now on."""
        for began, connector, link in self._dialling.pop(address, ()):
            self._dial_at_next_try(connector, link, began)

    def _dial_at_next_try(self, connector: SimSocket, link: Link, began: float) -> None:
        """libzmq retries in fixed steps since it lost the connection or first tried."""
        step_s = self._kernel.costs.reconnect_s
        tries = int((self._kernel.now - began) / step_s) + 1
        self._kernel.call_at(began + tries * step_s, self._dial, connector, link, began)

    def _dial(self, connector: SimSocket, link: Link, began: float) -> None:
        if (connector.closed and connector.lingering is None) or not connector.owner.alive:
            return
        address = connector.spec.address
        binder = self._bound.get(address)
        if binder is None or self._refused.get(address):
            self._dialling.setdefault(address, []).append((began, connector, link))
            return
        for owner in (binder.owner, connector.owner):
            if not owner.running:  # the system accepts for a stopped process; the greeting waits for it
                owner.deliver(partial(
                    self._kernel.after, self._kernel.costs.connect_s, self._dial, connector, link, began))
                return
        self._connect(connector, binder, link)

    def _connect(self, connector: SimSocket, binder: SimSocket, forth: Link) -> None:
        identity = connector.spec.identity
        if identity is None:
            self._names += 1
            identity = b"\x00" + self._names.to_bytes(4, "big")
        back = Link(self._kernel, binder, self._cut_befalls)
        forth.opposite, back.opposite = back, forth
        self._both_ways += forth, back
        connection = Connection(connector, binder, forth, back, identity)
        connector.connections.append(connection)
        binder.connections.append(connection)
        binder.met = True
        connector.met = True
        taken = False
        if binder.kind == "ROUTER":
            old = binder.routes.get(identity)
            taken = old is not None and not binder.spec.handover
            if not taken:
                binder.routes[identity] = back
        elif binder.publishes:
            back.topics = []
            binder.links.append(back)
        elif binder.kind not in ("PULL", "SUB"):
            binder.links.append(back)
            if binder.own is not None:
                binder.owe(back)
        if connector.kind == "ROUTER":
            connector.routes[binder.spec.identity or b""] = forth
        if not taken:  # a second holder of an identity speaks to nobody
            self._watch_cut(forth, connector, binder)
            forth.connect_to(binder, identity)
        self._watch_cut(back, binder, connector)
        back.connect_to(connector, binder.spec.identity or b"")
        for link, subscriber, publisher in ((back, connector, binder), (forth, binder, connector)):
            if subscriber.kind == "SUB" and publisher.publishes:
                self._kernel.after(self._kernel.costs.hop_s, self._subscribe, connection, link, subscriber, publisher)

    def _subscribe(self, connection: Connection, link: Link, subscriber: SimSocket, publisher: SimSocket) -> None:
        if not connection.alive or publisher.closed or not publisher.owner.alive:
            return
        if not publisher.owner.running:
            publisher.owner.deliver(lambda: self._subscribe(connection, link, subscriber, publisher))
            return
        for topic in topics_of(subscriber.spec):
            publisher.subscribed(link, topic)

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
                usual = amount if sum(m.size for _, m in link.pipe) <= self._kernel.costs.buffer_bytes else 0
                left = self._kernel.choose_amount(amount, f"sent before the end of linger on {link}", usual) \
                    if link.target is not None and link.accepts and not link.blocked else 0
                link.source_died(left)
            self._end(socket)
            socket.owner.socket_is_done()

        socket.lingering = over
        if not socket.unsent() or linger_s <= 0:
            over()
        else:
            self._kernel.call_at(self._kernel.now + linger_s, over)

    def owner_died(self, owner: SocketOwner) -> None:
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
                link.source_died(self._kernel.choose_amount(amount, f"on its way at the death on {link}"))
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
        costs = self._kernel.costs
        outgoing = connection.back if ended is connection.binder else connection.forth
        wait = costs.disconnect_s
        if ended is not None and outgoing.pipe:
            wait = max(wait, outgoing.pipe[-1][0] - self._kernel.now + costs.hop_s)
        for socket in (connection.connector, connection.binder):
            if socket is not ended and not (connection.silent and ended is connection.binder):
                self._kernel.after(wait, self._notice, connection, socket)

    def _notice(self, connection: Connection, socket: SimSocket) -> None:
        """`socket` learns that its peer is gone."""
        if (socket.closed and socket.lingering is None) or (connection.silent and connection not in socket.connections):
            return
        connects = socket is connection.connector
        incoming = connection.back if connects else connection.forth
        outgoing = connection.forth if connects else connection.back
        if not socket.owner.running:
            socket.owner.deliver(partial(
                self._kernel.after, self._kernel.costs.disconnect_s, self._notice, connection, socket))
            return
        if incoming.last_words and incoming.accepts and (incoming.pipe or incoming.buffer):
            incoming.when_empty = lambda: self._notice(connection, socket)  # the end comes behind all that was sent
            return
        if connection in socket.connections:
            socket.connections.remove(connection)
        if incoming.opposite is outgoing:  # or who connects is here again by another connection
            incoming.target = None
        outgoing.target = None
        if connects:
            socket.cut = socket.spec.watched
            outgoing.lose(self._kernel.choose_amount(len(outgoing.pipe), f"taken before the end on {outgoing}",
                                                 len(outgoing.pipe)))
            if outgoing.topics is not None:
                outgoing.topics = []
            if socket.own is not None and not socket.closed:
                socket.owe(outgoing)
            socket.link_is_empty(outgoing)
            self._dial_at_next_try(socket, outgoing, self._kernel.now)
            return
        outgoing.pipe.clear()
        outgoing.buffer.clear()
        if socket.publishes and not socket.closed:
            socket.hear()
        if outgoing in socket.links:
            socket.links.remove(outgoing)
        if socket.routes.get(connection.identity) is outgoing:
            del socket.routes[connection.identity]
        if socket.publishes and not socket.closed:
            socket.left(outgoing)
        socket.link_is_empty(outgoing)

    def _unbind(self, socket: SimSocket, *, unlink: bool) -> None:
        if socket.spec.bind and self._bound.get(socket.address) is socket:
            del self._bound[socket.address]
            if unlink and socket.address.startswith("ipc://"):
                self._paths.pop(socket.address[6:], None)

    def untie(self) -> None:
        """The play is over."""
        self._bound.clear()
        self._dialling.clear()
        self._by_owner.clear()
        for link in self._both_ways:
            link.opposite = None
        self._both_ways.clear()

    # -- stopped processes

    def thawed(self, owner: SocketOwner) -> None:
        """A stopped process goes on: its I/O thread reads what has come meanwhile."""
        for socket in self._by_owner.get(owner.pid, ()):
            for connection in socket.connections:
                incoming = connection.back if connection.connector is socket else connection.forth
                incoming.look_again()

    # -- cuts on the wire

    def _watch_cut(self, link: Link, source: SimSocket, target: SimSocket) -> None:
        channel = source.spec.send_channel
        if channel is None or not self._kernel.plan:
            return
        site = at(Edge(Node(source.owner.node.kind, source.owner.node.index),
                       Node(target.owner.node.kind, target.owner.node.index), channel), "wire")
        connector = source if not source.spec.bind else target
        link.cut_site = site if connector.owner.may_cut(site) else ""

    def _cut_befalls(self, link: Link) -> bool:
        """Count a message on the wire. -> whether the plan cuts the connection here; the message is lost with it"""
        connector, binder = (link.source, link.target) if not link.source.spec.bind else (link.target, link.source)
        assert isinstance(connector, SimSocket) and isinstance(binder, SimSocket)
        address = connector.spec.address

        silenced: list[Connection] = []

        def mended() -> None:
            self._refused[address] -= 1
            for one in silenced:
                for end in (one.connector, one.binder):
                    self._kernel.after(self._kernel.costs.disconnect_s, self._notice, one, end)
            if not self._refused[address] and address in self._bound:
                self._answer(address)

        fault = connector.owner.cut(link.cut_site, mended)
        if fault is None:
            return False
        if fault.until is not None or fault.silent:  # till then nobody is let in again
            self._refused[address] = self._refused.get(address, 0) + 1
        for connection in binder.connections:
            if connection.connector is connector and connection.alive:
                if fault.silent:
                    self._silence(connection)
                    silenced.append(connection)
                    break
                for side in (connection.forth, connection.back):
                    side.lose(len(side.pipe) if side.source.spec.bind else 0)
                self._disconnect(connection, None)
                break
        return True

    def _silence(self, connection: Connection) -> None:
        """Nothing passes any more. Only a socket that beats finds that out, by itself."""
        connection.silent = connection.forth.silent = connection.back.silent = True
        for link in (connection.forth, connection.back):
            link.lose(len(link.pipe))
        for socket in (connection.connector, connection.binder):
            if socket.spec.heartbeat_s and socket.address.startswith("tcp://"):
                self._kernel.after((SILENT_BEATS + 1) * socket.spec.heartbeat_s, self._notice, connection, socket)

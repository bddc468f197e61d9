"""ROUTER, DEALER, PUSH, PULL, PUB, SUB, XPUB and XSUB as libzmq behaves, without libzmq.

Promises: what happens here may happen there. libzmq is no simple queue: where a death, a cut or a full buffer
leaves it several outcomes, `Kernel.choose` picks one of them, and tests/contracts/test_zmq_model.py holds the
allowed ones against the real library. What goes on between two sockets is told in `links` and `network`.

    connect side    its pipe exists from the beginning and survives a lost connection; retries every 100 ms
    bind side       a pipe per connection; unsent messages end with the connection; received ones stay readable
    ROUTER          routes by identity; unknown: dropped, or `Unroutable` if mandatory; it knows of a death once the
                    closed connection was noticed, and never of a peer that is stopped
    PUB, XPUB       to whom a subscription has arrived from; a full pipe drops, and never blocks; with CURVE it refuses
    XPUB            takes in all that its subscribers said whenever its process looks at it; tells its process of the
                    first subscription of a topic, or of every one (verbose), and of the end of the last one, or of
                    every one (verboser)
    XSUB            says what its process says: subscriptions are messages; a full pipe drops them as well. Does not
                    filter what comes. After a lost connection it subscribes again, once its process looks at it
    PUSH, DEALER    to the next peer whose pipe is not full; without one the send fails (a bound PUSH without peers)
    close           linger bounds how long unsent messages are kept; the peer notices the end after them
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.ports import SocketSpec, Unroutable
from engine.topology import Node
from engine.wire.subscriptions import SUBSCRIBE, UNSUBSCRIBE, check_upward, topic_in
from faults.plan import Fault
from sim.transport.links import LARGE_BYTES, Command, Link, LinkOwner, Message


class SocketFullError(BlockingIOError):
    """EAGAIN: no peer takes this message now."""


class SocketOwner(LinkOwner, Protocol):
    """What a socket and the network know of the process that it belongs to."""

    pid: int
    node: Node
    label: str
    alive: bool

    def deliver(self, what: Callable[[], Any]) -> None:
        """Do this now, when the process goes on, or never if it is gone."""

    def socket_is_done(self) -> None:
        """One of its closed sockets holds nothing any more."""

    def may_cut(self, site: str) -> bool:
        """Whether its plan cuts the wire at this site."""

    def cut(self, site: str, mended: Callable[[], Any]) -> Fault | None:
        """Count a message on the wire. -> the fault that cuts it here; `mended()` once that lets go"""


class Connection:
    """One connecting and one binding socket, and a link each way."""

    __slots__ = ("alive", "back", "binder", "connector", "forth", "identity", "silent")

    def __init__(self, connector: SimSocket, binder: SimSocket, forth: Link, back: Link, identity: bytes) -> None:
        self.connector, self.binder = connector, binder
        self.forth, self.back = forth, back
        self.identity = identity
        self.alive = True
        self.silent = False  # it carries nothing, and neither end is told


class SimSocket:
    """One socket of one process: an `engine.ports.Socket` without a descriptor. `announce` wakes `waiter`."""

    def __init__(self, owner: SocketOwner, spec: SocketSpec, close: Callable[[SimSocket, float], None]) -> None:
        self.owner, self.spec = owner, spec
        self.kind = spec.kind
        self.address = spec.address
        self.arrived: deque[tuple[Link | None, Message]] = deque()
        self.links: list[Link] = []  # to send on, in turn
        self.routes: dict[bytes, Link] = {}  # ROUTER: by identity
        self.connections: list[Connection] = []
        self.waiter: Callable[[], None] | None = None
        self.closed = False
        self.met = False  # somebody has connected to it
        self.cut = False  # a connection that it made has ended since somebody last looked
        self.lingering: Callable[[], None] | None = None  # called once nothing is unsent or linger is over
        self.publishes = spec.kind in ("PUB", "XPUB")
        self.own: dict[bytes, int] | None = {} if spec.kind == "XSUB" else None  # its topics, how often each
        self._owed: list[Link] = []  # XSUB: who has to be told of its topics
        self._heard: deque[Message] = deque()  # XPUB: what its process has not taken yet
        self._heard_from = spec.heard_from
        self._close = close  # the network's, with the linger
        self._turn = 0
        self._routes_by_identity = spec.kind == "ROUTER"
        self._raw = spec.raw_identities

    # -- as the process sees it

    def send(self, frames: Sequence[Any], peer: int | bytes = 0, digest: str = "") -> None:
        """Queue one message. Raises Unroutable or SocketFullError; PUB, XPUB, XSUB drop where nobody can take it."""
        if self.closed:
            raise OSError(errno.ENOTSOCK, f"{self.spec.name} is closed")
        message = Message([frame if type(frame) is bytes else _sent(frame) for frame in frames], digest)
        if self._routes_by_identity:
            self._route(message, peer)
        elif self.publishes:
            self.hear()
            takers = [link for link in self.links if link.wants(message.frames)]
            if self.spec.curve is not None and any(map(Link.full, takers)):
                raise Unroutable(f"{self.spec.name}: a reader is {self.spec.send_hwm} messages behind")
            for link in takers:
                link.offer(message)
        elif self.own is not None:
            check_upward(message.frames)
            self._repay()
            if _counted(self.own, message.frames):
                for link in self.links:
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
        if self.publishes:
            self.hear()
            return self._from(self._heard.popleft()) if self._heard else None
        if self._owed:
            self._repay()
        while self.arrived:
            link, message = self.arrived.popleft()
            if link is None:
                return self._from(message)
            link.took()
            if not self._routes_by_identity:
                return self._from(message)
            identity: bytes = link.peer
            if self._raw:
                return identity, message
            return int.from_bytes(identity, "little") if len(identity) == 2 else None, message
        return None

    def _from(self, message: Message) -> tuple[Any, Message]:
        return self.spec.peer if self._heard_from is None else self._heard_from(message.frames), message

    def try_receive(self) -> tuple[Any, list[Any]] | None:
        """(peer, frames), or None when nothing is there."""
        found = self.take()
        return None if found is None else (found[0], found[1].frames)

    def was_cut(self) -> bool:
        """Whether a connection of a watched socket has ended since the last call."""
        cut, self.cut = self.cut, False
        return cut

    def is_over(self) -> bool:
        """Whether somebody was connected to this end, nobody is any more, and all that came was received."""
        return self.met and not self.connections and not self.arrived and not self._heard

    def close(self, linger_s: float | None = None) -> None:
        """Receive no more; keep what is unsent as the spec has it, at most `linger_s`; not where nobody is there."""
        if self.spec.watched and not self.spec.bind and not self.connections:
            linger_s = 0.0
        if not self.closed:
            self._close(self, self.spec.linger_s if linger_s is None else min(linger_s, self.spec.linger_s))

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

    def owe(self, link: Link) -> None:
        """XSUB: somebody new is at the other end of the link, or soon will be."""
        if self.own and link not in self._owed:
            self._owed.append(link)
            self.announce()

    def _repay(self) -> None:
        for link in self._owed:
            for topic in sorted(self.own or ()):
                link.offer(Command([SUBSCRIBE + topic]))
        self._owed.clear()

    def hear(self) -> None:
        """A publisher takes in what has come: its process sends or receives, or somebody is gone."""
        while self.arrived:
            came_by, message = self.arrived.popleft()
            if came_by is None:
                self._heard.append(message)
                continue
            came_by.took()
            about = topic_in(message.frames)
            if about is None:
                if self.kind == "XPUB":
                    self._heard.append(message)
            elif came_by.opposite is not None:
                told = (self._subscribes if about[0] else self._gives_up)(came_by.opposite, about[1])
                if told and self.kind == "XPUB":
                    self._heard.append(message)

    def subscribed(self, link: Link, topic: bytes) -> None:
        """A SUB's own subscription is here."""
        if self._subscribes(link, topic) and self.kind == "XPUB":
            self.arrived.append((None, Message([SUBSCRIBE + topic])))
            self.announce()

    def left(self, link: Link) -> None:
        """The subscriber at the other end of the link is gone."""
        for topic in sorted(link.topics or ()):
            if self._gives_up(link, topic) and self.kind == "XPUB":
                self.arrived.append((None, Message([UNSUBSCRIBE + topic])))
                self.announce()

    def _subscribes(self, link: Link, topic: bytes) -> bool:
        """-> whether an XPUB's process is told"""
        first = not any(topic in (other.topics or ()) for other in self.links)
        if link.topics is None:
            link.topics = []
        if topic not in link.topics:
            link.topics.append(topic)
        return first or self.spec.verbose or self.spec.verboser

    def _gives_up(self, link: Link, topic: bytes) -> bool:
        """The same. Where the subscription was lost on its way, its end is told of all the same."""
        if link.topics is None or topic not in link.topics:
            return True
        link.topics.remove(topic)
        return self.spec.verboser or not any(topic in (other.topics or ()) for other in self.links)

    def untie(self) -> None:
        """The play is over."""
        self.links = []
        self.routes.clear()
        self.connections.clear()
        self.arrived.clear()
        self._heard.clear()
        self._owed.clear()
        self.waiter = self.lingering = None

    def link_is_empty(self, link: Link) -> None:
        if self.lingering is not None and not self.unsent():
            done, self.lingering = self.lingering, None
            done()


def _counted(own: dict[bytes, int], frames: list[Any]) -> bool:
    """Count a subscription, or one less. -> whether an XSUB passes the message on: of a topic's ends only the last"""
    about = topic_in(frames)
    if about is None:
        return True
    subscribes, topic = about
    count = own.pop(topic, 0) + (1 if subscribes else -1)
    if count > 0:
        own[topic] = count
    return subscribes or count == 0


def _sent(frame: Any) -> Any:
    """Small frames are copied as they are sent; large ones travel as they are, like zero-copy frames."""
    return frame if memoryview(frame).nbytes >= LARGE_BYTES else bytes(frame)

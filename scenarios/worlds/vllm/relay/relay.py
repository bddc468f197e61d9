"""Stands between vLLM's processes on the sockets that they are told of, and has their messages meet the plan.

    core --connects--> post of the relay --connects, once it is ZMTP--> socket that vLLM has bound

A post stands before one bound socket. The first are the handshake's, and that on which a coordinator tells counts; the
message by which the client hands out the addresses of the others is changed to name posts before them. A core is known
by the identity of its socket, by what its outputs say, or by its process. Posts have abstract names: nothing is left
behind.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from engine.topology import Channel, Edge, Node, Topology, coordinator, core, frontend, subscriber
from faults.real.wire import parse_address
from scenarios.worlds.vllm.relay.decoding import decoded_of, engine_in, readdressed
from scenarios.worlds.vllm.relay.frames import Piece, encoded
from scenarios.worlds.vllm.relay.links import Link, State, Way
from scenarios.worlds.vllm.relay.passage import Cut, Ends, Passage
from scenarios.worlds.vllm.sites import WIRES

#: How often it looks while a fault holds something, and else.
LOOK_S, REST_S = 0.003, 1.0
#: What the client tells a core, and on which channel it speaks there; by the place in a list it is known whose it is.
_TOLD = {"inputs": Channel.REQUESTS, "outputs": Channel.OUTPUTS, "coordinator_input": Channel.WAVE,
         "coordinator_output": Channel.REPORT}
_OF_COORDINATOR = (Channel.WAVE, Channel.REPORT, Channel.STATS)
_IDENTITY_BYTES = 2


class Beside(Protocol):
    """What else is waited for."""

    def fileno(self) -> int: ...

    def on_readable(self) -> None: ...


class Post:
    """Listens in place of `target`, a bound socket of a client's or of the coordinator's."""

    def __init__(self, channel: Channel, target: str, client: int) -> None:
        self.channel, self.target, self.client = channel, target, client
        self._family, self._place = parse_address(target)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"ringtwin-relay-{os.getpid()}-{os.urandom(6).hex()}"
        self.listener.bind("\0" + name)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.address = f"ipc://@{name}"
        self.links: list[Link] = []
        self.refusal: tuple[Passage, Cut, float] | None = None

    def connect(self) -> socket.socket | None:
        """None: nobody is bound there; the peer tries again by itself."""
        server = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            server.connect(self._place)
        except OSError:
            server.close()
            return None
        return server

    @property
    def is_silent(self) -> bool:
        return self.refusal is not None and self.refusal[1].fault.silent


class Relay:
    def __init__(self, ends: Ends, topology: Topology) -> None:
        self._ends, self._topology = ends, topology
        self._edges = frozenset(topology.edges)
        self._now = ends.clock.monotonic
        self._posts: dict[tuple[str, int], Post] = {}  # by the address that it stands before, and for which client
        self._processes: dict[int, int] = {}  # pid -> index, of cores that have told who they are
        self._passages: dict[Edge, Passage] = {}
        self._selector = selectors.DefaultSelector()

    def stand_before(self, channel: Channel, target: str, client: int) -> str:
        """-> the address to connect to instead"""
        post = self._posts.get((target, client))
        if post is None:
            post = self._posts[target, client] = Post(channel, target, client)
        return post.address

    def turn(self, *beside: Beside) -> None:
        """Wait for something to do, and do it."""
        wanted: dict[Any, int] = {one: selectors.EVENT_READ for one in beside}
        busy = any(passage.holding for passage in self._passages.values())
        for post in self._posts.values():
            busy = busy or post.refusal is not None
            if not post.is_silent:
                wanted[post.listener] = selectors.EVENT_READ
            for link in post.links:
                wanted.update(link.wanted())
                busy = busy or link.must_look_again
        self._watch(wanted)
        ready = {key.fileobj: events for key, events in self._selector.select(LOOK_S if busy else REST_S)}
        for one in beside:
            if one in ready:
                one.on_readable()
        for post in list(self._posts.values()):
            self._serve(post, ready)
        self._release()

    def close(self) -> None:
        for post in self._posts.values():
            post.listener.close()
            for link in post.links:
                link.close()
        self._selector.close()

    # -- connections

    def _watch(self, wanted: dict[Any, int]) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in wanted or key.fd != key.fileobj.fileno():  # type: ignore[union-attr]
                self._selector.unregister(key.fileobj)
            elif wanted[key.fileobj] != key.events:
                self._selector.modify(key.fileobj, wanted[key.fileobj])
        known = {key.fileobj for key in self._selector.get_map().values()}
        for place, events in wanted.items():
            if place not in known:
                self._selector.register(place, events)

    def _serve(self, post: Post, ready: dict[Any, int]) -> None:
        if post.refusal is not None:
            passage, cut, since = post.refusal
            if passage.cut_is_over(cut, since):
                post.refusal = None
                for link in [link for link in post.links if link.state is State.SILENT]:
                    link.close()
                passage.on_cut_over(cut)
        if post.listener in ready:
            self._accept(post)
        for link in post.links:
            if link.state is not State.CLOSED:
                link.serve(ready, lambda way, link=link: self._holds(post, link, way))  # type: ignore[misc]
        for link in [link for link in post.links if link.state is State.CLOSED]:
            post.links.remove(link)
            self._forget(link)

    def _forget(self, link: Link) -> None:
        for end in (link.up.source, link.up.sink):
            if end is not None:
                for key in [key for key in self._selector.get_map().values() if key.fileobj is end]:
                    self._selector.unregister(key.fileobj)

    def _accept(self, post: Post) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = post.listener.accept()
            if post.refusal is not None:
                client.close()
                return
            link = Link(client, post.connect, lambda way, piece: self._on_piece(post, link, way, piece), self._now)
            link.pid = _peer_of(client)
            post.links.append(link)

    # -- messages

    def _on_piece(self, post: Post, link: Link, way: Way, piece: Piece) -> None:
        if piece.identity is not None and way.is_up and len(piece.identity) == _IDENTITY_BYTES:
            link.core = self._processes[link.pid] = int.from_bytes(piece.identity, "little")
        passage = self._passage(post, link, way, piece.frames) if piece.is_message else None
        if passage is None:
            way.pending += piece.raw
            return
        cut = passage.arrive(piece, piece.frames)
        self._hand_on(post, way, passage)
        if cut is not None:
            self._cut(post, link, way, passage, cut, piece)

    def _hand_on(self, post: Post, way: Way, passage: Passage) -> None:
        while (message := passage.take()) is not None:
            piece, frames = message
            if post.channel is Channel.HANDSHAKE and not way.is_up:
                frames = self._with_posts(frames, post) or frames
            way.pending += piece.raw if frames is piece.frames else encoded(piece.kind, frames)

    def _cut(self, post: Post, link: Link, way: Way, passage: Passage, cut: Cut, piece: Piece) -> None:
        way.pending += piece.raw[:max(0, cut.fault.byte)]
        link.flush(way)
        if cut.fault.silent:
            link.silence()
        else:
            link.cut()
        if cut.fault.until is None and not cut.fault.silent:
            passage.on_cut_over(cut)
        else:
            post.refusal = passage, cut, self._now()

    def _release(self) -> None:
        for passage in self._passages.values():
            if passage.holding and passage.release() and (found := self._way_of(passage.edge)) is not None:
                post, link, way = found
                self._hand_on(post, way, passage)
                link.flush(way)

    def _holds(self, post: Post, link: Link, way: Way) -> bool:
        edge = self._edge(post, link.core, way)
        passage = None if edge is None else self._passages.get(edge)
        return passage is not None and passage.holding

    # -- who speaks with whom

    def _passage(self, post: Post, link: Link, way: Way, frames: Sequence[Any]) -> Passage | None:
        """None where it is nobody's of the play."""
        if way.is_up and link.core is None and post.channel in (Channel.OUTPUTS, Channel.REPORT):
            link.core = engine_in(frames)
        elif link.core is None and post.channel is Channel.WAVE:  # such a socket tells nobody how it is called
            link.core = self._processes.get(link.pid)
        edge = self._edge(post, link.core, way)
        if edge is None:
            return None
        passage = self._passages.get(edge)
        if passage is None:
            passage = self._passages[edge] = Passage(edge, self._ends, wire_alone=edge.channel in WIRES)
        return passage

    def _edge(self, post: Post, index: int | None, way: Way) -> Edge | None:
        if post.channel is Channel.STATS:
            connects: Node = frontend(post.client)
        elif post.channel in WIRES:
            connects = subscriber(post.client)
        elif index is not None or len(self._topology.engines) == 1:
            connects = core(self._topology.engines[0].index if index is None else index)
        else:
            return None
        bound = coordinator(0) if post.channel in _OF_COORDINATOR else \
            core(self._topology.engines[0].index) if post.channel in WIRES else frontend(post.client)
        edge = Edge(connects, bound, post.channel) if way.is_up else Edge(bound, connects, post.channel)
        return edge if edge in self._edges else None

    def _way_of(self, edge: Edge) -> tuple[Post, Link, Way] | None:
        """Of a connection that carries that edge now."""
        for post in self._posts.values():
            for link in post.links:
                if link.state is State.OPEN:
                    for way in link.ways():
                        if way.sink is not None and self._edge(post, link.core, way) == edge:
                            return post, link, way
        return None

    def _with_posts(self, frames: Sequence[Any], post: Post) -> list[Any] | None:
        """The message that hands out addresses, naming posts; None for another one."""
        found = decoded_of(Channel.HANDSHAKE, frames)
        told = found.get("addresses") if found is not None else None
        if not isinstance(told, dict):
            return None
        posts = {}
        for name, channel in _TOLD.items():
            given = told.get(name)
            for place, address in enumerate(given if isinstance(given, list) else [given]):
                if isinstance(address, str):
                    client = place if isinstance(given, list) and len(given) > 1 else post.client
                    posts[address] = self.stand_before(channel, address, client)
        return readdressed(frames, posts)


def _peer_of(client: socket.socket) -> int:
    """The process that has connected, by its pid."""
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)

"""Which site is crossed, and in which process: names of places from specs, and back. Pure, for every world.

Promises: the sites of a socket, a ring's stores and a wire follow from its spec and from who has it, in one place;
sites as they are crossed bear no lives, because a sender does not know its peer's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from engine.ports import RingSpec, SocketSpec
from engine.topology import READER_STORES, WRITER_STORES, Channel, Edge, Node, NodeKind, Topology, at
from faults.plan import Fault, operation_of, owner_of

#: Who starts cores and coordinators.
_STARTERS = (NodeKind.FRONTEND, NodeKind.LAUNCHER)
_LIFE = re.compile(r"@(\d+)")


@lru_cache(maxsize=4096)
def bare(site: str) -> str:
    """The site as its process crosses it and as journals name it: without lives."""
    return _LIFE.sub("", site)


@lru_cache(maxsize=4096)
def home_of(site: str) -> tuple[str, int]:
    """(node without life, life): the process that crosses this site."""
    return bare(owner_of(site)), max((int(life) for life in _LIFE.findall(site)), default=0)


def homes_of(site: str) -> tuple[tuple[str, int], ...]:
    """As `home_of`; a cut on the wire is played by whichever end of its edge connects."""
    node, life = home_of(site)
    if operation_of(site) != "wire":
        return ((node, life),)
    edge = Edge.parse(bare(site).rpartition(":")[0])
    return (str(edge.source), life), (str(edge.target), life)


def victim_of(fault: Fault) -> tuple[str, int]:
    """(node without life, life) that a process fate hits."""
    home, life = home_of(fault.site)
    if fault.victim is None:
        return home, life
    _, _, named = fault.victim.partition("@")
    return bare(fault.victim), int(named or life)


# -- rings ---------------------------------------------------------------------------------------------------


def store_place(spec: RingSpec, node: str) -> str:
    """Where a node's stores into a ring belong: core.0/rpc, worker.1/rpc, worker.1/response, core.0/response.1."""
    if spec.channel is Channel.RESPONSE and bare(str(spec.writer)) != node:
        return f"{node}/{spec.channel.value}.{spec.writer.index}"
    return f"{node}/{spec.channel.value}"


@lru_cache(maxsize=256)
def store_sites(spec: RingSpec, node: str) -> Mapping[str, str]:
    """The site of each store that a node may do to a ring, by the store's name."""
    place = store_place(spec, node)
    return {name: at(place, f"store.{name}") for name in (*WRITER_STORES, *READER_STORES)}


@lru_cache(maxsize=256)
def ring_sites(spec: RingSpec, node: str, operation: str) -> tuple[str, ...]:
    """What one message of a ring crosses in this node: an edge per reader when it is sent, its own when received."""
    readers = [reader for reader in (reader.first_life for reader in spec.readers)
               if operation == "send" or str(reader) == node]
    return tuple(edge_site(spec.writer.first_life, reader, spec.channel, operation) for reader in readers)


# -- pipes ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def birth_edge(topology: Topology, source: Node, target: Node) -> Edge | None:
    """Between a child and whoever started it; None where that is the lab, or the child no node of the play."""
    edge = Edge(source.first_life, target.first_life, Channel.BIRTH)
    return edge if edge in topology.edges else None


@lru_cache(maxsize=1024)
def born_by(topology: Topology, node: Node) -> Edge | None:
    """The edge on which a node is told what it is, by whoever started it; None where that is the lab."""
    return next((edge for edge in topology.edges if edge.channel is Channel.BIRTH and edge.target == node.first_life
                 and (node.kind is NodeKind.WORKER or edge.source.kind in _STARTERS)), None)


# -- sockets -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def edge_site(source: Node, target: Node, channel: Channel, operation: str) -> str:
    """Put together once for all plays."""
    return at(Edge(source, target, channel), operation)


class SocketSites:
    """The sites that messages of one socket of `me` cross. A publisher's edges lead to many nodes.

    A message that names no sender where a socket cannot tell it, or one that is no node, crosses nothing.
    """

    def __init__(self, spec: SocketSpec, me: Node, topology: Topology) -> None:
        self._spec, self._me = spec, me.first_life
        self._peers = topology.peers(self._me, spec.peer_kind)
        self._to: dict[Any, tuple[str, ...]] = {}
        self._from: dict[Any, str | None] = {}
        self._says_from = spec.says_from

    def to(self, peer: Any) -> tuple[str, ...]:
        """What a message to `peer` crosses: an index, or an identity of a router of strangers."""
        sites = self._to.get(peer)
        if sites is None:
            spec = self._spec
            assert spec.send_channel is not None
            peers = self._peers if spec.kind in ("PUB", "XPUB") else (
                self._node(peer if spec.kind == "ROUTER" else spec.peer),)
            sites = self._to[peer] = tuple(edge_site(self._me, node, spec.send_channel, "send") for node in peers)
        return sites

    def sent(self, frames: Sequence[Any], peer: Any) -> tuple[str, ...]:
        """As `to`, for this message."""
        return () if self._says_from is not None and self._says_from(frames) is None else self.to(peer)

    def of(self, peer: Any) -> str | None:
        """What a message from `peer` crosses."""
        if peer in self._from:
            return self._from[peer]
        spec, site = self._spec, None
        assert spec.receive_channel is not None
        if spec.heard_from is None or any(node.index == peer for node in self._peers):
            site = edge_site(self._node(peer), self._me, spec.receive_channel, "receive")
        if site is not None or peer is None:  # a stranger may call itself anything
            self._from[peer] = site
        return site

    def wires(self) -> tuple[str | None, str | None]:
        """The wire sites of what a connecting socket sends and gets."""
        spec, other = self._spec, self._node(self._spec.peer)
        return (None if spec.send_channel is None else edge_site(self._me, other, spec.send_channel, "wire"),
                None if spec.receive_channel is None else edge_site(other, self._me, spec.receive_channel, "wire"))

    def _node(self, peer: Any) -> Node:
        """By its index or, on a router of strangers, its identity."""
        spec, index = self._spec, int.from_bytes(peer[:2], "little") if isinstance(peer, bytes) else peer
        node = next((node for node in self._peers if node.index == index), None)
        if isinstance(peer, bytes) and (node is None or len(peer) != 2):
            return Node(spec.peer_kind, spec.peer)
        return node or Node(spec.peer_kind, index)


@lru_cache(maxsize=256)
def socket_sites(spec: SocketSpec, me: Node, topology: Topology) -> SocketSites:
    """Put together once for all plays."""
    return SocketSites(spec, me, topology)

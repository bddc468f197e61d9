"""How processes, lives and sites are written in journals, and how the names of one play tell lives apart."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from engine.topology import Edge, Node, worker

#: The threads of a publisher, as the engine's design names them.
PUBLISHER, REPLAYER = "zmq-publisher", "zmq-replay"
#: What the ranks of one place in several engines enter together.
ACROSS = "keep_step"


class EngineLife(NamedTuple):
    """One life of one engine of the play: what dies, is told of and is started again as a whole."""

    engine: int
    life: int

    @property
    def core(self) -> str:
        return of_life(f"core.{self.engine}", self.life)

    def worker(self, rank: int) -> str:
        return of_life(str(worker(rank, engine=self.engine)), self.life)


def base(node: str) -> str:
    """`worker.1` for `worker.1@2`."""
    return node.partition("@")[0]


def life_of(node: str) -> int:
    return int(node.partition("@")[2] or 0)


def of_life(node: str, life: int) -> str:
    """`worker.1@2` of `worker.1` and 2. A first life is not written."""
    return f"{node}@{life}" if life and "@" not in node else node


def rank_of(node: str) -> int:
    """Of a worker among its engine's."""
    return Node.parse(base(node)).index


def kind_of(node: str) -> str:
    return node.partition(".")[0]


@lru_cache(maxsize=4096)
def site_of_life(site: str, life: int) -> str:
    """The site with its life: journals name sites without, because a sender does not know its peer's.

    An engine is restarted whole, so both ends of an edge share a life; a subscriber outlives its publisher,
    and what it follows is one edge for all lives.
    """
    place, _, operation = site.rpartition(":")
    if not life or "@" in site or place.endswith(("/kv", "/replay")):
        return site
    if "->" in place:
        edge = Edge.parse(place)
        return f"{edge.source}@{life}->{edge.target}@{life}/{edge.channel.value}:{operation}"
    node, _, rest = site.partition("/")
    return f"{node}@{life}/{rest}"


@lru_cache(maxsize=4096)
def edge_of(site: str) -> tuple[str, Edge, str] | None:
    """(edge's name, edge, operation) of a site on an edge, None for any other site."""
    place, _, operation = site.rpartition(":")
    if "->" not in place:
        return None
    try:
        return place, Edge.parse(place), operation
    except ValueError:
        return None


def edge_without_lives(name: str) -> str:
    return "->".join(f"{base(end.partition('/')[0])}{'/' + end.partition('/')[2] if '/' in end else ''}"
                     for end in name.split("->")) if "@" in name else name

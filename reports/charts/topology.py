"""The processes of a play and all that joins them, as one picture.

    frontend.0 ---+      coordinator.0 --- stats, wave, report
                  +--- core.0 ---+--- worker.0   ]  collective: one line beside all who meet
                  |              +--- worker.1   ]
                  +--- core.1 ---+--- worker.1.0 ]  )  pipe: a bow to the next stage

From the left to the right: who launched (above the clients), clients, coordinators, cores, then workers with the
subscribers of their engine below them.
Two processes are joined by one line for each channel, whatever its directions; where all of a group meet, by one line
with a stub to each. A box says what befell its process; a line that a fault struck is marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup

from engine.topology import Channel, Edge, Engine, Node, NodeKind, Topology
from reports.charts.notable import lives_of
from reports.charts.svg import drawing, tag, text
from reports.formats import count, listed
from scenarios.history.names import ACROSS, base, edge_of
from scenarios.history.run import Run

BOX, HIGH, ROW, GAP = 136.0, 32.0, 40.0, 10.0  # a box, a row, and what is between two engines
COLUMN, LEFT, TOP = 250.0, 8.0, 10.0
APART = 6.0  # lines of one pair
STUB, BUS, BOW = 10.0, 7.0, 22.0  # of those who meet: the first line, the next ones, the depth of a bow
LETTERS = 24  # that fit into a box
_DRAWN = (NodeKind.FRONTEND, NodeKind.COORDINATOR, NodeKind.CORE, NodeKind.WORKER)
_MET = (Channel.COLLECTIVE, Channel.PIPE)
#: What joins processes, by the name that a picture's legend gives it.
CHANNELS = {
    Channel.HANDSHAKE.value: "a core and who started it",
    Channel.REQUESTS.value: "a client to its cores",
    Channel.OUTPUTS.value: "a core to its clients",
    Channel.RPC.value: "the ring of a core to its workers",
    Channel.RESPONSE.value: "the ring of a worker to its core",
    Channel.OVERFLOW.value: "what is too large for either ring",
    Channel.COLLECTIVE.value: "the ranks of a stage",
    Channel.PIPE.value: "a rank to the one in the next stage",
    Channel.KV.value: "events of a core to its subscribers",
    Channel.REPLAY.value: "what a subscriber asks for again",
    Channel.STATS.value: "a coordinator to its clients",
    Channel.WAVE.value: "a coordinator to its cores",
    Channel.REPORT.value: "a core to its coordinator",
    Channel.CONSENSUS.value: "what cores decide together",
    Channel.BIRTH.value: "a process and who started it, by pipe",
    ACROSS: "the ranks of one place in all engines, in each forward",
}


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """`legend`: channels that are drawn; `CHANNELS` has their words."""

    svg: Markup
    sentence: str
    legend: tuple[str, ...]


class _Place(msgspec.Struct, frozen=True):
    """The left edge of a box, and its middle."""

    x: float
    y: float


class _Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What befell a process."""

    faults: tuple[str, ...] = ()
    deaths: tuple[str, ...] = ()
    lives: int = 1

    @property
    def words(self) -> str:
        told = [*self.faults, *(f"died: {death}" for death in self.deaths)]
        return ", ".join(told + ([f"{self.lives} lives"] if self.lives > 1 else []))


def topology_chart(run: Run) -> Picture | None:
    """None of a play without an engine: its processes are those of a program."""
    if run.play.options.without_engine:
        return None
    topology, fates = run.play.topology, _fates(run)
    places = _places(topology)
    struck = _struck(run)
    parts, drawn = [], set()
    for shape, channel in (*_lines(topology, places, struck), *_meetings(topology, places)):
        parts.append(shape)
        drawn.add(channel)
    parts += [_box(node, places[node], fates.get(str(node))) for node in places]
    sentence = _sentence(topology, fates)
    right = max(place.x for place in places.values()) + BOX + _margin(topology)
    bottom = max(place.y for place in places.values()) + HIGH / 2.0 + TOP
    return Picture(svg=drawing(right, bottom, f"Topology: {sentence}", "topology", parts), sentence=sentence,
                   legend=tuple(channel for channel in CHANNELS if channel in drawn))


# -- what befell whom


def _fates(run: Run) -> dict[str, _Fate]:
    faults: dict[str, list[str]] = defaultdict(list)
    deaths: dict[str, list[str]] = defaultdict(list)
    lives: dict[str, int] = defaultdict(int)
    for receipt in run.history.faults.receipts:
        faults[base(receipt.node)].append(f"{receipt.id} {receipt.fate}")
    for life in lives_of(run):
        lives[life.node] += 1
        if life.died is not None:
            deaths[life.node].append(life.died)
    return {node: _Fate(faults=tuple(dict.fromkeys(faults[node])), deaths=tuple(dict.fromkeys(deaths[node])),
                        lives=lives[node]) for node in {*faults, *lives}}


def _struck(run: Run) -> dict[Edge, list[str]]:
    """Edges at which a fault met a message, and what it was."""
    found: dict[Edge, list[str]] = defaultdict(list)
    for receipt in run.history.faults.receipts:
        if (place := edge_of(receipt.site)) is not None:
            _, edge, _ = place
            known = Edge(edge.source.first_life, edge.target.first_life, edge.channel)
            found[known] = list(dict.fromkeys([*found[known], f"{receipt.id} {receipt.fate}"]))
    return found


def _sentence(topology: Topology, fates: Mapping[str, _Fate]) -> str:
    kinds = (("launcher", topology.launchers), ("client", topology.clients),
             ("coordinator", topology.coordinators), ("core", topology.engines),
             ("worker", topology.workers), ("subscriber", set(topology.subscribers)))
    words = listed(count(len(nodes), what) for what, nodes in kinds if nodes)
    struck = [f"{node} ({fate.words})" for node, fate in sorted(fates.items()) if fate.faults or fate.deaths]
    return words + (f"; marked: {listed(struck)}" if struck else "")


# -- where everybody stands


def _places(topology: Topology) -> dict[Node, _Place]:
    """By kind from the left to the right, engine by engine downwards."""
    hubs = topology.coordinators
    columns = [kind for kind in _DRAWN if kind is not NodeKind.COORDINATOR or hubs]
    xs = {kind: LEFT + COLUMN * place for place, kind in enumerate(columns)}
    places: dict[Node, _Place] = {}
    y = TOP + HIGH / 2.0
    for hub in hubs:  # above all others, so that no line of others crosses them
        places[hub.node] = _Place(xs[NodeKind.COORDINATOR], y)
        y += ROW
    for engine in topology.engines:
        beside = [*engine.workers, *(node for node in engine.followers if node not in places)]
        for row, node in enumerate(beside):
            places[node] = _Place(xs[NodeKind.WORKER], y + ROW * row)
        rows = max(1, len(beside))
        places[engine.core] = _Place(xs[NodeKind.CORE], y + ROW * (rows - 1) / 2.0)
        y += ROW * rows + GAP
    return places | _clients(topology, places, xs[NodeKind.FRONTEND])


def _clients(topology: Topology, places: Mapping[Node, _Place], x: float) -> dict[Node, _Place]:
    """Each beside the middle of its cores, as far as there is room; who launched the cores above all."""
    found: dict[Node, _Place] = {}
    low = 0.0
    for launcher in topology.launchers:
        low = max(low, TOP + HIGH / 2.0)
        found[launcher.node] = _Place(x, low)
        low += ROW
    for client in topology.clients:
        mine = [places[engine.core].y for engine in topology.engines_of(client.node)]
        low = max(low, sum(mine) / len(mine) if mine else TOP + HIGH / 2.0)
        found[client.node] = _Place(x, low)
        low += ROW
    return found


def _margin(topology: Topology) -> float:
    """Room for what is beside the boxes at the right."""
    bows = max((engine.pp for engine in topology.engines), default=1) > 1
    across = max((engine.ranks for engine in topology.engines), default=1) if len(topology.engines) > 1 else 0
    return STUB + BUS * (3 + across) + (BOW * 3.0 if bows else 0.0)


# -- lines


def _lines(topology: Topology, places: Mapping[Node, _Place], struck: Mapping[Edge, Sequence[str]],
           ) -> Iterator[tuple[Markup, str]]:
    """(shape, channel): one for each channel of a pair, and a bow for each pipe."""
    pairs: dict[frozenset[Node], dict[Channel, list[Edge]]] = defaultdict(lambda: defaultdict(list))
    for edge in topology.edges:
        if edge.channel is Channel.PIPE:
            hit = struck.get(edge, ())
            yield _shape(_bow(places[edge.source], places[edge.target]), edge.channel, [edge], hit)
        elif edge.channel not in _MET:
            pairs[frozenset((edge.source, edge.target))][edge.channel].append(edge)
    for pair, channels in pairs.items():
        left, right = sorted((places[node] for node in pair), key=lambda place: place.x)
        for number, (channel, edges) in enumerate(channels.items()):
            shift = APART * (number - (len(channels) - 1) / 2.0)
            hits = [fault for edge in edges for fault in struck.get(edge, ())]
            yield _shape(_curve(left.x + BOX, left.y + shift, right.x, right.y + shift), channel, edges, hits)


def _shape(path: str, channel: Channel, edges: Sequence[Edge], hits: Sequence[str]) -> tuple[Markup, str]:
    first, *back = edges
    words = f"{channel.value}: {first.source} to {first.target}" + (" and back" if back else "")
    words += f"; struck by {listed(hits)}" if hits else ""
    return (tag("g", tag("title", words), tag("path", d=path), class_=f"ch {channel.value}" + (" hit" if hits else "")),
            channel.value)


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    """Relative to where it begins: what is alike is written alike, and takes less when it is packed."""
    half, down = (x2 - x1) / 2.0, y2 - y1
    return f"M{x1:.0f} {y1:.0f}c{half:.0f} 0 {half:.0f} {down:.0f} {2 * half:.0f} {down:.0f}"


def _bow(source: _Place, target: _Place) -> str:
    """At the right of both, out of the lower half of the one and into the upper half of the other; further where the
    way is longer."""
    y1, y2 = (source.y + 6.0, target.y - 6.0) if target.y > source.y else (source.y - 6.0, target.y + 6.0)
    depth = STUB + BOW * min(3.0, 1.0 + abs(y2 - y1) / 400.0) * (1.0 if y2 > y1 else 1.4)
    return f"M{source.x + BOX:.0f} {y1:.0f}c{depth:.0f} 0 {depth:.0f} {y2 - y1:.0f} 0 {y2 - y1:.0f}"


def _meetings(topology: Topology, places: Mapping[Node, _Place]) -> Iterator[tuple[Markup, str]]:
    """Where all of a group meet: the ranks of a stage, the cores that step together, their ranks of one place."""
    for engine in topology.engines:
        for stage in range(0, engine.ranks, engine.tp) if engine.workers and engine.tp > 1 else ():
            yield _bus([engine.workers[rank] for rank in engine.grid.tp_group(stage)], places, 0,
                       Channel.COLLECTIVE.value)
    for hub in topology.coordinators:
        engines = [engine for engine in topology.engines if engine.index in hub.engines]
        if hub.lockstep:
            yield _bus([engine.core for engine in engines], places, 0, Channel.CONSENSUS.value)
            for number, group in enumerate(_across(engines)):
                yield _bus(group, places, number + 1, ACROSS)


def _across(engines: Sequence[Engine]) -> list[list[Node]]:
    """The ranks of each place: workers, or the cores themselves."""
    ranks = [engine.workers or (engine.core,) for engine in engines]
    return [list(group) for group in zip(*ranks, strict=False)]


def _bus(nodes: Sequence[Node], places: Mapping[Node, _Place], lane: int, channel: str,
         ) -> tuple[Markup, str]:
    edge = places[nodes[0]].x + BOX
    x = edge + STUB + BUS * lane
    ys = [places[node].y + 2.0 * lane for node in nodes]
    stubs = "".join(f"M{edge:.0f} {y:.0f}H{x:.0f}" for y in ys)
    title = f"{channel}: {listed(map(str, nodes), len(nodes))}, each with every other"
    return (tag("g", tag("title", title), tag("path", d=f"{stubs}M{x:.0f} {min(ys):.0f}V{max(ys):.0f}"),
                class_=f"ch {channel}"), channel)


# -- boxes


def _box(node: Node, place: _Place, fate: _Fate | None) -> Markup:
    """A process that wrote nothing has no fate at all."""
    words = fate.words if fate is not None else "nothing is on record of it"
    marks = list(_marks(fate, place)) if fate is not None else []
    looks = ["node", node.kind.value]
    looks += [look for look, is_there in (("struck", fate and fate.faults), ("dead", fate and fate.deaths),
                                          ("unseen", fate is None)) if is_there]
    short = words if len(words) <= LETTERS else words[:LETTERS - 1] + "…"
    middle = place.y - 3.0 if short else place.y + 4.0
    return tag("g", tag("title", f"{node}" + (f": {words}" if words else "")),
               tag("rect", x=place.x, y=place.y - HIGH / 2.0, width=BOX, height=HIGH,
                   rx=HIGH / 2.0 if node.kind is NodeKind.SUBSCRIBER else 4),
               text(place.x + BOX / 2.0, middle, str(node), "name"),
               text(place.x + BOX / 2.0, place.y + 10.0, short, "fate") if short else "", *marks,
               class_=" ".join(looks))


def _marks(fate: _Fate, place: _Place) -> Iterable[Markup]:
    """A flash for a fault, a cross for a death: as in the sequence chart."""
    if fate.faults:
        yield tag("path", d=f"M{place.x + 14:.1f} {place.y - 14:.1f}l-8 11h5l-3 8 9-11h-5z", class_="flash")
    if fate.deaths:
        yield tag("path", d=f"M{place.x + BOX - 15:.1f} {place.y - 12:.1f}l8 8m0 -8l-8 8", class_="cross")

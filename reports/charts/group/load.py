"""What a client believed of the load of each of its cores, beside the load that there was: a small panel for each core.

    core.0      requests                 core.1
      4 |  ___ o                           4 |
        | |###|____                          |   ____o
        |_|########|____                     |__|####|__
           time                                 time

The area is what the core itself took and had not let go. The line is what the client believed: as many as it was told
of last, waiting and running, and what it has sent since, or what is in flight of its own, times the clients, whichever
is more. A ring is a word of the coordinator that told it counts. Times are seconds from the first record of the play.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from markupsafe import Markup

from engine.topology import Client
from reports.charts.svg import drawing, line, number, tag, text
from reports.formats import clock, clocks, count
from scenarios.history.history import History
from scenarios.history.names import base
from scenarios.history.run import Run

PANEL, HIGH, ACROSS = 330.0, 96.0, 2  # a panel, and how many stand beside each other
LEFT, RIGHT, TOP, BOTTOM = 34.0, 12.0, 24.0, 22.0

#: (when, how many from then on), by time.
Steps = list[tuple[float, int]]


class CoreLoad(msgspec.Struct, frozen=True, kw_only=True):
    """`told`: when the client was told of it, and how many requests that were."""

    core: str
    was: Steps
    believed: Steps
    told: Steps


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One client and its cores."""

    client: str
    svg: Markup
    sentence: str


def loads_of(history: History) -> dict[str, list[CoreLoad]]:
    """By client, of those that chose among several cores."""
    if history.play.options.without_engine:
        return {}
    found = {}
    for client in history.play.topology.clients:
        if len(client.engines) > 1 and any(base(one.node) == str(client.node) for one in history.operations):
            found[str(client.node)] = [_core(history, client, place) for place in range(len(client.engines))]
    return found


def _core(history: History, client: Client, place: int) -> CoreLoad:
    engine, origin = client.engines[place], history.began_at
    told = [(record.at - origin, sum(record.data["counts"][place][:2]))
            for node, record in history.observed("view") if base(node) == str(client.node)
            and record.data["counts"] is not None and place < len(record.data["counts"])]
    return CoreLoad(core=f"core.{engine}", was=_was(history, engine),
                    believed=_believed(history, client, engine, told), told=told)


def _was(history: History, engine: int) -> Steps:
    """What its core added and has not freed; whose process is gone has none."""
    turns: list[tuple[float, int, str]] = []  # when, by how much, of which life
    for life in (life for life in history.lives if base(life.node) == f"core.{engine}"):
        mine = [(record.at, 1) for record in history.by_node("request").get(life.node, ())
                if record.data["action"] == "add"]
        mine += [(record.at, -1) for record in history.by_node("freed").get(life.node, ())]
        left = sum(change for _, change in mine)
        if left and life.ended_at is not None:
            mine.append((max(life.ended_at, *(at for at, _ in mine)), -left))
        turns += [(at, change, life.node) for at, change in mine]
    return _summed((at - history.began_at, change) for at, change, _ in turns)


def _summed(turns: Iterable[tuple[float, int]]) -> Steps:
    """One step for each moment."""
    steps: Steps = []
    total = 0
    for at, change in sorted(turns):
        total += change
        steps[-1 if steps and steps[-1][0] == at else len(steps):] = [(at, total)]
    return steps


def _believed(history: History, client: Client, engine: int, told: Steps) -> Steps:
    """The rules are those of `engine/frontend/balance.py`, from the records of what the client sent, heard and saw end.
    """
    origin, clients = history.began_at, len(history.play.topology.clients_of(engine))
    turns: list[tuple[float, int, int]] = [(at, 0, counts) for at, counts in told]
    for one in history.operations:
        if base(one.node) == str(client.node) and one.accepted is not None and one.accepted.data.get("core") == engine:
            turns.append((one.accepted.at - origin, 1, 0))
            turns += [(one.ended_at - origin, -1, 0)] if one.ended_at is not None else []
    counted = sent = flying = 0
    steps: Steps = []
    for at, change, counts in sorted(turns):
        if change == 0:
            counted, sent = counts, 0
        else:
            flying += change
            sent = max(0, sent + change * clients)
        steps[-1 if steps and steps[-1][0] == at else len(steps):] = [(at, max(clients * flying, counted + sent))]
    return steps


# -- panels


def load_charts(run: Run) -> list[Load]:
    return [_chart(client, cores) for client, cores in loads_of(run.history).items()
            if any(core.was or core.believed for core in cores)]


def _chart(client: str, cores: Sequence[CoreLoad]) -> Load:
    steps = [step for core in cores for step in (*core.was, *core.believed, *core.told)]
    first, last = min(at for at, _ in steps), max(at for at, _ in steps)
    most = max(1, *(many for _, many in steps))
    parts = [part for place, core in enumerate(cores) for part in _panel(place, core, (first, last), most)]
    rows = -(-len(cores) // ACROSS)
    peaks = ", ".join(f"{core.core} {max((many for _, many in core.was), default=0)}" for core in cores)
    often = max(len(core.told) for core in cores)
    told = f"told of their load {count(often, 'time')}" if often else "never told of their load"
    sentence = f"{client} and its {len(cores)} cores: {told}; most requests at once: {peaks}"
    return Load(client=client, sentence=sentence, svg=drawing(
        min(ACROSS, len(cores)) * PANEL, rows * (TOP + HIGH + BOTTOM), f"Load: {sentence}", "load", parts))


def _panel(place: int, core: CoreLoad, span: tuple[float, float], most: int) -> Iterator[Markup]:
    left, top = PANEL * (place % ACROSS) + LEFT, (TOP + HIGH + BOTTOM) * (place // ACROSS) + TOP
    width, floor = PANEL - LEFT - RIGHT, top + HIGH
    first, last = span

    def x_of(at: float) -> float:
        return left + width * ((at - first) / (last - first) if last > first else 0.5)

    def y_of(many: int) -> float:
        return floor - (HIGH - 8.0) * many / most

    yield text(left, top - 8.0, core.core, "name")
    yield from _axes(left, left + width, top, floor, y_of, most)
    ends = clocks([first, last])
    yield text(left, floor + 14.0, ends[0], None, "start")
    yield text(left + width, floor + 14.0, ends[1], None, "end")
    for steps, look in ((core.was, "was"), (core.believed, "believed")):
        if steps:
            yield tag("g", tag("title", _words(core.core, look, steps)),
                      tag("path", d=_stairs(steps, x_of, y_of, last, floor if look == "was" else None)), class_=look)
    for at, many in core.told:
        yield tag("g", tag("title", f"told of {count(many, 'request')} at {core.core}, {clock(at)}"),
                  tag("circle", cx=x_of(at), cy=y_of(many), r=3.5), class_="told")


def _words(core: str, look: str, steps: Steps) -> str:
    most = max(many for _, many in steps)
    what = "there were" if look == "was" else "the client believed in"
    return f"{core}: {what} at most {count(most, 'request')}, first at {clock(steps[0][0])}"


def _axes(left: float, right: float, top: float, floor: float, y_of: Callable[[int], float], most: int,
          ) -> Iterator[Markup]:
    yield line(left, top, left, floor, "axis")
    yield line(left, floor, right, floor, "axis")
    for many in dict.fromkeys((0, most)):
        yield text(left - 6.0, y_of(many) + 4.0, f"{many:,}", None, "end")


def _stairs(steps: Steps, x_of: Callable[[float], float], y_of: Callable[[int], float], last: float,
            floor: float | None) -> str:
    """A line of steps from nothing to the end; down to the floor where it is the edge of an area."""
    path = f"M{number(x_of(steps[0][0]))} {number(y_of(0))}"
    path += "".join(f"H{number(x_of(at))}V{number(y_of(many))}" for at, many in steps) + f"H{number(x_of(last))}"
    return path if floor is None else path + f"V{number(floor)}Z"

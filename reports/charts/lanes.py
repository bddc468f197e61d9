"""Steps in a sequence chart: a bar in the lane of its thread, from one recorded moment to the other.

A bar whose beginning or end lies in a stretch that is not drawn begins or ends at its edge; one that lies in it
altogether is not drawn either. Bars of one lane that overlap, as steps in flight do, stand beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec
from markupsafe import Markup

from engine.topology import NodeKind
from reports.charts.arrows import Arrow, Collective, Item, Passed, Skipped
from reports.charts.columns import LANE, Columns
from reports.charts.steps import ANSWER, COPY, IN_FLIGHT, MAIN, PHASES, Wait, Work
from reports.charts.svg import tag, text
from reports.formats import clock, duration
from scenarios.history.names import base

#: A bar has room for its number.
BAR, EDGE_GAP = 12.0, 2.0
_LOOKS = {IN_FLIGHT: "flight", PHASES[0]: "execute", PHASES[1]: "sample", ANSWER: "answer"}
_WORDS = {"flight": "a step in flight, from its schedule to its use", "execute": "a step is executed",
          "sample": "its tokens are sampled", "answer": "its answer is copied and sent",
          "wait": "a stage waits for the one before it", "open": "no record says that it ended"}
_ORDER = (IN_FLIGHT, MAIN, COPY)

#: As in the chart: what has a place on the paper, where.
Key = tuple[int | str, int]
Point = tuple[float, float, float, Key]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """`top` and `bottom` name the points between which it stands. `place`: of those beside each other."""

    work: Work
    place: int
    top: Key
    bottom: Key
    waits: tuple[tuple[Wait, Key, Key], ...]
    follows: bool  # the one before it in its place ends when it begins


def among(items: Sequence[Arrow | Collective], works: Sequence[Work], origin: float) -> list[Item]:
    """All that has to be chosen from, by time: of cores that are their own workers their steps, too."""
    passed = [Passed(at=work.began + origin, until=work.ended + origin) for work in works
              if work.what == PHASES[0] and work.node.startswith(NodeKind.CORE.value)]
    return sorted([*items, *passed], key=lambda item: item.at) if passed else list(items)


def fullest(works: Sequence[Work]) -> list[float]:
    """When as many steps were in flight as ever, for the first time: what a play is looked at for that met no fault."""
    turns = sorted((at, change) for work in works if work.lane == IN_FLIGHT
                   for at, change in ((work.began, 1), (work.ended, -1)))
    depths = list(accumulate(change for _, change in turns))
    return [turns[depths.index(max(depths))][0]] if depths else []


def bars_of(works: Sequence[Work], skipped: Sequence[tuple[int, Skipped]]) -> list[Bar]:
    """`skipped`: with their places among all that is shown."""
    bars: list[Bar] = []
    ends: dict[tuple[str, str], list[float]] = {}
    waits = 0
    for work in works:
        first, last = _skipped_at(work.began, skipped), _skipped_at(work.ended, skipped)
        if first is not None and first == last:
            continue
        places = ends.setdefault((base(work.node), work.lane), [])
        place = next((place for place, end in enumerate(places) if end <= work.began), len(places))
        follows = place < len(places) and places[place] == work.began
        places[place:place + 1] = [work.ended]
        number, drawn = len(bars), []
        for wait in work.waits:
            if _skipped_at(wait.began, skipped) is None and _skipped_at(wait.until, skipped) is None:
                drawn.append((wait, ("w", 2 * waits), ("w", 2 * waits + 1)))
                waits += 1
        bars.append(Bar(work=work, place=place, follows=follows, waits=tuple(drawn),
                        top=("b", number) if first is None else (first, 1),
                        bottom=("e", number) if last is None else (last, 0)))
    return bars


def _skipped_at(at: float, skipped: Sequence[tuple[int, Skipped]]) -> int | None:
    return next((index for index, item in skipped if item.at < at < item.until), None)


def places_of(bars: Sequence[Bar], nodes: Sequence[str]) -> dict[tuple[str, str], int]:
    """How wide each lane is, by process and name, in the order in which they stand."""
    found: dict[tuple[str, str], int] = {}
    for bar in bars:
        lane = base(bar.work.node), bar.work.lane
        found[lane] = max(found.get(lane, 0), bar.place + 1)
    return dict(sorted(found.items(), key=lambda entry: (nodes.index(entry[0][0]), _ORDER.index(entry[0][1]))))


def legend_of(bars: Sequence[Bar]) -> tuple[tuple[str, str], ...]:
    """(look, words) of all that is drawn."""
    looks = {_LOOKS[bar.work.what] for bar in bars}
    looks |= {look for look, is_there in (("wait", any(bar.waits for bar in bars)),
                                          ("open", any(not bar.work.is_over for bar in bars))) if is_there}
    return tuple((look, words) for look, words in _WORDS.items() if look in looks)


def points_of(bars: Sequence[Bar]) -> list[Point]:
    """Of one moment: a bar begins behind what arrives and before what is sent; it ends last of all."""
    points: list[Point] = []
    for number, bar in enumerate(bars):
        if bar.top == ("b", number):
            points.append((bar.work.began, 3.0 + _behind(points) if bar.follows else 0.5, EDGE_GAP, bar.top))
        for wait, began, until in bar.waits:
            points.append((wait.began, 3.0 + _behind(points), EDGE_GAP, began))
            points.append((wait.until, 3.0 + _behind(points), EDGE_GAP, until))
        if bar.bottom == ("e", number):
            points.append((bar.work.ended, 3.0 + _behind(points), EDGE_GAP, bar.bottom))
    return points


def _behind(points: Sequence[Point]) -> float:
    """What comes later has more."""
    return len(points) / 1e6


def room(key: Key, gap: float, reached: float, heights: Mapping[Key, float], bars: Sequence[Bar]) -> float:
    """The gap to what is above: the end of a bar leaves room for its number."""
    if key[0] != "e":
        return gap
    return max(gap, heights[bars[key[1]].top] + BAR - reached)


def draw(bars: Sequence[Bar], heights: Mapping[Key, float], columns: Columns) -> list[Markup]:
    parts = []
    for bar in bars:
        work = bar.work
        x = columns.lanes[base(work.node), work.lane][bar.place] + 3.0
        top, bottom = heights[bar.top], heights[bar.bottom]
        shapes = [tag("rect", x=x, y=top, width=LANE - 6.0, height=max(1.0, bottom - top))]
        shapes += [tag("rect", x=x, y=heights[began], width=LANE - 6.0, height=heights[until] - heights[began],
                       class_="wait") for _, began, until in bar.waits]
        if work.step is not None and bottom - top >= BAR - 1.0:
            shapes.append(text(x + LANE / 2.0 - 3.0, top + 9.5, f"{work.step}", None, "middle"))
        look = _LOOKS[work.what] + ("" if work.is_over else " open")
        parts.append(tag("g", tag("title", _title(work)), *shapes, class_=f"s {look}"))
    return parts


def _title(work: Work) -> str:
    step = f"step {work.step}" if work.step is not None else "a call that is no step"
    what = {IN_FLIGHT: f"{step} in flight", ANSWER: f"answer of {step}"}.get(work.what, f"{work.what} of {step}")
    words = f"{base(work.node)}: {what}, from {clock(work.began)}, {duration(work.ended - work.began)}"
    waited = sum(wait.until - wait.began for wait in work.waits)
    if waited:
        words += f", {duration(waited)} of it in pipe:receive"
    return words if work.is_over else words + ", and no record says that it ended"

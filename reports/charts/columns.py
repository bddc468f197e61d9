"""Where each process of a sequence chart stands, its lanes, and the names above them.

    stage 0: worker.0, worker.1        of an engine that has several
    | core.0 |        | worker.0 |
    in flight         main copy        one lane for each thread whose steps are drawn
    |  |  |           |  |   |

The line of a process is at the left of its lanes: what comes from the left ends there, what comes from the right at
the right of them. Without lanes both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from markupsafe import Markup

from reports.charts.bubbles import Stage
from reports.charts.svg import line, tag, text

LEFT, COLUMN, RIGHT, HEADS, ROW = 74.0, 122.0, 176.0, 32.0, 15.0
LANE = 34.0


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """`lines` and `rights` are of processes; `lanes`, by process and name, have the left edges of each one's places."""

    nodes: list[str]
    lines: dict[str, float]
    rights: dict[str, float]
    lanes: dict[tuple[str, str], list[float]]
    right: float

    def from_to(self, source: str, target: str) -> tuple[float, float, float]:
        """Where an arrow begins and ends, and 1 if it goes to the right, else -1."""
        if self.lines[target] >= self.lines[source]:
            return self.rights[source], self.lines[target], 1.0
        return self.lines[source], self.rights[target], -1.0

    def middle(self, node: str) -> float:
        return (self.lines[node] + self.rights[node]) / 2.0


def columns_of(nodes: Sequence[str], places: Mapping[tuple[str, str], int]) -> Columns:
    """`places`: how many spans of a lane lie beside each other at most, by process and name, in order."""
    lines: dict[str, float] = {}
    rights: dict[str, float] = {}
    lanes: dict[tuple[str, str], list[float]] = {}
    x = LEFT + COLUMN * 0.5
    for node in nodes:
        lines[node] = x
        for (owner, lane), number in places.items():
            if owner == node:
                lanes[node, lane] = [x + LANE * place for place in range(number)]
                x += LANE * number
        rights[node] = x
        x += COLUMN
    return Columns(nodes=list(nodes), lines=lines, rights=rights, lanes=lanes, right=x - COLUMN * 0.5)


def heads(columns: Columns, stages: Sequence[Stage], width: float) -> Markup:
    """The chart itself says the names to who does not see it."""
    staged = [stage for stage in stages if not stage.only and columns.lanes and set(stage.ranks) <= set(columns.nodes)]
    top = ROW if staged else 0.0
    height = top + HEADS + (ROW if columns.lanes else 0.0)
    parts = [part for stage in staged for part in _stage(stage, columns, len({s.engine for s in staged}) > 1)]
    parts += [part for node in columns.nodes for part in name(node, columns.middle(node), top + 18.0)]
    parts += [text((xs[0] + xs[-1] + LANE) / 2.0, height - 4.0, lane, "lanename", "middle")
              for (_, lane), xs in columns.lanes.items()]
    return tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", width=width, height=height,
               class_="sequence heads", aria_hidden="true")


def _stage(stage: Stage, columns: Columns, several: bool) -> tuple[Markup, Markup]:
    first, last = columns.middle(stage.ranks[0]), columns.middle(stage.ranks[-1])
    words = f"engine {stage.engine}, " if several else ""
    words += f"{stage.name}: {', '.join(stage.ranks)}"
    return (line(first - 50.0, ROW - 1.0, last + 50.0, ROW - 1.0, "stage"),
            text((first + last) / 2.0, ROW - 4.0, words, "stagename", "middle"))


def name(node: str, x: float, y: float) -> tuple[Markup, Markup]:
    return (tag("rect", x=x - 50.0, y=y - 14.0, width=100, height=20, rx=4, class_="head"),
            text(x, y, node, "name", "middle"))


def rails(columns: Columns, top: float, bottom: float) -> list[Markup]:
    """The right edges of all lanes."""
    return [line(x + LANE, top, x + LANE, bottom, "rail") for xs in columns.lanes.values() for x in xs]

"""How long it took until callers were told: every fault of every run as one dot on a logarithmic axis.

                       1 ms        10 ms       100 ms         1 s
    kill    engine      |      . .::..   |         |
            twin        |        :       |         |

One row per fate and world, so that a stop that needs its deadline does not hide a slow answer to a kill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import ceil, floor, log10

import msgspec
from markupsafe import Markup

from reports.charts.svg import drawing, line, tag, text
from reports.collect import PlayedScenario
from reports.formats import count, duration
from scenarios.history.run import Run
from scenarios.worlds.registry import in_order, known

WIDTH, LEFT, RIGHT, TOP, ROW, DOT = 720.0, 128.0, 22.0, 30.0, 34.0, 4.0
SHORTEST_S = 1e-5  # the twin may answer at the same virtual instant: a logarithm needs more than nothing


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    fate: str
    world: str
    took: float  # seconds
    scenario: str
    fault: str
    number: int  # of the scenario
    anchor: str  # of the run


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The same in numbers."""

    fate: str
    world: str
    times: list[float]

    def share(self, part: float) -> float:
        """The nearest-rank quantile, so that every printed time was really measured."""
        times = sorted(self.times)
        return times[max(0, ceil(part * len(times)) - 1)]


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    svg: Markup
    rows: list[Row]


def detections_of(scenarios: Sequence[PlayedScenario], anchor_of: Callable[[Run], str]) -> list[Detection]:
    found = []
    for scenario in scenarios:
        for run in scenario.runs:
            fates = {fault.id: fault.fate.value for fault in run.play.plan.faults}
            found += [
                Detection(fate=fates.get(receipt.id, "fault"), world=run.play.world, fault=receipt.id,
                          took=receipt.detected_at - receipt.at, scenario=scenario.name, number=scenario.number,
                          anchor=anchor_of(run))
                for receipt in (run.judgement.faults if run.judgement else [])
                if receipt.fired and receipt.at is not None and receipt.detected_at is not None
            ]
    return found


def strip(detections: Sequence[Detection], bound_s: float | None = None) -> Strip | None:
    """None where nothing was detected. `bound_s` draws the bound for kills."""
    if not detections:
        return None
    groups: dict[tuple[str, str], list[Detection]] = defaultdict(list)
    for detection in detections:
        groups[detection.fate, detection.world].append(detection)
    worlds = list(reversed(in_order(d.world for d in detections)))  # the engine first: it is what ships
    keys = sorted(groups, key=lambda key: (key[0], worlds.index(key[1])))
    low = floor(log10(max(SHORTEST_S, min(d.took for d in detections))))
    high = max(ceil(log10(max(SHORTEST_S, bound_s or 0.0, *(d.took for d in detections)))), low + 1)

    def x_of(took: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (log10(max(took, SHORTEST_S)) - low) / (high - low)

    base = TOP + ROW * len(keys)
    parts = [part for decade in range(low, high + 1)
             for part in (line(x_of(10.0**decade), TOP - 6.0, x_of(10.0**decade), base, "grid"),
                          text(x_of(10.0**decade), TOP - 12.0, duration(10.0**decade), None, "middle"))]
    for number, key in enumerate(keys):
        first = number == 0 or keys[number - 1][0] != key[0]
        parts += _row(key, groups[key], TOP + ROW * (number + 1) - 9.0, x_of, first)
    kills = [number for number, key in enumerate(keys) if key[0] == "kill"]
    if bound_s and kills:
        top, end = TOP + ROW * kills[0], TOP + ROW * (kills[-1] + 1)
        parts += [line(x_of(bound_s), top, x_of(bound_s), end, "bound"),
                  text(x_of(bound_s) + 4.0, top + 10.0, f"bound {duration(bound_s)}", "boundword")]
    rows = [Row(fate=key[0], world=key[1], times=[d.took for d in groups[key]]) for key in keys]
    label = f"Time from a fault to the word to callers, {count(len(detections), 'detection')}, logarithmic axis"
    return Strip(svg=drawing(WIDTH, base + 8.0, label, "strip", parts), rows=rows)


def _row(key: tuple[str, str], group: Sequence[Detection], y: float, x_of: Callable[[float], float], first: bool,
         ) -> list[Markup]:
    fate, world = key
    parts = [line(LEFT, y + DOT, WIDTH - RIGHT, y + DOT, "rule"),
             text(LEFT - 10.0, y + 3.0, known(world).word, "world", "end")]
    if first:
        parts.append(text(4.0, y + 3.0, fate, "fate"))
    stacked: dict[int, int] = defaultdict(int)
    for detection in sorted(group, key=lambda d: d.took):
        x = x_of(detection.took)
        place = round(x / (2 * DOT))
        height = min(stacked[place], 5)  # a taller heap would grow into the row above; it only gets darker
        stacked[place] += 1
        dot = (tag("rect", x=x - DOT + 0.5, y=y - height * 4.4 - DOT + 0.5, width=2 * DOT - 1, height=2 * DOT - 1)
               if known(world).virtual_time else tag("circle", cx=x, cy=y - height * 4.4, r=DOT))
        title = f"{detection.scenario}, {world}, {detection.fault} {fate}: told after {duration(detection.took)}"
        parts.append(tag("a", tag("title", title), dot, href=f"#s{detection.number}",
                         data_to=detection.anchor, class_=f"d {world}", tabindex=-1))
    return parts

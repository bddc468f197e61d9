"""A lane for each rank of cores that step together: time to the right, its waves behind what it did in them.

               f1 kill
                  |
    core.0   [wave 0 ▸  ■ ■ ■ (2) ■ ■ ■ ■ (1)   ]  ‖ paused ‖  [wave 1 ...
    core.1   [wave 0 ▸  □ □ ■ (2) ■ ✕ died: SIGKILL

A real forward is a filled bar, a dummy one is hollow with a stroke through it; an all-reduce is a disc with what it
answered: how many ranks have something left to do, and behind a bar how many want to pause. The same moment has the
same place in all lanes. The axis is not linear: every bar and disc has room, and a longer rest is cut short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

import msgspec
from markupsafe import Markup

from reports.charts.group.waves import AllReduce, Forward, RankLane, Span, Start, Wave, ranks_of
from reports.charts.notable import lives_of, moments_of
from reports.charts.svg import drawing, line, tag, text
from reports.formats import clock, clocks, count, duration
from scenarios.history.names import of_life
from scenarios.history.run import Run

LEFT, RIGHT, HEAD, FOOT = 92.0, 110.0, 26.0, 22.0
SIGNS, WORDS, BAR, ROW = 13.0, 17.0, 16.0, 19.0  # heights: what was heard, a wave's number, a forward, a row of them
FORWARD, NARROW, DISC, WIDE = 11.0, 7.0, 17.0, 26.0  # widths: a usual forward, the shortest, answers of one and two
CUT = 44.0  # longest rest, in pixels
TICK = 64.0
#: Forwards that are drawn of all ranks together; of more, those at the beginning and at the end.
MOST = 1600


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """`legend`: looks of what is drawn, with their words."""

    svg: Markup
    sentence: str
    legend: tuple[tuple[str, str], ...]


_LEGEND = {"wave": "a wave, by its number", "real": "a forward with work", "dummy": "a dummy forward",
           "reduce": "an all-reduce: how many have work left | want to pause", "start": "START heard: it runs now",
           "idle": "START heard: it ran already, or does not", "pause": "paused, until it goes on",
           "open": "no record says that it ended", "death": "it died"}


class _Axis:
    """Time -> place. In each lane every end is at least so far behind its beginning as it asks for."""

    def __init__(self, lanes: Sequence[RankLane], others: Sequence[float]) -> None:
        forwards = [forward.ended - forward.began for lane in lanes for forward in lane.forwards]
        scale = FORWARD / max(median(forwards) if forwards else 1.0, 1e-7)
        points = sorted([*(point for number, lane in enumerate(lanes) for point in _points(number, lane)),
                         *((at, -1, at, 0.0) for at in others)])
        self.times: list[float] = []
        self.xs: list[float] = []
        self.cuts: list[tuple[float, float, float]] = []  # from, to, seconds
        for at, group in groupby(points, key=lambda point: point[0]):
            x = LEFT + 8.0
            if self.times:
                waited = at - self.times[-1]
                x = self.xs[-1] + min(CUT, waited * scale)
                if waited * scale > CUT:
                    self.cuts.append((self.xs[-1], x, waited))
            x = max([x, *(self.at(since) + room for _, _, since, room in group if room)])
            self.times.append(at)
            self.xs.append(x)

    def at(self, time: float) -> float:
        place = bisect_right(self.times, time) - 1
        if place < 0:
            return LEFT
        if place == len(self.times) - 1:
            return self.xs[place]
        before, after = self.times[place], self.times[place + 1]
        share = (time - before) / (after - before)
        return self.xs[place] + share * (self.xs[place + 1] - self.xs[place])


def _points(number: int, lane: RankLane) -> Iterator[tuple[float, int, float, float]]:
    """(when, lane, since when, room that it needs since then)"""
    for span in lane.spans:
        room = _width(span) if isinstance(span, AllReduce) else NARROW if isinstance(span, Forward) else 0.0
        yield span.began, number, span.began, 0.0
        if span.ended > span.began:
            yield span.ended, number, span.began, room
    for start in lane.starts:
        yield start.at, number, start.at, 0.0


def rank_charts(run: Run) -> list[Lanes]:
    """One for each group; none of a play whose cores do not step together."""
    return [_chart(run, lanes) for lanes in ranks_of(run.history)
            if any(lane.forwards or lane.starts for lane in lanes)]


def _chart(run: Run, whole: Sequence[RankLane]) -> Lanes:
    lanes, left_out = _few(whole)
    origin = min(span.began for lane in lanes for span in lane.spans) if any(
        lane.forwards for lane in lanes) else min(start.at for lane in lanes for start in lane.starts)
    deaths = _deaths(run, {lane.node for lane in lanes})
    faults = [moment for moment in moments_of(run) if moment.kind == "fault" and moment.at >= origin]
    axis = _Axis(lanes, [*(at for at, _ in deaths.values() if at >= origin), *(moment.at for moment in faults)])
    right = axis.xs[-1] + 12.0
    tops, y = [], HEAD
    for lane in lanes:
        tops.append(y)
        y += _height(lane) + 10.0
    parts: list[Markup] = []
    for lane, top in zip(lanes, tops, strict=True):
        parts += _lane(lane, top, axis, right, deaths.get(lane.node))
    parts += _cuts(axis, y)
    parts += _faults([(axis.at(moment.at), moment.label, moment.text) for moment in faults], y)
    parts += _ticks(axis, y)
    sentence = _sentence(whole, left_out)
    return Lanes(svg=drawing(right + RIGHT, y + FOOT, f"Ranks in step: {sentence}", "ranks", parts), sentence=sentence,
                 legend=_legend(lanes, deaths))


def _few(lanes: Sequence[RankLane]) -> tuple[list[RankLane], int]:
    """-> lanes without what lies between the first and the last forwards that have room, and how many those are"""
    ends = sorted(forward.began for lane in lanes for forward in lane.forwards)
    if len(ends) <= MOST:
        return list(lanes), 0
    first, last = ends[MOST // 2], ends[-MOST // 2]

    def kept(began: float, ended: float) -> bool:
        return ended <= first or began >= last

    few = [msgspec.structs.replace(
        lane, forwards=[one for one in lane.forwards if kept(one.began, one.began)],
        all_reduces=[one for one in lane.all_reduces if kept(one.began, one.began)],
        starts=[one for one in lane.starts if kept(one.at, one.at)],
        waves=[one for one in lane.waves if one.began <= first or one.ended >= last],
        pauses=[one for one in lane.pauses if one.began <= first or one.ended >= last]) for lane in lanes]
    return few, len(ends) - sum(len(lane.forwards) for lane in few)


def _deaths(run: Run, nodes: set[str]) -> dict[str, tuple[float, str]]:
    found = {of_life(life.node, life.life): (life.ended, life.died) for life in lives_of(run)
             if life.died is not None and life.ended is not None}
    return {node: death for node, death in found.items() if node in nodes}


def _sentence(lanes: Sequence[RankLane], left_out: int) -> str:
    forwards = [forward for lane in lanes for forward in lane.forwards]
    dummy = sum(forward.dummy for forward in forwards)
    words = (f"{', '.join(lane.node for lane in lanes)}: {count(max(len(lane.waves) for lane in lanes), 'wave')}, "
             f"{count(len(forwards), 'forward')}, {dummy:,} of them dummy, "
             f"{count(max(len(lane.all_reduces) for lane in lanes), 'all-reduce')} of each")
    return words + (f"; {count(left_out, 'forward')} in the middle not drawn" if left_out else "")


def _legend(lanes: Sequence[RankLane], deaths: object) -> tuple[tuple[str, str], ...]:
    forwards = [forward for lane in lanes for forward in lane.forwards]
    starts = [start for lane in lanes for start in lane.starts]
    there = {"wave": any(lane.waves for lane in lanes), "real": any(not one.dummy for one in forwards),
             "dummy": any(one.dummy for one in forwards), "reduce": any(lane.all_reduces for lane in lanes),
             "start": any(one.runs for one in starts), "idle": any(not one.runs for one in starts),
             "pause": any(lane.pauses for lane in lanes),
             "open": any(not one.is_over for lane in lanes for one in (*lane.forwards, *lane.all_reduces)),
             "death": bool(deaths)}
    return tuple((look, words) for look, words in _LEGEND.items() if there[look])


# -- one lane


def _rows(lane: RankLane) -> int:
    return max((forward.place for forward in lane.forwards), default=0) + 1


def _height(lane: RankLane) -> float:
    return SIGNS + WORDS + ROW * _rows(lane) + 1.0


def _lane(lane: RankLane, top: float, axis: _Axis, right: float, death: tuple[float, str] | None) -> Iterator[Markup]:
    height, bars = _height(lane) - SIGNS, top + SIGNS + WORDS
    yield text(LEFT - 10.0, bars + BAR / 2.0 + 4.0, lane.node, "name", "end")
    end = min(right, axis.at(lane.ended) if death is not None else right)
    yield line(LEFT, top + SIGNS + height, end, top + SIGNS + height, "life")
    for wave in lane.waves:
        yield _wave(lane.node, wave, top + SIGNS, height, axis)
    for pause in lane.pauses:
        yield _pause(lane.node, pause, top + SIGNS, height, axis)
    for forward in lane.forwards:
        yield _forward(lane.node, forward, bars + ROW * forward.place, axis)
    for one in lane.all_reduces:
        yield _all_reduce(lane.node, one, bars + BAR / 2.0, axis)
    for start in lane.starts:
        yield _start(lane.node, start, top, axis)
    if death is not None:
        at, how = death
        x, y = axis.at(at), bars + BAR / 2.0
        yield tag("g", tag("title", f"{lane.node} died at {clock(at)}: {how}"),
                  tag("path", d=f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"),
                  text(x + 10.0, y + 4.0, f"died: {how}"), class_="death")


def _open(span: Span) -> str:
    return "" if span.is_over else " open"


def _told(span: Span) -> str:
    words = f"from {clock(span.began)}, {duration(span.ended - span.began)}"
    return words if span.is_over else words + ", and no record says that it ended"


def _wave(node: str, wave: Wave, top: float, height: float, axis: _Axis) -> Markup:
    x, end = axis.at(wave.began), axis.at(wave.ended)
    words = f"wave {wave.number}" if end - x > 58.0 else f"{wave.number}"
    return tag("g", tag("title", f"{node}: wave {wave.number}, {_told(wave)}"),
               tag("rect", x=x, y=top, width=max(2.0, end - x), height=height),
               text(x + 4.0, top + 12.0, words) if end - x > 4.0 + 6.5 * len(words) else "",
               class_=f"wave {'odd' if wave.number % 2 else 'even'}{_open(wave)}")


def _pause(node: str, pause: Span, top: float, height: float, axis: _Axis) -> Markup:
    x, end = axis.at(pause.began), axis.at(pause.ended)
    return tag("g", tag("title", f"{node}: paused, {_told(pause)}"),
               tag("rect", x=x, y=top, width=max(2.0, end - x), height=height),
               tag("path", d=f"M{x + 3:.1f} {top + 4:.1f}v9m4 0v-9"), class_=f"pause{_open(pause)}")


def _forward(node: str, forward: Forward, y: float, axis: _Axis) -> Markup:
    x = round(axis.at(forward.began))
    width = max(2, round(axis.at(forward.ended)) - x - 1)
    stroke = tag("path", d=f"M{x} {y + BAR:.0f}l{width} {-BAR:.0f}") if forward.dummy else ""
    return tag("g", tag("title", f"{node}: {forward.words}, {_told(forward)}"),
               tag("rect", x=x, y=y, width=width, height=BAR), stroke,
               class_=f"{'dummy' if forward.dummy else 'real'}{_open(forward)}")


def _all_reduce(node: str, one: AllReduce, y: float, axis: _Axis) -> Markup:
    """In the middle of its time, as large as there is always room for; of one without an answer where it began."""
    width = _width(one)
    x = (axis.at(one.began) + axis.at(one.ended)) / 2.0 if one.is_over else axis.at(one.began) + width / 2.0
    return tag("g", tag("title", f"{node}: {one.words}, {_told(one)}"),
               tag("ellipse", cx=round(x), cy=y, rx=width / 2.0 - 0.5, ry=BAR / 2.0),
               text(round(x), y + 4.0, _answer(one)), class_=f"reduce{_open(one)}")


def _answer(one: AllReduce) -> str:
    """Who wants to pause is told of where anybody does."""
    return "|".join(map(str, one.answer if any(one.answer[1:]) else one.answer[:1])) or "?"


def _width(one: AllReduce) -> float:
    return DISC if len(_answer(one)) < 3 else WIDE


def _start(node: str, start: Start, top: float, axis: _Axis) -> Markup:
    x = round(axis.at(start.at))
    what = "runs now" if start.runs else "changes nothing"
    return tag("g", tag("title", f"{node}: START of wave {start.wave} heard at {clock(start.at)}, {what}"),
               tag("path", d=f"M{x} {top + 1:.0f}v10l8 -5z"), class_="start" if start.runs else "idle")


# -- over all lanes


def _cuts(axis: _Axis, bottom: float) -> Iterator[Markup]:
    for x, end, waited in axis.cuts:
        middle = (x + end) / 2.0
        yield tag("g", tag("title", f"{duration(waited)} cut short"),
                  tag("path", d=f"M{middle - 4:.1f} {bottom - 2:.1f}l3 -8l2 8l3 -8"), class_="cut")


def _faults(faults: Sequence[tuple[float, str, str]], bottom: float) -> Iterator[Markup]:
    """Their words lie beside each other as far as they fit."""
    free = 0.0
    for x, label, sentence in faults:
        fits = x - 4.0 >= free
        free = x + 6.2 * len(label) if fits else free
        yield tag("g", tag("title", sentence), line(x, HEAD - 8.0, x, bottom, "faultline"),
                  tag("path", d=f"M{x + 2:.1f} {HEAD - 20:.1f}l-8 11h5l-3 8 9-11h-5z", class_="flash"),
                  text(x + 8.0, HEAD - 10.0, label) if fits else "", class_="fault")


def _ticks(axis: _Axis, bottom: float) -> Iterator[Markup]:
    chosen: list[tuple[float, float]] = []
    for at, x in zip(axis.times, axis.xs, strict=True):
        if not chosen or x - chosen[-1][1] >= TICK:
            chosen.append((at, x))
    for (_, x), label in zip(chosen, clocks([at for at, _ in chosen]), strict=True):
        yield line(x, bottom, x, bottom + 4.0, "axis")
        yield text(x, bottom + 16.0, label, "tick", "middle")

"""The sequence chart of one run: processes as lines downwards, messages as arrows, time running down.

      time      frontend.0        core.0         worker.0       worker.1
     0.000 s        |---requests 1-->|               |              |
                    |                |----rpc 4 step 1-->           |
                    |                |----rpc 4 step 1------------->|
     0.412 s  - - - | - - - - - - - -| - - - - - - - | - - - - - - -⚡ f1 kill  ┐
                    |                |               |              ×          │ told after 19 ms
     0.431 s        ⚑ told           |               |                         ┘

The axis is not linear: every drawn event has room for its label, and longer waits take more of it, but an
hour does not take an hour's paper. Moments carry their true time at the left. Where steps overlap, threads have lanes
beside their process, and steps are bars in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log10

import msgspec
from markupsafe import Markup

from reports.charts import columns as heading
from reports.charts import lanes as stepping
from reports.charts.arrows import Arrow, Burst, Collective, Passed, Shown, Skipped, arrows_of, bursts, column, select
from reports.charts.bubbles import bubbles_of, stages_of
from reports.charts.columns import LEFT, RIGHT, Columns, columns_of
from reports.charts.lanes import Bar, bars_of, places_of, points_of
from reports.charts.notable import Lifeline, Moment, Span, lives_of, moments_of, spans_of
from reports.charts.steps import lanes_of
from reports.charts.svg import drawing, line, tag, text
from reports.formats import clock, clocks, count, duration, listed
from scenarios.history.names import base
from scenarios.history.run import Run

TOP = 10.0
ARROW_GAP, ARRIVAL_GAP, MOMENT_GAP, SKIP_GAP = 12.0, 2.0, 18.0, 13.0
LONG = 700.0  # a chart that is printed on several pages has its names below, too
AFTER_GAP = 18.0  # what follows a moment or a skipped stretch has its label above itself
#: Moments that draw the neighbouring messages into the chart.
ANCHORS = ("fault", "death", "told", "released", "kv")
MOST_MOMENTS = 40

#: What has a place on the paper: an item's beginning (index, 0) or end (index, 1), of a burst also the last send
#: (index, 2) and the last arrival (index, 3), the nth moment ("m", n), or what `lanes` has to place.
Key = tuple[int | str, int]
Heights = dict[Key, float]
#: Its time, its place among those of the same time, its gap to what is above, and what it is.
Point = tuple[float, float, float, Key]


class Axis(msgspec.Struct):
    """Time -> height. `place` is asked in order of time, `at` afterwards for any time."""

    times: list[float] = []
    heights: list[float] = []

    def place(self, time: float, gap: float) -> float:
        """The height of the next event: at least `gap` below the last, more after a longer wait."""
        if not self.times:
            height = TOP + gap
        else:
            waited = max(0.0, time - self.times[-1])
            height = self.heights[-1] + max(gap, min(24.0, 5.0 * log10(1.0 + waited / 1e-4)))
        self.times.append(time)
        self.heights.append(height)
        return height

    def at(self, time: float) -> float:
        index = bisect_right(self.times, time)
        if index == 0:
            return TOP + 4.0
        if index == len(self.times):
            return self.heights[-1] + (8.0 if time > self.times[-1] else 0.0)
        before, after = self.times[index - 1], self.times[index]
        share = (time - before) / (after - before) if after > before else 0.0
        return self.heights[index - 1] + share * (self.heights[index] - self.heights[index - 1])


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing and what it shows, in numbers. `heads` are the names above it, which stay in view while it scrolls.

    `legend`: looks and words of the steps that are drawn; `bubbles`: a sentence for each stage.
    """

    svg: Markup
    heads: Markup
    drawn: int
    messages: int
    legend: tuple[tuple[str, str], ...] = ()
    bubbles: tuple[str, ...] = ()


def sequence_chart(run: Run, cap: int = 90, prefix: str = "") -> Chart:
    """The chart of one run, with at most `cap` messages drawn. Faults get the ids `{prefix}-{fault}`."""
    origin = run.history.began_at
    moments = moments_of(run)
    moments = [m for m in moments if m.kind != "note"][:MOST_MOMENTS] + \
              [m for m in moments if m.kind == "note"][:MOST_MOMENTS // 2]
    moments.sort(key=lambda moment: moment.at)
    every = arrows_of(run.history)
    works = lanes_of(run.history)
    items = bursts(stepping.among(every, works, origin), [m.at + origin for m in moments])
    anchors = [m.at for m in moments if m.kind in ANCHORS] or stepping.fullest(works)
    shown = select(items, [at + origin for at in anchors], cap)
    shown = [_from_origin(item, origin) for item in shown]
    lives = lives_of(run)
    nodes = _nodes(run, shown, moments, lives)
    bars = bars_of(works, [(index, item) for index, item in enumerate(shown) if isinstance(item, Skipped)])
    columns = columns_of(nodes, places_of(bars, nodes))
    right = columns.right

    axis = Axis()
    placed = _place(axis, shown, moments, bars)
    bottom = max(axis.heights, default=TOP) + 26.0
    width = right + RIGHT
    parts = heading.rails(columns, TOP, bottom)
    parts += _fault_lines(moments, placed, right)
    parts += _lifelines(lives, columns, axis, bottom)
    parts += stepping.draw(bars, placed, columns)
    # Words last: a line that comes later must not lie on them.
    words: list[Markup] = []
    for index, item in enumerate(shown):
        if isinstance(item, Passed):
            continue
        shape, label = _item(item, index, placed, columns)
        parts.append(shape)
        words.append(label)
    parts += words
    parts += _marks(moments, placed, columns, prefix)
    parts += _brackets(spans_of(run), moments, placed, right)
    parts += _clock(moments, placed, shown)
    drawn = len(every) - sum(item.count for item in shown if isinstance(item, Skipped))
    return Chart(svg=drawing(width, bottom + 24.0, _label(run, drawn, len(every), moments), "sequence", parts),
                 heads=heading.heads(columns, stages_of(run.history), width), drawn=drawn, messages=len(every),
                 legend=stepping.legend_of(bars),
                 bubbles=tuple(bubble.sentence for bubble in bubbles_of(run.history, works)))


def _from_origin(item: Shown, origin: float) -> Shown:
    if isinstance(item, Burst):
        return Burst(arrows=[_arrow_from(arrow, origin) for arrow in item.arrows])
    if isinstance(item, Collective):
        return msgspec.structs.replace(item, entered={node: at - origin for node, at in item.entered.items()})
    if isinstance(item, Skipped):
        return Skipped(at=item.at - origin, until=item.until - origin, channels=item.channels)
    if isinstance(item, Passed):
        return Passed(at=item.at - origin, until=item.until - origin)
    return _arrow_from(item, origin)


def _arrow_from(item: Arrow, origin: float) -> Arrow:
    return msgspec.structs.replace(
        item, sent_at=None if item.sent_at is None else item.sent_at - origin,
        received_at=None if item.received_at is None else item.received_at - origin)


def _nodes(run: Run, shown: Sequence[Shown], moments: Sequence[Moment],
           lives: Sequence[Lifeline]) -> list[str]:
    names = {base(str(node)) for node in run.play.topology.nodes}
    names |= {life.node for life in lives} | {moment.node for moment in moments}
    arrows = [item.first if isinstance(item, Burst) else item for item in shown]
    names |= {name for item in arrows if isinstance(item, Arrow) for name in (item.source, item.target)}
    names |= {name for item in shown if isinstance(item, Collective) for name in item.entered}
    return sorted(names, key=column)


def _place(axis: Axis, shown: Sequence[Shown], moments: Sequence[Moment], bars: Sequence[Bar]) -> Heights:
    points: list[Point] = points_of(bars)
    for index, item in enumerate(shown):
        if isinstance(item, Burst):
            points += [(item.at, 1, ARROW_GAP, (index, 0)), (item.last.at, 1, ARROW_GAP, (index, 2)),
                       (item.first.until, 0, ARRIVAL_GAP, (index, 1)), (item.until, 0, ARROW_GAP, (index, 3))]
            continue
        if isinstance(item, Passed):
            continue
        skipped = isinstance(item, Skipped)
        points.append((item.at, 1, SKIP_GAP if skipped else ARROW_GAP, (index, 0)))
        if skipped or (isinstance(item, Arrow) and item.whole):
            points.append((item.until, 0 if not skipped else 1, SKIP_GAP if skipped else ARRIVAL_GAP, (index, 1)))
    points += [(moment.at, 2, MOMENT_GAP, ("m", number)) for number, moment in enumerate(moments)]
    # At one instant (the twin has many) an arrow must not arrive above its own beginning.
    points.sort(key=lambda point: (point[0], _begins_now(point, shown), point[1]))
    heights: Heights = {}
    wide = False
    for time, _, gap, key in points:
        gap = stepping.room(key, gap, axis.heights[-1] if axis.heights else TOP, heights, bars)
        heights[key] = axis.place(time, max(gap, AFTER_GAP) if wide else gap)
        wide = key[0] == "m" or (isinstance(key[0], int) and isinstance(shown[key[0]], Skipped))
    return heights


def _begins_now(point: Point, shown: Sequence[Shown]) -> int:
    """Whether this is the end of something that began at the same instant."""
    time, _, _, (index, end) = point
    item = shown[index] if isinstance(index, int) else None
    if item is None or isinstance(item, Skipped):
        return 0
    began = item.last.at if isinstance(item, Burst) and end == 3 else item.at
    return int(end in (1, 3) and began == time)


def _fault_lines(moments: Sequence[Moment], placed: Heights, right: float) -> list[Markup]:
    return [line(LEFT - 4.0, placed["m", n], right + 8.0, placed["m", n], "faultline")
            for n, moment in enumerate(moments) if moment.kind == "fault"]


def _lifelines(lives: Sequence[Lifeline], columns: Columns, axis: Axis, bottom: float) -> list[Markup]:
    parts: list[Markup] = []
    if bottom > LONG:
        parts += [part for node in columns.nodes for part in heading.name(node, columns.middle(node), bottom + 12.0)]
    for life in lives:
        top, end = axis.at(life.began), bottom if life.ended is None else axis.at(life.ended)
        x = columns.lines[life.node]
        parts.append(line(x, max(TOP, top - 6.0), x, end, "life"))
        if life.ended is not None and life.died is None:
            parts.append(line(x - 7.0, end, x + 7.0, end, "left"))
    return parts


def _item(item: Arrow | Burst | Collective | Skipped, index: int, placed: Heights, columns: Columns,
          ) -> tuple[Markup, Markup]:
    """-> what is drawn, and its words"""
    y, y_end = placed[index, 0], placed.get((index, 1))
    if isinstance(item, Burst):
        return _burst(item, [placed[index, end] for end in range(4)], columns)
    if isinstance(item, Skipped):
        right = columns.right
        what = listed(f"{number:,} {channel}" for channel, number in sorted(item.channels.items()))
        words = f"{count(item.count, 'message')} in {duration(item.until - item.at)} not drawn"
        fits = f"{words}: {what}" if 5.6 * len(f"{words}: {what}") < right - LEFT else words
        height = (y_end or y) - y + 6.0
        return (tag("g", tag("title", f"{words}: {what}"),
                    tag("rect", x=LEFT, y=y - 3.0, width=right - LEFT, height=height, class_="skipped")),
                text((LEFT + right) / 2.0, y + 10.0, fits, "skiptext", "middle"))
    if isinstance(item, Collective):
        xs, beside = zip(*sorted((columns.lines[node], columns.rights[node]) for node in item.entered), strict=True)
        waited = f", first to last {duration(item.until - item.at)}" if len(xs) > 1 else ""
        # A stage of one rank meets nobody: beside the last one its words would lie on the brackets.
        label = text(xs[0] - 7.0, y - 2.5, item.words, None, "end") if columns.lanes and len(xs) == 1 else \
            text(beside[0] + 7.0, y - 2.5, item.words)
        return (tag("g", tag("title", f"{item.words}: {listed(sorted(item.entered))}{waited}"),
                    line(xs[0], y, xs[-1], y, "together"),
                    *(tag("circle", cx=x, cy=y, r=2.5) for x in xs), class_="c"),
                tag("g", label, class_="w c"))
    return _arrow(item, y, y_end, columns)


def _burst(item: Burst, heights: Sequence[float], columns: Columns) -> tuple[Markup, Markup]:
    """A band between its first message and its last, which are drawn as arrows."""
    first, last = item.first, item.last
    began, received, ended, over = heights
    x1, x2, side = columns.from_to(first.source, first.target)
    title = (f"{first.source} to {first.target}, {item.label}: {count(item.count, 'message')}, "
             f"sent from {clock(first.at)} to {clock(last.at)}, "
             f"received from {clock(first.until)} to {clock(last.until)}")
    band = tag("path", class_="band",
               d=f"M{x1:.0f} {began:.1f}L{x2:.0f} {received:.1f}V{over:.1f}L{x1:.0f} {ended:.1f}Z")
    label = text(x1 + 7.0 * side, began - 2.5, item.label, None, None if side > 0 else "end")
    return (tag("g", tag("title", title), band, tag("path", d=_path(x1, began, x2 - side, received)),
                tag("path", d=_path(x1, ended, x2 - side, over)), class_="a"), tag("g", label, class_="w"))


def _arrow(item: Arrow, y: float, y_end: float | None, columns: Columns) -> tuple[Markup, Markup]:
    x1, x2, side = columns.from_to(item.source, item.target)
    if item.whole:
        y2 = y if y_end is None else y_end
        story = f"sent at {clock(item.sent_at or 0)}, received after {duration(item.until - item.at)}"
        parts, class_ = [tag("path", d=_path(x1, y, x2 - side, y2))], "a hit" if item.fate else "a"
    elif item.sent_at is not None:
        half = x1 + (x2 - x1) * 0.6
        story, class_ = f"sent at {clock(item.sent_at)}, never received", "a lost"
        parts = [tag("path", d=_path(x1, y, half, y)), _cross(half + 5.0 * side, y, 3.5)]
    else:
        half = x1 + (x2 - x1) * 0.4
        story, class_ = f"received at {clock(item.at)} without a send of its own: doubled or forged", "a extra"
        parts = [tag("circle", cx=half, cy=y, r=2.5), tag("path", d=_path(half, y, x2 - side, y))]
    befell = f" {item.fate}" if item.fate else ""
    label = text(x1 + 7.0 * side, y - 2.5, item.label + befell, None, None if side > 0 else "end")
    by = f", {item.fate} by {item.fault}" if item.fault else f",{befell}" if befell else ""
    title = tag("title", f"{item.source} to {item.target}, {item.label}: {story}{by}")
    return tag("g", title, *parts, class_=class_), tag("g", label, class_="w" + class_[1:])


def _path(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"M{x1:.0f} {y1:.1f}L{x2:.0f} {y2:.1f}"


def _cross(x: float, y: float, r: float) -> Markup:
    return tag("path", d=f"M{x - r:.1f} {y - r:.1f}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}", class_="x")


def _marks(moments: Sequence[Moment], placed: Heights, columns: Columns, prefix: str) -> list[Markup]:
    parts = []
    for number, moment in enumerate(moments):
        x, beside, y = columns.lines[moment.node], columns.rights[moment.node], placed["m", number]
        shape = {
            "fault": lambda x, y: tag("path", d=f"M{x + 2:.1f} {y - 9:.1f}l-8 11h5l-3 8 9-11h-5z"),
            "death": lambda x, y: _cross(x, y, 6.0),
            "told": lambda x, y: tag("path", d=f"M{x:.1f} {y + 6:.1f}v-13l11 4-11 4"),
            "released": lambda x, y: tag("path", d=f"M{x - 4:.1f} {y - 5:.1f}l9 5-9 5z"),
            "kv": lambda x, y: tag("rect", x=x - 4.0, y=y - 4.0, width=8, height=8),
        }.get(moment.kind, lambda x, y: tag("circle", cx=x, cy=y, r=3))(x, y)
        words = moment.label if len(moment.label) <= 38 else moment.label[:37] + "…"
        # Long words beside the last process would lie on the brackets.
        left = moment.node == columns.nodes[-1] and len(words) > 14
        label = text(x - 11.0, y + 4.0, words, None, "end") if left else text(beside + 13.0, y + 4.0, words)
        parts.append(tag("g", tag("title", moment.text), shape, label,
                         class_=f"m {moment.kind}",
                         id=f"{prefix}-{moment.fault}" if prefix and moment.kind == "fault" else None))
    return parts


def _brackets(spans: Sequence[Span], moments: Sequence[Moment], placed: Heights, right: float) -> list[Markup]:
    """From a fault's own row to the row of what ended it, at the right of all processes."""
    rows = {(moment.fault, moment.kind): placed["m", n] for n, moment in reversed(list(enumerate(moments)))}
    drawn = [(span, rows[span.fault, "fault"], rows[span.fault, span.kind]) for span in spans
             if {(span.fault, "fault"), (span.fault, span.kind)} <= set(rows)]
    parts, low = [], 0.0
    for number, (span, top, end) in enumerate(sorted(drawn, key=lambda entry: entry[1:])[:8]):
        x = right + 42.0 + 9.0 * number
        word = "told after" if span.kind == "told" else "held for"
        middle = max((top + end) / 2.0, low)
        low = middle + 30.0  # words of two brackets must not lie on each other
        parts.append(tag("g", tag("path", d=f"M{x - 5:.1f} {top:.1f}h5V{end:.1f}h-5"),
                         text(x + 6.0, middle - 2.0, f"{span.fault} {word}"),
                         text(x + 6.0, middle + 11.0, duration(span.ended - span.began), "big"),
                         class_=f"bracket {span.kind}"))
    return parts


def _clock(moments: Sequence[Moment], placed: Heights, shown: Sequence[Shown]) -> list[Markup]:
    """Times at the left: of every moment that has room, then every now and then of a message; none is told twice."""
    chosen: list[tuple[float, float, str]] = []
    important = [(placed["m", n], m.at, "when") for n, m in enumerate(moments) if m.kind != "note"]
    ordinary = [(placed[n, 0], item.at, "tick") for n, item in enumerate(shown) if (n, 0) in placed]
    for wanted, room in ((important, 11.0), (ordinary, 40.0)):
        chosen += _apart(wanted, room, [y for y, _, _ in chosen])
    chosen.sort()
    labels = clocks([at for _, at, _ in chosen])
    return [text(LEFT - 10.0, y + 4.0, label, class_, "end")
            for (y, _, class_), label in zip(chosen, labels, strict=True) if label]


def _apart(marks: Sequence[tuple[float, float, str]], room: float, taken: Sequence[float],
           ) -> list[tuple[float, float, str]]:
    """Those with so much room to what has its place already, and to each other."""
    found: list[tuple[float, float, str]] = []
    for mark in marks:
        if all(abs(mark[0] - y) >= room for y in (*taken, *(other[0] for other in found))):
            found.append(mark)
    return found


def _label(run: Run, drawn: int, total: int, moments: Sequence[Moment]) -> str:
    what = listed((m.text for m in moments if m.kind in ANCHORS), limit=4) or "no fault"
    return (f"Sequence chart of {run.play.scenario} in the world {run.play.world}: "
            f"{drawn:,} of {count(total, 'message')} drawn; {what}")

"""The KV timeline of a subscriber: batch numbers upwards, time to the right.

    seq |                        ______ live
        |          [ gap  ]-----/ .
        |   ______/[......] . . .   replayed, later
        +--------------------------------- time
             live   noticed   healed

Only what is on record is drawn: a line is a staircase, whose steps are batches at the moments at which they were
published or applied. The thin line is what the core published; between it and the subscriber's own line stands the
loss. The shaded box runs from the batch that noticed it to the moment it was healed. A diamond is where the subscriber
began anew: from a snapshot of the publisher's state, or from nothing because the publisher was restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from markupsafe import Markup

from engine.topology import Channel, NodeKind
from faults.journal import Kind, Record
from reports.charts.svg import drawing, line, number, tag, text
from reports.formats import clocks, count, duration
from scenarios.history.events.followers import holes_of
from scenarios.history.history import History
from scenarios.history.names import base, life_of
from scenarios.history.run import Run

#: The crossing at which a live batch leaves its publisher.
_SENT = f"/{Channel.KV.value}:send"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720.0, 250.0, 64.0, 16.0, 26.0, 34.0
MOST_STROKES = 240
LETTER = 7.0  # pixels, at most


class Stretch(msgspec.Struct):
    """Batches that followed each other without a hole, from one source: (number, when) of each, as recorded."""

    source: str
    points: list[tuple[int, float]]


class DrawnGap(msgspec.Struct, frozen=True, kw_only=True):
    """Batches `first` to `last` were missing. `healed_at` is None while they are."""

    first: int
    last: int
    noticed_at: float
    published_at: float | None = None  # when the first of them left the core
    healed_at: float | None = None
    unrecoverable: bool = False

    @property
    def sentence(self) -> str:
        size = count(self.last - self.first + 1, "batch", "batches")
        which = f"{self.first} to {self.last}" if self.first != self.last else f"number {self.first}"
        words = f"{size} missing ({which})"
        if self.published_at is not None and self.noticed_at >= self.published_at:
            words += f"; noticed {duration(self.noticed_at - self.published_at)} after the first was published"
        if self.unrecoverable:
            return words + "; reported as unrecoverable"
        if self.healed_at is None:
            return words + "; never healed in this run"
        return words + f"; healed {duration(self.healed_at - self.noticed_at)} after it was noticed"

    @property
    def is_healed(self) -> bool:
        return self.healed_at is not None and not self.unrecoverable


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """From here on nothing matters that was told before."""

    at: float
    before: int  # the number of the batch that is next
    word: str
    sentence: str


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    subscriber: str
    svg: Markup
    gaps: list[DrawnGap]
    sentence: str


def mirrors_of(run: Run) -> list[Mirror]:
    """One per subscriber that observed anything of its batches."""
    history = run.history
    found, published = [], dict[int, list[tuple[int, float]]]()
    for node in history.of_kind(NodeKind.SUBSCRIBER):
        engine = history.engine_of(node).engine
        records = [r for r in history.records(node) if r.kind is Kind.OBSERVATION and r.site.startswith("kv-")]
        if records:
            if engine not in published:  # one for all who follow it
                published[engine] = _published(history, engine)
            found.append(_mirror(history, node, records, published[engine]))
    return found


def _published(history: History, engine: int) -> list[tuple[int, float]]:
    """(number, when) of all that the core of this engine published, in each of its lives, by time.

    A batch may be sent before the core notes that it handed it over: the sooner of both counts.
    """
    found = []
    for core, records in history.by_node("kv-published").items():
        if history.engine_of(core).engine == engine:
            sent: dict[int, float] = {}
            for crossing in history.records(core):
                if crossing.site.endswith(_SENT) and "seq" in crossing.data:
                    sent.setdefault(crossing.data["seq"], crossing.at)
            found += [(seq, min(record.at, sent.get(seq, record.at)) - history.began_at)
                      for record in records for seq in (int(record.data["seq"]),)]
    return sorted(found, key=_moment)


def _moment(point: tuple[int, float]) -> float:
    return point[1]


def _stretches(batches: Sequence[tuple[int, str, float]], starts: frozenset[int] = frozenset()) -> list[Stretch]:
    """A batch of `starts` begins a stretch of its own: what was held back before it came all at once."""
    found: list[Stretch] = []
    for seq, source, at in batches:
        last = found[-1] if found else None
        if last is not None and last.source == source and seq == last.points[-1][0] + 1 and seq not in starts:
            last.points.append((seq, at))
        else:
            found.append(Stretch(source, [(seq, at)]))
    return found


def _gaps(history: History, subscriber: str, published: Sequence[tuple[int, float]]) -> list[DrawnGap]:
    origin = history.began_at
    return [DrawnGap(first=hole.first, last=hole.last, noticed_at=hole.noticed_at - origin,
                     published_at=_when(published, hole.first, hole.noticed_at - origin),
                     unrecoverable=hole.unrecoverable,
                     healed_at=None if hole.healed_at is None else hole.healed_at - origin)
            for hole in holes_of(history, subscriber)]


def _beginnings(records: Sequence[Record], origin: float) -> list[Beginning]:
    found = []
    for record in records:
        at = record.at - origin
        if record.site == "kv-snapshot":
            before, blocks = int(record.data["next_seq"]), int(record.data["blocks"])
            found.append(Beginning(at=at, before=before, word="snapshot",
                                   sentence=f"took a snapshot of {count(blocks, 'block')} before batch {before}"))
        elif record.site == "kv-restarted":
            found.append(Beginning(at=at, before=0, word="restarted",
                                   sentence="told that the publisher was restarted, and began anew"))
    return found


def _when(published: Sequence[tuple[int, float]], seq: int, before: float) -> float | None:
    """When this batch was published last before that moment: the next life of a publisher begins with 0 again."""
    return max((at for number, at in published if number == seq and at <= before), default=None)


def _mirror(history: History, subscriber: str, records: Sequence[Record],
            published: Sequence[tuple[int, float]]) -> Mirror:
    origin = history.began_at
    life = life_of(subscriber)
    node = base(subscriber) + (f", life {life}" if life else "")
    beginnings = _beginnings(records, origin)
    applied = _stretches([(int(r.data.get("seq", 0)), str(r.data.get("source", "live")), r.at - origin)
                          for r in records if r.site == "kv-batch"], frozenset(b.before for b in beginnings))
    gaps = _gaps(history, subscriber, published)
    live = sum(len(s.points) for s in applied if s.source == "live")
    replayed = sum(len(s.points) for s in applied if s.source == "replay")
    lost = sum(gap.unrecoverable for gap in gaps)
    sentence = (f"{node} applied {count(live, 'live batch', 'live batches')} and "
                f"{count(replayed, 'replayed batch', 'replayed batches')}; "
                f"{count(len(gaps), 'gap')} noticed, {sum(gap.is_healed for gap in gaps)} healed"
                + (f", {lost} lost for good" if lost else ""))
    sentence = "; ".join([sentence, *(beginning.sentence for beginning in beginnings[:3])])
    told = _stretches([(seq, "published", at) for seq, at in published])
    return Mirror(subscriber=node, svg=_draw(applied, told, gaps, beginnings, sentence), gaps=gaps, sentence=sentence)


def _draw(applied: Sequence[Stretch], published: Sequence[Stretch], gaps: Sequence[DrawnGap],
          beginnings: Sequence[Beginning], sentence: str) -> Markup:
    strokes = [*applied, *published]
    times = [at for s in strokes for _, at in s.points]
    times += [t for gap in gaps for t in (gap.noticed_at, gap.healed_at) if t is not None]
    times += [beginning.at for beginning in beginnings]
    numbers = [seq for s in strokes for seq, _ in s.points] + [n for gap in gaps for n in (gap.first, gap.last)]
    numbers += [beginning.before for beginning in beginnings]
    t0, t1 = min(times, default=0.0), max(times, default=1.0)
    n0, n1 = min(numbers, default=0), max(numbers, default=1)

    def x_of(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - t0) / (t1 - t0) if t1 > t0 else 0.5)

    def y_of(seq: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((seq - n0) / (n1 - n0) if n1 > n0 else 0.5)

    parts = _axes(x_of, y_of, (t0, t1), (n0, n1))
    parts += [_box(gap, x_of, y_of, t1) for gap in gaps[:40]]
    parts += [_stroke(s, x_of, y_of, "published") for s in _few(published)]
    parts += [_stroke(s, x_of, y_of, "replay" if s.source == "replay" else "live") for s in _few(applied)]
    parts += [_diamond(beginning, x_of, y_of) for beginning in beginnings[:40]]
    parts += _words(gaps[:3], beginnings[:3], x_of)
    return drawing(WIDTH, HEIGHT, f"Batches over time: {sentence}", "mirror", parts)


def _few(strokes: Sequence[Stretch]) -> Sequence[Stretch]:
    """Thinned evenly where a picture of this width could not show them all."""
    step = -(-len(strokes) // MOST_STROKES) or 1
    return strokes[::step]


def _axes(x_of: Callable[[float], float], y_of: Callable[[float], float], times: tuple[float, float],
          numbers: tuple[int, int]) -> list[Markup]:
    base = HEIGHT - BOTTOM
    parts = [line(LEFT, TOP, LEFT, base, "axis"), line(LEFT, base, WIDTH - RIGHT, base, "axis"),
             text(4.0, TOP - 14.0, "batch number", "unit")]
    for seq in dict.fromkeys((numbers[0], (numbers[0] + numbers[1]) // 2, numbers[1])):
        parts += [line(LEFT - 4.0, y_of(seq), LEFT, y_of(seq), "axis"),
                  text(LEFT - 8.0, y_of(seq) + 4.0, f"{seq:,}", None, "end")]
    ticks = [times[0] + (times[1] - times[0]) * share / 4 for share in range(5)]
    for share, (at, label) in enumerate(zip(ticks, clocks(ticks), strict=True)):
        if not label:
            continue
        anchor = "start" if share == 0 else "end" if share == 4 else "middle"
        parts += [line(x_of(at), base, x_of(at), base + 4.0, "axis"), text(x_of(at), base + 17.0, label, None, anchor)]
    return parts


def _box(gap: DrawnGap, x_of: Callable[[float], float], y_of: Callable[[float], float], end: float) -> Markup:
    left, right = x_of(gap.noticed_at), x_of(gap.healed_at if gap.healed_at is not None else end)
    top, base = y_of(gap.last + 0.5), y_of(gap.first - 0.5)
    began = x_of(gap.published_at) if gap.published_at is not None else left
    return tag("g", tag("title", gap.sentence),
               tag("rect", x=min(began, left), y=top, width=max(0.0, left - began), height=max(2.0, base - top),
                   class_="unseen"),
               tag("rect", x=left, y=top, width=max(2.0, right - left), height=max(2.0, base - top), class_="missing"),
               class_="gap" if gap.is_healed else "gap open")


def _diamond(beginning: Beginning, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> Markup:
    x, y = x_of(beginning.at), y_of(beginning.before - 0.5)
    return tag("g", tag("title", beginning.sentence),
               tag("path", d=f"M {x:.1f} {y - 6:.1f} l 6 6 l -6 6 l -6 -6 Z"), class_="beginning")


def _words(gaps: Sequence[DrawnGap], beginnings: Sequence[Beginning], x_of: Callable[[float], float]) -> list[Markup]:
    told = [(at, word, height) for gap in gaps
            for at, word, height in ((gap.noticed_at, "gap noticed", 4.0), (gap.healed_at, "healed", -8.0))]
    told += [(beginning.at, beginning.word, 16.0) for beginning in beginnings]
    parts: list[Markup] = []
    taken: list[tuple[float, float, float]] = []  # from, to, height
    for at, word, height in told:
        if at is None:
            continue
        x = x_of(at)
        anchor = "end" if x > WIDTH / 2 else "start"
        left = x - LETTER * len(word) if anchor == "end" else x
        while any(left < to and first < left + LETTER * len(word) and abs(height - other) < 12.0
                  for first, to, other in taken):
            height += 12.0
        taken.append((left, left + LETTER * len(word), height))
        parts += [line(x, TOP - 6.0, x, HEIGHT - BOTTOM, "event"),
                  text(x + (-4.0 if anchor == "end" else 4.0), TOP + height, word, "word", anchor)]
    return parts


def _stroke(s: Stretch, x_of: Callable[[float], float], y_of: Callable[[float], float], class_: str) -> Markup:
    """A staircase of what is on record. Of batches in the same tenth of a pixel the last one stands for all."""
    places = {number(x_of(at)): number(y_of(seq)) for seq, at in s.points}
    if len(places) == 1:
        [(x, y)] = places.items()
        return tag("circle", cx=x, cy=y, r=2.5 if class_ != "published" else 1.5, class_=f"{class_} dot")
    (x, y), *rest = places.items()
    steps = "".join(f"H{x}V{y}" for x, y in rest)
    return tag("path", d=f"M{x} {number(y_of(s.points[0][0]))}V{y}{steps}", class_=class_)

"""Messages of a run as its history pairs them, and the few that are worth drawing.

A dropped message was not received, a delayed or reordered one was received when it was let go, one that its sender kept
was never put. A send without a receive was lost, or was in flight when its reader died. A receive without a send was
doubled or forged. `select` keeps what happens near the anchors (faults, deaths, detections), the beginning and the end,
and says of the rest how much it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.topology import RING_CHANNELS, Channel, NodeKind
from faults.journal import Record
from reports.charts.steps import Piece, pieces_of
from scenarios.history.flows import Flow
from scenarios.history.history import History
from scenarios.history.names import ACROSS, base, kind_of, rank_of

_HELD = frozenset({"delay", "reorder"})
_ENTER = "/collective:enter"
_COLUMNS = {kind.value: place for place, kind in enumerate(NodeKind)}


#: Messages that are drawn around each fault, death or detection: some steps before and after.
NEAR = 30
#: More than these, one after the other on one edge, are a burst.
MOST_ALONE = 6


class Arrow(msgspec.Struct, kw_only=True):
    """One message. A lost one has no `received_at`, a doubled or forged one no `sent_at`."""

    source: str
    target: str
    channel: str
    label: str
    sent_at: float | None = None
    received_at: float | None = None
    fate: str = ""  # of the fault that befell it
    fault: str = ""

    @property
    def at(self) -> float:
        return self.sent_at if self.sent_at is not None else self.received_at or 0.0

    @property
    def until(self) -> float:
        return self.received_at if self.received_at is not None else self.at

    @property
    def whole(self) -> bool:
        return self.sent_at is not None and self.received_at is not None


class Burst(msgspec.Struct, kw_only=True):
    """Messages that followed each other on one edge, none struck, lost or overtaken: one band instead of a fan."""

    arrows: list[Arrow]
    whole: bool = True

    @property
    def first(self) -> Arrow:
        return self.arrows[0]

    @property
    def last(self) -> Arrow:
        return self.arrows[-1]

    @property
    def count(self) -> int:
        return len(self.arrows)

    @property
    def channel(self) -> str:
        return self.first.channel

    @property
    def label(self) -> str:
        """requests 3 to 20,503"""
        numbers = [arrow.label.removeprefix(self.channel).split() for arrow in (self.first, self.last)]
        return f"{self.channel} {numbers[0][0]} to {numbers[1][0]}"

    @property
    def at(self) -> float:
        return self.first.at

    @property
    def until(self) -> float:
        return self.last.until


class Collective(msgspec.Struct, kw_only=True):
    """Collectives `number` to `last`, which follow each other: when each process entered the first.

    `operation` is ACROSS where ranks of several engines met, who count those by themselves.
    """

    number: int
    last: int
    entered: dict[str, float]
    operation: str = ""
    label: str = "collective"
    channel: str = "collective"
    whole: bool = True

    @property
    def count(self) -> int:
        return self.last - self.number + 1

    @property
    def words(self) -> str:
        """collective 7; keep_step 3 to 20"""
        if self.operation:
            return f"{self.operation} {self.number}" + (f" to {self.last}" if self.count > 1 else "")
        return f"collective {self.number}" if self.count == 1 else f"collectives {self.number} to {self.last}"

    @property
    def at(self) -> float:
        return min(self.entered.values())

    @property
    def until(self) -> float:
        return max(self.entered.values())


class Passed(msgspec.Struct, kw_only=True):
    """A step of a core that is its own worker: no message tells of it, but it takes room in a lane."""

    at: float
    until: float
    channel: str = "steps"
    whole: bool = True
    count: int = 1


class Skipped(msgspec.Struct, kw_only=True):
    """Messages, and steps between them, that are counted instead of drawn."""

    at: float
    until: float
    channels: dict[str, int]

    @property
    def count(self) -> int:
        """Of messages."""
        return sum(number for channel, number in self.channels.items() if channel != "steps")


#: What a chart may draw, and what it draws of it.
Item = Arrow | Burst | Collective | Passed
Shown = Item | Skipped


def column(node: str) -> tuple[int, str, tuple[int, ...], str]:
    """Sort key: frontend, core, workers, subscribers, then strangers by name."""
    kind, *numbers = node.split(".")
    return _COLUMNS.get(kind, len(_COLUMNS)), kind, tuple(int(one) for one in numbers if one.isdigit()), node


def arrows_of(history: History) -> list[Arrow | Collective]:
    """Every message and collective of the run, by time; at one moment in the order of the journals."""
    calls, places = _calls(history), {node: place for place, node in enumerate(history.nodes)}
    found: list[tuple[tuple[float, ...], Arrow | Collective]] = []
    for flow in history.flows():
        source, target = places.get(flow.source, 0), places.get(flow.target, 0)
        received = {id(send): receive for send, receive in flow.pairs}
        for send in (*flow.sends, *flow.kept):
            arrow = _arrow(flow, send, calls)
            arrow.sent_at = send.at
            if (receive := received.get(id(send))) is not None:
                _arrive(arrow, receive, history)
            found.append(((arrow.at, 0, source, send.number), arrow))
            if (f"{flow.name}:send", send.nth) in history.unroutable:
                arrow.fate = "unroutable"
        for receive in flow.unsent:
            arrow = _arrow(flow, receive, calls)
            _arrive(arrow, receive, history)
            if arrow.received_at is None:
                arrow.sent_at = receive.at  # forged and dropped: shown where it came
            found.append(((arrow.at, 1, target, receive.number), arrow))
    found += [((piece.send.at, 0, places.get(piece.source, 0), piece.send.number), handed)
              for piece in pieces_of(history) if (handed := _piece(piece)) is not None]
    found += [((collective.at, 2, number), collective) for number, collective in enumerate(_collectives(history))]
    return _joined([item for _, item in sorted(found, key=lambda entry: entry[0])])


def _arrive(arrow: Arrow, receive: Record, history: History) -> None:
    arrow.fate, arrow.fault = str(receive.data.get("fate", arrow.fate)), str(receive.data.get("fault", arrow.fault))
    if arrow.fate in _HELD:
        arrow.received_at = history.delivered_at.get((receive.site, receive.nth))
    elif arrow.fate != "drop":
        arrow.received_at = receive.at


def _piece(piece: Piece) -> Arrow | None:
    """None for tokens that the first stage has not come to yet: they lie there until its next step."""
    if piece.receive is None and piece.send.data.get("what") == "sampled_tokens":
        return None
    data = piece.send.data
    return Arrow(source=base(piece.source), target=base(piece.target), channel=Channel.PIPE.value, label=piece.label,
                 sent_at=piece.send.at, received_at=piece.taken_at, fate=str(data.get("fate", "")),
                 fault=str(data.get("fault", "")))


def _collectives(history: History) -> list[Collective]:
    """Each with those who met in it, in the order in which they began."""
    entered = []
    for site, records in history.crossings.items():
        if site.endswith(_ENTER):
            node, across = site.removesuffix(_ENTER), 0
            for record in records:
                across += record.data.get("operation") == ACROSS
                entered.append((record, node, across))
    found: dict[tuple[object, ...], Collective] = {}
    groups: dict[tuple[str, str], tuple[object, ...]] = {}
    for record, node, across in sorted(entered, key=lambda entry: (entry[0].at, entry[1])):
        operation = ACROSS if record.data.get("operation") == ACROSS else ""
        number = across if operation else record.nth
        if (node, operation) not in groups:
            groups[node, operation] = _group(history, node, operation)
        place = groups[node, operation], number
        collective = found.get(place)
        if collective is None:
            collective = found[place] = Collective(number=number, last=number, entered={}, operation=operation)
        collective.entered[base(node)] = record.at
    return list(found.values())


def _group(history: History, node: str, operation: str) -> tuple[object, ...]:
    """Whom it meets there: the ranks of its place in all engines of its group, or those of its own stage."""
    engine = history.engine_of(node)
    rank = rank_of(node) if kind_of(node) == NodeKind.WORKER else 0
    if operation == ACROSS:
        return ACROSS, history.joined(engine), rank
    return engine, history.grid_of(node).stage(rank)


def _joined(items: list[Arrow | Collective]) -> list[Arrow | Collective]:
    """Collectives of the same ranks with no message between them as one: a step has two per layer."""
    found: list[Arrow | Collective] = []
    for item in items:
        last = found[-1] if found else None
        if (isinstance(item, Collective) and isinstance(last, Collective) and item.number == last.last + 1
                and item.operation == last.operation and item.entered.keys() == last.entered.keys()):
            last.last = item.last
        else:
            found.append(item)
    return found


def _arrow(flow: Flow, record: Record, calls: dict[tuple[str, int], str]) -> Arrow:
    channel = flow.edge.channel.value
    label, fate = f"{channel} {record.nth}", str(record.data.get("fate", ""))
    if flow.edge.channel in RING_CHANNELS and "position" in record.data:
        position = record.data["position"]
        label = f"{channel} {position}"
        if asked := calls.get((flow.source, position)) if flow.edge.channel is Channel.RPC else None:
            label += f" {asked}"
    return Arrow(source=base(flow.source), target=base(flow.target), channel=channel, label=label, fate=fate,
                 fault=str(record.data.get("fault", "")))


def _calls(history: History) -> dict[tuple[str, int], str]:
    """(writer, position in its rpc ring) -> what was asked, as the workers recorded it right after the receive."""
    calls: dict[tuple[str, int], str] = {}
    for flow in history.flows(Channel.RPC):
        numbers = [receive.number for receive in flow.receives]
        for record in history.executed.get(flow.target, ()):
            before = bisect_left(numbers, record.number)
            if before:
                step = record.data.get("step")
                calls[flow.source, flow.receives[before - 1].data["position"]] = \
                    f"step {step}" if step is not None else str(record.data.get("method", ""))
    return calls


def bursts(items: Sequence[Item], cuts: Sequence[float]) -> list[Item]:
    """The same items, with a `Burst` for each more than `MOST_ALONE` that are alike. None reaches beyond a cut."""
    found: list[Item] = []
    group: list[Arrow] = []
    cuts = sorted(cuts)

    def close() -> None:
        found.extend([Burst(arrows=list(group))] if len(group) > MOST_ALONE else group)
        group.clear()

    for item in items:
        if not isinstance(item, Arrow) or not item.whole or item.fate:
            close()
            found.append(item)
        else:
            if group and not _follows(item, group[-1], cuts):
                close()
            group.append(item)
    close()
    return found


def _follows(item: Arrow, last: Arrow, cuts: Sequence[float]) -> bool:
    return ((item.source, item.target, item.channel) == (last.source, last.target, last.channel)
            and item.until >= last.until and bisect_left(cuts, last.at) == bisect_left(cuts, item.at))


def select(items: Sequence[Item], anchors: Sequence[float], cap: int = 90,
           ) -> list[Shown]:
    """At most `cap` of the items, in order, with a `Skipped` in the place of each run that is left out."""
    if len(items) <= cap:
        return list(items)
    # What never arrived, or came from nowhere, is what a reader looks for: it draws attention like a fault.
    centres = [*anchors, *[item.at for item in items if not item.whole][:10]]
    edge = cap // 6 if centres else cap // 2
    keep = set(range(edge)) | set(range(len(items) - edge, len(items)))
    nearest = [_nearest(items, at) for at in centres[:24]]
    for rank in range(NEAR):
        for order in nearest:
            if rank < len(order) and len(keep) < cap:
                keep.add(order[rank])
    return _with_gaps(items, keep)


def _nearest(items: Sequence[Item], at: float) -> list[int]:
    """Indices of the items around a time, the nearest first. Items are in order of time."""
    middle = bisect_left(items, at, key=lambda item: item.at)
    around = range(max(0, middle - NEAR), min(len(items), middle + NEAR))
    return sorted(around, key=lambda index: abs(items[index].at - at))[:NEAR]


def _counted(gap: Sequence[Item]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for item in gap:
        found[item.channel] += item.count if isinstance(item, Burst) else 1
    return dict(found)


def _with_gaps(items: Sequence[Item], keep: set[int]) -> list[Shown]:
    shown: list[Shown] = []
    gap: list[Item] = []

    def close() -> None:
        if len(gap) > 2:
            shown.append(Skipped(at=gap[0].at, until=gap[-1].at, channels=_counted(gap)))
        else:
            shown.extend(gap)  # a note would take more room than what it stands for
        gap.clear()

    for index, item in enumerate(items):
        if index in keep:
            close()
            shown.append(item)
        else:
            gap.append(item)
    close()
    return shown

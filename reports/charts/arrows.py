"""Messages of a run, put together from two journals each, and the few that are worth drawing.

    a send pairs with its receive by      (edge, digest, occurrence)     sockets
                                          (edge, position)               rings
    collectives pair by number            worker.r/collective:enter

A crossing that a fault befell says so in its own record: a dropped message was not received, a delayed or
reordered one was received at its release, a send that killed its sender was never put. A send without a
receive was lost, or was in flight when its reader died. A receive without a send was doubled or forged.
`select` keeps what happens near the anchors (faults, deaths, detections), the beginning and the end, and
says of the rest how much it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from engine.topology import RING_CHANNELS, NodeKind
from faults.journal import JournalFile, Kind, Record
from scenarios.history.flows import NEVER_PUT

_RINGS = frozenset(channel.value for channel in RING_CHANNELS)
_HELD = frozenset({"delay", "reorder"})
_COLUMNS = {kind.value: place for place, kind in enumerate(NodeKind)}


#: Messages that are drawn around each fault, death or detection: some steps before and after.
NEAR = 30


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


class Collective(msgspec.Struct, kw_only=True):
    """Collectives `number` to `last`, which follow each other: when each worker entered the first."""

    number: int
    last: int
    entered: dict[str, float]
    label: str = "collective"
    channel: str = "collective"
    whole: bool = True

    @property
    def count(self) -> int:
        return self.last - self.number + 1

    @property
    def at(self) -> float:
        return min(self.entered.values())

    @property
    def until(self) -> float:
        return max(self.entered.values())


class Skipped(msgspec.Struct, kw_only=True):
    """Messages that are counted instead of drawn."""

    at: float
    until: float
    channels: dict[str, int]

    @property
    def count(self) -> int:
        return sum(self.channels.values())


def lifeline(node: str) -> str:
    """All lives of a process stand on one line: core.0@1 on core.0."""
    return node.partition("@")[0]


def column(node: str) -> tuple[int, str, int]:
    """Sort key: frontend, core, workers, subscribers, then strangers by name."""
    kind, _, index = node.partition(".")
    return _COLUMNS.get(kind, len(_COLUMNS)), kind, int(index) if index.isdigit() else 0


def arrows_of(journals: Sequence[JournalFile]) -> list[Arrow | Collective]:
    """Every message and collective of the run, by time."""
    sends: dict[tuple, list[Arrow]] = defaultdict(list)
    arrivals: list[tuple[tuple, str, Record]] = []
    collectives: dict[tuple[int, int], Collective] = {}
    everything: list[Arrow | Collective] = []
    calls, released, unsent = _calls(journals), _released(journals), _unsent(journals)
    crossings = [(record, journal) for journal in journals for record in journal.records
                 if record.kind is Kind.CROSSING]
    for record, journal in sorted(crossings, key=lambda pair: pair[0].at):
        place, _, operation = record.site.rpartition(":")
        if operation == "enter":
            found = collectives.setdefault((journal.life, record.nth), Collective(number=record.nth, last=record.nth,
                                                                              entered={}))
            found.entered[lifeline(journal.node)] = record.at
        elif operation == "send" and "->" in place:
            arrow = _arrow(place, record, calls)
            arrow.sent_at = record.at
            everything.append(arrow)
            if (record.site, record.nth) in unsent:
                arrow.fate = "unroutable"
            elif arrow.fate not in NEVER_PUT:
                sends[_key(place, record)].append(arrow)
        elif operation == "receive" and "->" in place:
            arrivals.append((_key(place, record), place, record))
    for key, place, record in arrivals:
        arrow = _sent_before(sends[key], record.at)
        if arrow is None:
            arrow = _arrow(place, record, calls)
            everything.append(arrow)
        arrow.fate, arrow.fault = str(record.data.get("fate", arrow.fate)), str(record.data.get("fault", arrow.fault))
        if arrow.fate in _HELD:
            arrow.received_at = released.get((record.site, record.nth))
        elif arrow.fate != "drop":
            arrow.received_at = record.at
        if arrow.sent_at is None and arrow.received_at is None:
            arrow.sent_at = record.at  # forged and dropped: shown where it came
    return _joined(sorted([*everything, *collectives.values()], key=lambda item: item.at))


def _joined(items: list[Arrow | Collective]) -> list[Arrow | Collective]:
    """Collectives of the same workers with no message between them as one: a step has two per layer."""
    found: list[Arrow | Collective] = []
    for item in items:
        last = found[-1] if found else None
        if (isinstance(item, Collective) and isinstance(last, Collective) and item.number == last.last + 1
                and item.entered.keys() == last.entered.keys()):
            last.last = item.last
        else:
            found.append(item)
    return found


def _key(place: str, record: Record) -> tuple:
    channel = place.rpartition("/")[2]
    if channel in _RINGS and "position" in record.data:
        return place, record.data["position"]
    return place, record.digest, record.occurrence


def _arrow(place: str, record: Record, calls: dict[int, str]) -> Arrow:
    edge, _, channel = place.rpartition("/")
    source, _, target = edge.partition("->")
    label = f"{channel} {record.nth}"
    if channel in _RINGS and "position" in record.data:
        position = record.data["position"]
        label = f"{channel} {position}"
        if channel == "rpc" and position in calls:
            label += f" {calls[position]}"
    return Arrow(source=lifeline(source), target=lifeline(target), channel=channel, label=label,
                 fate=str(record.data.get("fate", "")), fault=str(record.data.get("fault", "")))


def _sent_before(sends: list[Arrow], at: float) -> Arrow | None:
    """The latest send before an arrival: names carry no lives, and a restarted sender counts from the start."""
    before = [index for index, send in enumerate(sends) if send.at <= at]
    if not sends:
        return None
    return sends.pop(before[-1] if before else 0)


def _released(journals: Sequence[JournalFile]) -> dict[tuple[str, int], float]:
    """When a message that a fault held at (site, nth) was delivered."""
    return {(str(record.data["site"]), int(record.data["nth"])): record.at
            for journal in journals for record in journal.records
            if record.kind is Kind.RELEASE and "site" in record.data and "nth" in record.data}


def _unsent(journals: Sequence[JournalFile]) -> set[tuple[str, int]]:
    """Sends that were unroutable and stayed with their sender."""
    return {(str(record.data.get("site", "")), int(record.data.get("nth", 0)))
            for journal in journals for record in journal.records
            if record.kind is Kind.OBSERVATION and record.site == "not-sent"}


def _calls(journals: Sequence[JournalFile]) -> dict[int, str]:
    """Position in the rpc ring -> what was asked, as the workers recorded it right after the receive."""
    calls: dict[int, str] = {}
    for journal in journals:
        position = None
        for record in journal.records:
            if record.kind is Kind.CROSSING and record.site.endswith("/rpc:receive"):
                position = record.data.get("position")
            elif record.kind is Kind.OBSERVATION and record.site == "rpc":
                step = record.data.get("step")
                place = record.data.get("position", position)
                if place is not None:
                    calls[place] = f"step {step}" if step is not None else str(record.data.get("method", ""))
    return calls


def select(items: Sequence[Arrow | Collective], anchors: Sequence[float], cap: int = 90,
           ) -> list[Arrow | Collective | Skipped]:
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


def _nearest(items: Sequence[Arrow | Collective], at: float) -> list[int]:
    """Indices of the items around a time, the nearest first. Items are in order of time."""
    middle = bisect_left(items, at, key=lambda item: item.at)
    around = range(max(0, middle - NEAR), min(len(items), middle + NEAR))
    return sorted(around, key=lambda index: abs(items[index].at - at))[:NEAR]


def _with_gaps(items: Sequence[Arrow | Collective], keep: set[int]) -> list[Arrow | Collective | Skipped]:
    shown: list[Arrow | Collective | Skipped] = []
    gap: list[Arrow | Collective] = []

    def close() -> None:
        if len(gap) > 2:
            shown.append(Skipped(at=gap[0].at, until=gap[-1].at, channels=dict(Counter(g.channel for g in gap))))
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

"""What a client asked, and what it was told: the operations of a history.

An operation begins with a `call` and should get exactly one `end`. The same caller's id may be used again,
and a second call with a live id is refused while the first goes on, so a record belongs to

    1. the call it names (`index` or `internal`, where the record has one), else
    2. the latest call of its id that has not ended, else
    3. the latest call of its id: what comes after an end stays visible as such.

Where engines step together and nobody is there to wake them, each has a client of its own. One whose client asks
nothing of it in a wave comes to none of its forwards, and the others wait for it until they miss it: an absence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from engine.topology import Channel, Topology
from faults.journal import Record
from scenarios.history.names import ACROSS, EngineLife
from scenarios.history.records import FOREVER

Crossings = Mapping[str, list[Record]]
#: Whether a request of that engine was open when others that it steps with waited for it since then.
WasAsked = Callable[[EngineLife, float], bool]

_ABOUT_REQUESTS = ("call", "accepted", "tokens", "abort", "end")


class Operation:
    """One client request. `call` is None where a frontend spoke of a request that nobody had called."""

    __slots__ = ("abort", "accepted", "after_end", "call", "deliveries", "ends", "node", "request")

    def __init__(self, node: str, request: str, call: Record | None) -> None:
        self.node = node
        self.request = request
        self.call = call
        self.accepted: Record | None = None
        self.deliveries: list[Record] = []
        self.after_end: list[Record] = []  # deliveries that came after the first end
        self.abort: Record | None = None
        self.ends: list[Record] = []

    @property
    def internal(self) -> str | None:
        return self.accepted.data.get("internal") if self.accepted else None

    @property
    def index(self) -> int | None:
        return self.call.data.get("index") if self.call else None

    @property
    def began_at(self) -> float:
        first = self.call or self.accepted or (self.deliveries or self.ends)[0]
        return first.at

    @property
    def ended_at(self) -> float | None:
        return self.ends[0].at if self.ends else None

    @property
    def over_at(self) -> float:
        """When its caller got the end; infinite while it is open."""
        return self.ends[0].at if self.ends else FOREVER

    @property
    def outcome(self) -> str | None:
        """The first end's outcome: a `messages.Outcome`, or None while open."""
        return self.ends[0].data.get("outcome") if self.ends else None

    @property
    def error(self) -> str | None:
        """The class of the error the caller got, None if it got none."""
        return self.ends[0].data.get("error") if self.ends else None

    @property
    def last_progress_at(self) -> float:
        """The last time before its end that the caller heard of it: a call, an acceptance or tokens."""
        return max(self.began_at, self.accepted.at if self.accepted else 0.0,
                   self.deliveries[-1].at if self.deliveries else 0.0)

    @property
    def tokens(self) -> list[int]:
        """What the caller's stream delivered, in the order of delivery."""
        return [token for delivery in self.deliveries for token in delivery.data["tokens"]]

    def pending_at(self, moment: float) -> bool:
        ended = self.ended_at
        return self.began_at <= moment and (ended is None or ended > moment)

    def __repr__(self) -> str:
        return f"Operation({self.node} {self.request!r}: {self.outcome or 'open'})"


class Startup:
    """One start of an engine, as its frontend told it."""

    __slots__ = ("began", "end", "node")

    def __init__(self, node: str, began: Record, end: Record | None) -> None:
        self.node = node
        self.began = began
        self.end = end  # the `ready` or `start-failed` record

    @property
    def ready(self) -> bool:
        return self.end is not None and self.end.site == "ready"

    @property
    def ready_at(self) -> float:
        """Infinite where it never was."""
        return self.end.at if self.end is not None and self.ready else FOREVER


def operations_of(observations: dict[str, dict[str, list[Record]]]) -> list[Operation]:
    """All operations, in the order of their calls."""
    found: list[Operation] = []
    nodes = dict.fromkeys(node for name in _ABOUT_REQUESTS for node in observations.get(name, ()))
    for node in nodes:
        records = [r for name in _ABOUT_REQUESTS for r in observations.get(name, {}).get(node, ())]
        records.sort(key=attrgetter("number"))
        found += _of_one_frontend(node, records)
    if len(nodes) > 1:
        found.sort(key=attrgetter("began_at"))
    return found


def _of_one_frontend(node: str, records: list[Record]) -> list[Operation]:
    found: list[Operation] = []
    by_request: dict[str, list[Operation]] = {}
    by_internal: dict[str, Operation] = {}
    for record in records:
        name, data = record.site, record.data
        request = data.get("request", "")
        same = by_request.get(request)
        if name == "tokens" and same is not None and len(same) == 1:  # nearly all there are
            operation = same[0]
            (operation.after_end if operation.ends else operation.deliveries).append(record)
            continue
        if name == "call" or same is None:
            operation = Operation(node, request, record if name == "call" else None)
            found.append(operation)
            by_request.setdefault(request, []).append(operation)
            if name == "call":
                continue
        else:
            operation = same[0] if len(same) == 1 else _owner(same, by_internal, data, name)
        if name == "tokens":
            (operation.after_end if operation.ends else operation.deliveries).append(record)
        elif name == "accepted":
            operation.accepted = record
            if data.get("internal"):
                by_internal[data["internal"]] = operation
        elif name == "abort":
            operation.abort = operation.abort or record
        else:
            operation.ends.append(record)
    return found


def _owner(same: list[Operation], by_internal: dict[str, Operation], data: dict[str, Any], name: str) -> Operation:
    if "index" in data:
        for operation in same:
            if operation.index == data["index"]:
                return operation
    if name != "accepted" and data.get("internal") in by_internal:
        return by_internal[data["internal"]]
    for operation in reversed(same):
        if not operation.ends and not (name == "accepted" and operation.accepted):
            return operation
    return same[-1]


def startups_of(observations: dict[str, dict[str, list[Record]]]) -> list[Startup]:
    found = []
    for node, begins in observations.get("starting", {}).items():
        ends = sorted((*observations.get("ready", {}).get(node, ()),
                       *observations.get("start-failed", {}).get(node, ())), key=attrgetter("number"))
        for position, began in enumerate(begins):
            limit = begins[position + 1].number if position + 1 < len(begins) else FOREVER
            found.append(Startup(node, began, next((e for e in ends if began.number < e.number < limit), None)))
    return found


# -- what nobody asked


class Absence(NamedTuple):
    """Of an engine, in one wave of its group. `since`: when the first of the others came to a forward of it."""

    engine: EngineLife
    others: tuple[EngineLife, ...]
    wave: int
    since: float


def absences_of(crossings: Crossings, topology: Topology, engines: list[EngineLife], was_asked: WasAsked,
                ) -> Iterator[Absence]:
    for group in topology.offline:
        for life in sorted({engine.life for engine in engines if engine.engine in group.engines}):
            came = {EngineLife(index, life): _waves(forwards_of(crossings, topology, EngineLife(index, life)))
                    for index in group.engines}
            yield from _of_group(came, was_asked)


def _of_group(came: Mapping[EngineLife, dict[int, float]], was_asked: WasAsked) -> Iterator[Absence]:
    for wave in sorted({wave for some in came.values() for wave in some}):
        others = tuple(engine for engine, some in came.items() if wave in some)
        since = min(came[other][wave] for other in others)
        for engine, some in came.items():
            if wave not in some and not was_asked(engine, since):
                yield Absence(engine, others, wave, since)


def forwards_of(crossings: Crossings, topology: Topology, engine: EngineLife) -> list[Record]:
    """What each forward has in common with those of the others, of all who execute them: any may be the first."""
    ranks = topology.engine(engine.engine).workers
    places = [engine.worker(rank) for rank in range(len(ranks))] if ranks else [engine.core]
    return sorted((record for place in places
                   for record in crossings.get(f"{place}/{Channel.COLLECTIVE.value}:enter", ())
                   if record.data.get("operation") == ACROSS), key=attrgetter("at"))


def _waves(forwards: list[Record]) -> dict[int, float]:
    """When it came to the first one of each."""
    found: dict[int, float] = {}
    for record in forwards:
        found.setdefault(record.data["wave"], record.at)
    return found

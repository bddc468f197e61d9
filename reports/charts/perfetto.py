"""One run as a trace of the Trace Event Format (JSON), which Perfetto, chrome://tracing and speedscope open.

    process  a life of a node            thread   a thread of it, its waits beside it
    slice    a record of a journal       arrow    from the send of a message to its receive
    bar      a request, from its call to its end; what a fault held, until it let go; a process's life

Where steps overlap, each thread that executes or answers them has a lane of its own for that, with the waits of a stage
for the one before it inside, an arrow for what it then took over, and a core a bar for each step in flight. Cores that
step together have lanes for their waves, pauses, forwards, real and dummy, and all-reduces with their answers.

Records are points in time, and slices must nest: each takes up to a microsecond, is over before the next one of its
thread begins, and carries its true time (`at`, seconds of the run's clock) in its arguments. Several records of one
moment, as the twin has them, stand beside each other, 10 ns apart, in their true order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, pairwise
from typing import Any

import msgspec

from faults.journal import Kind, Record
from reports.charts.group.waves import RankLane, ranks_of
from reports.charts.notable import lives_of
from reports.charts.steps import IN_FLIGHT, MAIN, Work, lanes_of, pieces_of
from scenarios.history.names import life_of, of_life
from scenarios.history.run import Run

#: Nanoseconds that a record takes, and that keep records of one moment apart.
LONGEST_NS, SHORTEST_NS = 1000, 10
_CATEGORIES = {Kind.CROSSING: "crossing", Kind.OBSERVATION: "observation", Kind.RECEIPT: "fault", Kind.RELEASE: "fault"}

Event = dict[str, Any]


class _Lanes:
    """Numbers of processes and threads. A thread's number is its own in the whole trace."""

    def __init__(self, nodes: Iterable[str], pids: Mapping[str, int | None]) -> None:
        self._pids = pids
        self.process = {node: number for number, node in enumerate(nodes, 1)}
        self.thread: dict[tuple[str, str], int] = {}

    def of(self, node: str, thread: str) -> dict[str, int]:
        return {"pid": self.process[node],
                "tid": self.thread.setdefault((node, thread), 1000 * self.process[node] + len(self.thread))}

    def events(self) -> Iterator[Event]:
        for node, number in self.process.items():
            pid = self._pids.get(node)
            yield _meta("process_name", {"pid": number}, name=node if pid is None else f"{node} (pid {pid})")
            yield _meta("process_sort_index", {"pid": number}, sort_index=number)
        for place, ((node, thread), _) in enumerate(sorted(self.thread.items(), key=lambda entry: entry[1])):
            yield _meta("thread_name", self.of(node, thread), name=thread)
            yield _meta("thread_sort_index", self.of(node, thread), sort_index=place)


def _meta(what: str, where: Mapping[str, int], **arguments: Any) -> Event:
    return {"ph": "M", "name": what, **where, "args": arguments}


def trace(run: Run) -> bytes:
    """The whole trace, one JSON object."""
    began_at = run.history.began_at
    nodes = sorted((of_life(file.node, file.life) for file in run.journals), key=_node_order)
    pids = {of_life(process.node, process.life): process.pid for process in run.lab.processes}
    lanes = _Lanes(nodes, {} if run.history.simulated else pids)
    slices: dict[int, Event] = {}  # by the identity of the record
    for file in run.journals:
        node = of_life(file.node, file.life)
        slices.update(_records(node, file.records, lanes, began_at))
    works, numbers = lanes_of(run.history), count(1)
    ranks = [rank for group in ranks_of(run.history) for rank in group]
    events = [*slices.values(), *_waits(run, lanes), *_steps(works, lanes), *_ranks(ranks, lanes),
              *_arrows(run, slices, numbers), *_pipe(run, slices, works, lanes, numbers), *_lives(run, lanes),
              *_flights(works, lanes), *_requests(run, lanes), *_held(run, lanes)]
    return msgspec.json.encode({
        "displayTimeUnit": "ms",
        "otherData": {"scenario": run.play.scenario, "world": run.play.world, "began_at": began_at},
        "traceEvents": [*lanes.events(), *events]})


def _node_order(node: str) -> tuple[int, str, int]:
    kinds = "frontend", "coordinator", "core", "worker", "subscriber"
    kind = node.partition(".")[0]
    return kinds.index(kind) if kind in kinds else len(kinds), node.partition("@")[0], life_of(node)


def _nanoseconds(at: float, origin: float) -> int:
    return max(0, round((at - origin) * 1e9))


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


# -- what stands in the lanes


def _records(node: str, records: list[Record], lanes: _Lanes, origin: float) -> Iterator[tuple[int, Event]]:
    threads: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        threads[record.thread].append(record)
    for thread, mine in threads.items():
        begins: list[int] = []
        for record in mine:
            begins.append(max(_nanoseconds(record.at, origin), begins[-1] + SHORTEST_NS if begins else 0))
        for record, (begin, after) in zip(mine, pairwise([*begins, begins[-1] + LONGEST_NS]), strict=True):
            yield id(record), {
                "ph": "X", "name": record.site, "cat": _CATEGORIES[record.kind], **lanes.of(node, thread),
                "ts": _microseconds(begin), "dur": _microseconds(min(LONGEST_NS, after - begin)),
                "args": _arguments(record)}


def _arguments(record: Record) -> dict[str, Any]:
    told: dict[str, Any] = {"at": record.at, "number": record.number}
    if record.nth:
        told["nth"] = record.nth
    if record.digest:
        told |= {"digest": record.digest, "occurrence": record.occurrence}
    return told | {name: value if isinstance(value, str | int | float | bool) or value is None else repr(value)
                   for name, value in record.data.items()}


def _waits(run: Run, lanes: _Lanes) -> Iterator[Event]:
    """Each thread's waits on its rings: they end behind the records that they are told in, so they have a lane."""
    origin = run.history.began_at
    for node, record in run.history.observed("queue-wait"):
        data = record.data
        begin = _nanoseconds(data["began"], origin)
        yield {"ph": "X", "name": f"{data['ring']}: {data['outcome']}", "cat": "wait",
               **lanes.of(node, f"{record.thread}: waits"), "ts": _microseconds(begin),
               "dur": _microseconds(_nanoseconds(data["ended"], origin) - begin),
               "args": {"deadline": data.get("deadline"), "outcome": data["outcome"]}}


def _steps(works: Iterable[Work], lanes: _Lanes) -> Iterator[Event]:
    """Spans of threads, and inside of them what they waited for the stage before."""
    for work in works:
        if work.lane == IN_FLIGHT:
            continue
        where = lanes.of(work.node, f"{work.lane}: steps")
        yield _span(f"{work.what} {work.step}" if work.step is not None else work.what, "step", where, work.began,
                    work.ended, step=work.step, is_over=work.is_over)
        for wait in work.waits:
            yield _span("pipe:receive", "pipe wait", where, wait.began, wait.until, step=work.step)


def _ranks(ranks: Iterable[RankLane], lanes: _Lanes) -> Iterator[Event]:
    """What cores did in step with others. Forwards in flight at once have lanes beside each other."""
    for rank in ranks:
        for wave in rank.waves:
            yield _span(f"wave {wave.number}", "wave", lanes.of(rank.node, "in step: waves"), wave.began, wave.ended,
                        is_over=wave.is_over)
        for pause in rank.pauses:
            yield _span("paused", "pause", lanes.of(rank.node, "in step: pauses"), pause.began, pause.ended,
                        is_over=pause.is_over)
        for forward in rank.forwards:
            lane = "in step: forwards" + (f" {forward.place + 1}" if forward.place else "")
            yield _span("dummy" if forward.dummy else "forward", "forward", lanes.of(rank.node, lane), forward.began,
                        forward.ended, wave=forward.wave, step=forward.step, is_over=forward.is_over)
        for one in rank.all_reduces:
            yield _span(one.words, "all-reduce", lanes.of(rank.node, "in step: all-reduces"), one.began, one.ended,
                        votes=list(one.votes), answer=list(one.answer), is_over=one.is_over)
        for start in rank.starts:
            yield {"ph": "i", "s": "t", "name": f"START of wave {start.wave}", "cat": "start",
                   **lanes.of(rank.node, "in step: waves"), "ts": _microseconds(_nanoseconds(start.at, 0.0)),
                   "args": {"runs": start.runs}}


def _span(name: str, kind: str, where: Mapping[str, int], began: float, ended: float, **arguments: Any) -> Event:
    begin = _nanoseconds(began, 0.0)
    return {"ph": "X", "name": name, "cat": kind, **where, "ts": _microseconds(begin),
            "dur": _microseconds(_nanoseconds(ended, 0.0) - begin), "args": arguments}


def _pipe(run: Run, slices: Mapping[int, Event], works: Iterable[Work], lanes: _Lanes, numbers: Iterator[int],
          ) -> Iterator[Event]:
    """From the send of a piece to the step of who took it, at the moment from which it was there."""
    origin, taking = run.history.began_at, defaultdict(list)
    for work in works:
        if work.lane == MAIN:
            taking[work.node].append(work)
    for piece in pieces_of(run.history):
        begin, taken_at = slices.get(id(piece.send)), piece.taken_at
        if begin is None or taken_at is None:
            continue
        ends = taking[piece.target]
        place = bisect_right(ends, taken_at - origin, key=_began) - 1
        end_ns = max(round(1000 * begin["ts"]), _nanoseconds(taken_at, origin)) + SHORTEST_NS
        left_ns = _nanoseconds(ends[place].ended, 0.0) - end_ns if place >= 0 else 0
        if left_ns > 0:
            where, end = lanes.of(piece.target, f"{MAIN}: steps"), _microseconds(end_ns)
            # An arrow ends in a slice that begins with it: of an older one the viewer does not know whether it is over.
            yield {"ph": "X", "name": f"took {piece.label}", "cat": "pipe", **where, "ts": end,
                   "dur": _microseconds(min(LONGEST_NS, left_ns)), "args": {"at": taken_at}}
            arrow = {"id": next(numbers), "cat": "pipe", "name": piece.label}
            yield {"ph": "s", **arrow, "pid": begin["pid"], "tid": begin["tid"], "ts": begin["ts"]}
            yield {"ph": "f", "bp": "e", **arrow, **where, "ts": end}


def _began(work: Work) -> float:
    return work.began


def _arrows(run: Run, slices: Mapping[int, Event], numbers: Iterator[int]) -> Iterator[Event]:
    for flow in run.history.flows():
        for send, receive in flow.pairs:
            begin, end = slices.get(id(send)), slices.get(id(receive))
            if begin is None or end is None or end["ts"] < begin["ts"]:
                continue
            number = next(numbers)
            for phase, place in (("s", begin), ("f", end)):
                yield {"ph": phase, **({"bp": "e"} if phase == "f" else {}), "id": number, "cat": "message",
                       "name": flow.edge.channel.value, "pid": place["pid"], "tid": place["tid"], "ts": place["ts"]}


# -- bars over the lanes of a process


def _bar(kind: str, name: str, identity: str, pid: int, begin: float, end: float, **arguments: Any) -> Iterator[Event]:
    for phase, at in (("b", begin), ("e", end)):
        yield {"ph": phase, "cat": kind, "name": name, "id": identity, "pid": pid, "tid": 0,
               "ts": _microseconds(_nanoseconds(at, 0.0)), **({"args": arguments} if phase == "b" else {})}


def _lives(run: Run, lanes: _Lanes) -> Iterator[Event]:
    last = run.history.ended_at - run.history.began_at
    for life in lives_of(run):
        node = of_life(life.node, life.life)
        if node in lanes.process:
            end = last if life.ended is None else life.ended
            yield from _bar("life", "alive", f"life {node}", lanes.process[node], life.began, max(life.began, end),
                            died=life.died)


def _flights(works: Iterable[Work], lanes: _Lanes) -> Iterator[Event]:
    for place, work in enumerate(works):
        if work.lane == IN_FLIGHT:
            yield from _bar("step", f"step {work.step}", f"step {place}", lanes.process[work.node], work.began,
                            work.ended, is_over=work.is_over)


def _requests(run: Run, lanes: _Lanes) -> Iterator[Event]:
    origin, last = run.history.began_at, run.history.ended_at
    for place, operation in enumerate(run.history.operations):
        if operation.node in lanes.process:
            end = operation.ended_at
            outcome = operation.ends[0].data.get("outcome") if operation.ends else None
            yield from _bar("request", operation.request, f"request {place}", lanes.process[operation.node],
                            operation.began_at - origin, max(operation.began_at, last if end is None else end) - origin,
                            outcome=outcome, internal=operation.internal)


def _held(run: Run, lanes: _Lanes) -> Iterator[Event]:
    """What a fault held, from its receipt to its release; one that held nothing is a moment."""
    origin = run.history.began_at
    for place, receipt in enumerate(run.history.faults.receipts):
        node = receipt.node if receipt.node in lanes.process else receipt.told_by
        if node not in lanes.process:
            continue
        where, begin = {"pid": lanes.process[node]}, receipt.at - origin
        if receipt.holds:
            yield from _bar("fault", f"{receipt.id} {receipt.fate}", f"fault {place}", where["pid"], begin,
                            max(begin, min(receipt.over_at, run.history.ended_at) - origin), site=receipt.site)
        else:
            yield {"ph": "i", "s": "p", "name": f"{receipt.id} {receipt.fate}", "cat": "fault", **where, "tid": 0,
                   "ts": _microseconds(_nanoseconds(begin, 0.0)), "args": {"site": receipt.site, "nth": receipt.nth}}

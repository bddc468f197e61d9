"""What every thread of an engine did for which step, and when, as spans between two of its own records.

    core     in flight   scheduled ---------------------------------------------> executed
    worker   main        executing (execute_model) --> a call is taken, a wait begins, an answer is given, the end
             copy        copying --> the answer is sent

A rank that takes something over from the stage before it crosses `pipe:receive` first, and waits there until that stage
has sent it: from the one crossing to the other, or not at all where what it wants was sent before.

Only what overlaps has a history of its own: `lanes_of` finds nothing in a play with one step at a time, one stage and
no copy thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import msgspec

from engine.topology import Channel, Mark, NodeKind
from faults.journal import Kind, Record
from scenarios.history.history import History
from scenarios.history.names import kind_of, of_life, rank_of

MAIN, COPY, IN_FLIGHT = "main", "copy", "in flight"
PHASES = ("execute_model", "sample_tokens")
ANSWER = "answer"
_PIPE_SEND, _PIPE_RECEIVE = f"/{Channel.PIPE.value}:send", f"/{Channel.PIPE.value}:receive"
_EXECUTING, _COPYING = f"/mark:{Mark.EXECUTING.value}", f"/mark:{Mark.COPYING.value}"
_ANSWERED = (f"/{Channel.RESPONSE.value}:send", f"/{Channel.OVERFLOW.value}:send")
_NEXT_CALL = (f"/{Channel.RPC.value}:receive", f"/{Channel.OVERFLOW.value}:receive", _EXECUTING)
_OVER = frozenset({"queue-wait", "rpc-raised", "rpc-reply", "rpc-failed", "bye", "dying", "thread-ended"})
_WORDS = {"hidden_states": "hidden", "sampled_tokens": "tokens"}
#: What a fault does to a crossing so that nothing is sent behind it.
_KEPT = frozenset({"kill", "exit", "raise"})
#: What holds a process at a crossing, until the fault is released.
_HOLDS = frozenset({"stall", "hang", "delay"})


class Wait(msgspec.Struct, frozen=True):
    """In `pipe:receive`. `until` is when the stage before sent; of one that never did, the end of the call."""

    began: float
    until: float


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One span, in seconds from the first record of the play. `node` has its life, `lane` is the thread's or IN_FLIGHT.

    `is_over`: a record says when it ended; else it lasted as long as its process did, and `seen` is the last of its
    thread's records.
    """

    node: str
    lane: str
    what: str  # of PHASES; ANSWER; IN_FLIGHT
    step: int | None
    began: float
    ended: float
    is_over: bool
    seen: float = 0.0
    waits: tuple[Wait, ...] = ()


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What went from a stage to the next one: its send, and the receive that took it. `put_at` None: it never went."""

    source: str
    target: str
    send: Record
    receive: Record | None
    put_at: float | None

    @property
    def taken_at(self) -> float | None:
        """Who waits for it has it when it is there."""
        if self.receive is None or self.put_at is None:
            return None
        return max(self.put_at, self.receive.at)

    @property
    def label(self) -> str:
        """pipe 157 hidden: the step, and what of it"""
        what = str(self.send.data.get("what", ""))
        return f"{Channel.PIPE.value} {self.send.data.get('step')} {_WORDS.get(what, what)}".strip()


def pieces_of(history: History) -> list[Piece]:
    """Each k-th send of a rank with the k-th receive of the next one in its ring."""
    found = []
    for source in history.of_kind(NodeKind.WORKER):
        engine = history.play.topology.engine(history.engine_of(source).engine)
        for rank in engine.piped_to(rank_of(source)):
            life = history.engine_of(source).life
            target = of_life(str(engine.workers[rank]), life)
            receives = {record.nth: record for record in history.crossings.get(target + _PIPE_RECEIVE, ())}
            found += [Piece(source=source, target=target, send=send, receive=receives.get(send.nth),
                            put_at=_put_at(history, send)) for send in history.crossings.get(source + _PIPE_SEND, ())]
    return found


def _put_at(history: History, send: Record) -> float | None:
    return None if send.data.get("fate") in _KEPT else _past(history, send)


def _past(history: History, crossing: Record) -> float | None:
    """When the process was beyond it, as far as a fault let it."""
    held = crossing.data.get("fate") in _HOLDS
    return history.delivered_at.get((crossing.site, crossing.nth)) if held else crossing.at


def lanes_of(history: History) -> list[Work]:
    """Every span of the play, lane by lane and in each by time; none where nothing overlaps."""
    flights = [work for node in history.of_kind(NodeKind.CORE) for work in in_flight(history, node)]
    staged = any(engine.pp > 1 for engine in history.play.topology.engines)
    if not staged and not history.marks(Mark.COPYING.value) and not _overlap(flights):
        return []
    arrivals = {(piece.target, piece.send.nth): piece.put_at for piece in pieces_of(history)}
    works = flights
    for node in history.nodes:
        if kind_of(node) in (NodeKind.CORE, NodeKind.WORKER) and history.records(node):
            works += _Rank(history, node, arrivals).works()
    return works


def _overlap(flights: Sequence[Work]) -> bool:
    return any(one.node == other.node and other.began < one.ended for one, other in pairwise(flights))


def end_of(history: History, node: str) -> float:
    """Of its life, as it is known: a killed process says nothing."""
    ends = [life.ended_at for life in history.lives if life.node == node and life.ended_at is not None]
    return max(ends[-1] if ends else history.ended_at, history.last[node].at)


def in_flight(history: History, core: str) -> list[Work]:
    """Each step from its schedule to its use, or to where its core says that it failed."""
    scheduled = history.crossings.get(f"{core}/mark:{Mark.SCHEDULED.value}", ())
    if not scheduled:
        return []
    ends = [*history.crossings.get(f"{core}/mark:{Mark.EXECUTED.value}", ()),
            *history.by_node("step-failed").get(core, ())]
    over = {record.data.get("step"): record.at for record in reversed(ends)}
    last, origin = end_of(history, core), history.began_at
    return [Work(node=core, lane=IN_FLIGHT, what=IN_FLIGHT, step=record.data.get("step"), began=record.at - origin,
                 ended=over.get(record.data.get("step"), last) - origin, is_over=record.data.get("step") in over)
            for record in scheduled]


class _Rank:
    """Reads the journal of a process that executes steps."""

    def __init__(self, history: History, node: str, arrivals: dict[tuple[str, int], float | None]) -> None:
        self._history, self._node, self._arrivals = history, node, arrivals
        records = history.records(node)
        self._main = [record for record in records if record.thread == MAIN]
        self._copy = [record for record in records if record.thread == COPY]
        self._copied = {record.data["call"]: record.at for record in self._copy if record.site.endswith(_COPYING)}
        self._steps: dict[int, int | None] = {}  # of a call
        self._end = end_of(history, node)

    def works(self) -> Iterator[Work]:
        step: int | None = None
        for place, record in enumerate(self._main):
            if record.site.endswith(_EXECUTING) and record.data.get("method") in PHASES:
                step = record.data.get("step", step)
                self._steps[record.data["call"]] = step
                yield self._call(place, record.data["method"], step)
        for place, record in enumerate(self._copy):
            if record.site.endswith(_COPYING):
                yield self._answer(place)

    def _call(self, place: int, method: str, step: int | None) -> Work:
        began, receives = self._main[place].at, []
        answered = self._copied.get(self._main[place].data["call"])  # at the latest
        for after in range(place + 1, len(self._main)):
            record = self._main[after]
            if record.site.endswith(_PIPE_RECEIVE):
                receives.append(record)
            elif (ended := self._ended(after, began)) is not None:
                return self._work(MAIN, method, step, began, min(ended, answered or ended), receives)
        return self._work(MAIN, method, step, began, answered, receives)

    def _ended(self, place: int, began: float) -> float | None:
        """When the call was over, if this record tells. Who slept before the next one says afterwards since when."""
        record = self._main[place]
        if record.kind is Kind.CROSSING and record.site.endswith((*_ANSWERED, *_NEXT_CALL)):
            told = self._main[place + 1:place + 2] if record.site.endswith(_NEXT_CALL) else []
        elif record.kind is Kind.OBSERVATION and record.site in _OVER:
            told = [record]
        else:
            return None
        slept = [wait.data["began"] for wait in told if wait.site == "queue-wait"]
        return next((at for at in slept if began <= at <= record.at), record.at)

    def _answer(self, place: int) -> Work:
        record = self._copy[place]
        step = self._steps.get(record.data["call"])
        ended = next((other.at for other in islice(self._copy, place + 1, None) if other.site == "thread-ended" or (
            other.kind is Kind.CROSSING and other.site.endswith((*_ANSWERED, _COPYING)))), None)
        return self._work(COPY, ANSWER, step, record.at, ended, ())

    def _work(self, lane: str, what: str, step: int | None, began: float, ended: float | None,
              receives: Sequence[Record]) -> Work:
        origin = self._history.began_at
        end = self._end if ended is None else ended
        seen = (self._copy if lane == COPY else self._main)[-1].at if ended is None else ended
        waits = []
        for record in receives:
            put_at = self._arrivals.get((self._node, record.nth))
            until, entered = end if put_at is None else min(put_at, end), _past(self._history, record)
            if entered is not None and until > entered:
                waits.append(Wait(entered - origin, until - origin))
        return Work(node=self._node, lane=lane, what=what, step=step, began=began - origin, ended=end - origin,
                    is_over=ended is not None, seen=seen - origin, waits=tuple(waits))

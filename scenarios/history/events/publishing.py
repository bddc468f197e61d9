"""What one life of a publisher put on the wire, in its own order, by the fault layer's records of its crossings.

    journal --walk--> Published: what its window, its state and its numbers must be at each moment

Promise: a message counts as what its bytes say (`faults/told.py`), a hand-over as the core's own record of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from engine.topology import Channel
from faults.journal import Kind, Record
from faults.plan import Fate
from scenarios.history.events.followers import handed_over
from scenarios.history.history import History

_LIVE, _ANSWER = f"/{Channel.KV.value}:send", f"/{Channel.REPLAY.value}:send"
#: Where a publisher sends.
SENDS = (_LIVE, _ANSWER)
_QUESTION = f"/{Channel.REPLAY.value}:receive"
#: What befalls a question so that nobody can say when, or as what, it is read.
BLURRED = frozenset({Fate.REORDER, Fate.DUPLICATE, Fate.CORRUPT, Fate.TRUNCATE})
#: And what befalls it so that nobody reads it.
UNREAD = frozenset({Fate.DROP, Fate.KILL, Fate.RAISE, Fate.EXIT})


class Batch(NamedTuple):
    """As it was sent first."""

    seq: int
    epoch: int | None
    payload: int
    clears: bool


class Held(NamedTuple):
    """What a publisher has at one moment: its window, and the state that all its batches amount to."""

    window: list[Batch]
    behind: int  # the number after the last one that was sent
    upto: int  # every number below was sent or lost
    known: bool  # the state


class Published:
    """What a publisher has sent and numbered so far: what its answers must be made of."""

    def __init__(self, buffer_steps: int) -> None:
        self._buffer_steps = buffer_steps
        self.sent: list[Batch] = []
        self.numbered = self.lost = 0
        self.known = True  # the state that all batches amount to

    @property
    def waiting(self) -> int:
        return self.numbered - self.lost - len(self.sent)

    @property
    def behind(self) -> int:
        """The number after the last one that was sent."""
        return self.sent[-1].seq + 1 if self.sent else 0

    @property
    def upto(self) -> int:
        """Every number below was sent or lost."""
        return self.behind if self.waiting else max(self.behind, self.numbered)

    def held(self) -> Held:
        return Held(self.sent[-self._buffer_steps:], self.behind, self.upto, self.known)

    def send(self, said: dict[str, Any]) -> None:
        clears = bool(said.get("clears"))
        self.known = clears or (self.known and said["seq"] == self.behind)
        self.sent.append(Batch(said["seq"], said["epoch"], said["payload"], clears))


class Moment(NamedTuple):
    """One record of a core that is about its events: a live batch, a question, a part of an answer, or its own word."""

    what: str  # "live", "question", "answer", or the observation's name
    record: Record
    peer: str = ""  # who asked, or is answered
    at: float = 0.0  # when a question was read


def moments(history: History, core: str, subscriber: str) -> Iterator[Moment]:
    """In the core's own order. Live batches are sent to all at once: those to `subscriber` are told."""
    held: dict[tuple[str, int], Record] = {}
    for record in history.records(core):
        if record.kind is Kind.OBSERVATION:
            yield Moment(record.site, record)
        elif record.kind is Kind.RELEASE:
            late = held.pop((record.data.get("site", ""), record.data.get("nth", 0)), None)
            if late is not None:
                yield Moment("question", late, late.site.partition("->")[0], record.at)
        elif record.kind is Kind.CROSSING and "->" in record.site:
            source, _, target = record.site.partition("->")
            if record.site.endswith(_LIVE) and target.startswith(f"{subscriber}/"):
                yield Moment("live", record)
            elif record.site.endswith(_QUESTION) and record.data.get("fate") == Fate.DELAY:
                held[record.site, record.nth] = record
            elif record.site.endswith(_QUESTION):
                yield Moment("question", record, source, record.at)
            elif record.site.endswith(_ANSWER):
                yield Moment("answer", record, target.partition("/")[0])


def numbers_of(history: History, core: str) -> dict[int, Record]:
    """The records by which it gave its batches their numbers, by their places in its journal."""
    return {record.number: record for record in handed_over(history, core)}

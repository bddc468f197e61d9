"""What reached a subscriber, what it asked and what it told, in its own order, by the fault layer's records.

    journal --heard--> live | batch | end | piece | damaged | asked | told

What a message said stands in its crossing's record, as the fault layer read it (`faults/told.py`). A message counts
where it was handed over: one that a fault took does not, one that it held back does at its release.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from engine.topology import Channel
from scenarios.history.history import Fate, History, Kind, Record

#: Silence of the live socket after which an answer has overtaken nothing more.
QUIET_S = 0.2
#: No publisher is gone and back faster.
RESTART_S = 1.0
#: Questions in a row that brought nothing until what they asked for counts as lost.
TRIES = 3
#: The longest wait for an answer of a publisher that may not know what it was asked.
UNKNOWN_S = 1.0
#: What the twin charges a subscriber for its work between two records of one moment, at most.
WORK_S = 1e-5

_NEVER_READ = frozenset({Fate.DROP, Fate.KILL, Fate.RAISE, Fate.EXIT})
_LATER = frozenset({Fate.DELAY, Fate.REORDER})
_DAMAGED = frozenset({Fate.CORRUPT, Fate.TRUNCATE})
#: Where live batches come.
LIVE = f"/{Channel.KV.value}:receive"
_ARRIVALS = (LIVE, f"/{Channel.REPLAY.value}:receive")
_QUESTIONS = f"/{Channel.REPLAY.value}:send"


class What(StrEnum):
    LIVE = "live"  # a live batch
    BATCH = "replay"  # a batch of an answer
    END = "end"  # of an answer
    PIECE = "piece"  # of a snapshot
    DAMAGED = "damaged"  # whatever it was
    ASKED = "asked"  # a question left
    TOLD = "told"  # the subscriber says something


class Moment(NamedTuple):
    what: What
    at: float
    record: Record
    said: dict[str, Any]  # the message's own words, or the subscriber's


def moments(history: History, node: str) -> list[Moment]:
    """Of one life of a subscriber, in the order in which they happened to it."""
    read = _read(history)
    if node not in read:
        found = _moments(history, node)
        if history.faults.hit(Fate.DUPLICATE):
            found = _in_turn(found, WORK_S if history.simulated else history.bounds.detection_s)
        read[node] = list(found)
    return read[node]


@lru_cache(maxsize=1)
def _read(history: History) -> dict[str, list[Moment]]:
    """Each journal is walked once. The last history is kept: several promises ask for it."""
    return {}


def _moments(history: History, node: str) -> Iterator[Moment]:
    held: dict[tuple[str, int], Record] = {}
    stands_until = 0.0
    for record in history.records(node):
        if record.kind is Kind.OBSERVATION:
            yield Moment(What.TOLD, record.at, record, record.data)
        elif record.kind is Kind.RELEASE:
            late = held.pop((record.data.get("site", ""), record.data.get("nth", 0)), None)
            if late is not None:  # whoever stands still with a message in its hands takes it behind that
                yield _arrived(late, max(record.at, stands_until))
        elif record.kind is Kind.CROSSING and record.site.endswith(_ARRIVALS):
            fate = history.faults.met(record)
            if fate in _LATER:
                held[record.site, record.nth] = record
            elif fate not in _NEVER_READ:
                # Of another life the same crossing is another message.
                at = record.at if fate is None else history.delivered_at.get((record.site, record.nth), record.at)
                stands_until = at
                yield _arrived(record, at)
                if fate == Fate.DUPLICATE:
                    yield _arrived(record, at)
        elif record.kind is Kind.CROSSING and record.site.endswith(_QUESTIONS):
            yield Moment(What.ASKED, record.at, record, record.data)


def _in_turn(found: Iterator[Moment], answers_s: float) -> Iterator[Moment]:
    """An end that comes doubled is read twice, and what the first one made its reader ask is asked in between.

    Who leaves behind the first one reads no second one.
    """
    doubled: Moment | None = None
    for moment in found:
        if moment.what is What.END and moment.said.get("fate") == Fate.DUPLICATE and doubled is None:
            yield moment
            doubled = moment
        elif doubled is None or (moment.what is What.TOLD and moment.at <= doubled.at + answers_s):
            yield moment
        elif moment.record is doubled.record:
            continue
        else:
            asked_between = moment.what is What.ASKED and moment.at <= doubled.at + answers_s
            yield from (moment, doubled) if asked_between else (doubled, moment)
            doubled = None


def _arrived(record: Record, at: float) -> Moment:
    said = record.data
    if said.get("fate") in _DAMAGED:
        return Moment(What.DAMAGED, at, record, said)
    if record.site.endswith(_ARRIVALS[0]):
        return Moment(What.LIVE if "seq" in said else What.DAMAGED, at, record, said)
    for what, name in ((What.END, "end"), (What.PIECE, "piece"), (What.BATCH, "seq")):
        if name in said:
            return Moment(what, at, record, said)
    return Moment(What.DAMAGED, at, record, said)

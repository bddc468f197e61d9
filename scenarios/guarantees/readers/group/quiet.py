"""Times in which nothing befell the requests of some cores, and how many waited and ran at each then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from engine.topology import Mark, mark_site
from scenarios.history.history import FOREVER, EngineLife, History, Record
from scenarios.history.steps import Step, steps_of

#: How many requests wait at a core, and how many run.
Counts = tuple[int, int]


class Quiet(NamedTuple):
    """A time in which no core got a request, was done with one, or had one begin or give way; and how many waited at
    each of them then, and how many ran.
    """

    since: float
    until: float
    requests: tuple[Counts, ...]


def quiets(history: History, hub: str, client: str, engines: tuple[EngineLife, ...],
           since: float) -> Iterator[Quiet]:
    """Until the first of them ends, or is told to, by what each core says that it took in and was done with, and by the
    steps that its workers read.
    """
    over_at = min(history.ended_at, *map(history.ends.at, (hub, client, *(engine.core for engine in engines))),
                  *map(history.closing_at, engines),
                  *(records[0].at for node, records in history.by_node("dying").items()
                    if any(history.lives_with(engine, node) for engine in engines)))
    runs: list[dict[str, bool]] = [{} for _ in engines]
    changes = []
    for engine, its in zip(engines, runs, strict=True):
        steps, calls = steps_of(history, engine), history.by_node("rpc-call").get(engine.core, ())
        over_at = min(over_at, _unread_at(steps, calls))
        changes += [(*change, its) for change in _changes(history, engine, steps, calls)]
    changes.sort(key=lambda change: change[:2])
    for at, what, names, known_at, its in [*changes, (over_at, _Change.FREED, [], over_at, {})]:
        if since < min(at, over_at):
            yield Quiet(since, min(at, over_at), tuple((len(one) - sum(one.values()), sum(one.values()))
                                                       for one in runs))
        since = max(since, at, known_at)
        for name in names or list(its):
            if what is _Change.ADDED:
                its[name] = False
            elif what is _Change.FREED:
                its.pop(name, None)
            elif name in its:
                its[name] = what is _Change.BEGAN


class _Change(IntEnum):
    ADDED = 0
    BEGAN = 1
    GAVE_WAY = 2
    FREED = 3


def _changes(history: History, engine: EngineLife, steps: list[Step],
             calls: Sequence[Record]) -> Iterator[tuple[float, _Change, list[str], float]]:
    """What befell its requests, and when it can have told of that: a step is as early as its call, and a core that
    waits for its results tells nothing. No names: all of them.
    """
    for record in history.by_node("request").get(engine.core, ()):
        if record.data["action"] == "add":
            yield record.at, _Change.ADDED, [record.data["request"]], record.at
    for record in history.by_node("freed").get(engine.core, ()):
        yield record.at, _Change.FREED, [record.data["request"]], record.at
    for record in history.by_node("reset").get(engine.core, ()):
        if record.data["preempts"]:
            yield record.at, _Change.GAVE_WAY, [], record.at
    called = {call.number: call.at for call in calls}
    executed = {record.data["step"]: record.at
                for record in history.crossings.get(mark_site(engine.core, Mark.EXECUTED), ())}
    for step in steps:
        known_at = executed.get(step.record.data["step"], FOREVER)
        if step.came:
            yield called[step.number], _Change.BEGAN, [one.request for one in step.came], known_at
        if step.preempted:
            yield called[step.number], _Change.GAVE_WAY, step.preempted, known_at


def _unread_at(steps: list[Step], calls: Sequence[Record]) -> float:
    """When a core called for the first step that no worker has read: nobody knows what was in it."""
    read = {step.number for step in steps}
    return next((call.at for call in calls
                 if call.data["method"] == "execute_model" and call.number not in read), FOREVER)


def counts_in(record: Record) -> tuple[Counts, ...]:
    """Of each core, by the counts that are told."""
    return tuple((waiting, running) for waiting, running, _ in record.data["counts"])

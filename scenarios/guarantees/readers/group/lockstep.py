"""Cores that step together, as their journals tell: who they are, and what each of them did in turn."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from engine.topology import Channel, Mark, mark_site
from faults.journal import Record
from scenarios.history.history import EngineLife, History
from scenarios.history.names import ACROSS, of_life
from scenarios.history.play import Play

FORWARD, ALL_REDUCE = "a forward", "an all-reduce"
#: What a core writes down of its waves, besides its turns.
_TOLD = ("consensus", "start-heard", "request", "freed")
_MARKS = (Mark.WAVE_DONE, Mark.PAUSED, Mark.RESUMED)


def is_lockstep(play: Play) -> bool:
    return bool(play.topology.stepping)


def is_woken(play: Play) -> bool:
    """Whether those that step together have somebody who wakes them."""
    return any(hub.lockstep for hub in play.topology.coordinators)


def is_offline(play: Play) -> bool:
    """Whether they have nobody, and a client each."""
    return bool(play.topology.offline)


class Turn(NamedTuple):
    """What a core does with all others of its group, as it begins."""

    record: Record
    kind: str
    dummy: bool = False


class Rank:
    """One core of a group."""

    def __init__(self, history: History, engine: EngineLife) -> None:
        self.history, self.engine, self.core = history, engine, engine.core

    @property
    def places(self) -> list[str]:
        """Who executes its forwards: its workers, or itself."""
        ranks = self.history.ranks_of(self.core)
        return [self.engine.worker(rank) for rank in range(ranks)] if ranks > 1 else [self.core]

    def forwards(self, place: int = 0) -> list[Record]:
        """What each forward has in common with those of the others, of the executor in that place."""
        entered = self.history.crossings.get(f"{self.places[place]}/{Channel.COLLECTIVE.value}:enter", ())
        return [record for record in entered if record.data.get("operation") == ACROSS]

    @cached_property
    def all_reduces(self) -> list[Record]:
        """As it enters them."""
        return list(self.history.crossings.get(f"{self.core}/{Channel.CONSENSUS.value}:enter", ()))

    @cached_property
    def sums(self) -> list[Record]:
        """What came of them."""
        return self.history.by_node("consensus").get(self.core, [])

    def passed(self, mark: Mark) -> list[Record]:
        return list(self.history.crossings.get(mark_site(self.core, mark), ()))

    @cached_property
    def turns(self) -> list[Turn]:
        """By the core's own order: of a forward of workers, when it is handed to them."""
        found = [Turn(record, FORWARD, dummy=True) for record in self.passed(Mark.DUMMY)]
        found += [Turn(record, FORWARD) for record in self.passed(Mark.SCHEDULED) if record.data["tokens"]]
        found += [Turn(record, ALL_REDUCE) for record in self.all_reduces]
        return sorted(found, key=lambda turn: turn.record.number)

    def told(self) -> list[tuple[str, Record]]:
        """(name, record) of what it said of its waves, and of its forwards, in its own order."""
        found = [(name, record) for name in _TOLD for record in self.history.by_node(name).get(self.core, ())]
        found += [(mark.value, record) for mark in _MARKS for record in self.passed(mark)]
        found += [(FORWARD, turn.record) for turn in self.turns if turn.kind == FORWARD]
        return sorted(found, key=lambda pair: pair[1].number)


class Group(NamedTuple):
    """Cores that step together, in one life of them, and all their processes. `hub`: who wakes them; "": nobody."""

    hub: str
    ranks: tuple[Rank, ...]
    nodes: frozenset[str]

    @property
    def title(self) -> str:
        return self.hub or " and ".join(rank.core for rank in self.ranks)


def groups(history: History) -> Iterator[Group]:
    topology = history.play.topology
    woken = [(str(hub.node), hub.engines) for hub in topology.coordinators if is_woken(history.play)]
    for hub, engines in (*woken, *(("", one.engines) for one in topology.offline)):
        for life in sorted({engine.life for engine in history.engines if engine.engine in engines}):
            ranks = tuple(Rank(history, EngineLife(index, life)) for index in engines)
            name = of_life(hub, life) if hub else ""
            nodes = {*(rank.core for rank in ranks), *(place for rank in ranks for place in rank.places)}
            yield Group(name, ranks, frozenset({name, *nodes} if name else nodes))

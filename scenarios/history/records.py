"""What the processes of one play wrote, indexed in one pass: by site, by observation, by node.

    journals --index--> crossings[site], observations[name][node], receipts, releases

Sites and nodes of a later life carry it (`core.0@1`); journals name sites without. A client that is attached may come
back to engines that went on: then what joins them is one edge for all lives (`counted_on`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cached_property

import msgspec

from engine.topology import Edge, Mark, Node, NodeKind, Topology
from faults.journal import JournalFile, Kind, Record
from scenarios.history.names import EngineLife, kind_of, life_of, of_life, site_of_life

#: When what has not happened happens.
FOREVER = float("inf")


class Records:
    """All journals of one play. Cheap to build; every property is computed at most once."""

    def __init__(self, journals: list[JournalFile], topology: Topology, *, together: bool = False) -> None:
        """`together`: a client gives up all of its engines where one has died."""
        self._topology, self._together = topology, together
        self._engines: dict[str, tuple[EngineLife, ...]] = {}
        self._owners: dict[EngineLife, str] = {}
        self._greeters: dict[EngineLife, tuple[str, ...]] = {}
        self.crossings: dict[str, list[Record]] = defaultdict(list)
        self.observations: dict[str, dict[str, list[Record]]] = {}
        self._observed: dict[str, list[tuple[str, Record]]] = {}
        self.last: dict[str, Record] = {}
        self.receipts: list[tuple[str, Record]] = []  # (who wrote it, record), as the journals come
        self.releases: dict[str, list[Record]] = defaultdict(list)  # by fault
        self._files: dict[str, JournalFile] = {}
        self._launches = max((file.life for file in journals if kind_of(file.node) == NodeKind.LAUNCHER), default=0)
        self._index(counted_on(journals, self.came_back))

    def _index(self, journals: list[JournalFile]) -> None:
        crossings, observations = self.crossings, self.observations
        crossing, observation, receipt = Kind.CROSSING, Kind.OBSERVATION, Kind.RECEIPT
        for file in journals:
            node = of_life(file.node, file.life)
            self._files[node] = file
            if file.records:
                self.last[node] = file.records[-1]
            mine: dict[str, list[Record]] = defaultdict(list)
            life = file.life
            for record in file.records:
                kind, site = record.kind, record.site
                if kind is crossing:
                    crossings[self.site_in(node, site) if life else site].append(record)
                elif kind is observation:
                    mine[site].append(record)
                elif kind is receipt:
                    self.receipts.append((node, record))
                else:
                    self.releases[site].append(record)
            for name, records in mine.items():
                observations.setdefault(name, {})[node] = records

    def came_back(self, node: str) -> bool:
        """Whether it is a client that attached again to engines that went on."""
        return life_of(node) > self._launches and self.is_attached(node)

    def site_in(self, node: str, site: str) -> str:
        """That site, as the journal of this process names it, with its life."""
        return site if "->" in site and self.came_back(node) else site_of_life(site, life_of(node))

    def engine_of(self, node: str) -> EngineLife:
        """The engine that a process is of or follows, or the first that it speaks with."""
        return self.engines_of(node)[0]

    def engines_of(self, node: str) -> tuple[EngineLife, ...]:
        """Of a frontend or a coordinator all that it speaks with, of any other process one."""
        found = self._engines.get(node)
        if found is None:
            parsed = Node.parse(node)
            engines = self._topology.engines_of(parsed.first_life)
            life = min(parsed.life, self._launches) if self.is_attached(node) else parsed.life
            found = self._engines[node] = tuple(EngineLife(engine.index, life) for engine in engines) or (
                EngineLife(0, life),)
        return found

    def is_of(self, node: str, engine: EngineLife) -> bool:
        """Whether a process is of that engine, speaks with it or follows it."""
        return engine in self.engines_of(node)

    def owner(self, engine: EngineLife) -> str:
        """Who has started that engine and ends it: its client, or a launcher."""
        found = self._owners.get(engine)
        if found is None:
            found = self._owners[engine] = of_life(str(self._topology.owner_of(engine.engine)), engine.life)
        return found

    def is_attached(self, node: str) -> bool:
        """Whether it is a client of engines that a launcher owns, all of them."""
        if not self._topology.launchers or kind_of(node) != NodeKind.FRONTEND:
            return False
        return all(self._topology.launcher_of(engine.index) is not None
                   for engine in self._topology.engines_of(Node.parse(node).first_life))

    def is_apart(self, engine: EngineLife) -> bool:
        """Whether some that it lives and dies with were started by others."""
        return self._topology.is_offline(engine.engine) or self._topology.is_spread(engine.engine)

    def hub_of(self, engine: EngineLife) -> str | None:
        """The coordinator that the same one has started as that engine, and ends with it."""
        hubs = self._topology.coordinators_of([engine.engine])
        heads = self._topology.head_of(engine.engine)
        return of_life(str(hubs[0].node), engine.life) if hubs and self.owner(engine) == of_life(
            str(heads), engine.life) else None

    def owner_of(self, node: str) -> str:
        """Who has started a process, or it itself; of a coordinator the head."""
        kind = kind_of(node)
        return node if kind in (NodeKind.FRONTEND, NodeKind.LAUNCHER) else self.owner(self.engine_of(node))

    def has_begun(self, client: str, engine: EngineLife) -> bool:
        """Whether that client has started that engine itself."""
        return self.owner(engine) == client

    def greeted_by(self, engine: EngineLife) -> tuple[str, ...]:
        """With whom its core shakes hands."""
        found = self._greeters.get(engine)
        if found is None:
            found = self._greeters[engine] = tuple(
                of_life(str(node), engine.life) for node in self._topology.greeted_by(engine.engine))
        return found

    def greeters(self, node: str) -> list[EngineLife]:
        """The engines whose cores shake hands with that client, or launcher."""
        engines = (EngineLife(engine.index, life_of(node)) for engine in self._topology.engines)
        return [engine for engine in engines if node in self.greeted_by(engine)]

    def has_started(self, client: str, node: str) -> bool:
        """Whether a client has started that process, and is told of its end by the system."""
        return not self._topology.launchers and set(self.engines_of(node)).issubset(self.engines_of(client))

    def client_index(self, node: str) -> int:
        """Which of its engines' clients a frontend is."""
        clients = self._topology.clients_of(self.engine_of(node).engine)
        return [client.index for client in clients].index(Node.parse(node).index)

    def in_step(self, engine: EngineLife) -> bool:
        """Whether it is of a group that steps together."""
        return bool(self._topology.steps_with(engine.engine))

    def coordinated(self, engine: EngineLife) -> tuple[EngineLife, ...]:
        """All engines that have the same coordinator; none, where it has none."""
        return tuple(EngineLife(index, engine.life) for hub in self._topology.coordinators
                     if engine.engine in hub.engines for index in hub.engines)

    def joined(self, engine: EngineLife) -> tuple[EngineLife, ...]:
        """The engines that it lives and dies with: those that step together with it, itself among them; all of its
        client's, where that gives up all of them.
        """
        group = self._topology.steps_with(engine.engine)
        if self._together:
            group = self._topology.clients_of(engine.engine)[0].engines
        return tuple(EngineLife(index, engine.life) for index in group) or (engine,)

    def lives_with(self, engine: EngineLife, node: str) -> bool:
        """Whether that engine ends with this process: one of its own, or of its group, whose coordinator is one where
        they step together, and where anybody looks after it.
        """
        kind = kind_of(node)
        if kind in (NodeKind.FRONTEND, NodeKind.SUBSCRIBER):
            return False
        if kind == NodeKind.COORDINATOR and (self._together or not self.in_step(engine)):
            return False
        return not set(self.joined(engine)).isdisjoint(self.engines_of(node))

    def by_node(self, name: str) -> dict[str, list[Record]]:
        """Observations of that name, by node, each list in program order."""
        return self.observations.get(name, {})

    def observed(self, name: str) -> list[tuple[str, Record]]:
        """(node, record) of every observation of that name, by time."""
        found = self._observed.get(name)
        if found is None:
            by_node = self.by_node(name)
            found = self._observed[name] = [(node, record) for node, records in by_node.items() for record in records]
            if len(by_node) > 1:
                found.sort(key=_when)
        return found

    @cached_property
    def executed(self) -> dict[str, list[Record]]:
        """The calls that each worker began with, in program order. None of a core that computes itself."""
        found: dict[str, list[Record]] = defaultdict(list)
        for node, record in self.marks(Mark.EXECUTING):
            if kind_of(node) == NodeKind.WORKER and "call" in record.data:
                found[node].append(record)
        for node, told in self.by_node("rpc").items():  # who recorded a run before said the step beside the mark
            steps = {record.data["call"]: record.data for record in told}
            found[node] = [msgspec.structs.replace(record, data=steps.get(record.data["call"], {}) | record.data)
                           for record in found[node]]
        return dict(found)

    def marks(self, mark: str) -> list[tuple[str, Record]]:
        """(node, crossing) of a mark in every process."""
        return self._marks.get(mark, [])

    @cached_property
    def _marks(self) -> dict[str, list[tuple[str, Record]]]:
        found: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        for site, records in self.crossings.items():
            node, is_mark, mark = site.partition("/mark:")
            if is_mark:
                found[mark] += [(node, record) for record in records]
        return found

    def records(self, node: str) -> list[Record]:
        """Everything one process wrote, in its own order."""
        return self._files[node].records if node in self._files else []

    @cached_property
    def nodes(self) -> list[str]:
        return list(self._files)

    def of_kind(self, kind: NodeKind | str) -> list[str]:
        return [node for node in self.nodes if kind_of(node) == kind]

    def sends(self, edge: str | Edge) -> list[Record]:
        return self.crossings.get(f"{edge}:send", [])

    def receives(self, edge: str | Edge) -> list[Record]:
        return self.crossings.get(f"{edge}:receive", [])

    @cached_property
    def unroutable(self) -> frozenset[tuple[str, int]]:
        """(site with its life, nth) of sends that could not be routed and stayed with their sender."""
        return frozenset((self.site_in(node, record.data["site"]), record.data["nth"])
                         for node, record in self.observed("not-sent") if "site" in record.data)

    @cached_property
    def delivered_at(self) -> dict[tuple[str, int], float]:
        """(site, nth) of a message that a fault held back -> when it was delivered after all."""
        return {(str(record.data["site"]), int(record.data["nth"])): record.at
                for records in self.releases.values() for record in records
                if "site" in record.data and "nth" in record.data}

    # -- when an engine was asked to leave

    def group_closing_at(self, engine: EngineLife) -> float:
        """When the first of the owners of those that step together did."""
        return min(self.closing_at(other) for other in self.joined(engine))

    def closing_at(self, engine: EngineLife) -> float:
        """When its owner, or the client of a headless one, began to shut it down; infinite if none ever did."""
        who = {self.owner(engine), *(self.greeted_by(engine) if self._topology.is_headless(engine.engine) else ())}
        return min((records[0].at for node in who if (records := self.by_node("closing").get(node))), default=FOREVER)

    def closes_at(self, node: str) -> float:
        """The same of one process: of a client that is attached, when it began to leave."""
        said = self.by_node("closing").get(node, ()) if self.is_attached(node) else None
        return self.closing_at(self.engine_of(node)) if said is None else said[0].at if said else FOREVER

    def before_closing(self, node: str, record: Record) -> bool:
        """Whether a frontend wrote this before it began to shut down. By program order: in the twin times are equal."""
        closing = self.by_node("closing").get(node)
        return not closing or record.number < closing[0].number


def _when(observed: tuple[str, Record]) -> float:
    return observed[1].at


def counted_on(journals: list[JournalFile], outlived: Callable[[str], bool]) -> list[JournalFile]:
    """Of clients that come back to engines that went on: the core at the other end of an edge counts on, and does not
    know which life it speaks with; so the journals of the later lives are counted on, too.

    `outlived`: whether the engines of that process, a later life, are those of the life before.
    """
    if not any(file.life and outlived(of_life(file.node, file.life)) for file in journals):
        return journals
    seen: dict[str, Counter[str]] = defaultdict(Counter)  # by node: crossings of each site, and of each message there
    found = []
    for file in sorted(journals, key=lambda one: one.life):
        so_far = seen[file.node]
        before = Counter(so_far) if file.life and outlived(of_life(file.node, file.life)) else Counter()
        records = []
        for record in file.records:
            if record.kind is Kind.CROSSING and "->" in record.site:
                so_far.update((record.site, _message(record)))
                if before:
                    record = _later(record, before)
            records.append(record)
        found.append(msgspec.structs.replace(file, records=records))
    return sorted(found, key=lambda one: (one.node, one.life))


def _later(record: Record, before: Counter[str]) -> Record:
    return msgspec.structs.replace(record, nth=record.nth + before[record.site],
                                   occurrence=record.occurrence + before[_message(record)])


def _message(record: Record) -> str:
    return f"{record.site} {record.digest}"

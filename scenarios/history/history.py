"""All journals of one play as one history, indexed once, read by every judge and by the report.

Promises:

- One pass over the records; everything else is made when somebody asks for it, and kept.
- `merged()` is a total order that respects program order and send-before-receive; where neither speaks,
  the host's one monotonic clock does (virtual time in the twin).
- Nothing is invented: where a journal ends early, so does what is known of its process.

    journals --Records--> crossings[site], observations[name][node], receipts
                               |                  |                     |
                             flows            operations          faults, ends
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from engine.config import Bounds
from engine.messages import Outcome
from engine.topology import Channel, Grid, NodeKind
from faults.journal import JournalFile, Kind, Record, digest_of
from faults.plan import MESSAGE_FATES, Fate, owner_of
from scenarios.history.ends import Death, Ends, Life, ends_of, lives_of, overstayed
from scenarios.history.flows import Flow, Flows, flows_of
from scenarios.history.names import EngineLife, base, kind_of, life_of, of_life
from scenarios.history.operations import Absence, Operation, Startup, absences_of, operations_of, startups_of
from scenarios.history.order import merge
from scenarios.history.play import Intruder, Lab, Play, ProcessEnd
from scenarios.history.receipts import DEATH_FATES, Faults, Receipt, Stall, faults_of
from scenarios.history.records import FOREVER, Records

__all__ = [
    "FOREVER", "Death", "EngineLife", "Fate", "Flow", "History", "Kind", "Operation", "Outcome", "Receipt", "Record",
    "Stall", "Startup", "base", "kind_of", "life_of", "owner_of",
]

#: A machine that starved for so much of a patience may have run it out.
STARVED_PART = 0.25


def is_about(record: Record, engine: EngineLife) -> bool:
    """Whether what a client says of a core is said of this engine's. A client of one core need not name it."""
    return bool(record.data.get("core", engine.engine) == engine.engine)


class History(Records):
    """One play, ready to be judged: what was written, and what it means."""

    def __init__(self, play: Play, lab: Lab, journals: list[JournalFile]) -> None:
        super().__init__(journals, play.topology, together=not play.is_ours)
        self.play = play
        self.lab = lab
        self.bounds: Bounds = play.config.bounds
        self.simulated = play.simulated
        if play.options.intruders:
            self._forget({digest_of(frames) for intruder in play.options.intruders for frames in intruder.messages})

    def _forget(self, foreign: set[str]) -> None:
        """What came by an intruder crossed no edge, also where its receiver could not tell: no process has sent it."""
        for site, records in self.crossings.items():
            if site.endswith(":receive"):
                sends, had = self.sends(site.rpartition(":")[0]), Counter[str]()
                kept = []
                for record in records:
                    if record.digest in foreign and had[record.digest] >= sum(
                            send.digest == record.digest and send.at <= record.at for send in sends):
                        continue
                    had[record.digest] += 1
                    kept.append(record)
                records[:] = kept

    def meets(self, node: str, intruder: Intruder) -> bool:
        """Whether that process has the socket that this one speaks with."""
        first = self._topology.deployments[0]
        if intruder.channel in (Channel.STATS, Channel.WAVE, Channel.REPORT):
            return kind_of(node) == NodeKind.COORDINATOR
        clients = dict(enumerate(client.node for client in first.clients))
        owner = clients[0] if first.launcher is None else first.launcher.node
        return node == str(owner if intruder.channel is Channel.HANDSHAKE else clients.get(intruder.client))

    # -- what went over each edge -------------------------------------------------------------------------

    @cached_property
    def _flows(self) -> Flows:
        return flows_of(self, self.faults)

    def flows(self, *channels: Channel) -> list[Flow]:
        """The edges of these channels (of all, if none is named) that anything crossed."""
        return self._flows.of(*channels)

    def flow(self, name: str, channel: Channel) -> Flow | None:
        """That edge of the channel, by its name; None: nothing crossed it."""
        return next((flow for flow in self.flows(channel) if flow.name == name), None)

    def outputs(self, core: str, caller: str) -> Flow | None:
        return self.flow(f"{core}->{caller}/{Channel.OUTPUTS.value}", Channel.OUTPUTS)

    def sends_by_position(self, flow: Flow) -> dict[int, list[Record]]:
        """What a ring's writer sent, by position. A broadcast is written once and may be recorded per reader."""
        return self._flows.sends_by_position(flow)

    # -- what went wrong ----------------------------------------------------------------------------------

    @cached_property
    def faults(self) -> Faults:
        return faults_of(self.play.plan, self)

    @cached_property
    def ends(self) -> Ends:
        return ends_of(self.play, self.lab, self, self.faults)

    @cached_property
    def lives(self) -> list[Life]:
        """Every life of every process that wrote anything, by node."""
        return lives_of(self.lab, self, self.faults)

    def overstayed(self, process: ProcessEnd) -> bool:
        return overstayed(process, self.play, self.lab)

    def nobody_ends(self, process: ProcessEnd) -> bool:
        """Whether by the plan it, or the core that it follows, stood still until the lab ended it, and whoever owns it
        was gone without having ended it.
        """
        node = of_life(process.node, process.life)
        engine, at = self.engine_of(node), self.ended_at if process.ended_at is None else process.ended_at
        owner = self.owner(engine)
        alone = self.ends.at(owner) <= at and owner not in self.by_node("closed")
        return kind_of(node) in (NodeKind.CORE, NodeKind.WORKER) and alone and self.faults.stands_still(
            at, node, engine.core)

    @property
    def slack_s(self) -> float:
        """How far what happened may lie from where another process saw it, or wrote it down."""
        return 0.0 if self.simulated else self.bounds.detection_s

    def starved(self, patience_s: float) -> bool:
        """Whether the machine was so slow that a time-out after `patience_s` may be nobody's fault."""
        return not self.simulated and self.lab.longest_starvation_s > patience_s * STARVED_PART

    def unprovoked_end(self, engine: EngineLife) -> tuple[float, str] | None:
        """When that engine died, and of what, if no fault explains it: nothing of the kind may happen by itself.

        What explains one: a death, a stop that lasts for a step's deadline, damage to the shared memory, a payload that
        was lost beside the ring, a call that some of those that step together have not heard.
        A core that left by itself may outlive a caller that heard of it and closed at once.
        """
        death = self.first_death(engine)
        told = next((record for node, record in self.heard_of("engine-dead", engine)
                     if self.before_closing(node, record)), None)
        if death is not None and (told is None or death.at <= told.at):
            at, why = death.at, f"{death.node} died, {death.how}"
        elif told is not None:
            at, why = told.at, str(told.data.get("reason"))
        else:
            return None
        patience = min(self.bounds.step_s, self.bounds.collective_s)
        explained = (death is not None and death.planned) or any(
            receipt.at <= at and self._may_end(receipt.node, engine) and (
                receipt.may_end_the_engine(patience) or (self.in_step(engine) and "/requests:" in receipt.site))
            for receipt in self.faults.receipts)
        if self.is_apart(engine):
            explained = explained or self.group_closing_at(engine) <= at or any(
                engine in (absence.engine, *absence.others) and absence.since <= at
                for absence in self.absences) or any(
                receipt.fate in DEATH_FATES and receipt.at <= at and self._may_end(receipt.node, engine)
                for receipt in self.faults.receipts)
        return None if explained else (at, why)

    def first_death(self, engine: EngineLife) -> Death | None:
        """The first process that it lives with and that was gone unasked, with the earliest onset of all.

        A core that a fault ends tells everybody on its way out, and its workers may be gone before it.
        """
        deaths = [death for death in self.ends.deaths if self.lives_with(engine, death.node)]
        if not deaths:
            return None
        onset = min(death.onset for death in deaths)
        return deaths[0] if onset == deaths[0].onset else deaths[0]._replace(hit_at=onset)

    def ends_with_another(self, engine: EngineLife, since: float) -> bool:
        """Whether another process of those that step together had gone, or begun to, when it did."""
        leaves = {node: records[0].at for node, records in self.by_node("dying").items()}
        return any(self.lives_with(engine, node) and self.engines_of(node) != (engine,)
                   and min(self.ends.at(node), leaves.get(node, FOREVER)) <= since for node in self.nodes)

    def _may_end(self, node: str, engine: EngineLife) -> bool:
        return self.lives_with(engine, node) or (kind_of(node) != NodeKind.COORDINATOR and any(
            self.is_of(node, other) for other in self.joined(engine)))

    # -- what callers asked and were told ---------------------------------------------------------------------

    @cached_property
    def operations(self) -> list[Operation]:
        return operations_of(self.observations)

    def asked_of(self, operation: Operation) -> EngineLife:
        """The engine that a request was sent to: where its client has several, the one that it says it chose, or that
        was asked for."""
        engines = self.engines_of(operation.node)
        if len(engines) > 1 and operation.accepted is not None:
            return next((engine for engine in engines if engine.engine == operation.accepted.data.get("core")),
                        engines[0])
        rank = operation.call.data.get("rank") if operation.call is not None else None
        return engines[rank] if isinstance(rank, int) and rank in range(len(engines)) else engines[0]

    def is_asked_of(self, operation: Operation, engine: EngineLife) -> bool:
        return self.asked_of(operation) == engine

    @cached_property
    def startups(self) -> list[Startup]:
        return startups_of(self.observations)

    def told_at(self, engine: EngineLife, since: float) -> tuple[float, str] | None:
        """(when, where) a caller was first told, at or after `since`, that the engine is dead or never started."""
        told = [(r.at, node) for name in ("engine-dead", "start-failed") for node, r in self.heard_of(name, engine)
                if r.at >= since]
        told += [(o.ends[0].at, o.node) for o in self.operations if o.ends and o.outcome == Outcome.ENGINE_DEAD
                 and o.ends[0].at >= since and self.asked_of(o) == engine]
        return min(told, default=None)

    def heard_of(self, name: str, engine: EngineLife, client: str | None = None) -> list[tuple[str, Record]]:
        """(client, record) of what clients, or that one, wrote under this name of that engine's core, by time."""
        return [(node, record) for node, record in self.observed(name)
                if (client is None or node == client) and self.is_of(node, engine) and is_about(record, engine)]

    @cached_property
    def absences(self) -> list[Absence]:
        """Who had nothing to do in a wave of those that it steps with, where nobody wakes anybody."""
        return list(absences_of(self.crossings, self.play.topology, self.engines, self._open_between))

    def missed(self, engine: EngineLife, at: float) -> tuple[str, ...]:
        """Names of those without anything to do, and of their workers, whom that one and others gave up by then."""
        late = [one.engine for one in self.absences
                if engine in one.others and one.since + self.bounds.collective_s <= at]
        return tuple(base(name) for one in late
                     for name in (one.core, *(one.worker(rank) for rank in range(self.ranks_of(one.core)))))

    def is_in_vain(self, node: str, at: float) -> bool:
        """Whether by then those that this process's engine steps with had given up one of them, or it them, that had
        nothing to do.
        """
        return any(one.since + self.bounds.collective_s <= at
                   and any(mine in (one.engine, *one.others) for mine in self.engines_of(node))
                   for one in self.absences)

    def _open_between(self, engine: EngineLife, since: float) -> bool:
        """Whether a request of that engine was open while others that it steps with waited for it. Those are open that
        its core knows, where a fault hit what tells of requests, or of their ends.
        """
        until = since + self.bounds.collective_s
        hit = self.faults.hit(*MESSAGE_FATES, channel=Channel.REQUESTS.value)
        came = {record.data["request"]: record.at for record in self.by_node("request").get(engine.core, ())
                if record.data["action"] == "add"} if hit else None
        freed = self.by_node("freed").get(engine.core, ()) if self.faults.hit(
            *MESSAGE_FATES, channel=Channel.OUTPUTS.value) else ()
        over = {record.data["request"]: record.at for record in freed}
        return any(self.is_asked_of(o, engine) and o.accepted is not None and o.accepted.at <= until
                   and (came is None or came.get(o.internal or "", FOREVER) <= until)
                   and min(o.over_at, over.get(o.internal or "", FOREVER)) > since for o in self.operations)

    @cached_property
    def main(self) -> frozenset[int]:
        """The engines that a play is about."""
        return frozenset(engine.index for engine in self.play.topology.deployments[0].engines)

    def grid_of(self, node: str) -> Grid:
        """How the ranks of this process's engine stand."""
        return self.play.topology.engine(self.engine_of(node).engine).grid

    def ranks_of(self, node: str) -> int:
        return self.play.topology.engine(self.engine_of(node).engine).ranks

    def data_parallel_rank(self, engine: int) -> int:
        rank = self.play.topology.engine(engine).data_parallel_rank
        return self.play.config.data_parallel_rank if rank is None else rank

    @cached_property
    def engines(self) -> list[EngineLife]:
        """Every life of every engine that wrote anything."""
        return sorted({self.engine_of(node) for node in self.nodes})

    @cached_property
    def struck(self) -> frozenset[int]:
        """Engines that something befell: a fault, at them or at who follows or calls them, or the lab's own kill."""
        killed = self.main if self.play.options.kill_all_then_restart else frozenset()
        return killed | {engine.engine for receipt in self.faults.receipts for engine in self.engines_of(receipt.node)}

    @cached_property
    def began_at(self) -> float:
        """The first of all that is known."""
        return min((records[0].at for node in self.nodes if (records := self.records(node))), default=self.lab.began_at)

    @cached_property
    def ended_at(self) -> float:
        """The end of all that is known."""
        return max((self.lab.ended_at, *(record.at for record in self.last.values())))

    # -- one order ----------------------------------------------------------------------------------------

    def merged(self) -> list[tuple[str, Record]]:
        """Every record of the play in an order that happened-before agrees with. See `scenarios.history.order`."""
        return merge(self, self.flows())

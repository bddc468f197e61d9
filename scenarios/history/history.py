"""All journals of one play as one history, indexed once, read by every judge.

Promises:

- One pass over the records; everything else is made when somebody asks for it, and kept.
- `merged()` is a total order that respects program order and send-before-receive; where neither speaks,
  the host's one monotonic clock does (virtual time in the twin).
- Nothing is invented: where a journal ends early, so does what is known of its process.

    journals --index--> crossings[site], observations[name][node], receipts
                             |                  |                     |
                           flows            operations            deaths, stalls
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from pathlib import Path

from engine.config import Bounds
from engine.messages import Outcome
from engine.topology import RING_CHANNELS, Channel, Edge, NodeKind
from faults.journal import JournalFile, Kind, Record
from faults.plan import Fate, Fault, owner_of
from scenarios.history.flows import Flow
from scenarios.history.happenings import (
    DEATH_FATES,
    FOREVER,
    LOSS_FATES,
    STALL_FATES,
    Death,
    Receipt,
    Stall,
    base,
    edge_of,
    kind_of,
    life_of,
    site_of_life,
)
from scenarios.history.operations import Operation, Startup, operations_of, startups_of
from scenarios.history.run import Lab, Play, ProcessEnd, load_run

__all__ = [
    "FOREVER", "Death", "Fate", "Flow", "History", "Kind", "Operation", "Outcome", "Receipt", "Record", "Stall",
    "Startup", "base", "kind_of", "life_of", "load_history", "owner_of",
]

_NUMBER = attrgetter("number")
_AT = attrgetter("at")
#: Fates at a socket's `send` that leave the frame where it is: the crossing is recorded before.
NEVER_PUT = frozenset({Fate.KILL, Fate.RAISE, Fate.EXIT})
#: A machine that starved for so much of a patience may have run it out; a stop for so much of a deadline, too.
STARVED_PART = 0.25
STOPPED_PART = 0.75


class History:
    """One play, ready to be judged. Cheap to build; every property is computed at most once."""

    def __init__(self, play: Play, lab: Lab, journals: list[JournalFile]) -> None:
        self.play = play
        self.lab = lab
        self.journals = journals
        self.bounds: Bounds = play.config.bounds
        self.simulated = play.world == "sim"
        self.crossings: dict[str, list[Record]] = defaultdict(list)
        self.observations: dict[str, dict[str, list[Record]]] = {}
        self.last: dict[str, Record] = {}
        self._receipts: list[tuple[str, Record]] = []
        self._releases: dict[str, list[float]] = defaultdict(list)
        self._files: dict[str, JournalFile] = {}
        self._by_position: dict[str, dict[int, list[Record]]] = {}
        self._index()

    def _index(self) -> None:
        crossings, observations = self.crossings, self.observations
        crossing, observation, receipt = Kind.CROSSING, Kind.OBSERVATION, Kind.RECEIPT
        for file in self.journals:
            node = f"{file.node}@{file.life}" if file.life else file.node
            self._files[node] = file
            if file.records:
                self.last[node] = file.records[-1]
            mine: dict[str, list[Record]] = defaultdict(list)
            name_of = partial(site_of_life, life=file.life) if file.life else None
            for record in file.records:
                kind = record.kind
                if kind is crossing:
                    crossings[record.site if name_of is None else name_of(record.site)].append(record)
                elif kind is observation:
                    mine[record.site].append(record)
                elif kind is receipt:
                    self._receipts.append((node, record))
                else:
                    self._releases[record.site].append(record.at)
            for name, records in mine.items():
                observations.setdefault(name, {})[node] = records

    # -- what was seen ------------------------------------------------------------------------------------

    def by_node(self, name: str) -> dict[str, list[Record]]:
        """Observations of that name, by node, each list in program order."""
        return self.observations.get(name, {})

    def observed(self, name: str) -> list[tuple[str, Record]]:
        """(node, record) of every observation of that name, by time."""
        found = [(node, record) for node, records in self.by_node(name).items() for record in records]
        if len(self.by_node(name)) > 1:
            found.sort(key=lambda pair: pair[1].at)
        return found

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

    def sends_by_position(self, flow: Flow) -> dict[int, list[Record]]:
        """What a ring's writer sent, by position. A broadcast is written once and may be recorded per reader."""
        found = self._by_position.get(flow.name)
        if found is None:
            sends = flow.sends or next((other.sends for other in self.flows(flow.edge.channel)
                                        if other.source == flow.source and other.sends), [])
            found = self._by_position[flow.name] = defaultdict(list)
            for send in sends:
                found[send.data["position"]].append(send)
            found.default_factory = None  # from here on it is asked, not filled
        return found

    def receives(self, edge: str | Edge) -> list[Record]:
        return self.crossings.get(f"{edge}:receive", [])

    @cached_property
    def _flows(self) -> dict[Channel, list[Flow]]:
        found: dict[Channel, list[Flow]] = defaultdict(list)
        stayed: dict[str, set[int]] = defaultdict(set)
        unput: set[str] = set()
        for node, record in self.observed("not-sent"):
            site, life = record.data["site"], life_of(node)
            stayed[site_of_life(site, life) if life else site].add(record.data["nth"])
        for receipt in self.hit(*NEVER_PUT, operation=":send"):
            if receipt.fault is not None and receipt.fault.victim is None:
                unput.add(receipt.id)
        for name, edge in {part[0]: part[1] for part in map(edge_of, self.crossings) if part}.items():
            sends, refused = self.sends(name), stayed.get(f"{name}:send")
            if unput and edge.channel not in RING_CHANNELS:  # a ring's message is on record when it has been written
                sends = [send for send in sends if send.data.get("fault") not in unput]
            if refused:
                sends = [send for send in sends if send.nth not in refused]
            found[edge.channel].append(Flow(name, edge, sends, self.receives(name)))
        return found

    def flows(self, *channels: Channel) -> list[Flow]:
        """The edges of these channels (of all, if none is named) that anything crossed."""
        if not channels:
            return list(chain.from_iterable(self._flows.values()))
        return [flow for channel in channels for flow in self._flows.get(channel, ())]

    # -- what went wrong -----------------------------------------------------------------------------------

    @cached_property
    def receipts(self) -> list[Receipt]:
        """Every fault that fired, by time; a fault that fired several times has several."""
        planned = {fault.id: fault for fault in self.play.plan.faults}
        seen: dict[str, int] = defaultdict(int)
        found = []
        for journal_of, record in sorted(self._receipts, key=lambda pair: pair[1].at):
            fault, data = planned.get(record.site), record.data
            site = data.get("site") or (fault.site if fault else "")
            victim = data.get("victim") or (fault.victim if fault else None) or (owner_of(site) if site else journal_of)
            if life_of(journal_of) and "@" not in victim:
                victim = f"{victim}@{life_of(journal_of)}"
            releases = [at for at in self._releases.get(record.site, ()) if at >= record.at]
            turn, seen[record.site] = seen[record.site], seen[record.site] + 1
            found.append(Receipt(record.site, record.at, victim, site, data.get("nth", record.nth),
                                 data.get("fate") or (fault.fate if fault else ""), fault,
                                 releases[min(turn, len(releases) - 1)] if releases else None))
        return found

    @cached_property
    def unfired(self) -> list[Fault]:
        fired = {record.site for _, record in self._receipts}
        return [fault for fault in self.play.plan.faults if fault.id not in fired]

    def hit(self, *fates: Fate, channel: str = "", operation: str = "") -> list[Receipt]:
        """Receipts of these fates whose site is on that channel and is that operation."""
        return [r for r in self.receipts if r.fate in fates and r.site.endswith(operation)
                and (not channel or f"/{channel}:" in r.site)]

    def receipts_at(self, part: str) -> list[Receipt]:
        """Receipts of any fate whose site contains `part`."""
        return [receipt for receipt in self.receipts if part in receipt.site]

    @cached_property
    def held_for_ever(self) -> Receipt | None:
        return next((receipt for receipt in self.receipts if receipt.held_for_ever), None)

    @cached_property
    def ends(self) -> dict[str, Death]:
        """How and when each process that ended did, whatever the reason. The lab's own kills are no death."""
        ends: dict[str, Death] = {}
        hits: dict[str, Receipt] = {}
        for receipt in self.receipts:
            if receipt.fate in DEATH_FATES:
                hits.setdefault(receipt.node, receipt)
        known = set()
        for process in self.lab.processes:
            name = f"{process.node}@{process.life}" if process.life and "@" not in process.node else process.node
            known.add(name)
            if process.ended_at is None or self.overstayed(process):
                continue
            if self._was_to_be_killed(process) and (process.killed_by_lab or process.exitcode == -9):
                ends[name] = Death(name, process.ended_at, str(Fate.KILL), process.ended_at)
                continue
            code = process.exitcode
            how = hits[name].fate if name in hits else f"exit code {code}" if code is not None else "gone"
            ends[name] = Death(name, process.ended_at, str(how), hits[name].at if name in hits else None)
        for node, receipt in hits.items():
            if receipt.fate == Fate.KILL or (receipt.fate == Fate.EXIT and node not in known):
                ends[node] = Death(node, receipt.at, str(receipt.fate), receipt.at)
            elif node not in known and (
                    node in self.by_node("bye") or node in self.by_node("dying")):
                ends[node] = Death(node, max(self.last[node].at, receipt.at), str(receipt.fate), receipt.at)
        return ends

    def overstayed(self, process: ProcessEnd) -> bool:
        """Whether a process was still there after its bound, so that the lab had to end it, or could not.

        A play may ask the lab to kill the whole first engine (`kill_all_then_restart`): that is no overstaying.
        """
        if process.ended_at is None:
            return True
        return process.killed_by_lab and not self._was_to_be_killed(process)

    def _was_to_be_killed(self, process: ProcessEnd) -> bool:
        return bool(self.play.options.get("kill_all_then_restart")) and not process.life and not self.lab.guard_expired

    @cached_property
    def deaths(self) -> list[Death]:
        """Ends of engine processes that no shutdown asked for, by time. Subscribers are not of the engine."""
        return sorted((death for death in self.ends.values()
                       if kind_of(death.node) != NodeKind.SUBSCRIBER and not self._leaves_in_order(death)), key=_AT)

    def _leaves_in_order(self, death: Death) -> bool:
        if kind_of(death.node) == NodeKind.FRONTEND:
            return not death.planned and death.node in self.by_node("bye")
        closing_at = self.closing_at(life_of(death.node))
        return death.at >= closing_at and not (death.planned and death.hit_at < closing_at)

    def starved(self, patience_s: float) -> bool:
        """Whether the machine was so slow that a time-out after `patience_s` may be nobody's fault."""
        return not self.simulated and self.lab.longest_starvation_s > patience_s * STARVED_PART

    def unprovoked_end(self, life: int) -> tuple[float, str] | None:
        """When that engine died, and of what, if no fault explains it: nothing of the kind may happen by itself.

        What explains one: a death, a stop that lasts for a step's deadline, damage to the shared memory, a payload that
        was lost beside the ring. A core that left by itself may outlive a caller that heard of it and closed at once.
        """
        death = self.first_death(life)
        told = next((record for node, record in self.observed("engine-dead")
                     if life_of(node) == life and self.before_closing(node, record)), None)
        if death is not None and (told is None or death.at <= told.at):
            at, why = death.at, f"{death.node} died, {death.how}"
        elif told is not None:
            at, why = told.at, str(told.data.get("reason"))
        else:
            return None
        if (death is not None and death.planned) or any(
                life_of(r.node) == life and r.at <= at and self._may_end_the_engine(r) for r in self.receipts):
            return None
        return at, why

    def _may_end_the_engine(self, receipt: Receipt) -> bool:
        if kind_of(receipt.node) not in (NodeKind.CORE, NodeKind.WORKER):
            return False
        if receipt.fate in STALL_FATES or receipt.fate == Fate.DELAY:
            return self._lasted_s(receipt) >= self.bounds.step_s * STOPPED_PART
        return receipt.fate in DEATH_FATES or (receipt.fate == Fate.CORRUPT and ":store." in receipt.site) or (
            "/overflow:" in receipt.site and receipt.fate in LOSS_FATES)

    def _lasted_s(self, receipt: Receipt) -> float:
        """How long something was held up. What was asked for, where whoever is hit did not come back to tell."""
        if receipt.released_at is not None:
            return receipt.released_at - receipt.at
        until = receipt.fault.until if receipt.fault is not None else None
        return FOREVER if until is None or until.seconds is None else until.seconds

    def first_death(self, life: int) -> Death | None:
        """The first core or worker of that engine that was gone without being asked to, with the earliest onset of all.

        A core that a fault ends tells everybody on its way out, and its workers may be gone before it.
        """
        deaths = [death for death in self.deaths
                  if life_of(death.node) == life and kind_of(death.node) != NodeKind.FRONTEND]
        if not deaths:
            return None
        onset = min(death.onset for death in deaths)
        return deaths[0] if onset == deaths[0].onset else deaths[0]._replace(hit_at=onset)

    def closing_at(self, life: int) -> float:
        """When the frontend of that engine began to shut it down; infinite if it never did."""
        times = [records[0].at for node, records in self.by_node("closing").items() if life_of(node) == life]
        return min(times, default=FOREVER)

    def before_closing(self, node: str, record: Record) -> bool:
        """Whether a frontend wrote this before it began to shut down. By program order: in the twin times are equal."""
        closing = self.by_node("closing").get(node)
        return not closing or record.number < closing[0].number

    def ended(self, node: str) -> float:
        """When that process ended; infinite while it lives."""
        return self.ends[node].at if node in self.ends else FOREVER

    @cached_property
    def stalls(self) -> list[Stall]:
        return [Stall(r.node, r.at, self._resumed(r), r.fate, r.site) for r in self.receipts if r.fate in STALL_FATES]

    def _resumed(self, receipt: Receipt) -> float:
        if receipt.released_at is not None:
            return receipt.released_at
        if receipt.fault is None or receipt.fault.until is None or receipt.fate != Fate.STALL:
            return FOREVER
        # Nobody wrote down the SIGCONT: the victim's longest silence after the receipt is the stop.
        after = [receipt.at, *(r.at for r in self.records(receipt.node) if r.at > receipt.at)]
        gaps = [(later - earlier, later) for earlier, later in zip(after, after[1:], strict=False)]
        return max(gaps)[1] if gaps else FOREVER

    def frozen_s(self, node: str, since: float, until: float, *others: str) -> float:
        """How long that process, or one of the others, stood still between two moments, by a planned stall or hang."""
        if not self.stalls:
            return 0.0
        nodes = {node, *others}
        total, reached = 0.0, since
        for begin, end in sorted((stall.at, stall.until) for stall in self.stalls if stall.node in nodes):
            begin, end = max(begin, reached), min(end, until)
            if end > begin:
                total, reached = total + end - begin, end
        return total

    # -- what callers asked and were told ---------------------------------------------------------------------

    @cached_property
    def operations(self) -> list[Operation]:
        return operations_of(self.observations)

    @cached_property
    def startups(self) -> list[Startup]:
        return startups_of(self.observations)

    @cached_property
    def by_internal(self) -> dict[str, Operation]:
        return {operation.internal: operation for operation in self.operations if operation.internal}

    def told_at(self, life: int, since: float) -> tuple[float, str] | None:
        """(when, where) a caller was first told, at or after `since`, that the engine is dead or never started."""
        told = [(r.at, node) for name in ("engine-dead", "start-failed") for node, r in self.observed(name)
                if r.at >= since and life_of(node) == life]
        told += [(o.ends[0].at, o.node) for o in self.operations if o.ends and o.outcome == Outcome.ENGINE_DEAD
                 and o.ends[0].at >= since and life_of(o.node) == life]
        return min(told, default=None)

    @cached_property
    def ended_at(self) -> float:
        """The end of all that is known."""
        return max((self.lab.ended_at, *(record.at for record in self.last.values())))

    # -- one order ----------------------------------------------------------------------------------------

    def merged(self) -> list[tuple[str, Record]]:
        """Every record of the play in an order that happened-before agrees with. See `scenarios.history.order`."""
        from scenarios.history.order import merge

        return merge(self)


def load_history(path: Path) -> History:
    """Raises RunError where the directory is not a whole run."""
    run = load_run(Path(path))
    return History(run.play, run.lab, run.journals)

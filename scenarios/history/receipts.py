"""Faults that fired, as their receipts tell, and how long each held something up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from engine.topology import Channel, NodeKind
from faults.journal import Record
from faults.plan import HOLDING_FATES, Fate, Fault, Plan, owner_of
from scenarios.history.names import kind_of, life_of, of_life
from scenarios.history.records import FOREVER, Records

#: Fates that end a process, sooner (kill, exit) or later (an exception, SIGTERM).
DEATH_FATES = frozenset({Fate.KILL, Fate.EXIT, Fate.RAISE, Fate.TERMINATE})
STALL_FATES = frozenset({Fate.STALL, Fate.HANG})
LOSS_FATES = frozenset({Fate.DROP, Fate.CUT, Fate.CORRUPT, Fate.TRUNCATE, Fate.OMIT, Fate.SWAP})
#: By which those that step together are woken.
_WAKES = (f"/{Channel.WAVE.value}:wire", f"/{Channel.REPORT.value}:wire")
#: A stop for so much of a step's deadline may have run it out.
STOPPED_PART = 0.75


class Receipt(NamedTuple):
    """One fault that fired. `node` is whom it hit, `site` and `nth` the crossing, `fault` its line in the plan."""

    id: str
    at: float
    node: str
    site: str
    nth: int
    fate: str
    fault: Fault | None
    released_at: float | None
    told_by: str  # who wrote it down: the process that crossed the site

    @property
    def holds(self) -> bool:
        """Whether it holds up a process, a thread or a message for a while."""
        return self.fate in HOLDING_FATES

    @property
    def held_for_ever(self) -> bool:
        """A planned delay that should have ended and did not: nothing after it says anything about progress."""
        ends = self.fate == Fate.DELAY or (self.fault is not None and self.fault.until is not None)
        return self.holds and ends and self.released_at is None

    def may_end_the_engine(self, step_s: float) -> bool:
        """Whether it explains that an engine with this deadline for a step ended by itself."""
        if kind_of(self.node) not in (NodeKind.CORE, NodeKind.WORKER, NodeKind.COORDINATOR):
            return False
        unwoken = self.fate == Fate.CUT and self.site.endswith(_WAKES)
        if unwoken or self.fate in STALL_FATES or self.fate == Fate.DELAY:
            return self.lasted_s >= step_s * STOPPED_PART
        return self.fate in DEATH_FATES or (self.fate == Fate.CORRUPT and ":store." in self.site) or (
            "/overflow:" in self.site and self.fate in LOSS_FATES)

    def comes_within(self, patience_s: float) -> bool:
        """Whether the message that it hit came all the same: what comes twice is lost to nobody, nor what is late."""
        late = self.fate in (Fate.REORDER, Fate.DELAY) and self.lasted_s < patience_s
        return late or self.fate == Fate.DUPLICATE

    @property
    def over_at(self) -> float:
        """When what it held was let go; infinite where it never was."""
        return FOREVER if self.released_at is None else self.released_at

    @property
    def lasted_s(self) -> float:
        """How long something was held up. What was asked for, where whoever is hit did not come back to tell."""
        if self.released_at is not None:
            return self.released_at - self.at
        until = self.fault.until if self.fault is not None else None
        return FOREVER if until is None or until.seconds is None else until.seconds


class Stall(NamedTuple):
    """A process (or one of its threads) stopped making progress at `at`, until `until` (infinite: for good)."""

    node: str
    at: float
    until: float
    fate: str
    site: str


class Faults:
    """The plan of one play, and what became of it."""

    def __init__(self, plan: Plan, receipts: list[Receipt], stalls: list[Stall]) -> None:
        self.plan = plan
        self.receipts = receipts  # every fault that fired, by time; one that fired several times has several
        self.stalls = stalls

    @cached_property
    def unfired(self) -> list[Fault]:
        fired = {receipt.id for receipt in self.receipts}
        return [fault for fault in self.plan.faults if fault.id not in fired]

    def hit(self, *fates: Fate, channel: str = "", operation: str = "") -> list[Receipt]:
        """Receipts of these fates whose site is on that channel and is that operation."""
        return [r for r in self.receipts if r.fate in fates and r.site.endswith(operation)
                and (not channel or f"/{channel}:" in r.site)]

    def at(self, part: str) -> list[Receipt]:
        """Receipts of any fate whose site contains `part`."""
        return [receipt for receipt in self.receipts if part in receipt.site]

    def met(self, crossing: Record) -> str | None:
        """What befell this message or whoever crossed with it; None where the plan strikes somebody else there."""
        fate: str | None = crossing.data.get("fate")
        if fate is not None:
            fault = next((one for one in self.plan.faults if one.id == crossing.data.get("fault")), None)
            if fault is not None and fault.victim not in (None, owner_of(fault.site)):
                return None
        return fate

    def through_at(self, node: str, crossings: Sequence[Record]) -> list[float]:
        """When that node was through each of its crossings of one site: later than it came where something held it
        there, and never (infinite) where that was its end.
        """
        times = [crossing.at for crossing in crossings]
        for receipt in self.receipts:
            if crossings and (receipt.node, receipt.site) == (node, crossings[0].site) and receipt.nth <= len(times):
                times[receipt.nth - 1] = receipt.over_at
        return times

    @cached_property
    def ending(self) -> dict[str, Receipt]:
        """node -> the first fault that ended it, or should have."""
        found: dict[str, Receipt] = {}
        for receipt in self.receipts:
            if receipt.fate in DEATH_FATES:
                found.setdefault(receipt.node, receipt)
        return found

    @cached_property
    def held_for_ever(self) -> Receipt | None:
        return next((receipt for receipt in self.receipts if receipt.held_for_ever), None)

    def stands_still(self, at: float, *nodes: str) -> bool:
        """Whether one of those processes did at that moment, by a planned stall or hang."""
        return any(stall.node in nodes and stall.at <= at <= stall.until for stall in self.stalls)

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


def faults_of(plan: Plan, seen: Records) -> Faults:
    receipts = _receipts_of(plan, seen)
    stalls = [Stall(r.node, r.at, _resumed(r, seen), r.fate, r.site) for r in receipts if r.fate in STALL_FATES]
    return Faults(plan, receipts, stalls)


def _receipts_of(plan: Plan, seen: Records) -> list[Receipt]:
    planned = {fault.id: fault for fault in plan.faults}
    turns: dict[str, int] = defaultdict(int)
    found = []
    for teller, record in sorted(seen.receipts, key=lambda pair: pair[1].at):
        fault, data = planned.get(record.site), record.data
        site = data.get("site") or (fault.site if fault else "")
        victim = data.get("victim") or (fault.victim if fault else None) or (owner_of(site) if site else teller)
        releases = [r.at for r in seen.releases.get(record.site, ()) if r.at >= record.at]
        turn, turns[record.site] = turns[record.site], turns[record.site] + 1
        found.append(Receipt(
            record.site, record.at, of_life(victim, life_of(teller)), site, data.get("nth", record.nth),
            data.get("fate") or (fault.fate if fault else ""), fault,
            releases[min(turn, len(releases) - 1)] if releases else None, teller))
    return found


def _resumed(receipt: Receipt, seen: Records) -> float:
    if receipt.released_at is not None:
        return receipt.released_at
    if receipt.fault is None or receipt.fault.until is None or receipt.fate != Fate.STALL:
        return FOREVER
    # Nobody wrote down the SIGCONT: the victim's longest silence after the receipt is the stop.
    after = [receipt.at, *(r.at for r in seen.records(receipt.node) if r.at > receipt.at)]
    silences = [(later - earlier, later) for earlier, later in zip(after, after[1:], strict=False)]
    return max(silences)[1] if silences else FOREVER

"""From a run's records to its verdicts. The one place where a verdict is decided.

    the lab failed                                   HarnessError, no verdict at all
    nothing without a cause                          judged first, and whatever the next two lines say of the others
    a planned fault did not fire                     every cell UNKNOWN
    a fault outside the promise's envelope fired     OUTSIDE
    something the promise forbids was seen           BROKEN
    something it asks for cannot be told             UNKNOWN
    no occasion on which a wrong engine had failed   UNTESTED
    otherwise                                        HELD

Promises: the same records give the same judgement; nothing but the records is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import RingtwinError
from engine.messages import Outcome
from faults.journal import JournalFile
from scenarios.guarantees.base import DEATHS, STALLS, Finding, Guarantee
from scenarios.guarantees.registry import GUARANTEES, guarantee
from scenarios.guarantees.theirs import beyond, is_promised
from scenarios.history.history import FOREVER, History, Receipt, kind_of
from scenarios.history.play import Lab, Play
from scenarios.history.verdicts import Cell, Evidence, FaultReceipt, Judgement, Verdict


class HarnessError(RingtwinError):
    """The lab failed, not the engine: there is nothing to judge. The message says what failed."""


def judge(play: Play, lab: Lab, journals: list[JournalFile], *, only: Iterable[str] | None = None) -> Judgement:
    """Hold one play against the promises that apply to it (or `only` these ids).

    A promised guarantee always gets a cell, also where it does not apply: then it is UNTESTED.
    Raises HarnessError where the lab failed or left no journal, KeyError for an unknown guarantee.
    """
    if lab.failure:
        raise HarnessError(f"{play.scenario} ({play.world}): {lab.failure}")
    if not any(file.records for file in journals):
        raise HarnessError(f"{play.scenario} ({play.world}): no process wrote a single record")
    history = History(play, lab, journals)
    cells = [cell_of(entry, history) for entry in _asked(play, only)]
    return Judgement(cells=cells, faults=receipts_of(history), ended=how_it_ended(history),
                     seconds=lab.ended_at - lab.began_at)


def _asked(play: Play, only: Iterable[str] | None) -> list[Guarantee]:
    for name in (*play.promises, *play.expected, *(only or ())):
        guarantee(name)
    wanted = {*play.promises, *play.expected}
    names = set(only) if only is not None else None
    if not play.is_ours:
        promised = {entry.id for entry in GUARANTEES.values() if entry.is_law or is_promised(entry.id, play.world)}
        names = promised if names is None else names & promised
    return [entry for entry in GUARANTEES.values()
            if (names is None or entry.id in names) and (entry.id in wanted or entry.applies(play))]


def cell_of(entry: Guarantee, history: History) -> Cell:
    """The verdict of one guarantee on one history."""
    verdict, evidence, finding = (_found if entry.is_law else _verdict)(entry, history)
    return Cell(
        guarantee=entry.id, verdict=verdict, expected=history.play.declared.get(entry.id),
        witnesses=finding.witnesses if finding else 0, evidence=evidence,
        bound=finding.bound if finding else None, measured=finding.measured if finding else None)


def _verdict(entry: Guarantee, history: History) -> tuple[Verdict, list[Evidence], Finding | None]:
    if history.faults.unfired:
        names = ", ".join(f"{fault.id} ({fault.fate.value} at {fault.site}, nth={fault.nth})"
                          for fault in history.faults.unfired)
        return Verdict.UNKNOWN, [Evidence(text=f"planned and never fired: {names}")], None
    for receipt in history.faults.receipts:
        reason = entry.envelope.excludes(receipt) or beyond(entry.id, history.play.world, receipt)
        if reason is not None:
            text = f"{receipt.fate} at {receipt.site} is outside of the envelope: {reason.why}"
            return Verdict.OUTSIDE, [Evidence(text=text, at=receipt.at, node=receipt.node)], None
    if not entry.applies(history.play):
        return Verdict.UNTESTED, [Evidence(text="does not apply to this topology and configuration")], None
    return _found(entry, history)


def _found(entry: Guarantee, history: History) -> tuple[Verdict, list[Evidence], Finding]:
    """What a guarantee says of a history that it speaks of."""
    finding = entry.check(history)
    if finding.broken:
        breaks = finding.breaks
        if finding.broken > len(breaks):
            breaks = [*breaks, Evidence(text=f"... and {finding.broken - len(breaks)} more")]
        return Verdict.BROKEN, breaks, finding
    if finding.unknowns:
        return Verdict.UNKNOWN, finding.unknowns, finding
    if not finding.witnesses:
        return Verdict.UNTESTED, [Evidence(text=f"no witness: {entry.witness}")], finding
    return Verdict.HELD, finding.evidence, finding


# -- what befell the run as a whole -----------------------------------------------------------------------------


def receipts_of(history: History) -> list[FaultReceipt]:
    """One line for each planned fault. A fault that fired several times counts from its first."""
    first: dict[str, Receipt] = {}
    for receipt in history.faults.receipts:
        first.setdefault(receipt.id, receipt)
    found = []
    for fault in history.play.plan.faults:
        if fault.id not in first:
            found.append(FaultReceipt(id=fault.id, fired=False))
            continue
        receipt = first[fault.id]
        told = history.told_at(history.engine_of(receipt.node), receipt.at) if receipt.fate in DEATHS | STALLS else None
        found.append(FaultReceipt(
            id=fault.id, fired=True, at=receipt.at, node=receipt.node, released_at=receipt.released_at,
            detected_at=told[0] if told else None))
    return found


def how_it_ended(history: History) -> str:
    """"hang", "crash", "clean error", "isolated request" or "clean", the worst that applies."""
    if _hangs(history):
        return "hang"
    if _crashed(history):
        return "crash"
    if any(history.before_closing(node, record) for node, record in history.observed("engine-dead")) or \
            history.by_node("start-failed"):
        return "clean error"
    if any(operation.outcome in (Outcome.FAILED, Outcome.REFUSED) for operation in history.operations):
        return "isolated request"
    return "clean"


def _hangs(history: History) -> bool:
    def told_nothing(node: str) -> bool:
        return history.ends.at(node) == FOREVER or node in history.by_node("bye")

    return history.lab.guard_expired or any(not o.ends and told_nothing(o.node) for o in history.operations) or any(
        s.end is None and told_nothing(s.node) for s in history.startups) or any(
        record.data["why"] == "endless" for _, record in history.observed("thread-ended"))


def _crashed(history: History) -> bool:
    """Whether a process fell over that no fault had hit, without anybody having fallen before it."""
    first = next(iter(history.ends.deaths), None)
    if first is None or first.planned:
        return any(kind_of(death.node) == "frontend" and not death.planned for death in history.ends.deaths)
    said = history.by_node("dying"), history.by_node("bye")
    hit = any(receipt.fate in DEATHS | STALLS for receipt in history.faults.receipts)
    return not hit and not any(first.node in words for words in said)

"""What a reader must not miss in a run, as sentences in order of time.

Faults with their fate, releases, deaths, the word that reached the callers, gaps of a subscriber and how
they healed. The chart draws them, the page prints them, and a screen reader has them without the chart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from faults.journal import Kind, Record
from reports.charts.arrows import lifeline
from reports.formats import duration
from scenarios.history.play import ProcessEnd
from scenarios.history.run import Run

#: A lab's clock that lies this far from the journals' is another clock; its times are not drawn.
SAME_CLOCK_S = 3600.0
NO_FAREWELL = "no farewell"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """`at` counts from the first record of the run. `kind`: fault, death, told, released, note, kv."""

    at: float
    node: str
    kind: str
    text: str
    label: str  # a few words, for the chart
    fault: str | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """From a fault to what ended it: `kind` is told or released."""

    fault: str
    kind: str
    began: float
    ended: float


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one process: `died` says how, None where it left on its own feet or still runs."""

    node: str
    life: int
    began: float
    ended: float | None
    died: str | None


def origin_of(run: Run) -> float:
    """The time of the first record: zero of everything that is shown of this run."""
    return min((journal.records[0].at for journal in run.journals if journal.records), default=run.lab.began_at)


def end_of(run: Run) -> float:
    return max((journal.records[-1].at for journal in run.journals if journal.records), default=run.lab.ended_at)


def lives_of(run: Run) -> list[Life]:
    """Every life of every process, by node. Times count from the origin."""
    origin, slain = origin_of(run), _slain(run)
    seen = {(lifeline(process.node), process.life): process for process in run.lab.processes}
    lives = []
    for journal in run.journals:
        node, records = lifeline(journal.node), journal.records
        if not records:
            continue
        process = seen.get((node, journal.life))
        said_bye = any(record.kind is Kind.OBSERVATION and record.site == "bye" for record in records[-20:])
        ended = records[-1].at - origin
        if process is not None and process.ended_at is not None and _same_clock(process.ended_at, run):
            ended = max(ended, process.ended_at - origin)
        still_there = process is not None and process.ended_at is None
        died = _how(process, said_bye, still_there)
        if died == NO_FAREWELL:
            died = slain.get(node, died)
        lives.append(Life(node=node, life=journal.life, began=records[0].at - origin,
                          ended=None if still_there else ended, died=died))
    return sorted(lives, key=lambda life: (life.node, life.life))


def _same_clock(at: float, run: Run) -> bool:
    return origin_of(run) - 1.0 <= at <= end_of(run) + SAME_CLOCK_S


def _how(process: ProcessEnd | None, said_bye: bool, still_there: bool) -> str | None:
    if still_there:
        return None
    if process is not None and process.killed_by_lab:
        return "ended by the lab: it outlived its bound"
    code = process.exitcode if process is not None else None
    if code is not None and code < 0:
        return {-9: "SIGKILL", -15: "SIGTERM", -6: "abort", -11: "segmentation fault"}.get(code, f"signal {-code}")
    if code:
        return f"exit code {code}"
    return None if said_bye else NO_FAREWELL


def _slain(run: Run) -> dict[str, str]:
    """Which fault killed a node: the lab does not always see an exit code, the plan says it all the same."""
    words = {"kill": "SIGKILL", "exit": "exit", "raise": "an exception", "terminate": "SIGTERM"}
    return {
        lifeline(str(record.data.get("victim") or journal.node)):
            f"{words[str(record.data['fate'])]} by {record.site}"
        for journal in run.journals for record in journal.records
        if record.kind is Kind.RECEIPT and record.data.get("fate") in words
    }


def spans_of(run: Run) -> list[Span]:
    origin = origin_of(run)
    return [
        Span(fault=receipt.id, kind=kind, began=receipt.at - origin, ended=end - origin)
        for receipt in (run.judgement.faults if run.judgement else []) if receipt.fired and receipt.at is not None
        for kind, end in (("told", receipt.detected_at), ("released", receipt.released_at)) if end is not None
    ]


def moments_of(run: Run) -> list[Moment]:
    """All moments by time."""
    moments = _faults(run) + _deaths(run) + _observed(run)
    for span in spans_of(run):
        took = duration(span.ended - span.began)
        if span.kind == "told":
            moments.append(Moment(at=span.ended, node="frontend.0", kind="told", fault=span.fault,
                                  label=f"told, {took} after {span.fault}",
                                  text=f"the callers were told, {took} after {span.fault}"))
        else:
            moments.append(Moment(at=span.ended, node=_node_of(run, span.fault), kind="released", fault=span.fault,
                                  label=f"{span.fault} released", text=f"{span.fault} let go, after {took}"))
    return sorted(moments, key=lambda moment: moment.at)


def _faults(run: Run) -> list[Moment]:
    origin = origin_of(run)
    fates = {fault.id: fault for fault in run.play.plan.faults}
    found: list[Moment] = []
    repeats: Counter[str] = Counter()
    for journal in run.journals:
        for record in journal.records:
            if record.kind is not Kind.RECEIPT:
                continue
            repeats[record.site] += 1
            if repeats[record.site] > 1:
                continue
            planned = fates.get(record.site)
            fate = str(record.data.get("fate") or (planned.fate.value if planned else "fault"))
            site = str(record.data.get("site") or (planned.site if planned else ""))
            nth = record.data.get("nth") or (planned.nth if planned else 1)
            victim = str(record.data.get("victim") or journal.node)
            found.append(Moment(
                at=record.at - origin, node=lifeline(journal.node), kind="fault", fault=record.site,
                label=f"{record.site} {fate}",
                text=f"{record.site}: {fate} at {site}, crossing {nth}"
                     + (f", victim {victim}" if lifeline(victim) != lifeline(journal.node) else "")))
    for index, moment in enumerate(found):
        if repeats[moment.fault or ""] > 1:
            found[index] = msgspec.structs.replace(
                moment, text=f"{moment.text}; {repeats[moment.fault or '']:,} times in all")
    # A fault that only the judge knows of (a cut on the wire leaves no receipt in a process) is shown all the same.
    for receipt in run.judgement.faults if run.judgement else []:
        if receipt.fired and receipt.at is not None and receipt.id not in repeats:
            planned = fates.get(receipt.id)
            fate, site = (planned.fate.value, planned.site) if planned else ("fault", "")
            found.append(Moment(at=receipt.at - origin, node=lifeline(receipt.node or "core.0"), kind="fault",
                                fault=receipt.id, label=f"{receipt.id} {fate}",
                                text=f"{receipt.id}: {fate} at {site}"))
    return found


def _node_of(run: Run, fault: str) -> str:
    return next((lifeline(receipt.node) for receipt in (run.judgement.faults if run.judgement else [])
                 if receipt.id == fault and receipt.node), "core.0")


def _deaths(run: Run) -> list[Moment]:
    return [
        Moment(at=life.ended, node=life.node, kind="death", label=f"died: {life.died}",
               text=f"{life.node} died: {life.died}" + (f" (life {life.life})" if life.life else ""))
        for life in lives_of(run) if life.died is not None and life.ended is not None
    ]


def _observed(run: Run) -> list[Moment]:
    """What the processes said that a reader of this run looks for; each kind a few times at most."""
    origin = origin_of(run)
    moments: list[Moment] = []
    often: Counter[tuple[str, str]] = Counter()
    for journal in run.journals:
        for record in journal.records:
            told = _sentence(record) if record.kind is Kind.OBSERVATION else None
            if told is None:
                continue
            often[journal.node, record.site] += 1
            if often[journal.node, record.site] <= 4:
                kind, label = told
                moments.append(Moment(at=record.at - origin, node=lifeline(journal.node), kind=kind, label=label,
                                      text=f"{lifeline(journal.node)}: {label}"))
    return moments


def _sentence(record: Record) -> tuple[str, str] | None:
    data = record.data
    if record.site in ("kv-gap", "kv-healed", "kv-unrecoverable"):
        word = {"kv-gap": "gap noticed", "kv-healed": "gap healed", "kv-unrecoverable": "gap cannot be healed"}
        return "kv", f"{word[record.site]}, batches {_span(data)}"
    if record.site == "kv-snapshot":
        return "kv", f"snapshot of {data.get('blocks')} blocks taken, before batch {data.get('next_seq')}"
    if record.site == "engine-dead":
        return "note", f"the engine is dead: {data.get('reason', '')}"
    words: dict[str, str] = {
        "ready": "ready", "dead-notice": "death notice read", "dying": f"dying: {data.get('reason', '')}",
        "start-failed": f"start failed: {data.get('error', '')}", "parent-gone": "its parent is gone",
        "bad-frame": "bad frame dropped", "kv-restarted": "publisher restarted", "draining": "draining",
        "rpc-raised": f"raised: {data.get('error', '')}", "unroutable": "unroutable",
        "request-timeout": "a request timed out",
    }
    return ("note", words[record.site]) if record.site in words else None


def _span(data: dict[str, Any]) -> str:
    first, last = data.get("first"), data.get("last")
    return f"{first}" if first == last else f"{first} to {last}"

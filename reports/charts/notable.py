"""What a reader must not miss in a run, as sentences in order of time.

Faults with their fate, releases, deaths, the word that reached the callers, gaps of a subscriber and how
they healed. The chart draws them, the page prints them, and a screen reader has them without the chart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from faults.journal import Kind, Record
from reports.formats import duration
from scenarios.history.ends import Life, killed_as_asked
from scenarios.history.history import History, Receipt
from scenarios.history.names import base, life_of
from scenarios.history.run import Run

NO_FAREWELL = "no farewell"
SIGNALS = {9: "SIGKILL", 15: "SIGTERM", 6: "abort", 11: "segmentation fault"}
#: What ends a process, in a reader's words.
ENDED_BY = {"kill": "SIGKILL", "exit": "exit", "raise": "an exception", "terminate": "SIGTERM"}


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


class Lifeline(msgspec.Struct, frozen=True, kw_only=True):
    """One life of one process: `died` says how, None where it left on its own feet or still runs."""

    node: str
    life: int
    began: float
    ended: float | None
    died: str | None


def lives_of(run: Run) -> list[Lifeline]:
    """Every life of every process, by node. Times count from the origin."""
    origin = run.history.began_at
    return [Lifeline(node=base(life.node), life=life_of(life.node), began=life.began_at - origin,
                     ended=None if life.ended_at is None else life.ended_at - origin, died=_died(life, run.history))
            for life in run.history.lives]


def _died(life: Life, history: History) -> str | None:
    process = life.process
    if life.ended_at is None:
        return None
    if process is not None and killed_as_asked(process, history.play, history.lab):
        return "killed by the lab, as the play asks"
    if process is not None and process.killed_by_lab and history.overstayed(process):
        return "ended by the lab: it outlived its bound"
    code = process.exitcode if process is not None else None
    if code is not None and code < 0:
        return SIGNALS.get(-code, f"signal {-code}")
    if code:
        return f"exit code {code}"
    if life.farewell:
        return None
    if life.struck_by is not None:
        return f"{ENDED_BY[life.struck_by.fate]} by {life.struck_by.id}"
    death = history.ends.get(life.node)
    return ENDED_BY[death.how] if death is not None and death.planned else NO_FAREWELL


def spans_of(run: Run) -> list[Span]:
    origin = run.history.began_at
    return [
        Span(fault=receipt.id, kind=kind, began=receipt.at - origin, ended=end - origin)
        for receipt in (run.judgement.faults if run.judgement else []) if receipt.fired and receipt.at is not None
        for kind, end in (("told", receipt.detected_at), ("released", receipt.released_at)) if end is not None
    ]


def moments_of(run: Run) -> list[Moment]:
    """All moments by time."""
    moments = _faults(run.history) + _deaths(run) + _observed(run.history)
    for span in spans_of(run):
        took = duration(span.ended - span.began)
        if span.kind == "told":
            moments.append(Moment(at=span.ended, node="frontend.0", kind="told", fault=span.fault,
                                  label=f"told, {took} after {span.fault}",
                                  text=f"the callers were told, {took} after {span.fault}"))
        else:
            moments.append(Moment(at=span.ended, node=_node_of(run.history, span.fault), kind="released",
                                  fault=span.fault, label=f"{span.fault} released",
                                  text=f"{span.fault} let go, after {took}"))
    return sorted(moments, key=lambda moment: moment.at)


def _faults(history: History) -> list[Moment]:
    """Each fault where it fired first, and how often it did."""
    times = Counter(receipt.id for receipt in history.faults.receipts)
    first: dict[str, Receipt] = {}
    for receipt in history.faults.receipts:
        first.setdefault(receipt.id, receipt)
    return [Moment(
        at=receipt.at - history.began_at, node=base(receipt.told_by), kind="fault", fault=receipt.id,
        label=f"{receipt.id} {receipt.fate}",
        text=f"{receipt.id}: {receipt.fate} at {receipt.site}, crossing {receipt.nth}"
             + (f", victim {base(receipt.node)}" if base(receipt.node) != base(receipt.told_by) else "")
             + (f"; {times[receipt.id]:,} times in all" if times[receipt.id] > 1 else ""))
        for receipt in first.values()]


def _node_of(history: History, fault: str) -> str:
    return next((base(receipt.node) for receipt in history.faults.receipts if receipt.id == fault), "core.0")


def _deaths(run: Run) -> list[Moment]:
    return [
        Moment(at=life.ended, node=life.node, kind="death", label=f"died: {life.died}",
               text=f"{life.node} died: {life.died}" + (f" (life {life.life})" if life.life else ""))
        for life in lives_of(run) if life.died is not None and life.ended is not None
    ]


def _observed(history: History) -> list[Moment]:
    """What the processes said that a reader of this run looks for; each kind a few times at most."""
    moments: list[Moment] = []
    often: Counter[tuple[str, str]] = Counter()
    for node in history.nodes:
        for record in history.records(node):
            if record.site not in _TOLD or record.kind is not Kind.OBSERVATION:
                continue
            often[base(node), record.site] += 1
            if often[base(node), record.site] <= 4:
                kind, label = _sentence(record)
                moments.append(Moment(at=record.at - history.began_at, node=base(node), kind=kind, label=label,
                                      text=f"{base(node)}: {label}"))
    return moments


#: What an observation is called on a chart, and which of its fields says more.
_WORDS: dict[str, tuple[str, str | None]] = {
    "ready": ("ready", None), "dead-notice": ("death notice read", None), "dying": ("dying", "reason"),
    "start-failed": ("start failed", "error"), "parent-gone": ("its parent is gone", None),
    "bad-frame": ("bad frame dropped", None), "kv-restarted": ("publisher restarted", None),
    "draining": ("draining", None), "rpc-raised": ("raised", "error"), "unroutable": ("unroutable", None),
    "engine-dead": ("the engine is dead", "reason"),
}
_TOLD = frozenset(_WORDS) | {"kv-gap", "kv-healed", "kv-unrecoverable", "kv-snapshot"}


def _sentence(record: Record) -> tuple[str, str]:
    """Of an observation that is told of."""
    data = record.data
    if record.site in ("kv-gap", "kv-healed", "kv-unrecoverable"):
        what = {"kv-gap": "gap noticed", "kv-healed": "gap healed", "kv-unrecoverable": "gap cannot be healed"}
        return "kv", f"{what[record.site]}, batches {_span(data)}"
    if record.site == "kv-snapshot":
        return "kv", f"snapshot of {data.get('blocks')} blocks taken, before batch {data.get('next_seq')}"
    word, field = _WORDS[record.site]
    return "note", word if field is None else f"{word}: {data.get(field, '')}"


def _span(data: dict[str, Any]) -> str:
    first, last = data.get("first"), data.get("last")
    return f"{first}" if first == last else f"{first} to {last}"

"""What went wrong in a play, by the records alone: each death, crash, refusal, failure, lost connection and error.

Nothing here asks why. In a calm play that asks for nothing wrong there is no incident at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from engine.messages import Outcome
from engine.topology import NodeKind
from faults.plan import Fate
from scenarios.history.history import FOREVER, History, Operation, Record, kind_of, life_of
from scenarios.history.names import PUBLISHER, REPLAYER, edge_of, of_life
from scenarios.law.passed import passed_by

#: Of what the lab finds, which belongs to no process.
LAB = "lab"


class Sort(StrEnum):
    """What kind of incident it is."""

    DEATH = "a process ended unasked, or not with 0"
    OVERSTAY = "a process was still there when all was over"
    LEFTOVER = "something of an engine was left behind"
    DEAD = "a process spoke of the end of its engine"
    START = "a start failed"
    UNHEARD = "a caller heard nothing more"
    FAILED = "a request failed"
    REFUSED = "a request was refused"
    TOLD = "a request ended by the death of its engine"
    ABORTED = "a request was aborted"
    UTILITY = "a utility call failed"
    UNSENT = "a message stayed with its sender"
    BAD_FRAME = "a message could not be read"
    STRANGE = "the core was asked for what it could not do"
    RPC = "a call of the workers failed"
    WAIT = "a wait at a ring ended without what it waited for"
    ORPHAN = "a process lost its parent"
    THREAD = "a thread ended"
    ENDLESS = "a thread ran without end"
    KV_SENDER = "a batch of events was not sent"
    KV_READER = "a subscriber missed something"
    WRONG = "a process found itself wrong"
    MISTOLD = "a mirror holds what cannot be"
    KEPT = "something was kept of what was over"
    SILENT = "a process kept silent about what it is to tell"
    UNASKED = "a process did what its configuration does not ask for"
    STUMBLE = "a process fell over an error of its own"


class Incident(NamedTuple):
    """One thing that went wrong. `operation`: the request that it is about; `record`: what told of it."""

    sort: Sort
    node: str
    at: float
    text: str
    operation: Operation | None = None
    record: Record | None = None


_OUTCOMES = {Outcome.FAILED: Sort.FAILED, Outcome.REFUSED: Sort.REFUSED, Outcome.ENGINE_DEAD: Sort.TOLD,
             Outcome.ABORTED: Sort.ABORTED}
#: Observations that are incidents whatever they say, and what they are.
_ALWAYS = {
    "engine-dead": Sort.DEAD, "dying": Sort.DEAD, "dead-notice": Sort.DEAD, "late-call": Sort.DEAD,
    "worker-gone": Sort.DEAD, "coordinator-dead": Sort.DEAD,
    "start-failed": Sort.START, "unroutable": Sort.UNSENT, "not-sent": Sort.UNSENT, "bad-frame": Sort.BAD_FRAME,
    "rpc-raised": Sort.RPC, "rpc-failed": Sort.RPC, "parent-gone": Sort.ORPHAN, "kv-lost": Sort.KV_SENDER,
    "kv-unsent": Sort.KV_SENDER, "replay-ended": Sort.KV_SENDER, "kv-gap": Sort.KV_READER,
    "kv-unrecoverable": Sort.KV_READER, "kv-unverified": Sort.KV_READER, "kv-restarted": Sort.KV_READER,
}
#: Observations that are incidents where this holds of what they say.
_WHERE: dict[str, tuple[Sort, Callable[[str, dict[str, Any]], bool]]] = {
    "health": (Sort.DEAD, lambda node, data: not data.get("healthy", True)),
    "utility": (Sort.UTILITY, lambda node, data: bool(data.get("failure"))),
    "request": (Sort.STRANGE, lambda node, data: data.get("action") in ("duplicate", "refused", "unknown-abort")),
    "queue-wait": (Sort.WAIT, lambda node, data: data.get("outcome") != "ok" and (
        data.get("outcome") in ("peer-dead", "failed") or (
            # Workers look whether they are asked.
            data.get("outcome") in ("timeout", "cancelled") and kind_of(node) == "core"))),
    "blocks": (Sort.WRONG, lambda node, data: data.get("errors", []) != []),
    "kv-mirror": (Sort.MISTOLD, lambda node, data: bool(data.get("errors"))),
    "closing": (Sort.WRONG, lambda node, data: data.get("errors", []) != []),
}


#: Where a process says what it has met; errors that none is raised as on purpose, and ends that nobody looked at.
_REASONS = {"dying": "reason", "bye": "reason", "rpc-raised": "error", "thread-ended": "error",
            "start-failed": "error", "end": "error", "engine-dead": "reason", "utility": "failure"}
_NOBODY_WROTE = re.compile(
    r"\b(Type|Attribute|Key|Index|Name|UnboundLocal|Assertion|Recursion|ZeroDivision|NotImplemented)Error\b|"
    r"\(exit code None\)|'NoneType' object")
#: Whose exit codes the lab cannot know, for it has not started them: their parents ask them to leave, and then wait.
_CHILDREN = frozenset({NodeKind.CORE, NodeKind.WORKER, NodeKind.COORDINATOR})
#: Threads that go on until their process cancels them.
_NEVER_DONE = ("input",)
#: What a process says from when on its threads have nothing more to do.
_LEAVING = ("dying", "bye", "parent-gone")


def incidents(history: History) -> list[Incident]:
    """All of a play, by time."""
    found = (*_of_requests(history), *_of_processes(history), *_of_records(history), *_of_threads(history),
             *_of_tables(history), *_of_silence(history), *_of_publishers(history), *_of_stumbles(history),
             *_of_prints(history), *_of_repeats(history))
    return sorted(found, key=_when)


def _when(incident: Incident) -> float:
    return incident.at


def _of_publishers(history: History) -> Iterator[Incident]:
    """Where events are off, or for nobody, no publisher runs."""
    events = history.play.config.kv_events
    if events.enable_kv_cache_events and events.publisher != "null":
        return
    for node, record in history.observed("thread-ended"):
        if record.data["thread"] in (PUBLISHER, REPLAYER):
            yield Incident(Sort.UNASKED, node, record.at, f"it ran {record.data['thread']}", record=record)


def _of_repeats(history: History) -> Iterator[Incident]:
    """Whatever befalls what a worker reads, it executes each call once (else, `workers-in-step` speaks of that), and a
    client is closed once.
    """
    for node, records in history.executed.items() if history.faults.receipts else ():
        calls = [record.data.get("call", -place) for place, record in enumerate(records, 1)]
        if len(set(calls)) < len(calls):
            again = next(record for place, record in enumerate(records) if calls[place] in calls[:place])
            text = f"it executed call {again.data['call']} again"
            yield Incident(Sort.UNASKED, node, again.at, text, record=again)
    for node, records in history.by_node("closing").items():
        if len(records) > 1:
            yield Incident(Sort.UNASKED, node, records[1].at, "it was closed, and closed again", record=records[1])


def _of_stumbles(history: History) -> Iterator[Incident]:
    """Whatever befalls a process, it says by a name of its own, and not by an error that nobody wrote."""
    said = history.observations
    for name, field in _REASONS.items():
        for node, record in history.observed(name) if name in said else ():
            words = record.data.get(field)
            if words and ("Error" in words or "None" in words) and _NOBODY_WROTE.search(words):
                yield Incident(Sort.STUMBLE, node, record.at, _words(record), None, record)


#: What Python prints of an exception that a fault has raised, and where a process is asked to leave amid its last word.
_PLANTED, _ASKED = {Fate.RAISE: "RuntimeError: {0.text}", Fate.EXIT: "SystemExit: {0.code}"}, "SystemExit: SIGTERM"
#: What handlers of programs raise, to see who is there behind it: in a destructor of others it is printed and no more.
_INTERRUPTED = {"InterruptedError", "InterruptedError: "}


def _of_prints(history: History) -> Iterator[Incident]:
    """An exception that came out of a process, a thread or a callback, but for those that faults have raised."""
    planted = {_PLANTED[receipt.fault.fate].format(receipt.fault) for receipt in history.faults.receipts
               if receipt.fault is not None and receipt.fault.fate in _PLANTED}
    planted |= _INTERRUPTED if history.play.options.program else set()
    for text in history.lab.printed:
        if text != _ASKED and text not in planted:
            yield Incident(Sort.STUMBLE, LAB, history.ended_at, f"printed: {text}")


def _of_requests(history: History) -> Iterator[Incident]:
    for operation in history.operations:
        if not operation.ends:
            if history.ends.at(operation.node) == FOREVER or operation.node in history.by_node("bye"):
                yield Incident(Sort.UNHEARD, operation.node, operation.last_progress_at,
                               f"request {operation.request!r} never ended", operation)
            continue
        end = operation.ends[0]
        sort = _OUTCOMES.get(Outcome(end.data["outcome"]))
        if sort is not None:
            why = end.data.get("reason") or end.data.get("error") or ""
            text = f"request {operation.request!r} ended {operation.outcome}: {why}"
            yield Incident(sort, operation.node, end.at, text, operation, end)


def _of_processes(history: History) -> Iterator[Incident]:
    unasked = {death.node for death in history.ends.deaths}
    exits = {of_life(process.node, process.life): process.exitcode for process in history.lab.processes}
    for name, end in history.ends.items():
        if name in unasked or exits.get(name):
            yield Incident(Sort.DEATH, name, end.at, f"{name} ended: {end.how}")
        elif exits.get(name, 0) is None and name not in history.by_node("bye") and kind_of(name) in _CHILDREN:
            yield Incident(Sort.DEATH, name, end.at, f"{name} was ended before it had said its last word")
    for node, records in history.by_node("dying").items():
        if exits.get(node, 1) == 0 and node not in history.by_node("bye"):
            yield Incident(Sort.DEATH, node, records[0].at, f"{node} ended with 0 in the middle of its leaving")
    for process in history.lab.processes:
        if history.overstayed(process):
            name = of_life(process.node, process.life)
            yield Incident(Sort.OVERSTAY, name, history.ended_at, f"{name} was still there at the end")
    for left in history.lab.leftovers:
        yield Incident(Sort.LEFTOVER, LAB, history.ended_at, f"left behind: {left}")


def _of_records(history: History) -> Iterator[Incident]:
    said = history.observations
    for name, sort in _ALWAYS.items():
        for node, record in history.observed(name) if name in said else ():
            yield Incident(sort, node, record.at, _words(record), None, record)
    for name, (sort, holds) in _WHERE.items():
        for node, records in history.by_node(name).items():
            for record in records:
                if holds(node, record.data):
                    yield Incident(sort, node, record.at, _words(record), None, record)


def _of_threads(history: History) -> Iterator[Incident]:
    """A thread may end when it is cancelled, and when its process is leaving or has nobody left to serve."""
    for node, records in history.by_node("thread-ended").items():
        said = [history.by_node(name).get(node) for name in _LEAVING]
        leaving = min((mine[0].number for mine in said if mine), default=FOREVER)
        for record in records:
            if record.data["why"] == "endless":
                yield Incident(Sort.ENDLESS, node, record.at, _words(record), None, record)
            elif record.data["why"] == "failed" or (record.data["why"] == "done" and (
                    record.number < leaving or record.data["thread"] in _NEVER_DONE)):
                yield Incident(Sort.THREAD, node, record.at, _words(record), None, record)


def _of_tables(history: History) -> Iterator[Incident]:
    """A core is idle and has no request, a client closes when all that its caller asked for has ended, or a worker
    leaves whose core was idle and had told it of all ends."""
    for node, record in history.observed("blocks"):
        if not record.data.get("requests") and any(size != 0 for size in record.data.get("kept", {}).values()):
            yield Incident(Sort.KEPT, node, record.at, f"idle, and kept {record.data['kept']}", None, record)
    for node, record in history.observed("parent-gone"):
        core = history.engine_of(node).core
        if any(record.data.get("kept", {}).values()) and (_made_no_step(history, node) or _all_is_told(
                history, core, node, record.at)):
            yield Incident(Sort.KEPT, node, record.at, f"leaves, and kept {record.data['kept']}", None, record)
    for node, record in history.observed("closing"):
        pending = any(o.node == node and not (o.ends and o.ends[0].number < record.number) for o in history.operations)
        if not pending and any(record.data.get("kept", {}).values()):
            yield Incident(Sort.KEPT, node, record.at, f"closes, and kept {record.data['kept']}", None, record)


def _of_silence(history: History) -> Iterator[Incident]:
    """A client that leaves on its own feet has told how it began, how it closed, and of its engine's end, which it told
    its callers; each refusal of its own tells the load. Its callers have an answer to each call.
    """
    for node, records in history.by_node("bye").items():
        if kind_of(node) != NodeKind.FRONTEND or history.play.options.without_engine:  # there it is no client of one
            continue
        at, refused = records[-1].at, _refused_by_itself(history, node)
        dead = any(o.node == node and o.outcome == Outcome.ENGINE_DEAD and o.accepted for o in history.operations)
        for name, least in (("starting", 1), ("born", 1), ("closing", 1), ("closed", 1), ("engine-dead", int(dead)),
                            ("load", refused)):
            if len(history.by_node(name).get(node, ())) < least:
                yield Incident(Sort.SILENT, node, at, f"{node} left and had not said {name!r} {least} times")
    for node, records in history.by_node("not-sent").items():
        stayed = [record for record in records if kind_of(node) == NodeKind.FRONTEND
                  and record.at < _gone_at(history, _receiver(node, record))]
        if len(history.by_node("unroutable").get(node, ())) < len(stayed):
            yield Incident(Sort.SILENT, node, stayed[-1].at, f"{node} kept for itself that a message stayed with it")
    for node, text in passed_by(history):
        yield Incident(Sort.SILENT, node, history.ends.at(node), f"{node} left, and {text}")
    for node, record in history.observed("over"):
        if record.data["unanswered"]:
            yield Incident(Sort.UNHEARD, node, record.at, f"{record.data['unanswered']} calls were never answered")
        told = {history.asked_of(o) for o in history.operations  # who is refused may be told before last words are read
                if o.node == node and o.outcome == Outcome.ENGINE_DEAD and o.accepted and o.ended_at <= record.at}
        if not record.data.get("errored", True) and told.issuperset(history.engines_of(node)):
            yield Incident(Sort.SILENT, node, record.at, "it says its engine lives, whose death its callers were told")


def _gone_at(history: History, node: str) -> float:
    """From when on others may know it: of a real process they may be told before the lab is."""
    return history.ends.at(node) - history.slack_s


def _receiver(node: str, not_sent: Record) -> str:
    """Whom a message was for that stayed with its sender."""
    edge = edge_of(str(not_sent.data.get("site", "")))
    return of_life(str(edge[1].target), life_of(node)) if edge is not None else ""


def _refused_by_itself(history: History, node: str) -> int:
    return sum(o.node == node and o.outcome == Outcome.REFUSED and o.accepted is None for o in history.operations)


def _made_no_step(history: History, worker: str) -> bool:
    return not any(record.data["method"] == "execute_model" for record in history.executed.get(worker, ()))


def _all_is_told(history: History, core: str, worker: str, at: float) -> bool:
    """Whether a core was idle to the last, without an end that its workers do not know, and this one had read that."""
    books, calls = history.by_node("blocks").get(core), history.by_node("rpc-call").get(core)
    if not books or not calls or books[-1].data.get("requests") or books[-1].data.get("untold") is not False:
        return False
    read = history.executed.get(worker)
    return (calls[-1].number < books[-1].number and bool(read) and read[-1].data["call"] == calls[-1].data["call"]
            and (history.simulated or at - read[-1].at > history.bounds.detection_s))


def _words(record: Record) -> str:
    said = ", ".join(f"{name} {value}" for name, value in record.data.items()
                     if value not in (None, "", [], {}) and name != "hashes")
    return f"{record.site}: {said}" if said else record.site

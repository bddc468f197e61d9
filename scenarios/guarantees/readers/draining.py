"""What becomes of a request whose core is asked to leave, as its client heard of it."""

from __future__ import annotations

from engine.messages import Outcome
from engine.topology import Channel, Mark, mark_site
from scenarios.guarantees.base import DAMAGE, Finding
from scenarios.guarantees.chapters.closing import is_ended_with_another
from scenarios.guarantees.fitting import BAD_REQUEST
from scenarios.history.history import FOREVER, Fate, History, Operation, Record, kind_of


def check_drain(history: History) -> Finding:
    finding = Finding(history)
    for receipt in history.faults.receipts:
        if receipt.fate != Fate.TERMINATE or kind_of(receipt.node) != "core":
            continue
        core, engine = receipt.node, history.engine_of(receipt.node)
        draining = next(iter(history.by_node("draining").get(core, ())), None)
        since = draining.at if draining else receipt.at
        if history.closing_at(engine) <= since:
            continue
        if not any(s.ready_at <= since for s in history.startups if history.is_of(s.node, engine)):
            continue
        deadline = since + history.bounds.drain_s
        if draining:
            deadline = min(deadline, draining.data.get("deadline") or deadline)
            _judge_refusals(finding, core, draining)
        for other in history.joined(engine) if history.in_step(engine) else (engine,):  # these end with it
            for operation in history.operations:
                if history.is_asked_of(operation, other) and (other == engine or _goes_on_for(
                        history, core, operation, other.core, since) and (operation.ended_at or FOREVER) < deadline):
                    _judge_drained(finding, operation, since, deadline, core, other.core)
    return finding


def _goes_on_for(history: History, core: str, operation: Operation, own: str, since: float) -> bool:
    """Whether it had made a forward since another core took this request: its wave is not over before that."""
    taken = _taken_at(history, operation, own)
    return any(taken < record.at <= since for mark in (Mark.DUMMY, Mark.SCHEDULED)
               for record in history.crossings.get(mark_site(core, mark), ()))


def _judge_refusals(finding: Finding, core: str, draining: Record) -> None:
    history, dying = finding.history, finding.history.by_node("dying").get(core)
    since = [record for record in history.by_node("request").get(core, ()) if record.number > draining.number]
    given_up = sum(record.data["action"] == "abort" and not record.data["reason"] for record in since)
    if draining.data.get("running", 0) > given_up and dying and dying[0].data["reason"] == "SIGTERM" and (
            history.bounds.drain_s) and not any(
            step.number > draining.number for step in history.crossings.get(f"{core}/mark:step", ())):
        finding.broke("{} was asked to leave with requests that ran, and made no step for them", core, at=draining.at,
                      node=core)
    for record in since:
        if record.data.get("action") == "add":
            finding.broke("{} took request {!r} while it was draining", core, record.data.get("request"), at=record.at,
                          node=core)
        elif record.data.get("action") == "refused":
            finding.witness("{} refused {!r} while it was draining", core, record.data.get("request"), at=record.at,
                            node=core)


def _judge_drained(finding: Finding, operation: Operation, since: float, deadline: float, core: str, own: str) -> None:
    """`own`: the core that it was sent to."""
    history, ended, node = finding.history, operation.ended_at, operation.node
    bound = history.bounds.drain_s + history.bounds.detection_s + history.bounds.heartbeat_s * (not history.simulated)
    changed = history.faults.hit(*DAMAGE, channel=Channel.REQUESTS.value) if operation.outcome == Outcome.FAILED else ()
    if not operation.pending_at(since) or _never_reached(history, operation, own, since) or is_ended_with_another(
            history, operation, core) or any(hit.node == own for hit in changed):  # it may be what was changed
        return
    if ended is None:
        if history.ends.at(node) == FOREVER or node in history.by_node("bye"):
            finding.hangs("request {!r}, running when {} got SIGTERM,", operation.request, core, bound=bound,
                          since=since, node=node)
        return
    done = operation.outcome == Outcome.FINISHED or operation.abort is not None or operation.error == BAD_REQUEST
    if operation.outcome == Outcome.ENGINE_DEAD:
        finding.broke("request {!r} was running when {} got SIGTERM, and it neither finished nor was it aborted",
                      operation.request, core, at=ended, node=node)
    elif not done and operation.outcome != Outcome.REFUSED and ended < deadline:
        finding.broke("request {!r} was running when {} got SIGTERM and ended as {} {:.3f} s before the drain deadline",
                      operation.request, core, operation.outcome, deadline - ended, at=ended, node=node)
    elif finding.took("ending {!r} after SIGTERM to {}", operation.request, core, at=ended, node=node,
                      bound=bound, measured=ended - since - history.faults.frozen_s(node, since, ended)):
        finding.witness("{!r} was running when {} got SIGTERM and was {}", operation.request, core, operation.outcome,
                        at=ended, node=node)


def _never_reached(history: History, operation: Operation, core: str, since: float) -> bool:
    """Whether the core had not taken the request when it was told to leave: then it may refuse it or never see it."""
    return _taken_at(history, operation, core) > since


def _taken_at(history: History, operation: Operation, core: str) -> float:
    return next((record.at for record in history.by_node("request").get(core, ())
                 if record.data.get("request") == operation.internal and record.data.get("action") == "add"), FOREVER)

"""What a request with a value of another kind may do to others, of an engine that is not ours (pure): nothing."""

from __future__ import annotations

from engine.messages import Outcome
from scenarios.guarantees.base import Finding
from scenarios.history.history import FOREVER, History, Operation


def asked_oddly(history: History) -> set[int]:
    """The indices of these requests; our own engine is never asked so."""
    requests = () if history.play.is_ours else history.play.workload.get("requests", ())
    return {request.get("index", place) for place, request in enumerate(requests)
            if request.get("asked_params") is not None}


def judge_odd_requests(finding: Finding) -> None:
    """Of a play without faults: who asks for nothing odd is served, and refused only where too many are open."""
    history = finding.history
    odd = asked_oddly(history)
    failed = [o for o in history.operations if o.index in odd and o.outcome == Outcome.FAILED]
    if not failed or history.faults.receipts:
        return
    first = min(operation.over_at for operation in failed)
    for operation in history.operations:
        if operation.index in odd or operation.over_at < first or operation.abort is not None:
            continue
        limit, beside = history.play.config.limits.max_requests, _open_beside(history, operation)
        if operation.outcome == Outcome.REFUSED and beside < limit:
            finding.broke("request {!r} was refused where {} of {} were open: {}", operation.request, beside, limit,
                          operation.ends[0].data.get("reason"), at=operation.ended_at, node=operation.node)
        elif operation.outcome == Outcome.FAILED:
            finding.broke("request {!r} failed beside an odd one: {}", operation.request,
                          operation.ends[0].data.get("reason"), at=operation.ended_at, node=operation.node)
        elif operation.outcome == Outcome.FINISHED:
            finding.witness("{!r} failed alone ({}), {!r} was served afterwards", failed[0].request,
                            failed[0].ends[0].data.get("reason"), operation.request, at=operation.ended_at,
                            node=operation.node)


def _open_beside(history: History, operation: Operation) -> int:
    """How many others its caller had open when it was called."""
    assert operation.call is not None
    return sum(other is not operation and other.node == operation.node and other.call is not None
               and other.call.number < operation.call.number
               and (other.ends[0].number if other.ends else FOREVER) > operation.call.number
               for other in history.operations)

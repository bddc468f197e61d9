"""How long an output has been missing, as its caller can know."""

from __future__ import annotations

from engine.topology import Channel
from scenarios.guarantees.base import STALLS, Finding, timer_s
from scenarios.history.history import Fate, History, Operation
from scenarios.history.receipts import LOSS_FATES
from scenarios.history.steps import steps_of

#: What keeps an output from being read for a while.
_HELD = STALLS | {Fate.DELAY, Fate.REORDER}


def missing_s(history: History, operation: Operation) -> float:
    """How long its caller heard nothing before its end. Where something that was held back came last: how long it was
    since the next output was lost. Who asked, and heard nothing: from the call on, as the clock is read before anybody
    says that it was accepted.
    """
    heard = operation.last_progress_at if operation.deliveries else operation.began_at
    lost, held = ([r for r in history.faults.hit(*fates, channel=Channel.OUTPUTS.value)
                   if r.node == operation.node and r.at <= heard] for fates in (LOSS_FATES, _HELD))
    return operation.over_at - (max((r.at for r in lost), default=heard) if held else heard)


def judge_gap(finding: Finding, operation: Operation) -> None:
    """A missing output is waited for since the next one came, and not since the last one: tokens may go on for long.

    The one that is missing is of the first step behind what was heard, so the next one is of the second: whatever comes
    when that has begun is it, or behind it.
    """
    history, heard, ended = finding.history, operation.last_progress_at, operation.ended_at
    if not (history.simulated and operation.deliveries and ended and operation.error == "RequestTimeoutError"):
        return
    engine = history.asked_of(operation)
    begun = [step.record.at for step in steps_of(history, engine)
             if step.record.at > heard and operation.internal in step.scheduled][1:2]
    came = [receive.at for flow in history.flows(Channel.OUTPUTS) for receive in flow.receives
            if (flow.source, flow.target) == (engine.core, operation.node) and begun and receive.at > begun[0]
            and history.faults.met(receive) is None]
    if came:
        held_s = history.faults.frozen_s(operation.node, came[0], ended, engine.core)
        finding.took("giving up {!r} behind an output that was missing", operation.request, node=operation.node,
                     bound=timer_s(history.bounds, history.bounds.output_gap_s), measured=ended - came[0] - held_s,
                     at=ended)

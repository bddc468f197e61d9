"""How long an output has been missing, as its caller can know."""

from __future__ import annotations

from engine.topology import Channel
from scenarios.guarantees.base import STALLS
from scenarios.history.history import Fate, History, Operation
from scenarios.history.receipts import LOSS_FATES

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

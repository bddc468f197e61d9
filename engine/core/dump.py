"""What is put on record of a step that failed (pure): what was asked of the workers, and no word of a prompt."""

from __future__ import annotations

from typing import Any

from engine.core.batch_queue import BatchQueue
from engine.core.scheduler import Scheduler

#: So many requests of each kind are named, and so much is kept of an error's text.
MOST_REQUESTS, MOST_TEXT = 64, 2000


def failed_step(error: Exception, in_flight: BatchQueue, scheduler: Scheduler) -> dict[str, Any]:
    """`scheduled`: tokens by request; `new`: request, tokens known, of its prompt, blocks, computed; `cached`: request,
    new tokens, new blocks, computed; `left_out`: how many of them are not named. `behind`: the steps in flight.
    """
    found: dict[str, Any] = {"step": None, "error": f"{type(error).__name__}: {error}"[:MOST_TEXT]}
    stats = scheduler.stats()
    found["stats"] = {"running": stats.num_running, "waiting": stats.num_waiting, "free": stats.blocks_free,
                      "total": stats.blocks_total, **scheduler.kept()}
    step, in_hand = in_flight.failing, in_flight.current
    if step is None or in_hand is None:
        return found
    new = [[one.request_id, len(one.token_ids), one.num_prompt_tokens, len(one.block_ids), one.num_computed_tokens]
           for one in step.new[:MOST_REQUESTS]]
    cached = [[one.request_id, len(one.new_token_ids), len(one.new_block_ids), one.num_computed_tokens]
              for one in step.cached[:MOST_REQUESTS]]
    named = {name for name, *_ in (*new, *cached)}
    return found | {
        "step": step.step, "behind": sorted({*in_flight.numbers, in_hand.step} - {step.step}),
        "scheduled": {name: count for name, count in step.num_scheduled_tokens.items() if name in named},
        "new": new, "cached": cached, "left_out": len(step.num_scheduled_tokens) - len(named),
        "finished": len(step.finished), "preempted": len(step.preempted)}

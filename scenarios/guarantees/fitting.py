"""Which requests an engine cannot serve, by what their callers asked and what was configured."""

from __future__ import annotations

from scenarios.guarantees.base import Finding
from scenarios.history.history import History, Operation

BAD_REQUEST = "BadRequestError"


def capacity_tokens(history: History, node: str) -> int | None:
    """What the whole cache of that caller's engine holds; None where nobody knows."""
    cache = history.play.config.cache
    blocks = cache.num_gpu_blocks
    if blocks is None:
        ready = next(iter(history.by_node("ready").get(node, ())), None)
        blocks = None if ready is None else ready.data.get("num_gpu_blocks")
    return None if blocks is None else blocks * cache.block_size


def never_fits(history: History, operation: Operation) -> bool:
    """Whether the prompt alone is larger than the cache."""
    capacity = capacity_tokens(history, operation.node)
    return operation.call is not None and capacity is not None and operation.call.data.get("prompt", 0) > capacity


def may_not_fit(history: History, operation: Operation) -> bool:
    """Whether prompt and answer together may be too large, or the prompt is none."""
    if operation.call is None:
        return False
    data, capacity = operation.call.data, capacity_tokens(history, operation.node)
    length = history.play.config.scheduler.max_model_len
    tokens = data.get("prompt", 0) + (data.get("max_tokens") or 0)
    return not data.get("prompt", 1) or any(limit is not None and tokens >= limit for limit in (capacity, length))


def judge_effect(finding: Finding, operation: Operation) -> None:
    """Whether one that failed may have taken effect: where it has delivered tokens, it has."""
    said = operation.ends[0].data.get("may_have_taken_effect", False)
    if not finding.history.faults.receipts and said != bool(operation.tokens):
        finding.broke("request {!r} failed with {} tokens, and says of its effect: {}", operation.request,
                      len(operation.tokens), said, at=operation.ended_at, node=operation.node)

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
    """Whether one that failed may have taken effect: where it has delivered tokens, it has. Then it has outgrown the
    cache, which has no room for its last token alone.
    """
    said, node = operation.ends[0].data.get("may_have_taken_effect", False), operation.node
    count = len(operation.tokens)
    if finding.history.faults.receipts:
        return
    if said != bool(count):
        finding.broke("request {!r} failed with {} tokens, and says of its effect: {}", operation.request, count, said,
                      at=operation.ended_at, node=node)
    capacity = capacity_tokens(finding.history, node)
    if count and capacity is not None and operation.call is not None and \
            count != capacity + 1 - operation.call.data["prompt"]:
        finding.broke("request {!r} outgrew the cache of {} tokens by its prompt of {} and {} tokens more",
                      operation.request, capacity, operation.call.data["prompt"], count, at=operation.ended_at,
                      node=node)


def judge_bad(finding: Finding, operation: Operation) -> None:
    """What does not fit into the whole cache fails, and its caller reads by how much."""
    assert operation.call is not None
    prompt, node = operation.call.data["prompt"], operation.node
    if operation.error != BAD_REQUEST:
        finding.broke("request {!r}, whose {} tokens can never fit, ended {} ({}) instead of failing alone",
                      operation.request, prompt, operation.outcome, operation.error, at=operation.ended_at, node=node)
    elif str(prompt) not in operation.ends[0].data.get("reason", ""):
        finding.broke("request {!r} failed without a message that says why: its {} tokens can never fit",
                      operation.request, prompt, at=operation.ended_at, node=node)

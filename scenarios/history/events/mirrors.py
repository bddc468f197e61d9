"""What the blocks of a mirror must hold, by what was asked and by what `transformers` answers to it.

Promise: nothing of the engine is asked. A chain of blocks, from its first one on, is the beginning of some request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from faults.journal import Record
from scenarios.history.play import Play

Tokens = tuple[int, ...]


def beginnings(play: Play) -> frozenset[Tokens]:
    """Every whole number of blocks that a request of the workload can fill, from its first token on."""
    size = play.config.cache.block_size
    found: set[Tokens] = set()
    for request in play.workload.get("requests", ()):
        tokens = (*request["prompt_token_ids"], *request["reference_token_ids"])
        found.update(tokens[:end] for end in range(size, len(tokens) + 1, size))
    return frozenset(found)


def untrue(mirror: Record, possible: frozenset[Tokens]) -> Iterator[str]:
    """What the blocks of a `kv-mirror` cannot be, in sentences. One that did not tell its blocks is not judged."""
    blocks: list[Any] | None = mirror.data.get("blocks")
    if blocks is None:
        return
    by_hash = {block_hash: (parent, tuple(tokens)) for block_hash, parent, tokens in blocks}
    if len(blocks) != len(by_hash) or set(by_hash) != set(mirror.data["hashes"]):
        yield f"it tells {len(blocks)} blocks of {len(mirror.data['hashes'])} hashes"
    whose: dict[Tokens, Any] = {}
    for block_hash in by_hash:
        spelled = _spelled(block_hash, by_hash)
        if spelled is None:
            yield f"block {block_hash} has no beginning"
        elif spelled not in possible:
            yield f"block {block_hash} and those before it hold what nobody was asked or told: {list(spelled)}"
        elif whose.setdefault(spelled, block_hash) != block_hash:
            yield f"blocks {whose[spelled]} and {block_hash} are the same"


def _spelled(block_hash: Any, by_hash: dict[Any, tuple[Any, Tokens]]) -> Tokens | None:
    """The tokens of a block behind those of its ancestors; None where one of them is missing, or is its own."""
    found: list[Tokens] = []
    at = block_hash
    while at is not None:
        if at not in by_hash or len(found) > len(by_hash):
            return None
        at, tokens = by_hash[at]
        found.append(tokens)
    return tuple(token for tokens in reversed(found) for token in tokens)

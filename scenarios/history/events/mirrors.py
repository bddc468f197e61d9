"""What the blocks of a mirror must hold, by what was asked and by what `transformers` answers to it.

Promise: nothing of the engine is asked. A chain of blocks, from its first one on, is the beginning of some request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from faults.journal import Record
from scenarios.history.events.followers import Follower
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


def impossible(follower: Follower, mirror: Record) -> dict[str, Any]:
    """What it was told before that cannot be, of a publisher that has neither begun anew since nor told its state."""
    begun = follower.restarts[-1].number if follower.restarts else 0
    for record in follower.history.by_node("impossible").get(follower.node, ()):
        taken = next((batch.number for batch in follower.batches if batch.data["seq"] == record.data["seq"]
                      and begun < record.number < batch.number < mirror.number), None)
        if taken is not None and not any(taken < state.number < mirror.number for state in follower.snapshots):
            return record.data
    return {}


def misjudged(mirror: Record, told: dict[str, Any]) -> Iterator[str]:
    """Each block that cannot be is named by one sentence, there are no others, and all that were told are held."""
    errors = [str(error) for error in mirror.data.get("errors", ())]
    silent = [named for named in told["named"] if sum(str(named) in error for error in errors) != 1]
    if silent or len(errors) != told["sentences"]:
        yield f"it was told what cannot be, and says nothing, or too much, of {silent}, in {len(errors)} sentences"
    if not set(told["hashes"]) <= set(mirror.data["hashes"]):
        yield "it does not hold what it was told"


def untrue(mirror: Record, possible: frozenset[Tokens], but: Collection[Any] = ()) -> Iterator[str]:
    """What the blocks of a `kv-mirror` cannot be, in sentences, `but` for those that are known not to be.

    One that did not tell its blocks is not judged.
    """
    blocks: list[Any] | None = mirror.data.get("blocks")
    if blocks is None:
        return
    by_hash = {block_hash: (parent, tuple(tokens)) for block_hash, parent, tokens in blocks}
    if but:
        blocks = [block for block in blocks if block[0] not in but]
        by_hash = {block_hash: told for block_hash, told in by_hash.items() if block_hash not in but}
    if len(blocks) != len(by_hash) or set(by_hash) != set(mirror.data["hashes"]) - set(but):
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

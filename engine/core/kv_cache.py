"""Which request holds which blocks of the KV cache, and what it can reuse from others.

Promises
- A block has as many holders as requests list it, or it is free. `check_integrity` proves it.
- Reuse is exact: a block is shared only if it is full, its content is computed, and its tokens and all
  tokens before them are the same. At least the last known token of a request is always computed anew,
  because its logits are needed.
- A shared block is never written: a request writes only behind the blocks it found.
- Allocation is all or nothing.

    request A   [ 0 | 1 | 2 | 5 ]      blocks 0 and 1 are shared, each has two holders
    request B   [ 0 | 1 | 7 ]          B found 0 and 1 by hash, took 7
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.block_pool import BlockPool, CacheEvent
from engine.core.request import Request


class KVCacheManager:
    """Blocks of `block_size` tokens for requests. Nothing here waits; a refused allocation returns None.

    Counters: `num_free + num_used == num_total`. Free blocks may still hold findable content; `num_cached`
    counts the distinct hashes that can be found, in free and in used blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, *,
                 enable_events: bool = True) -> None:
        """Who enables events must take them, or they pile up. Raises ValueError for an empty cache."""
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.capacity_tokens = num_blocks * block_size
        self._pool = BlockPool(num_blocks, block_size, enable_events=enable_events)
        self._tables: dict[str, list[int]] = {}
        self._num_stored: dict[str, int] = {}  # blocks of a request that can already be found

    @property
    def num_total(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        return self._pool.num_blocks - self._pool.num_free

    @property
    def num_cached(self) -> int:
        return self._pool.num_cached

    @property
    def num_tables(self) -> int:
        """Requests that hold blocks."""
        return len(self._tables)

    def get_block_ids(self, request_id: str) -> list[int]:
        """The request's blocks in the order of its tokens; empty if it holds none."""
        return list(self._tables.get(request_id, ()))

    def get_computed_blocks(self, request: Request) -> tuple[list[int], int]:
        """The longest cached beginning of a request that holds no blocks: (blocks, number of tokens)."""
        if not self.enable_prefix_caching:
            return [], 0
        request.extend_block_hashes(self.block_size)
        found: list[int] = []
        for block_hash in request.block_hashes[:(request.num_tokens - 1) // self.block_size]:
            block = self._pool.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found, len(found) * self.block_size

    def allocate_slots(self, request: Request, num_new_tokens: int,
                       computed_blocks: Sequence[int] = ()) -> list[int] | None:
        """Make room for the next `num_new_tokens` tokens behind the computed ones. -> the blocks taken anew

        `computed_blocks`, from `get_computed_blocks`, are for a request without blocks: they come first in its
        table. None, and nothing is changed, when too few blocks are free.
        """
        table = self._tables.get(request.request_id)
        num_held = len(table) if table is not None else 0
        num_computed = request.num_computed_tokens
        if computed_blocks:
            assert not num_held, f"request {request.request_id!r} already holds blocks"
            num_held = len(computed_blocks)
            num_computed = num_held * self.block_size
        num_needed = -(-(num_computed + num_new_tokens) // self.block_size) - num_held
        if num_needed <= 0:
            return []
        num_revived = sum(1 for block in computed_blocks if self._pool.is_free(block))
        if num_needed > self._pool.num_free - num_revived:
            return None
        # What was found is held first: taking new blocks must not evict it.
        self._pool.hold(computed_blocks)
        taken = self._pool.take(num_needed)
        if table is None:
            self._tables[request.request_id] = [*computed_blocks, *taken]
            self._num_stored[request.request_id] = len(computed_blocks)
        else:
            table += taken
        return taken

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` tokens are computed: full blocks among them can be found from now on."""
        if not self.enable_prefix_caching:
            return
        first = self._num_stored[request.request_id]
        last = num_computed_tokens // self.block_size
        if last <= first:
            return
        request.extend_block_hashes(self.block_size)
        hashes = request.block_hashes
        self._pool.store(
            self._tables[request.request_id][first:last], hashes[first:last], hashes[first - 1] if first else None,
            request.all_token_ids[first * self.block_size:last * self.block_size])
        self._num_stored[request.request_id] = last

    def free(self, request: Request) -> None:
        """The request lets go of its blocks. A request that never had any is fine."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            del self._num_stored[request.request_id]
            self._pool.release(table)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. -> False, and nothing is changed, while any request holds blocks."""
        return self._pool.reset()

    def take_events(self) -> list[CacheEvent]:
        """How the set of findable hashes changed since the last call, in order."""
        return self._pool.take_events()

    def cached_hashes(self) -> list[int]:
        """Every hash that can be found, sorted: what a mirror must hold."""
        return self._pool.cached_hashes()

    def check_integrity(self) -> list[str]:
        """What is wrong, as sentences; empty when all is well."""
        held = [0] * self.num_total
        wrong = []
        for request_id, table in self._tables.items():
            if len(set(table)) != len(table):
                wrong.append(f"request {request_id!r} lists a block twice: {table}")
            for block in table:
                held[block] += 1
        if self._tables.keys() != self._num_stored.keys():
            wrong.append("the requests with blocks are not the requests with stored blocks")
        return wrong + self._pool.check(held)

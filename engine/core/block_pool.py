"""All blocks of the KV cache: who may take which next, and which content can be found again.

Promises
- A block is held (count of holders > 0) or it stands in the free queue, never both, never neither.
- The free queue hands out the block whose content went unused for longest; every operation on it is O(1).
- Events tell exactly how the set of findable hashes changed, in that order: a mirror that applies them
  equals `cached_hashes()`. Two blocks may hold the same content; its hash is stored with the first and
  removed with the last.
- A hash is never findable without its parent: a prefix is evicted from its end.

    free queue   [ no content, no content | oldest content ................ youngest content ]
                   ^ taken next                                             freed last ^
    by hash      h0 -> {block 7}    h1 -> {block 2, block 9}    (held and free blocks alike)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.messages import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored

CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class BlockPool:
    """`num_blocks` blocks, numbered from 0. Knows blocks and hashes, not requests."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_events: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs at least one block of one token, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_events = enable_events
        self.holders: list[int] = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        # OrderedDict: a linked list in C, so taking from either end and from the middle is O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[int, dict[int, None]] = {}
        self._parents: dict[int, int | None] = {}
        self._events: list[CacheEvent] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._by_hash)

    def find(self, block_hash: int) -> int | None:
        """A block that holds this content, or None."""
        blocks = self._by_hash.get(block_hash)
        return next(iter(blocks)) if blocks else None

    def is_free(self, block: int) -> bool:
        return not self.holders[block]

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks; what they held is forgotten. The caller has looked at `num_free`."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._hash_of[block] is not None:
                self._forget(block)
            self.holders[block] = 1
            taken.append(block)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these blocks, found by hash."""
        for block in blocks:
            if not self.holders[block]:
                del self._free[block]
            self.holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each block of one chain, given in the order of its tokens.

        The end of the chain is queued first, so it is evicted before its beginning. Blocks without content
        go to the front: reusing them costs nobody a cache hit.
        """
        for block in reversed(blocks):
            self.holders[block] -= 1
            assert self.holders[block] >= 0, f"block {block} was released more often than it was held"
            if not self.holders[block]:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def store(self, blocks: Sequence[int], hashes: Sequence[int], parent_hash: int | None,
              token_ids: Sequence[int]) -> None:
        """These held blocks of one chain are full and computed: from now on they can be found.

        `token_ids` are the tokens in them, `parent_hash` the hash before the first of them.
        """
        run: list[BlockHash] = []  # hashes of neighbours that are new to the cache: one event tells them all
        run_start, run_parent, parent = 0, parent_hash, parent_hash
        for index, (block, block_hash) in enumerate(zip(blocks, hashes, strict=True)):
            assert self._hash_of[block] is None, f"block {block} is stored twice"
            self._hash_of[block] = block_hash
            same = self._by_hash.get(block_hash)
            if same is None:
                self._by_hash[block_hash] = {block: None}
                self._parents[block_hash] = parent
                if not run:
                    run_start, run_parent = index, parent
                run.append(block_hash)
            else:
                same[block] = None
                self._tell_stored(run, run_parent, token_ids, run_start)
                run = []
            parent = block_hash
        self._tell_stored(run, run_parent, token_ids, run_start)

    def reset(self) -> bool:
        """Forget all content. -> False, and nothing is changed, while any block is held."""
        if len(self._free) != self.num_blocks:
            return False
        if self._by_hash:
            self._hash_of = [None] * self.num_blocks
            self._by_hash.clear()
            self._parents.clear()
        if self.enable_events:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def cached_hashes(self) -> list[int]:
        """Every hash that can be found, sorted."""
        return sorted(self._by_hash)

    def check(self, held: Sequence[int]) -> list[str]:
        """What is wrong, as sentences; empty when all is well. `held[block]` is how many hold it by other books."""
        wrong = []
        for block, count in enumerate(self.holders):
            if count != held[block]:
                wrong.append(f"block {block} counts {count} holders, but {held[block]} requests hold it")
            if (block in self._free) == (count > 0):
                wrong.append(f"block {block} has {count} holders and is {'' if count else 'not '}in the free queue")
            block_hash = self._hash_of[block]
            if block_hash is not None and block not in self._by_hash.get(block_hash, ()):
                wrong.append(f"block {block} holds hash {block_hash}, but cannot be found by it")
        for block_hash, blocks in self._by_hash.items():
            strangers = [block for block in blocks if self._hash_of[block] != block_hash]
            if strangers or not blocks:
                wrong.append(f"hash {block_hash} leads to blocks {list(blocks)}, of which {strangers} do not hold it")
            parent = self._parents.get(block_hash)
            if parent is not None and parent not in self._by_hash:
                wrong.append(f"hash {block_hash} is cached without its parent {parent}")
        if len(self._parents) != len(self._by_hash):
            wrong.append(f"{len(self._by_hash)} hashes are cached, {len(self._parents)} have a parent on record")
        if self._free and not 0 <= min(self._free) <= max(self._free) < self.num_blocks:
            wrong.append("the free queue holds a block that does not exist")
        return wrong

    def _forget(self, block: int) -> None:
        """The content of this block is about to be overwritten."""
        block_hash = self._hash_of[block]
        assert block_hash is not None, f"block {block} holds nothing that could be forgotten"
        self._hash_of[block] = None
        blocks = self._by_hash[block_hash]
        del blocks[block]
        if not blocks:
            del self._by_hash[block_hash]
            del self._parents[block_hash]
            if self.enable_events:
                self._events.append(BlockRemoved(block_hashes=[block_hash]))

    def _tell_stored(self, run: list[BlockHash], parent_hash: int | None, token_ids: Sequence[int], start: int) -> None:
        if run and self.enable_events:
            size = self.block_size
            tokens = list(token_ids[start * size:(start + len(run)) * size])
            self._events.append(BlockStored(block_hashes=run, parent_block_hash=parent_hash, token_ids=tokens,
                                            block_size=size, lora_id=None))

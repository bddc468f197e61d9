"""What a publisher's KV cache holds, as far as its events tell. Pure.

Promises
- Fed every batch in order, it holds exactly the blocks that the cache holds, with parent, tokens and medium.
- After a loss that cannot be healed it says so: `unknown_since` is the first lost number, until the publisher clears
  its cache, starts anew or tells its whole state, for then nothing that was lost matters any more.
"""

from __future__ import annotations

import msgspec

from engine.messages import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVEventBatch

#: A block's place: the same hash may lie at once on several media, in several cache groups and with several owners.
#: Its medium, group, locality and ownership.
Key = tuple[BlockHash, str | None, int | None, str | None, str | None]


class MirrorBlock(msgspec.Struct, frozen=True):
    block_hash: BlockHash
    parent: BlockHash | None  # None: the first block of a prompt
    token_ids: tuple[int, ...]
    block_size: int
    medium: str | None
    group: int | None = None
    locality: str | None = None
    ownership: str | None = None

    @property
    def key(self) -> Key:
        return self.block_hash, self.medium, self.group, self.locality, self.ownership


class KVCacheMirror:
    def __init__(self) -> None:
        self.blocks: dict[Key, MirrorBlock] = {}
        self.next_seq = 0  # the number of the next batch to apply
        self.unknown_since: int | None = None
        self._strange: list[str] = []
        self._begun: int | None = None  # the batch applied last, perhaps in part

    def apply(self, number: int, batch: KVEventBatch) -> None:
        """Apply batch `number`. Raises ValueError where it is not the next one: a hole must be told by `lose`.

        One that was broken off by an exception can be applied again.
        """
        if number != self.next_seq:
            raise ValueError(f"the mirror expects batch {self.next_seq}, got {number}")
        again = self._begun == number
        self._begun = number
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(number, event)
            elif isinstance(event, BlockRemoved):
                self._remove(number, event, again)
            elif isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                self.unknown_since = None
        self.next_seq = number + 1

    def lose(self, first: int, last: int) -> None:
        """Batches `first` to `last` will never come."""
        if self.unknown_since is None:
            self.unknown_since = first
        self.next_seq = max(self.next_seq, last + 1)

    def restart(self) -> None:
        """The publisher began a new life with an empty cache; its numbers begin at 0 again."""
        self.blocks.clear()
        self.next_seq = 0
        self.unknown_since = self._begun = None
        self._strange.clear()

    def begin_from(self, number: int, blocks: list[BlockStored]) -> None:
        """A snapshot: what the publisher held before batch `number`. Raises ValueError where another is next."""
        if number != self.next_seq:
            raise ValueError(f"the mirror expects batch {self.next_seq}, got a snapshot before {number}")
        self.blocks.clear()
        self.unknown_since = None
        self._strange.clear()
        for event in blocks:
            self._store(number, event)

    def hashes(self) -> list[BlockHash]:
        """Sorted, each once: integers first, then bytes."""
        return sorted({key[0] for key in self.blocks}, key=lambda h: (isinstance(h, bytes), h))

    def chain(self, block_hash: BlockHash) -> list[MirrorBlock]:
        """The block and its ancestors, as far as they are cached, youngest first."""
        by_hash = {block.block_hash: block for block in self.blocks.values()}
        found, seen = [], set()
        block = by_hash.get(block_hash)
        while block is not None and block.block_hash not in seen:
            seen.add(block.block_hash)
            found.append(block)
            block = None if block.parent is None else by_hash.get(block.parent)
        return found

    def check_integrity(self) -> list[str]:
        """What cannot be true, in sentences; empty when all is well. Costs one pass over the blocks.

        What a batch did that cannot be stays said until the publisher starts anew or tells its whole state.
        """
        errors = list(self._strange)
        parents = {block.block_hash: block.parent for block in self.blocks.values()}
        for key, block in self.blocks.items():
            if block.key != key:
                errors.append(f"block {block.block_hash!r} is filed as {key!r}")
            if len(block.token_ids) != block.block_size:
                errors.append(f"block {key[0]!r} of {block.block_size} tokens holds {len(block.token_ids)}")
        errors += [f"block {found!r} is its own ancestor" for found in _on_cycles(parents)]
        return errors

    def _store(self, number: int, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        if len(event.token_ids) != size * len(event.block_hashes):
            self._remember(f"batch {number} stores {len(event.block_hashes)} blocks of {size} tokens, "
                           f"but {len(event.token_ids)} tokens")
        for position, block_hash in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[position * size:(position + 1) * size])
            block = MirrorBlock(block_hash, parent, tokens, size, event.medium, event.group_idx, event.locality,
                                event.ownership)
            self.blocks[block.key] = block
            parent = block_hash

    def _remove(self, number: int, event: BlockRemoved, again: bool) -> None:
        for block_hash in event.block_hashes:
            gone = self.blocks.pop((block_hash, event.medium, event.group_idx, event.locality, event.ownership), None)
            if gone is None and self.unknown_since is None and not again:
                self._remember(f"batch {number} removes block {block_hash!r}, which was not stored")

    def _remember(self, sentence: str) -> None:
        if len(self._strange) < 100:
            self._strange.append(sentence)


def _on_cycles(parents: dict[BlockHash, BlockHash | None]) -> list[BlockHash]:
    """Hashes from which following parents leads back to themselves."""
    done: set[BlockHash] = set()
    found = []
    for start in parents:
        path: list[BlockHash] = []
        on_path: set[BlockHash] = set()
        at: BlockHash | None = start
        while at is not None and at in parents and at not in done:
            if at in on_path:
                found += path[path.index(at):]
                break
            path.append(at)
            on_path.add(at)
            at = parents[at]
        done |= on_path
    return found

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

    def apply(self, number: int, batch: KVEventBatch) -> None:
        """Apply batch `number`. Raises ValueError where it is not the next one: a hole must be told by `lose`.

        One that was broken off by an exception can be applied again.
        """
        if number != self.next_seq:
            raise ValueError(f"the mirror expects batch {self.next_seq}, got {number}")
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
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
        self.unknown_since = None

    def begin_from(self, number: int, blocks: list[BlockStored]) -> None:
        """A snapshot: what the publisher held before batch `number`. Raises ValueError where another is next."""
        if number != self.next_seq:
            raise ValueError(f"the mirror expects batch {self.next_seq}, got a snapshot before {number}")
        self.blocks.clear()
        self.unknown_since = None
        for event in blocks:
            self._store(event)

    def hashes(self) -> list[BlockHash]:
        """Sorted, each once: integers first, then bytes."""
        return sorted({key[0] for key in self.blocks}, key=lambda h: (isinstance(h, bytes), h))

    def _store(self, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        for position, block_hash in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[position * size:(position + 1) * size])
            block = MirrorBlock(block_hash, parent, tokens, size, event.medium, event.group_idx, event.locality,
                                event.ownership)
            self.blocks[block.key] = block
            parent = block_hash

    def _remove(self, event: BlockRemoved) -> None:
        for block_hash in event.block_hashes:
            self.blocks.pop((block_hash, event.medium, event.group_idx, event.locality, event.ownership), None)

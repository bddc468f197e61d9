"""What all the batches that a publisher sent amount to: the state a snapshot tells. Pure.

Promises
- A copy is the state between two batches, with the number of the later one, whatever thread publishes meanwhile.
- After a batch that was never sent the state is not known, and says so, until the cache is cleared: a snapshot that
  guessed would be wrong in silence.
- Publishing pays one entry of a dictionary for a block, and nothing is encoded before somebody asks. The step loop
  pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from engine.core.kv_codec import LivedBatch, Place, encode_batch, piece_frames
from engine.messages import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored

#: Blocks in one message of a snapshot: some 30 kB with 16 tokens a block.
PIECE_BLOCKS = 256

#: A medium, a cache group, a locality and who owns it there.
_Place = tuple[str | None, int | None, str | None, str | None]
_NOWHERE: Any = object()  # is no event's medium


class PublishedState:
    """`apply` is called by whoever publishes, `pieces` by whoever answers."""

    def __init__(self, piece_blocks: int = PIECE_BLOCKS) -> None:
        self._piece_blocks = piece_blocks
        #: By place, of which there are few, and then by hash: the event that stored the block.
        self._places: dict[_Place, dict[BlockHash, BlockStored]] = {}
        self._next = 0
        self._known = True
        self._writes = 0  # odd while a batch is being applied

    def apply(self, number: int, batch: Any) -> None:
        """Batch `number` was sent. Raises nothing: what cannot be understood makes the state unknown."""
        self._writes += 1
        if number != self._next:
            self._known = False
        self._next = number + 1
        try:
            self._apply(batch.events)
        except Exception:
            self._known = False
        self._writes += 1

    def _apply(self, events: list[Any]) -> None:
        blocks: dict[BlockHash, BlockStored] = {}
        medium = group_idx = locality = ownership = _NOWHERE
        for event in events:
            kind = type(event)
            if kind is BlockStored or kind is BlockRemoved:
                if (event.medium is not medium or event.group_idx is not group_idx or event.locality is not locality
                        or event.ownership is not ownership):
                    medium, group_idx = event.medium, event.group_idx
                    locality, ownership = event.locality, event.ownership
                    blocks = self._places.setdefault((medium, group_idx, locality, ownership), {})
                if kind is BlockStored:
                    for block_hash in event.block_hashes:
                        blocks[block_hash] = event
                else:
                    for block_hash in event.block_hashes:
                        blocks.pop(block_hash, None)
            elif kind is AllBlocksCleared:
                self._places.clear()
                medium = _NOWHERE
                self._known = True

    def pieces(self, tag: int, epoch: int, upto: int, data_parallel_rank: int | None) -> Iterator[list[bytes]]:
        """The messages of a snapshot as of now. `upto`: numbers below it were sent or lost before this call."""
        number, known, blocks = self._copy()
        if not known or upto > number:
            place = Place(tag, epoch, max(number, upto), known=0)
            return iter([piece_frames(place, encode_batch(LivedBatch(0.0, []), data_parallel_rank, epoch))])
        return _encoded(blocks, self._piece_blocks, Place(tag, epoch, number), data_parallel_rank)

    def _copy(self) -> tuple[int, bool, list[tuple[BlockHash, BlockStored]]]:
        while True:
            writes = self._writes
            try:
                copy = self._next, self._known, [item for blocks in list(self._places.values())
                                                 for item in list(blocks.items())]
            except RuntimeError:  # a batch came in while the state was copied
                continue
            if writes % 2 == 0 and writes == self._writes:
                return copy


def _encoded(blocks: list[tuple[BlockHash, BlockStored]], size: int, place: Place,
             rank: int | None) -> Iterator[list[bytes]]:
    count = max(1, -(-len(blocks) // size))
    for piece in range(count):
        chosen = islice(blocks, piece * size, (piece + 1) * size)
        payload = encode_batch(LivedBatch(0.0, [_alone(*block) for block in chosen]), rank, place.epoch)
        yield piece_frames(msgspec.structs.replace(place, piece=piece, pieces=count), payload)


def _alone(block_hash: BlockHash, event: BlockStored) -> BlockStored:
    """One block of an event, as an event."""
    position = event.block_hashes.index(block_hash)
    start = position * event.block_size
    return msgspec.structs.replace(
        event, block_hashes=[event.block_hashes[position]],
        parent_block_hash=event.block_hashes[position - 1] if position else event.parent_block_hash,
        token_ids=event.token_ids[start:start + event.block_size],
        extra_keys=_entry(event.extra_keys, position), lookahead_token_ids=_entry(event.lookahead_token_ids, position))


def _entry(entries: list[Any] | None, position: int) -> list[Any] | None:
    """What stands there for one block, of a list with an entry a block."""
    return None if entries is None else entries[position:position + 1]

"""What all the batches that a publisher sent amount to: the state a snapshot tells. Pure.

Promises
- A copy is the state between two batches, with the number of the later one, whatever thread publishes meanwhile.
- After a batch that was never sent the state is not known, and says so, until the cache is cleared: a snapshot that
  guessed would be wrong in silence.
- What is told is what was sent: the batch's bytes are kept, not its events, which their maker may change later.
- Publishing pays one entry of a dictionary for a block, and nothing is encoded or decoded before somebody asks, but
  for batches with events that are not this module's own structs. The step loop pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from engine.kv_events.codec import LivedBatch, Place, encode_batch, piece_frames, read_batch
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
        #: By place, of which there are few, and then by hash: the payload that stored the block.
        self._places: dict[_Place, dict[BlockHash, bytes]] = {}
        self._next = 0
        self._known = True
        self._writes = 0  # odd while a batch is being applied

    def apply(self, number: int, batch: Any, payload: bytes) -> None:
        """Batch `number` was sent as `payload`. Raises nothing: what cannot be understood makes the state unknown."""
        self._writes += 1
        if number != self._next:
            self._known = False
        self._next = number + 1
        try:
            self._apply(batch.events, payload)
        except Exception:
            self._apply_sent(payload)
        self._writes += 1

    def _apply_sent(self, payload: bytes) -> None:
        """A batch with events of another kind: what subscribers will make of it. Applying twice is as once."""
        try:
            self._apply(read_batch(payload).events, payload)
        except Exception:
            self._known = False

    def _apply(self, events: list[Any], payload: bytes) -> None:
        """Raises TypeError for an event that is none of the three, and whatever one that is damaged raises."""
        blocks: dict[BlockHash, bytes] = {}
        medium = group_idx = locality = ownership = _NOWHERE
        stored = BlockStored
        alone = True  # one block an event, until an event has another number: taken out without a loop it costs half
        for event in events:
            kind = type(event)
            if kind is stored or kind is BlockRemoved:
                if not (event.medium is medium and event.group_idx is group_idx and event.locality is locality
                        and event.ownership is ownership):
                    medium, group_idx = event.medium, event.group_idx
                    locality, ownership = event.locality, event.ownership
                    blocks = self._places.setdefault((medium, group_idx, locality, ownership), {})
                if kind is not stored:
                    for block_hash in event.block_hashes:
                        blocks.pop(block_hash, None)
                    continue
                if alone:
                    try:
                        [block_hash] = event.block_hashes
                        blocks[block_hash] = payload
                        continue
                    except ValueError:
                        alone = False
                for block_hash in event.block_hashes:
                    blocks[block_hash] = payload
            elif kind is AllBlocksCleared:
                self._places.clear()
                medium = _NOWHERE
                self._known = True
            else:
                raise TypeError(f"{kind.__name__} is no event of a KV cache")

    def pieces(self, tag: int, epoch: int, upto: int, data_parallel_rank: int | None,
               topic: bytes = b"") -> Iterator[list[bytes]]:
        """The messages of a snapshot as of now. `upto`: numbers below it were sent or lost before this call.

        The iterator raises what reading back a payload raised, after a message that says that the state is not known.
        """
        number, known, blocks = self._copy()
        if not known or upto > number:
            return iter([_unknown(Place(tag, epoch, max(number, upto)), data_parallel_rank, topic)])
        return _encoded(blocks, self._piece_blocks, Place(tag, epoch, number), data_parallel_rank, topic)

    def _copy(self) -> tuple[int, bool, list[tuple[_Place, list[tuple[BlockHash, bytes]]]]]:
        while True:
            writes = self._writes
            try:
                copy = self._next, self._known, [(place, list(blocks.items()))
                                                 for place, blocks in list(self._places.items())]
            except RuntimeError:  # a batch came in while the state was copied
                continue
            if writes % 2 == 0 and writes == self._writes:
                return copy


def _unknown(place: Place, rank: int | None, topic: bytes) -> list[bytes]:
    return piece_frames(msgspec.structs.replace(place, piece=0, pieces=1, known=0),
                        encode_batch(LivedBatch(0.0, []), rank, place.epoch), topic)


def _encoded(copy: list[tuple[_Place, list[tuple[BlockHash, bytes]]]], size: int, place: Place,
             rank: int | None, topic: bytes) -> Iterator[list[bytes]]:
    count = max(1, -(-sum(len(blocks) for _, blocks in copy) // size))
    events = _alone(copy)
    for piece in range(count):
        try:
            payload = encode_batch(LivedBatch(0.0, list(islice(events, size))), rank, place.epoch)
        except Exception:
            yield _unknown(place, rank, topic)
            raise
        yield piece_frames(msgspec.structs.replace(place, piece=piece, pieces=count), payload, topic)


def _alone(copy: list[tuple[_Place, list[tuple[BlockHash, bytes]]]]) -> Iterator[BlockStored]:
    """Each block as an event of its own. Every payload is read once, one after another.

    Raises BadFrameError for a payload of another shape, KeyError where it does not hold what was sent.
    """
    by_payload: dict[int, tuple[bytes, list[tuple[_Place, BlockHash]]]] = {}
    for place, blocks in copy:
        for block_hash, payload in blocks:
            by_payload.setdefault(id(payload), (payload, []))[1].append((place, block_hash))
    for payload, wanted in by_payload.values():
        stored: dict[tuple[_Place, BlockHash], tuple[BlockStored, int]] = {}
        for event in read_batch(payload).events:
            if isinstance(event, BlockStored):
                place = (event.medium, event.group_idx, event.locality, event.ownership)
                for position, block_hash in enumerate(event.block_hashes):
                    stored[place, block_hash] = event, position
        for key in wanted:
            yield _block(*stored[key])


def _block(event: BlockStored, position: int) -> BlockStored:
    """The block at `position` of an event, as an event."""
    start = position * event.block_size
    return msgspec.structs.replace(
        event, block_hashes=[event.block_hashes[position]],
        parent_block_hash=event.block_hashes[position - 1] if position else event.parent_block_hash,
        token_ids=event.token_ids[start:start + event.block_size],
        extra_keys=_entry(event.extra_keys, position), lookahead_token_ids=_entry(event.lookahead_token_ids, position))


def _entry(entries: list[Any] | None, position: int) -> list[Any] | None:
    """What stands there for one block, of a list with an entry a block."""
    return None if entries is None else entries[position:position + 1]

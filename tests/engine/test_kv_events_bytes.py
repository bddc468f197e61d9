"""The bytes of KV events are vLLM's, and what is added stands where its readers do not look."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.core.kv_codec import (
    END,
    EndReport,
    LivedBatch,
    encode_batch,
    end_frames,
    read_answer,
    read_live,
    read_request,
    request_frames,
)
from engine.errors import BadFrameError
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEventBatch

STORED = BlockStored(block_hashes=[1, 2**64 - 1], parent_block_hash=None, token_ids=[5, 6, 7, 8], block_size=2,
                     lora_id=None, medium="GPU")
REMOVED = BlockRemoved(block_hashes=[b"\x01\x02"], medium=None)
BATCH = KVEventBatch(1.5, [STORED, REMOVED, AllBlocksCleared()])

# msgpack by hand, from the description of the format; headers in the compact and in the 16-bit form.
_STORED_FIELDS = (
    b"\xa4type\xabBlockStored\xacblock_hashes\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\xb1parent_block_hash\xc0\xa9token_ids\x94\x05\x06\x07\x08\xaablock_size\x02\xa7lora_id\xc0"
    b"\xa6medium\xa3GPU\xa9lora_name\xc0"
)
_REMOVED_FIELDS = b"\xa4type\xacBlockRemoved\xacblock_hashes\x91\xc4\x02\x01\x02\xa6medium\xc0"
_CLEARED = b"\x81\xa4type\xb0AllBlocksCleared"


def _payload(*, wide: bool, tail: bytes = b"", elements: int = 3) -> bytes:
    def head(count: int, short: int, long: bytes) -> bytes:
        return long + count.to_bytes(2, "big") if wide else bytes([short | count])

    return (head(elements, 0x90, b"\xdc") + b"\xcb\x3f\xf8" + bytes(6) + b"\x93"
            + head(8, 0x80, b"\xde") + _STORED_FIELDS + head(3, 0x80, b"\xde") + _REMOVED_FIELDS + _CLEARED
            + b"\x03" + tail)


class Original:
    """The original's structs, as its readers and writers declare them."""

    class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(KVCacheEvent, tag="BlockStored"):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None

    class BlockRemoved(KVCacheEvent, tag="BlockRemoved"):
        block_hashes: list[bytes | int]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(KVCacheEvent, tag="AllBlocksCleared"):
        pass

    class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list[Any]
        data_parallel_rank: int | None = None

    class KVEventBatch(EventBatch):
        pass


def _originals_batch(**more: Any) -> Any:
    return Original.KVEventBatch(1.5, [
        Original.BlockStored([1, 2**64 - 1], None, [5, 6, 7, 8], 2, None, "GPU", None, **more),
        Original.BlockRemoved([b"\x01\x02"], None), Original.AllBlocksCleared()], 3)


@pytest.mark.parametrize("wide", [False, True])
def test_a_batch_written_by_hand_is_read(wide: bool) -> None:
    """A recorded payload of the original's format decodes to our structs, whichever header its writer chose."""
    number, batch = read_live([b"topic", bytes(7) + b"\x07", _payload(wide=wide)])
    assert (number, batch) == (7, LivedBatch(1.5, BATCH.events, 3, None))


def test_a_batch_without_an_epoch_is_the_originals_byte_for_byte() -> None:
    """What the original's structs encode and what ours encode are the same bytes."""
    assert encode_batch(BATCH, 3, None) == msgspec.msgpack.encode(_originals_batch())


def test_a_read_batch_is_written_again_as_the_same_bytes() -> None:
    """Decode and encode lose nothing of the original's batch, optional fields included."""
    payload = msgspec.msgpack.encode(_originals_batch(extra_keys=[("salt", 1), None], group_idx=2))
    _, batch = read_live([b"", bytes(8), payload])
    assert encode_batch(KVEventBatch(batch.ts, batch.events, batch.data_parallel_rank), None, batch.epoch) == payload


def test_the_epoch_stands_behind_what_the_original_reads() -> None:
    """A reader with the original's structs does not notice the epoch."""
    payload = encode_batch(BATCH, 3, 99)
    assert payload in (_payload(wide=False, tail=b"\x63", elements=4), _payload(wide=True, tail=b"\x63", elements=4))
    seen = msgspec.msgpack.decode(payload, type=Original.EventBatch)
    assert (seen.ts, len(seen.events), seen.data_parallel_rank) == (1.5, 3, 3)


def test_a_rank_that_was_set_is_kept() -> None:
    """The publisher fills in its rank only where the batch has none."""
    assert msgspec.msgpack.decode(encode_batch(EventBatch(0.0, [], 5), 1, None)) == [0.0, [], 5]


def test_a_batch_type_with_fields_of_its_own_is_sent_whole() -> None:
    """A subclass that adds a field keeps it: the epoch must not take its place."""

    class Named(EventBatch):
        name: str = "x"

    assert msgspec.msgpack.decode(encode_batch(Named(0.0, [], 5, "mine"), 1, 7)) == [0.0, [], 5, "mine"]


def test_requests_and_answers_have_the_documented_frames() -> None:
    """Plain requests and end markers are vLLM's; a tag and a report come behind."""
    assert request_frames(258) == [b"", b"\0\0\0\0\0\0\x01\x02"]
    assert end_frames() == [b"", b"", b"\xff" * 8, b""]
    report = EndReport(tag=1, start=2, epoch=3, oldest=4, next=5, count=6)
    assert end_frames(report)[:4] == end_frames()
    assert end_frames(report)[4] == b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4, 5, 6))
    assert read_answer(end_frames(report)).report == report
    assert read_request(request_frames(9, 8)).tag == 8


@pytest.mark.parametrize("frames", [
    [], [b""], [b"", b"1234567"], [b"x", bytes(8)], [b"", bytes(8), b"tag"], [b"", bytes(8), bytes(8), b""],
    [b"", b"\xff" * 8],
])
def test_a_malformed_request_is_a_bad_frame(frames: list[bytes]) -> None:
    """A wrong count, a wrong length and a number out of range are named errors."""
    with pytest.raises(BadFrameError):
        read_request(frames)


@pytest.mark.parametrize("read, frames", [
    (read_live, [b"", bytes(8)]),
    (read_live, [b"", bytes(8), b"\xc1"]),
    (read_live, [b"", bytes(8), _payload(wide=False)[:40]]),
    (read_live, [b"", bytes(8), _payload(wide=False).replace(b"BlockStored", b"BlockStolen")]),
    (read_live, [b"", bytes(8), b"\x93\xcb" + bytes(8) + b"\x91\x81\xa4type\xa2\xff\xfe\xc0"]),
    (read_live, [b"", bytes(9), _payload(wide=False)]),
    (read_answer, [b"", b"", END, b"not empty"]),
    (read_answer, [b"", b"", END, b"", b"short"]),
    (read_answer, [b"", b"", END]),
    (read_answer, [b"", b"", bytes(8), _payload(wide=False), b"more"]),
])
def test_malformed_messages_are_bad_frames(read: Any, frames: list[bytes]) -> None:
    """Whatever bytes arrive, the only error is BadFrameError."""
    with pytest.raises(BadFrameError):
        read(frames)

"""The bytes of KV events are vLLM's, and what is added stands where its readers do not look."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

from engine.errors import BadFrameError
from engine.kv_events.codec import (
    END,
    EndReport,
    LivedBatch,
    Place,
    encode_batch,
    end_frames,
    piece_frames,
    read_answer,
    read_live,
    read_request,
    request_frames,
)
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KVEventBatch

STORED = BlockStored(block_hashes=[1, 2**64 - 1], parent_block_hash=None, token_ids=[5, 6, 7, 8], block_size=2,
                     lora_id=None, medium="GPU")
REMOVED = BlockRemoved(block_hashes=[b"\x01\x02"], medium=None)
BATCH = KVEventBatch(1.5, [STORED, REMOVED, AllBlocksCleared()])

# msgpack by hand, from the description of the format; headers in the compact and in the 16-bit form. A writer takes the
# long form of a map where its type may have 16 keys and more, however many are there: a block that is stored has 15
# fields beside its type, those behind `lora_name` and `medium` left out where they are None.
_STORED_FIELDS = (
    b"\xa4type\xabBlockStored\xacblock_hashes\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\xb1parent_block_hash\xc0\xa9token_ids\x94\x05\x06\x07\x08\xaablock_size\x02\xa7lora_id\xc0"
    b"\xa6medium\xa3GPU\xa9lora_name\xc0"
)
_REMOVED_FIELDS = b"\xa4type\xacBlockRemoved\xacblock_hashes\x91\xc4\x02\x01\x02\xa6medium\xc0"
_CLEARED = b"\x81\xa4type\xb0AllBlocksCleared"
#: What msgspec writes long, with all the fields that there are.
LONG = ("stored",)

#: Every field that a stored and a removed block may have, in hexadecimal: seconds 1.5, two events, rank 3.
ALL_FIELDS = bytes.fromhex(
    "93 cb3ff8000000000000 92"
    "de0010 a474797065 ab426c6f636b53746f726564"  # 16 keys; type: BlockStored
    "ac626c6f636b5f686173686573 92 07 c4020809"  # block_hashes: 7, two bytes
    "b1706172656e745f626c6f636b5f68617368 06"  # parent_block_hash: 6
    "a9746f6b656e5f696473 94 01 02 03 04"  # token_ids: 1 to 4
    "aa626c6f636b5f73697a65 02"  # block_size: 2
    "a76c6f72615f6964 05"  # lora_id: 5
    "a66d656469756d a743505530373431"  # medium: CPU0741
    "a96c6f72615f6e616d65 a16c"  # lora_name: l
    "aa65787472615f6b657973 92 92a16101 c0"  # extra_keys: ("a", 1) for the first block, none for the second
    "a967726f75705f696478 01"  # group_idx: 1
    "b26b765f63616368655f737065635f6b696e64 a466756c6c"  # kv_cache_spec_kind: full
    "bc6b765f63616368655f737065635f736c6964696e675f77696e646f77 cd0400"  # kv_cache_spec_sliding_window: 1024
    "a86c6f63616c697479 a54c4f43414c"  # locality: LOCAL
    "a96f776e657273686970 a474696572"  # ownership: tier
    "aa73657373696f6e5f6964 a173"  # session_id: s
    "b36c6f6f6b61686561645f746f6b656e5f696473 92 9109 90"  # lookahead_token_ids: [9], []
    "86 a474797065 ac426c6f636b52656d6f766564"  # 6 keys; type: BlockRemoved
    "ac626c6f636b5f686173686573 91 07"
    "a66d656469756d c0"
    "a967726f75705f696478 00"
    "a86c6f63616c697479 a652454d4f5445"  # locality: REMOTE
    "a96f776e657273686970 a474696572"
    "03")


def _payload(*, long: tuple[str, ...], tail: bytes = b"", elements: int = 3) -> bytes:
    def head(what: str, count: int, short: int, wide: bytes) -> bytes:
        return wide + count.to_bytes(2, "big") if what in long else bytes([short | count])

    return (head("batch", elements, 0x90, b"\xdc") + b"\xcb\x3f\xf8" + bytes(6) + b"\x93"
            + head("stored", 8, 0x80, b"\xde") + _STORED_FIELDS
            + head("removed", 3, 0x80, b"\xde") + _REMOVED_FIELDS + _CLEARED + b"\x03" + tail)


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
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None
        locality: str | None = None
        ownership: str | None = None
        session_id: str | None = None
        lookahead_token_ids: list[list[int]] | None = None

    class BlockRemoved(KVCacheEvent, tag="BlockRemoved"):
        block_hashes: list[bytes | int]
        medium: str | None
        group_idx: int | None = None
        locality: str | None = None
        ownership: str | None = None

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


@pytest.mark.parametrize("long", [(), LONG, ("batch", "stored", "removed")])
def test_a_batch_written_by_hand_is_read(long: tuple[str, ...]) -> None:
    """A recorded payload of the original's format decodes to our structs, whichever header its writer chose."""
    number, batch = read_live([b"topic", bytes(7) + b"\x07", _payload(long=long)])
    assert (number, batch) == (7, LivedBatch(1.5, BATCH.events, 3, None))


def test_every_field_is_read_kept_and_written_again() -> None:
    """A payload by hand with all of them: each has its name, and the bytes come out as they went in."""
    _, batch = read_live([b"", bytes(8), ALL_FIELDS])
    assert batch == LivedBatch(1.5, [
        BlockStored(
            block_hashes=[7, b"\x08\x09"], parent_block_hash=6, token_ids=[1, 2, 3, 4], block_size=2, lora_id=5,
            medium="CPU0741", lora_name="l", extra_keys=[("a", 1), None], group_idx=1, kv_cache_spec_kind="full",
            kv_cache_spec_sliding_window=1024, locality="LOCAL", ownership="tier", session_id="s",
            lookahead_token_ids=[[9], []]),
        BlockRemoved(block_hashes=[7], medium=None, group_idx=0, locality="REMOTE", ownership="tier")], 3)
    assert encode_batch(KVEventBatch(1.5, batch.events, 3), 0, None) == ALL_FIELDS
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(ALL_FIELDS, type=KVEventBatch)) == ALL_FIELDS


@pytest.mark.parametrize("ours, originals", [
    (BlockStored, Original.BlockStored), (BlockRemoved, Original.BlockRemoved)])
def test_fields_have_the_originals_names_order_and_defaults(ours: Any, originals: Any) -> None:
    """Two of them have a default here that the original asks for, and travel all the same."""
    assert ours.__struct_fields__ == originals.__struct_fields__
    optional = len(originals.__struct_defaults__)
    assert ours.__struct_defaults__[-optional:] == originals.__struct_defaults__


def test_a_batch_without_an_epoch_is_the_originals_byte_for_byte() -> None:
    """What the original's structs encode and what ours encode are the same bytes."""
    assert encode_batch(BATCH, 3, None) == msgspec.msgpack.encode(_originals_batch())


def test_a_read_batch_is_written_again_as_the_same_bytes() -> None:
    """Decode and encode lose nothing of the original's batch, optional fields included."""
    payload = msgspec.msgpack.encode(_originals_batch(
        extra_keys=[("salt", 1), None], group_idx=2, kv_cache_spec_kind="full", kv_cache_spec_sliding_window=0,
        locality="", ownership="tier", session_id="s", lookahead_token_ids=[]))
    _, batch = read_live([b"", bytes(8), payload])
    assert encode_batch(KVEventBatch(batch.ts, batch.events, batch.data_parallel_rank), None, batch.epoch) == payload


def test_the_epoch_stands_behind_what_the_original_reads() -> None:
    """A reader with the original's structs does not notice the epoch."""
    payload = encode_batch(BATCH, 3, 99)
    assert payload == _payload(long=LONG, tail=b"\x63", elements=4)
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
    numbers = b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4, 5, 6))
    assert end_frames(report)[4] == numbers + zlib.crc32(numbers).to_bytes(4, "big")
    assert read_answer(end_frames(report)).report == report
    assert read_answer([*end_frames(), numbers]).report == report, "an older publisher sends no checksum"
    assert read_request(request_frames(9, 8)).tag == 8


@pytest.mark.parametrize("place", range(52))
def test_a_report_is_known_to_be_damaged_whatever_byte_was_hit(place: int) -> None:
    *before, report = end_frames(EndReport(tag=1, start=2, epoch=3, oldest=4, next=5, count=6))
    with pytest.raises(BadFrameError, match="checksum"):
        read_answer([*before, report[:place] + bytes([report[place] ^ 0xFF]) + report[place + 1:]])


@pytest.mark.parametrize("frame", [3, 4])
def test_a_piece_of_a_state_is_known_to_be_damaged_by_its_place_and_by_what_it_holds(frame: int) -> None:
    frames = piece_frames(Place(tag=1, epoch=2, next=3), encode_batch(KVEventBatch(0.0, []), 0, 2))
    assert read_answer(frames).place == Place(tag=1, epoch=2, next=3)
    frames[frame] = frames[frame][:-1] + bytes([frames[frame][-1] ^ 1])
    with pytest.raises(BadFrameError, match="checksum"):
        read_answer(frames)


def test_no_number_of_an_older_report_is_beyond_what_a_number_can_be() -> None:
    """Else its reader would wait for batches that cannot be asked for."""
    numbers = [1, 2, 3, 4, 2 ** 63, 6]
    with pytest.raises(BadFrameError, match="at most"):
        read_answer([*end_frames(), b"".join(number.to_bytes(8, "big") for number in numbers)])


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
    (read_live, [b"", bytes(8), _payload(long=())[:40]]),
    (read_live, [b"", bytes(8), _payload(long=()).replace(b"BlockStored", b"BlockStolen")]),
    (read_live, [b"", bytes(8), b"\x93\xcb" + bytes(8) + b"\x91\x81\xa4type\xa2\xff\xfe\xc0"]),
    (read_live, [b"", bytes(9), _payload(long=())]),
    (read_answer, [b"", b"", END, b"not empty"]),
    (read_answer, [b"", b"", END, b"", b"short"]),
    (read_answer, [b"", b"", END]),
    (read_answer, [b"", b"", bytes(8), _payload(long=()), b"more"]),
])
def test_malformed_messages_are_bad_frames(read: Any, frames: list[bytes]) -> None:
    """Whatever bytes arrive, the only error is BadFrameError."""
    with pytest.raises(BadFrameError):
        read(frames)


@pytest.mark.parametrize("change", [
    {"block_hashes": [1]}, {"parent_block_hash": 4}, {"token_ids": [5, 6, 7, 9]}, {"medium": None}, {"session_id": "s"},
    {"extra_keys": [("a", 1), None]},
])
def test_events_are_equal_by_content_and_can_be_kept_in_sets(change: dict[str, Any]) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(STORED), type=BlockStored)
    assert again == STORED and hash(again) == hash(STORED)
    other = msgspec.structs.replace(STORED, **change)
    assert other != STORED
    assert len({STORED, again, other, REMOVED, AllBlocksCleared(), AllBlocksCleared()}) == 4
    assert hash(BlockRemoved([1])) != hash(BlockStored([1], None, [1, 2], 2, None))

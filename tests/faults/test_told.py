"""What the fault layer reads of a message: its length, and of KV events what the engine's own codec makes of it."""

import zlib

import pytest

from engine.coordinator.board import Notice
from engine.coordinator.words import FirstRequest, encode_first_request, encode_notice
from engine.kv_events.codec import (
    EndReport,
    Place,
    encode_batch,
    end_frames,
    number_frame,
    piece_frames,
    request_frames,
    snapshot_request,
)
from engine.messages import AllBlocksCleared, BlockRemoved, EventBatch
from engine.topology import Channel
from faults.malformed import REQUESTS
from faults.told import LARGE_BYTES, said_of

LIVE, REPLAY = said_of(Channel.KV), said_of(Channel.REPLAY)
REMOVED = encode_batch(EventBatch(1.5, [BlockRemoved(block_hashes=[7])]), 0, 9)
CLEARED = encode_batch(EventBatch(1.5, [AllBlocksCleared()]), 0, None)


@pytest.mark.parametrize(("says", "frames", "said"), [
    (LIVE, [b"", number_frame(3), REMOVED], {"seq": 3, "ts": 1.5, "epoch": 9, "payload": zlib.crc32(REMOVED)}),
    (LIVE, [b"topic", number_frame(3), CLEARED],
     {"seq": 3, "ts": 1.5, "epoch": None, "payload": zlib.crc32(CLEARED), "clears": True}),
    (LIVE, [b"", number_frame(3), REMOVED[:4]], None),
    (LIVE, [b"", b"3", REMOVED], None),
    (LIVE, [number_frame(3), REMOVED], None),
    (REPLAY, [b"", b"topic", number_frame(3), REMOVED],
     {"seq": 3, "ts": 1.5, "epoch": 9, "payload": zlib.crc32(REMOVED)}),
    (REPLAY, request_frames(4), {"start": 4}),
    (REPLAY, request_frames(4, 5), {"start": 4, "tag": 5}),
    (REPLAY, snapshot_request(5), {"tag": 5, "snapshot": True}),
    (REPLAY, end_frames(), {"end": True}),
    (REPLAY, end_frames(EndReport(1, 2, 3, 4, 5, 6)),
     {"end": True, "tag": 1, "start": 2, "epoch": 3, "oldest": 4, "next": 5, "count": 6}),
    (REPLAY, piece_frames(Place(1, 2, 3), REMOVED),
     {"tag": 1, "epoch": 2, "next": 3, "piece": 0, "pieces": 1, "known": 1}),
    (REPLAY, [*end_frames(), b"half a report"], None),
    (REPLAY, [], None),
    (said_of(Channel.REQUESTS), [b"\x00", b"body"], None),
    (said_of(Channel.REQUESTS), [b"\x00", b"body", b"one", b"two"], {"buffers": 2}),
    (said_of(Channel.OUTPUTS), [b"body"], None),
    (said_of(Channel.OUTPUTS), [b"body", b"x" * LARGE_BYTES], {"buffers": 1, "bytes": LARGE_BYTES + 4}),
])
def test_a_message_says_what_it_is(says, frames, said):
    assert says(frames) == said


@pytest.mark.parametrize("frames", REQUESTS)
def test_what_is_no_question_says_nothing(frames):
    assert REPLAY(list(frames)) is None


@pytest.mark.parametrize(("frames", "said"), [
    ([b"x" * LARGE_BYTES], {"bytes": LARGE_BYTES}),
    ([b"\x00", memoryview(b"x" * LARGE_BYTES)], {"bytes": LARGE_BYTES + 1}),
    ([b"x" * LARGE_BYTES, b"y" * LARGE_BYTES, b""], {"bytes": 2 * LARGE_BYTES}),
    ([b"x" * (LARGE_BYTES - 1), b"y" * (LARGE_BYTES - 1)], None),  # each of them is copied
    ([b"\x00", b"x"], None),
    ([], None),
])
@pytest.mark.parametrize("channel", [Channel.REQUESTS, Channel.OUTPUTS, Channel.OVERFLOW, Channel.KV, Channel.REPLAY])
def test_a_large_message_says_how_long_it_is(channel, frames, said):
    found = {name: value for name, value in (said_of(channel)(frames) or {}).items() if name != "buffers"}
    assert (found or None) == said


def test_a_large_batch_says_both():
    large = encode_batch(EventBatch(1.5, [BlockRemoved(block_hashes=[7] * LARGE_BYTES)]), 0, 9)
    assert LIVE([b"", number_frame(3), large]) == {
        "seq": 3, "ts": 1.5, "epoch": 9, "payload": zlib.crc32(large), "bytes": 8 + len(large)}


@pytest.mark.parametrize(("frames", "said"), [
    (encode_first_request(FirstRequest(client=0, rank=2, wave=5)), {"first_request": 2, "wave": 5}),
    (encode_notice(Notice(None, 5, False)), {"wave": 5, "running": False}),
    (encode_notice(Notice(((1, 2, 0.5),), 5, True)), {"wave": 5, "running": True, "counts": [[1, 2, 0.5]]}),
    ([b"\x93\x00\x01\xa1x"], None),
    ([b"\x92\x00\x01"], None),
    ([b"\x01\x03\x00"], {"index": 3}),
])
def test_what_clients_and_their_coordinator_say_tells_what_it_is(frames, said):
    assert said_of(Channel.STATS)(frames) == said


def test_where_no_message_crosses_nothing_is_said():
    assert said_of(None) is None

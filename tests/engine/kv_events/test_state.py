"""The state a snapshot tells is what was sent, whatever the events were made of and whatever became of them since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from engine.kv_events.codec import encode_batch, read_answer, read_batch
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.publisher import state as kv_state
from engine.kv_events.publisher.state import PublishedState
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch


class _Stored(msgspec.Struct, tag="BlockStored"):
    """What another module calls a BlockStored: its bytes are the same."""

    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: list[int]
    block_size: int
    lora_id: Any = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[Any]


class _OwnShape(EventBatch, frozen=True):
    """A batch with a field of its own travels as it is, and subscribers of KV events cannot read it."""

    note: str = "x"


def _apply(state: PublishedState, number: int, batch: EventBatch) -> bytes:
    payload = encode_batch(batch, 0, 5)
    state.apply(number, batch, payload)
    return payload


def _snapshot(state: PublishedState, upto: int) -> KVCacheMirror | None:
    """A mirror that begins from it; None where the publisher says that it does not know."""
    answers = [read_answer(frames) for frames in state.pieces(1, 5, upto, 0)]
    if not answers[0].place.known:
        return None
    assert [answer.place.piece for answer in answers] == list(range(answers[0].place.pieces))
    mirror = KVCacheMirror()
    mirror.next_seq = answers[0].place.next
    mirror.begin_from(answers[0].place.next, [event for answer in answers for event in answer.batch.events])
    return mirror


@pytest.mark.parametrize("form", [lambda event: event, msgspec.to_builtins], ids=["other structs", "dicts"])
def test_events_that_are_not_our_structs_are_in_the_state_as_they_were_sent(form: Callable[[Any], Any]) -> None:
    """Mixed with ours in one batch: the state equals the mirror of whoever heard all."""
    batches = [
        EventBatch(1.0, [BlockStored([1, 2], None, [1, 2], 1, None), form(_Removed([1])),
                         BlockStored([3], 2, [3], 1, None)]),
        EventBatch(2.0, [form(_Stored([4, 5], 3, [4, 5], 1)), BlockRemoved([2])]),
        EventBatch(3.0, [form(_Removed([4]))]),
    ]
    state, heard = PublishedState(piece_blocks=2), KVCacheMirror()
    for number, batch in enumerate(batches):
        heard.apply(number, read_batch(_apply(state, number, batch)))
    assert heard.hashes() == [3, 5]
    assert _snapshot(state, 3).blocks == heard.blocks


_hashes = some.lists(some.integers(0, 5), max_size=3, unique=True)
_media = some.sampled_from(["GPU", "CPU"])
_events = some.one_of(
    some.builds(lambda hashes, medium: BlockStored(hashes, None, hashes, 1, None, medium), _hashes, _media),
    some.builds(BlockRemoved, _hashes, _media),
    some.builds(AllBlocksCleared))


@given(some.lists(some.lists(_events, max_size=6), max_size=4))
def test_however_many_blocks_an_event_tells_of_the_state_is_what_subscribers_make_of_them(told: list[Any]) -> None:
    state, heard = PublishedState(), KVCacheMirror()
    for number, events in enumerate(told):
        heard.apply(number, read_batch(_apply(state, number, EventBatch(1.0, events))))
    assert {key: block.token_ids for key, block in _snapshot(state, len(told)).blocks.items()} \
        == {key: block.token_ids for key, block in heard.blocks.items()}


def test_what_subscribers_cannot_read_makes_the_state_unknown_until_it_is_cleared() -> None:
    state = PublishedState()
    _apply(state, 0, EventBatch(1.0, [BlockStored([1], None, [1], 1, None)]))
    _apply(state, 1, EventBatch(1.0, [{"type": "BlockMoved", "block_hashes": [1]}]))
    assert _snapshot(state, 2) is None
    _apply(state, 2, EventBatch(1.0, [AllBlocksCleared()]))
    assert _snapshot(state, 3).blocks == {}


def test_an_event_changed_after_it_was_sent_changes_nothing_that_is_told() -> None:
    """Its maker empties one list and rewrites another: the snapshot is of what was sent."""
    hashes, tokens = [1, 2], [10, 20]
    state, heard = PublishedState(), KVCacheMirror()
    payload = _apply(state, 0, EventBatch(1.0, [BlockStored(hashes, None, tokens, 1, None)]))
    heard.apply(0, read_batch(payload))
    hashes.clear()
    tokens[:] = [0, 0]
    assert _snapshot(state, 1).blocks == heard.blocks


def test_hashes_in_a_set_are_told_in_the_order_in_which_they_were_sent() -> None:
    state, heard = PublishedState(), KVCacheMirror()
    event = BlockStored({5, 600, 70}, None, [1, 2, 3], 1, None)
    heard.apply(0, read_batch(_apply(state, 0, EventBatch(1.0, [event]))))
    assert _snapshot(state, 1).blocks == heard.blocks and len(heard.blocks) == 3


def test_a_batch_that_cannot_be_read_back_is_told_as_unknown_and_raised() -> None:
    """Its events are ours, its shape is not: no subscriber has its block, so no snapshot may have it."""
    state = PublishedState(piece_blocks=1)
    _apply(state, 0, EventBatch(1.0, [BlockStored([1], None, [1], 1, None)]))
    _apply(state, 1, _OwnShape(1.0, [BlockStored([2], None, [1], 1, None)]))
    pieces = state.pieces(1, 5, 2, 0)
    assert read_answer(next(pieces)).place.known
    assert not read_answer(next(pieces)).place.known
    with pytest.raises(ValueError, match="not a batch"):
        next(pieces)


def test_a_snapshot_reads_each_batch_once_however_its_blocks_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one event with many blocks every second was stored again by another: two batches are read, not one a block."""
    read = []
    monkeypatch.setattr(kv_state, "read_batch", lambda payload: read.append(payload) or read_batch(payload))
    state, count = PublishedState(), 20_000
    _apply(state, 0, EventBatch(1.0, [BlockStored(list(range(count)), None, [7] * count, 1, None)]))
    _apply(state, 1, EventBatch(1.0, [BlockStored(list(range(0, count, 2)), None, [8] * (count // 2), 1, None)]))
    mirror = _snapshot(state, 2)
    assert len(mirror.blocks) == count and {block.token_ids for block in mirror.blocks.values()} == {(7,), (8,)}
    assert len(read) == 2

"""A snapshot stands in its place of the stream, is whole or none, and is never a guess."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import BadFrameError
from engine.kv_events.codec import PIECE, Place, encode_batch, piece_frames, read_answer, read_request, snapshot_request
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.publisher.state import PublishedState
from engine.kv_events.reports import Applied, Gap, Restarted, Snapshot, Unrecoverable
from engine.messages import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from tests.engine.kv_events.kv_world import KVWorld


def _overrun(batches: int = 10, **more: object) -> KVWorld:
    """The subscriber missed more than the window of two holds, and knows it."""
    world = KVWorld(buffer_steps=2, max_queue_size=100, **more)
    for _ in range(batches):
        world.store()
    world.flush()
    world.live.clear()
    world.pass_time()
    world.serve_requests()
    while world.answers:
        world.receive_answer()
    assert world.told(Unrecoverable) and not world.told(Snapshot)
    return world


def _apply(state: PublishedState, number: int, batch: KVEventBatch) -> None:
    state.apply(number, batch, encode_batch(batch, 0, 5))


def _drop(world: KVWorld, chosen: Callable[[list[bytes]], bool]) -> int:
    """-> how many answers were dropped"""
    before = list(world.answers)
    world.answers.clear()
    world.answers.extend(frames for frames in before if not chosen(frames))
    return len(before) - len(world.answers)


def test_a_subscriber_out_of_the_window_gets_the_state_and_is_known_again() -> None:
    """What replay cannot bring, the snapshot does: the mirror equals the cache."""
    world = _overrun()
    world.heal()
    assert world.mirror.unknown_since is None
    assert world.mirrored() == world.truth() and len(world.truth()) == 10


def test_batches_that_come_before_the_snapshot_are_not_applied_ahead_of_it() -> None:
    """The snapshot is taken before batch 11; batch 11 arrives first and waits."""
    world = _overrun()
    world.store()
    world.flush()
    world.serve_requests()  # the snapshot is on its way: before batch 11
    world.store()
    world.flush()
    while world.live:
        world.receive_live()
    while world.answers:
        world.receive_answer()
    places = [("snapshot", report.next) if isinstance(report, Snapshot) else report.number
              for report in world.reports if isinstance(report, Snapshot | Applied)]
    assert places == [8, 9, 10, ("snapshot", 11), 11]
    assert world.mirrored() == world.truth()


def test_batches_lost_on_the_way_to_the_snapshot_are_a_gap_like_any_other() -> None:
    """The snapshot stands before batch 12, and 10 and 11 never came: they are told, asked for, applied."""
    world = _overrun()
    world.store()
    world.store()
    world.flush()
    world.live.clear()
    world.heal()
    assert Gap(10, 11) in world.reports
    assert [r.number for r in world.told(Applied)] == [8, 9, 10, 11]
    assert [r.next for r in world.told(Snapshot)] == [12]
    assert world.mirrored() == world.truth()


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_snapshot_that_lost_a_piece_is_none(lost: int) -> None:
    """Whichever of five pieces is lost: nothing is told of it, and the next question brings them all."""
    world = _overrun()
    world.serve_requests()
    assert _drop(world, lambda frames: frames[2] == PIECE and read_answer(frames).place.piece == lost) == 1
    while world.answers:
        world.receive_answer()
    assert world.told(Snapshot) == [] and world.mirror.unknown_since == 0
    world.heal()
    assert len(world.told(Snapshot)) == 1
    assert world.mirrored() == world.truth()


def test_doubled_and_swapped_pieces_make_the_same_snapshot() -> None:
    world = _overrun()
    world.serve_requests()
    world.answers.extend(list(world.answers)[::-1])
    world.answers.rotate(3)
    while world.answers:
        world.receive_answer()
    assert len(world.told(Snapshot)) == 1
    assert world.mirrored() == world.truth()


def test_a_publisher_that_lost_a_batch_itself_does_not_guess() -> None:
    """Its state lacks that batch: it says so, and the mirror stays unknown until the cache is cleared."""
    world = KVWorld()
    world.store()
    world.publish_unencodable()
    world.store()
    world.heal()
    assert world.told(Snapshot) == [] and world.mirror.unknown_since == 1
    assert world.follower.caught_up
    world.clear()
    world.store()
    world.heal()
    assert world.mirror.unknown_since is None and world.mirrored() == world.truth()


def test_a_batch_lost_at_the_full_queue_at_the_end_is_known_to_the_snapshot() -> None:
    """Nothing was published after the loss: only the count of numbers tells of it."""
    world = _overrun()
    world.life.log.max_queue_size = 0
    world.store()
    world.heal()
    assert world.told(Snapshot) == []
    assert world.mirror.unknown_since == 0


def test_who_serves_no_snapshots_is_asked_a_few_times_and_holds_nobody_up() -> None:
    """Questions for a snapshot vanish: after three of them the subscriber follows on, unknown."""
    world = _overrun(tries=3)
    asked = 0
    for _ in range(20):
        asked += sum(len(frames) == 4 for frames in world.requests)
        for frames in [frames for frames in world.requests if len(frames) == 4]:
            world.requests.remove(frames)
        world.serve_requests()
        while world.answers:
            world.receive_answer()
        world.pass_time()
    assert asked == 3
    world.store()
    world.flush()
    world.receive_live()
    assert world.follower.caught_up and world.told(Applied)[-1].number == 10
    assert world.mirror.unknown_since == 0


def test_a_publisher_restarted_under_a_snapshot_is_followed_from_its_beginning() -> None:
    """Pieces of the old life that arrive late are of no use."""
    world = _overrun()
    world.serve_requests()
    world.restart()
    world.store()
    world.heal()
    assert world.mirror.unknown_since is None
    assert world.mirrored() == world.truth() and len(world.truth()) == 1


def test_a_restart_is_told_while_batches_wait_for_a_snapshot() -> None:
    """The question for it is under way and holds batch 10 back; batch 11 was lost; then the next life speaks."""
    world = _overrun()
    assert any(len(frames) == 4 for frames in world.requests)
    for _ in range(3):
        world.store()
    world.flush()
    del world.live[1]
    world.receive_live()
    world.receive_live()
    assert world.follower.held == 2 and world.told(Applied)[-1].number == 9
    world.restart()
    world.store()
    world.flush()
    world.receive_live()
    assert [(r.first, r.last) for r in world.told(Unrecoverable)][1:] == [(11, 11)]
    assert len(world.told(Restarted)) == 1
    assert [r.number for r in world.told(Applied)] == [8, 9, 10, 12, 0]
    world.heal()
    assert world.mirrored() == world.truth() and world.mirror.unknown_since is None


def test_a_cleared_cache_needs_no_snapshot() -> None:
    """While the question is under way the cache is cleared: the mirror is known by that alone."""
    world = _overrun(tries=1)
    world.requests.clear()
    world.clear()
    world.flush()
    world.receive_live()
    world.pass_time()
    assert world.mirror.unknown_since is None and world.mirrored() == {}
    assert world.follower.caught_up


def test_the_state_keeps_parents_tokens_and_places_of_every_block() -> None:
    """Three blocks by one event, one removed from one medium, one from one of its three owners there: a mirror of the
    pieces equals one of the batches."""
    batches = [
        KVEventBatch(1.0, [BlockStored([1, 2, 3], None, [1, 2, 3, 4, 5, 6], 2, None, extra_keys=[("a",), None, ("c",)],
                                       lookahead_token_ids=[[8], [9], []])]),
        KVEventBatch(2.0, [BlockStored([2], 1, [3, 4], 2, None, medium="CPU"), BlockRemoved([2])]),
        KVEventBatch(3.0, [BlockStored([b"digest"], 3, [7, 8], 2, 4, group_idx=1, session_id="s")]),
        KVEventBatch(4.0, [BlockStored([3], None, [5, 6], 2, None, medium="CPU", locality=locality, ownership=ownership)
                           for locality, ownership in (("LOCAL", "a"), ("LOCAL", "b"), ("REMOTE", "b"))]),
        KVEventBatch(5.0, [BlockRemoved([3], medium="CPU", locality="LOCAL", ownership="b")]),
    ]
    state, whole, copied = PublishedState(piece_blocks=2), KVCacheMirror(), KVCacheMirror()
    for number, batch in enumerate(batches):
        _apply(state, number, batch)
        whole.apply(number, batch)
    copied.next_seq = 5
    answers = [read_answer(frames) for frames in state.pieces(7, 5, 5, 0)]
    events = [event for answer in answers for event in answer.batch.events]
    copied.begin_from(5, events)
    assert [answer.place for answer in answers] == [Place(7, 5, 5, piece, pieces=3) for piece in (0, 1, 2)]
    assert copied.blocks == whole.blocks and len(whole.blocks) == 6
    assert [event.extra_keys for event in events][:2] == [[("a",)], [("c",)]]
    assert [event.lookahead_token_ids for event in events][:2] == [[[8]], [[]]]
    assert [(event.lora_id, event.session_id) for event in events if event.group_idx == 1] == [(4, "s")]
    assert {(block.locality, block.ownership) for block in whole.blocks.values() if block.medium == "CPU"} == {
        (None, None), ("LOCAL", "a"), ("REMOTE", "b")}


def test_a_clear_makes_an_unknown_state_known() -> None:
    state = PublishedState()
    _apply(state, 1, KVEventBatch(1.0, [BlockStored([1], None, [1], 1, None)]))  # 0 was lost
    [unknown] = state.pieces(1, 2, 2, 0)
    _apply(state, 2, KVEventBatch(1.0, [AllBlocksCleared()]))
    [known] = state.pieces(1, 2, 3, 0)
    assert (read_answer(unknown).place.known, read_answer(known).place.known) == (0, 1)


@pytest.mark.parametrize("frames", [
    [b"", bytes(8), bytes(8), b"snapshots"], [b"", bytes(8), bytes(8), b""], [b"", bytes(8), bytes(7), b"snapshot"],
    [b"", bytes(8), bytes(8), b"snapshot", b""],
])
def test_a_malformed_question_for_a_snapshot_is_none(frames: list[bytes]) -> None:
    with pytest.raises(BadFrameError):
        read_request(frames)


@pytest.mark.parametrize("frames", [
    [b"", b"", PIECE, b"\x90", bytes(48)], [b"", b"", PIECE, b"\x90", bytes(47)], [b"", b"", PIECE, b""],
    piece_frames(Place(1, 2, 3, piece=1, pieces=1), b"\x92\x00\x90"),
])
def test_a_malformed_piece_is_none(frames: list[bytes]) -> None:
    with pytest.raises(BadFrameError):
        read_answer(frames)


def test_a_question_for_a_snapshot_reads_as_it_was_written() -> None:
    request = read_request(snapshot_request(9))
    assert (request.snapshot, request.tag) == (True, 9)

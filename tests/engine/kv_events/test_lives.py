"""A publisher of the original's format restarts and says nothing of it: it is told, or the mirror is unknown."""

from __future__ import annotations

import msgspec
import pytest

from engine.errors import BadFrameError
from engine.kv_events.codec import BadBatchError, number_frame, read_answer, read_live
from engine.kv_events.reports import Applied, Gap, Restarted, Unrecoverable, Unverified
from tests.engine.kv_events.kv_world import KVWorld


def _original(**more: object) -> KVWorld:
    return KVWorld(speaks_epochs=False, **{"max_queue_size": 100} | more)


def _restarted_to_just_the_next_number(world: KVWorld, count: int = 3) -> None:
    """The first batch that is heard of the new life has the number that is awaited."""
    world.send(count)
    world.receive_all_live()
    world.restart()
    world.send(count)
    world.live.clear()
    world.send(1)


def test_a_new_life_that_reaches_just_the_next_number_is_told() -> None:
    world = _original()
    _restarted_to_just_the_next_number(world)
    world.receive_live()
    assert [report.number for report in world.told(Applied)] == [0, 1, 2], "it was believed"
    world.heal()
    assert len(world.told(Restarted)) == 1 and world.mirrored() == world.truth()
    assert world.mirror.unknown_since is None


def test_a_new_life_whose_window_lacks_what_was_known_leaves_the_mirror_unknown() -> None:
    """The window holds one batch: nobody can tell whether number 3 follows the 2 that was heard."""
    world = _original(buffer_steps=1)
    _restarted_to_just_the_next_number(world)
    world.receive_live()
    world.heal()
    assert world.mirror.unknown_since == 3 and len(world.told(Unverified)) == 1


def test_an_answer_of_the_old_life_is_not_taken_for_the_new_ones() -> None:
    """It lies in the reader's socket when the first batch of the new life is read."""
    world = _original()
    world.follower.questions.tags = False
    world.send(6)
    world.receive_live()
    world.receive_live()
    for _ in range(3):
        world.live.popleft()
    world.receive_live()
    world.serve_requests()
    world.restart()
    world.send(7)
    world.receive_live()
    while world.answers:
        world.receive_answer()
    world.receive_all_live()
    world.heal()
    assert world.mirrored() == world.truth() and world.mirror.unknown_since is None


def test_a_steady_flow_is_not_doubted_and_a_pause_costs_one_question() -> None:
    """Nine batches at once come out at once. The one after a pause waits for the answer, and comes out."""
    world = _original(buffer_steps=100)
    world.send(1)
    world.receive_live()
    world.answer_all()
    world.send(8)
    world.receive_all_live()
    assert world.follower.next == 9 and not world.requests
    world.now += 1.0
    world.send(1)
    world.receive_live()
    assert world.follower.next == 9 and len(world.requests) == 1
    world.answer_all()
    assert world.follower.next == 10 and [type(report) for report in world.reports].count(Applied) == 10
    assert not world.told(Restarted) + world.told(Unverified) + world.told(Unrecoverable)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_batch_after_the_connection_was_cut_is_verified(restarted: bool) -> None:
    """Whoever watches the connection need not trust in times: the clock says that next to nothing passed."""
    world = _original()
    world.send(3)
    world.receive_all_live()
    world.answer_all()
    if restarted:
        began = world.now
        world.restart()
        world.now = began
        world.send(3)
        world.live.clear()
    world._take(world.follower.on_reconnect(world.now))
    world.requests.clear()
    world.send(1)
    world.receive_live()
    assert world.follower.next == 3
    world.heal()
    assert len(world.told(Restarted)) == restarted
    assert world.mirrored() == world.truth() and world.mirror.unknown_since is None


def test_a_cut_without_anybody_to_ask_makes_the_mirror_unknown() -> None:
    world = _original(replay=False)
    world.send(3)
    world.receive_all_live()
    world._take(world.follower.on_reconnect(world.now))
    world.send(1)
    world.receive_all_live()
    assert world.mirror.unknown_since == 3 and world.follower.next == 4


def test_an_empty_window_is_no_restart_but_nothing_can_be_verified() -> None:
    """`buffer_steps` 0: every answer is empty. Told once, however long the silence lasts."""
    world = _original(buffer_steps=0)
    world.send(1)
    world.receive_live()
    world.heal(rounds=20)
    assert world.mirror.unknown_since == 1 and len(world.told(Unverified)) == 1 and not world.told(Restarted)
    assert world.mirrored() == world.truth()


def test_a_clock_that_was_set_back_does_not_stop_a_publisher() -> None:
    """A batch with an earlier time is not taken live; the answer holds what is known and brings it."""
    world = _original()
    world.send(3)
    world.receive_all_live()
    world.now -= 0.5
    world.send(1)
    world.now += 0.5
    world.receive_live()
    world.heal()
    assert world.follower.next == 4 and world.mirrored() == world.truth() and world.mirror.unknown_since is None
    assert not world.told(Restarted)


def test_a_dead_replay_socket_does_not_hold_a_doubted_batch_back_for_ever() -> None:
    """Three questions without an answer: it is applied, and the mirror says that it does not know."""
    world = _original()
    world.send(3)
    world.receive_all_live()
    world.answer_all()
    world.now += 2.0
    world.send(1)
    world.receive_live()
    for _ in range(3):
        world.requests.clear()
        world.pass_time()
    assert world.follower.next == 4 and world.mirror.unknown_since == 3


def _unreadable(frames: list[bytes]) -> list[bytes]:
    """The same message; its event is of a kind that nobody knows."""
    return [*frames[:-1], msgspec.msgpack.encode([2.0, [{"type": "BlockMoved"}], 0])]


@pytest.mark.parametrize("heard", [True, False])
def test_a_last_batch_that_cannot_be_read_is_a_loss(heard: bool) -> None:
    """Neither live nor by replay, and nothing follows it: its number can be read, so it is missing."""
    world = _original()
    world.send(2)
    world.life.log._window[-1] = (1, _unreadable(world.live[-1])[-1])
    world.live[-1] = _unreadable(world.live[-1])
    if not heard:
        world.live.pop()
    world.receive_all_live()
    world.heal()
    assert [(loss.first, loss.last) for loss in world.told(Unrecoverable)] == [(1, 1)]
    assert world.mirror.unknown_since == 1 and not world.told(Restarted)


def test_a_number_without_a_readable_batch_is_told_by_the_codec() -> None:
    frames = _unreadable([b"", number_frame(7), b""])
    for read, message in ((read_live, frames), (read_answer, [b"", *frames])):
        with pytest.raises(BadBatchError) as caught:
            read(message)
        assert caught.value.number == 7
    with pytest.raises(BadFrameError) as plain:
        read_live([b"", b"short", b""])
    assert not isinstance(plain.value, BadBatchError)


def test_what_an_old_life_cleared_does_not_make_a_new_one_known() -> None:
    """A clear of the old life is held behind a hole when the new one is doubted: it is applied before the doubt."""
    world = _original(buffer_steps=1, tries=1)
    world.follower.questions.tags = False
    world.send(2)
    world.clear()
    world.flush()
    world.receive_live()
    world.live.popleft()
    world.receive_all_live()
    world.requests.clear()
    world.restart()
    world.send(3)
    world.live.clear()
    world.send(1)
    world.receive_live()
    world.heal()
    assert [(loss.first, loss.last) for loss in world.told(Unrecoverable)] == [(1, 1)]
    assert [report.next for report in world.told(Unverified)] == [3] and world.mirror.unknown_since == 3


def test_answers_that_nothing_joins_to_what_was_heard_are_a_new_life() -> None:
    """A backlog of the old life with a clear in it, answers of the new one beyond it: they are not mixed."""
    world = _original(buffer_steps=1, tries=1)
    world.follower.questions.tags = False
    world.send(1)
    world.clear()
    world.flush()
    world.live.popleft()
    old = world.live.popleft()
    world.restart()
    world.send(4)
    world.live.clear()
    world.live.append(old)
    world.receive_live()
    world.heal()
    assert world.told(Restarted) and world.mirror.unknown_since == 0


def test_a_hole_behind_a_doubt_is_told_as_lost_when_the_publisher_restarts() -> None:
    """Batch 1 came after a pause and waits for an answer, 2 was lost, 3 waits too; then another life begins."""
    world = _original()
    world.send(1)
    world.receive_live()
    world.now += 1.0
    world.send(3)
    world.receive_live()
    world.live.popleft()
    world.receive_live()
    assert [(gap.first, gap.last) for gap in world.told(Gap)] == [(2, 2)]
    world.requests.clear()
    world.restart()
    world.send(1)
    world.receive_live()
    world.heal()
    lost = world.told(Unrecoverable)
    assert [(told.first, told.last) for told in lost] == [(1, 2)] and len(world.told(Restarted)) == 1
    assert {(gap.first, gap.last) for gap in world.told(Gap)} == {(1, 1), (2, 2)}
    assert world.mirrored() == world.truth() and world.mirror.unknown_since is None


def test_a_doubted_batch_alone_is_not_told_as_lost_when_it_was_the_new_lifes() -> None:
    """Nothing of the old life is missing that anybody was told of."""
    world = _original()
    _restarted_to_just_the_next_number(world)
    world.receive_live()
    world.heal()
    kinds = [type(report) for report in world.reports]
    assert kinds.count(Restarted) == 1 and Gap not in kinds[:kinds.index(Restarted)] and Unrecoverable not in kinds


def test_a_live_batch_of_the_life_before_the_answers_is_not_joined_to_it() -> None:
    """Of the first answer only batch 1 of the new life counts, and batch 0 of the old one comes live."""
    world = _original()
    world.pass_time()
    world.pass_time()  # the question is given up: the answer begins after that, and ends as that of the next one
    world.send(1)
    world.restart()
    world.send(2)
    world.serve_requests()
    while world.answers:
        world.receive_answer()
    world.pass_time()
    world.heal()
    assert world.mirrored() == world.truth()
    assert world.mirror.unknown_since is None and world.follower.next == 2


def test_the_first_live_batch_is_doubted_when_an_answer_alone_told_of_the_life_before() -> None:
    """Batch 0 was answered and waits to be told; of the next life 2 is heard first, and its window lacks 0."""
    world = _original(buffer_steps=2)
    world.send(1)
    world.pass_time()
    world.serve_requests()
    world.pass_time()  # the question is given up, and its answer, doubled, is that of the next one
    world.restart()
    world.answers.appendleft(world.answers[0])
    world.send(3)
    for _ in range(3):
        world.live.popleft()
    while world.answers:
        world.receive_answer()
    world.heal()
    assert len(world.told(Unverified)) == 1 and world.mirror.unknown_since is not None

"""The subscriber's half, stepped by hand: one story a test."""

from __future__ import annotations

from engine.effects import Describe, Now, Observe, Receive, Send, WasCut
from engine.errors import QueueCancelledError
from engine.kv_events.mirror import KVCacheMirror
from engine.kv_events.reports import Applied, Gap, Healed, Malformed, Report, Restarted, Settled, Unrecoverable
from engine.kv_events.subscriber.follow import follow
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.messages import BlockRemoved, BlockStored, KVEventBatch
from tests.engine.kv_events.kv_world import KVWorld


def _tell(reports: list[Report]) -> list[object]:
    """Numbers of batches, and notices without their reasons."""
    short: list[object] = []
    for report in reports:
        match report:
            case Applied(number=number):
                short.append(number)
            case Unrecoverable(first=first, last=last):
                short.append(("lost", first, last))
            case Settled() | Malformed():
                pass
            case _:
                short.append(report)
    return short


def test_a_hole_is_seen_by_the_next_batch_and_filled_in_order() -> None:
    """Live batches behind the hole wait for the replay and come out after it, each once."""
    world = KVWorld()
    world.send(6)
    del world.live[2], world.live[2]
    world.receive_all_live()
    assert _tell(world.reports) == [0, 1, Gap(2, 3)]
    world.answer_all()
    assert _tell(world.reports) == [0, 1, Gap(2, 3), 2, 3, Healed(2, 3), 4, 5]
    assert [report.source for report in world.told(Applied)] == ["live", "live", "replay", "replay", "live", "live"]
    assert world.mirrored() == world.truth()


def test_a_lost_tail_is_seen_in_silence() -> None:
    """Nothing follows the lost batches: the poll of the replay socket finds them."""
    world = KVWorld()
    world.send(4)
    world.live.pop()
    world.live.pop()
    world.receive_all_live()
    world.pass_time()
    world.answer_all()
    assert _tell(world.reports) == [0, 1, Gap(2, 3), 2, 3, Healed(2, 3)]


def test_a_late_subscriber_asks_from_the_beginning() -> None:
    """Its first batch is number 3: 0 to 2 are a hole like any other."""
    world = KVWorld()
    world.send(3)
    world.join()
    world.send(1)
    world.receive_all_live()
    world.answer_all()
    assert _tell(world.reports) == [Gap(0, 2), 0, 1, 2, Healed(0, 2), 3]


def test_what_the_window_no_longer_holds_is_told_as_lost() -> None:
    """Ten batches into a window of four: 0 to 5 are gone, 6 to 9 heal, and the mirror knows what it does not know."""
    world = KVWorld(buffer_steps=4, snapshots=False)
    world.send(10)
    world.live.clear()
    world.pass_time()
    world.answer_all()
    assert _tell(world.reports) == [Gap(0, 9), ("lost", 0, 5), 6, 7, 8, 9, Healed(6, 9)]
    assert world.mirror.unknown_since == 0
    assert "window" in world.told(Unrecoverable)[0].reason


def test_a_lost_answer_is_asked_for_again() -> None:
    """The frames of the first answer are lost; after `answer_s` a second question heals the hole."""
    world = KVWorld()
    world.send(3)
    del world.live[1]
    world.receive_all_live()
    world.serve_requests()
    world.answers.clear()
    world.pass_time()
    world.answer_all()
    assert _tell(world.reports) == [0, Gap(1, 1), 1, Healed(1, 1), 2]


def test_one_frame_lost_out_of_an_answer_is_not_taken_for_a_lost_batch() -> None:
    """The report counts three batches, two came: the hole is asked for again, not given up."""
    world = KVWorld()
    world.send(4)
    for _ in range(3):
        world.live.popleft()
    world.receive_all_live()
    world.serve_requests()
    del world.answers[1]
    world.answer_all()
    assert _tell(world.reports) == [Gap(0, 2), 0, 1, 2, Healed(0, 2), 3]


def test_a_whole_answer_without_the_batch_proves_that_it_is_lost() -> None:
    """A number lost inside the publisher is told after one answer, without further questions."""
    world = KVWorld()
    world.store()
    world.publish_unencodable()
    world.store()
    world.flush()
    world.receive_all_live()
    asked = len(world.requests)
    world.answer_all()
    assert _tell(world.reports) == [0, Gap(1, 1), ("lost", 1, 1), 2]
    assert asked == 1


def test_without_an_answer_the_hole_is_given_up_after_so_many_tries() -> None:
    """Three questions, three silences: the loss is told and live batches go on."""
    world = KVWorld(tries=3)
    world.send(3)
    del world.live[0]
    world.receive_all_live()
    for _ in range(3):
        assert world.told(Unrecoverable) == []
        world.requests.clear()
        world.pass_time()
    assert _tell(world.reports) == [Gap(0, 0), ("lost", 0, 0), 1, 2]


def test_without_a_replay_socket_a_hole_is_lost_at_once() -> None:
    """There is nobody to ask."""
    world = KVWorld(replay=False)
    world.send(3)
    del world.live[1]
    world.receive_all_live()
    assert _tell(world.reports) == [0, Gap(1, 1), ("lost", 1, 1), 2]
    assert world.follower.deadline() is None


def test_a_restart_is_no_gap_even_where_the_numbers_fit() -> None:
    """The new life reaches just the awaited number before its first batch is seen; only the epoch tells."""
    world = KVWorld()
    world.send(2)
    world.receive_all_live()
    world.restart()
    world.send(2)
    world.live.clear()
    world.send(1)
    world.receive_all_live()
    world.answer_all()
    assert _tell(world.reports) == [0, 1, Restarted(2), Gap(0, 1), 0, 1, Healed(0, 1), 2]
    assert world.mirrored() == world.truth()


def test_a_restart_in_silence_is_told_by_the_poll() -> None:
    """Nothing arrives live from the new life; its report does."""
    world = KVWorld()
    world.send(2)
    world.receive_all_live()
    world.restart()
    world.pass_time()
    world.answer_all()
    assert _tell(world.reports) == [0, 1, Restarted(2)]
    assert world.mirrored() == {}


def test_batches_of_an_earlier_life_are_not_taken_for_a_restart() -> None:
    """A batch that comes late, after its publisher's successor spoke, is dropped."""
    world = KVWorld()
    world.send(1)
    late = world.live[0]
    world.receive_all_live()
    world.restart()
    world.send(1)
    world.receive_all_live()
    world.live.append(late)
    world.receive_all_live()
    assert _tell(world.reports) == [0, Restarted(2), 0]


def test_a_restart_of_a_publisher_without_epochs_is_told_by_time_and_number() -> None:
    """Number 0 with a later time cannot be a late batch of the same life."""
    world = KVWorld(speaks_epochs=False)
    world.send(3)
    world.receive_all_live()
    world.restart()
    world.send(1)
    world.receive_all_live()
    assert _tell(world.reports) == [0, 1, 2, Restarted(None), 0]


def test_doubled_batches_are_taken_once() -> None:
    """Live twice, or live and replayed: one is applied."""
    world = KVWorld()
    world.send(3)
    world.live.extend(list(world.live))
    world.receive_all_live()
    assert _tell(world.reports) == [0, 1, 2]


def test_a_damaged_batch_is_dropped_told_and_asked_for() -> None:
    """Its bytes are no message; its number is missed at once, not only at the next batch."""
    world = KVWorld()
    world.send(2)
    world.live[1] = [*world.live[1][:2], world.live[1][2][:9]]
    world.receive_all_live()
    world.answer_all()
    assert [report.channel for report in world.told(Malformed)] == ["kv"]
    assert _tell(world.reports) == [0, Gap(1, 1), 1, Healed(1, 1)]


def test_a_number_that_the_publisher_never_reached_is_not_believed() -> None:
    """A batch whose number was damaged on the way must not make later ones look old."""
    world = KVWorld()
    world.send(2)
    world.live[1] = [world.live[1][0], (2**40).to_bytes(8, "big"), world.live[1][2]]
    world.receive_all_live()
    world.answer_all()
    world.send(1)
    world.receive_all_live()
    assert [report.number for report in world.told(Applied)] == [0, 1, 2]
    assert world.mirrored() == world.truth()


def test_each_number_that_does_not_exist_is_told() -> None:
    """One answer gives all of them away."""
    world = KVWorld()
    world.send(3)
    for place in (1, 2):
        world.live[place] = [world.live[place][0], (2**40 + 5 * place).to_bytes(8, "big"), world.live[place][2]]
    world.receive_all_live()
    world.answer_all()
    assert [report.error for report in world.told(Malformed)] == [
        f"batch {2**40 + 5 * place} does not exist: the publisher is at 3" for place in (1, 2)]
    assert world.mirrored() == world.truth()


def test_a_gap_before_a_number_that_does_not_exist_is_healed_when_that_is_found_out() -> None:
    """Batches that came meanwhile were told as missing: nothing but this word ends their gap."""
    world = KVWorld()
    world.send(2)
    world.live.append([world.live[1][0], (2**40).to_bytes(8, "big"), world.live[1][2]])
    world.receive_all_live()
    world.send(2)
    world.receive_all_live()
    world.answer_all()
    assert len(world.told(Malformed)) == 1
    assert world.told(Gap) == [Gap(2, 2**40 - 1)]
    assert world.told(Healed) == [Healed(2, 3)]
    assert world.follower.gaps == []


def test_the_mirror_is_known_again_once_the_cache_was_cleared() -> None:
    """What was lost before a clear does not matter after it."""
    world = KVWorld(replay=False)
    world.send(2)
    world.live.popleft()
    world.receive_all_live()
    assert world.mirror.unknown_since == 0
    world.clear()
    world.flush()
    world.receive_all_live()
    assert world.mirror.unknown_since is None


def test_the_mirror_knows_parents_and_tokens() -> None:
    """Three blocks of one prompt: a chain, youngest first."""
    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(0.0, [BlockStored([1, 2, 3], None, [1, 2, 3, 4, 5, 6], 2, None, "GPU")]))
    assert [(b.block_hash, b.parent, b.token_ids) for b in mirror.chain(3)] == [
        (3, 2, (5, 6)), (2, 1, (3, 4)), (1, None, (1, 2))]
    assert mirror.hashes() == [1, 2, 3] and mirror.check_integrity() == []


def test_the_mirrors_integrity_names_what_cannot_be() -> None:
    """A block removed that never was, a block of the wrong length, a block that is its own ancestor."""
    mirror = KVCacheMirror()
    mirror.apply(0, KVEventBatch(0.0, [BlockRemoved([9])]))
    mirror.apply(1, KVEventBatch(0.0, [BlockStored([1], 2, [1], 2, None), BlockStored([2], 1, [1, 2], 2, None)]))
    errors = "\n".join(mirror.check_integrity())
    for word in ("removes block 9", "holds 1", "1 is its own ancestor", "2 is its own ancestor"):
        assert word in errors


def test_the_loop_observes_what_happens_and_ends_with_the_mirror() -> None:
    """Gap, batches, healing and the mirror are observed in order; cancelling ends the loop."""
    world = KVWorld()
    world.send(3)
    del world.live[1]
    mirror = KVCacheMirror()
    loop = follow(Reading(lambda: KVEventFollower(poll_s=1.0, answer_s=1.0)), mirror)
    seen: list[tuple[str, object]] = []
    effect = next(loop)
    try:
        while True:
            match effect:
                case Now():
                    effect = loop.send(world.now)
                case Describe(name="kv-mirror", describe=describe):
                    seen.append(("kv-mirror", describe()["next_seq"]))
                    effect = loop.send(None)
                case Observe(name=name, data=data):
                    seen.append((name, data.get("seq", data.get("first", data.get("next_seq")))))
                    effect = loop.send(None)
                case Send(outbox="replay", frames=frames):
                    world.requests.append(frames)
                    effect = loop.send(None)
                case WasCut():
                    effect = loop.send(False)
                case Receive():
                    world.serve_requests()
                    if world.live:
                        effect = loop.send(("kv", 0, world.live.popleft()))
                    elif world.answers:
                        effect = loop.send(("replay", 0, world.answers.popleft()))
                    elif effect.deadline == 0.0:
                        effect = loop.send(None)
                    else:
                        effect = loop.throw(QueueCancelledError("enough"))
    except StopIteration as stop:
        assert stop.value == "enough" and mirror.hashes() == [1, 2, 3]
    names = [entry for entry in seen if entry[0] != "kv-mirror"]
    assert names == [("kv-batch", 0), ("kv-gap", 1), ("kv-batch", 1), ("kv-healed", 1), ("kv-batch", 2)]
    assert seen[-1] == ("kv-mirror", 3)

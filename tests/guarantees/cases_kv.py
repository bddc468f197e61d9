"""Histories about KV-cache events: batches, gaps, replays, mirrors. The window holds 4 batches."""

from engine.config import CacheConfig
from faults.plan import Until
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent, unknown

SUBSCRIBER = "subscriber.0"
AGAIN = "subscriber.0@1"


def _published(count: int, took: float = .0001, world: str = "sim") -> Builder:
    h = history(world, subscribers=1).observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(count):
        h.observes("core.0", "kv-published", seq=seq, took=took)
    return h


def _applies(h: Builder, *seqs: int, source: str = "live") -> Builder:
    for seq in seqs:
        h.observes(SUBSCRIBER, "kv-batch", seq=seq, source=source)
    return h


def _says(h: Builder, what: str, first: int, last: int) -> Builder:
    return h.observes(SUBSCRIBER, what, first=first, last=last)


def _healed() -> Builder:
    """Batches 1 and 2 do not come live and are replayed."""
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    return _applies(_says(_applies(h, 1, 2, source="replay"), "kv-healed", 1, 2), 3)


@accepts("kv-gap-seen", "kv-replay-complete", "kv-seq")
def a_gap_is_noticed_and_replayed() -> Builder:
    return _healed()


@rejects("kv-replay-complete")
def a_gap_is_replayed_and_nobody_is_told() -> Builder:
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    return _applies(_applies(h, 1, 2, source="replay"), 3)


@silent("kv-gap-seen", "kv-replay-complete", "kv-seq", "kv-gap-too-old", "kv-mirror-true", "kv-never-stalls")
def every_batch_comes_live() -> Builder:
    h = _applies(_published(3), 0, 1, 2)
    h.observes("core.0", "kv-cache", hashes=[1, 2])
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=[1, 2], next_seq=3, unknown_since=None)


@rejects("kv-gap-seen", "kv-gap-too-old", "kv-replay-complete")
def the_next_batch_is_taken_as_it_comes() -> Builder:
    return _applies(_published(4), 0, 3)


@rejects("kv-gap-seen")
def the_last_batches_are_lost_in_silence() -> Builder:
    return _applies(_published(4), 0, 1).wait(5).observes(SUBSCRIBER, "bye", reason="done")


@outside("kv-gap-seen", "kv-replay-complete", "kv-mirror-true")
def the_subscriber_fails_inside() -> Builder:
    return _applies(_published(4), 0).fires("raise", "core.0->subscriber.0/kv:receive")


def _killed() -> Builder:
    """In the middle of a gap; its next life has no memory."""
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2).fires("kill", "core.0->subscriber.0/kv:receive")
    return h.observes(AGAIN, "born", pid=10).observes(AGAIN, "kv-gap", first=0, last=3)


@accepts("kv-gap-seen", "kv-replay-complete", "kv-seq")
def a_killed_subscriber_begins_anew() -> Builder:
    h = _killed()
    for seq in range(4):
        h.observes(AGAIN, "kv-batch", seq=seq, source="replay")
    return h.observes(AGAIN, "kv-healed", first=0, last=3)


@rejects("kv-gap-seen", "kv-gap-too-old")
def a_killed_subscriber_goes_on_where_it_died() -> Builder:
    return _killed_in_silence().observes(AGAIN, "kv-batch", seq=3, source="live")


@rejects("kv-replay-complete")
def the_gap_of_a_second_life_is_never_healed() -> Builder:
    return _killed().wait(9)


def _killed_in_silence() -> Builder:
    h = _applies(_published(4), 0).fires("kill", "core.0->subscriber.0/kv:receive")
    return h.observes(AGAIN, "born", pid=10)


@outside("kv-replay-complete", "kv-mirror-true")
def an_answer_is_damaged() -> Builder:
    return _healed().fires("corrupt", "core.0->subscriber.0/replay:receive")


@accepts("kv-replay-complete")
def a_damaged_question_is_asked_again() -> Builder:
    return _healed().fires("truncate", "subscriber.0->core.0/replay:receive")


@rejects("kv-replay-complete")
def a_live_batch_is_applied_before_the_replay() -> Builder:
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    return _says(_applies(_applies(h, 3), 1, 2, source="replay"), "kv-healed", 1, 2)


@rejects("kv-replay-complete")
def the_replay_stops_one_batch_short() -> Builder:
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    return _applies(_says(_applies(h, 1, source="replay"), "kv-healed", 1, 2), 3)


@rejects("kv-replay-complete")
def a_batch_inside_the_window_is_given_up() -> Builder:
    return _applies(_says(_says(_applies(_published(4), 0), "kv-gap", 1, 2), "kv-unrecoverable", 1, 2), 3)


def _given_up_after(*lost: str) -> Builder:
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    for nth, site in enumerate(lost, 1):
        h.fires("drop", site, nth=nth)
    return _applies(_says(h, "kv-unrecoverable", 1, 2), 3)


@silent("kv-replay-complete")
def a_batch_is_given_up_when_questions_and_answers_were_lost() -> Builder:
    asked = "subscriber.0->core.0/replay:receive"
    return _given_up_after(asked, asked, "core.0->subscriber.0/replay:receive")


@rejects("kv-replay-complete")
def a_batch_is_given_up_after_two_lost_questions() -> Builder:
    return _given_up_after(*("subscriber.0->core.0/replay:receive",) * 2)


def _given_up_beside(publisher_left_after: int, *, read: int = 0, dying: bool = True) -> Builder:
    """Three questions, one each 0.3 s; the publisher's thread ends behind so many of them, and has read the first."""
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    for tag in range(3):
        if tag == publisher_left_after:
            if dying:
                h.observes("core.0", "dying", reason="SIGTERM", queued=0)
            h.observes("core.0", "thread-ended", thread="zmq-replay", why="cancelled" if dying else "done")
        h.crosses("subscriber.0->core.0/replay:send", start=1, tag=tag)
        if tag < read:
            h.crosses("subscriber.0->core.0/replay:receive", start=1, tag=tag)
        h.wait(0.3)
    return _applies(_says(h, "kv-unrecoverable", 1, 2), 3)


@silent("kv-replay-complete")
def a_batch_is_given_up_when_who_replays_had_left() -> Builder:
    return _given_up_beside(0)


@rejects("kv-replay-complete")
def a_batch_is_given_up_when_who_replays_left_in_the_midst_of_the_questions() -> Builder:
    return _given_up_beside(2)


@rejects("kv-replay-complete")
def a_batch_is_given_up_when_who_replays_ended_for_no_reason() -> Builder:
    return _given_up_beside(0, dying=False)


@rejects("kv-replay-complete")
def a_batch_is_given_up_when_who_replays_has_read_a_question() -> Builder:
    return _given_up_beside(1, read=1)


@rejects("kv-replay-complete")
def the_gap_is_never_healed() -> Builder:
    return _says(_applies(_published(4), 0), "kv-gap", 1, 2).wait(9)


@unknown("kv-replay-complete")
def a_gap_is_open_where_its_subscriber_stands_still_to_the_end() -> Builder:
    h = _says(_applies(_published(4), 0), "kv-gap", 1, 2)
    return h.fires("stall", "subscriber.0->core.0/replay:send", until=Until(seconds=20.0)).wait(9)


def _late(first: int, count: int = 9) -> Builder:
    """Joins late: batches up to `count` are published, the window begins at count - 4."""
    return _says(_published(count), "kv-gap", 0, count - 1)


@accepts("kv-gap-too-old", "kv-replay-complete", "kv-gap-seen")
def what_is_older_than_the_window_is_called_unrecoverable() -> Builder:
    h = _says(_late(0), "kv-unrecoverable", 0, 4)
    return _says(_applies(h, 5, 6, 7, 8, source="replay"), "kv-healed", 5, 8)


def _goes_out(last: int, world: str) -> Builder:
    """Batch 9 is sent, and not yet written down as handed over. What was given up meanwhile is healed behind `last`."""
    h = _published(9, world=world).crosses("core.0->subscriber.0/kv:send", seq=9)
    h = _says(_says(h, "kv-gap", 0, 9), "kv-unrecoverable", 0, last)
    h.observes("core.0", "kv-published", seq=9, took=.0001)
    return _says(_applies(h, *range(last + 1, 10), source="replay"), "kv-healed", last + 1, 9)


@accepts("kv-replay-complete")
def what_goes_out_may_have_pushed_others_out_of_the_window() -> Builder:
    return _goes_out(6, "engine")


@rejects("kv-replay-complete")
def what_goes_out_pushes_no_more_out_than_itself_and_the_next_one() -> Builder:
    return _goes_out(7, "engine")


@rejects("kv-replay-complete")
def what_goes_out_has_been_written_down_where_time_is_virtual() -> Builder:
    return _goes_out(6, "sim")


@rejects("kv-gap-too-old")
def the_replay_begins_at_the_oldest_batch_left_as_if_nothing_were_missing() -> Builder:
    return _says(_applies(_late(0), 5, 6, 7, 8, source="replay"), "kv-healed", 0, 8)


def _dropped() -> Builder:
    h = _published(2).crosses("core.0/mark:kv-dropped", seq=2)
    return h.observes("core.0", "kv-lost", seq=2, reason="full").observes("core.0", "kv-published", seq=3, took=.0001)


@accepts("kv-seq", "kv-never-stalls")
def a_batch_dropped_at_the_full_queue_keeps_its_number() -> Builder:
    return _dropped()


def _times(*into: float) -> Builder:
    """A publisher that waits for a second before its first batch, whose batches say so of their time."""
    h = history(subscribers=1).started().observes("core.0", "born", pid=7).wait(1)
    for seq, time in enumerate(into):
        h.wait(.1).observes("core.0", "kv-published", seq=seq, took=.0001)
        h.crosses("core.0->subscriber.0/kv:send", seq=seq, epoch=1_700_000_000_500_000, ts=1_700_000_000.5 + time)
    return h.observes("core.0", "kv-lost", seq=len(into), reason="full")


@accepts("kv-seq")
def batches_are_of_the_time_at_which_they_were_handed_over() -> Builder:
    return _times(.9, 1.0, 1.1)


@rejects("kv-seq")
def a_batch_is_of_a_time_before_its_life() -> Builder:
    return _times(.9, -1_700_000_000)


@rejects("kv-seq")
def a_batch_is_of_a_time_to_come() -> Builder:
    return _times(.9, 3.0)


@accepts("kv-seq")
def a_batch_that_cannot_be_encoded_was_numbered_before() -> Builder:
    return _published(3).observes("core.0", "kv-lost", seq=1, reason="cannot be encoded")


@rejects("kv-seq")
def a_dropped_batch_leaves_no_gap() -> Builder:
    return _published(2).observes("core.0", "kv-lost", seq=2, reason="full").observes(
        "core.0", "kv-published", seq=2, took=.0001)


@rejects("kv-seq")
def a_number_is_left_out() -> Builder:
    return _published(2).observes("core.0", "kv-published", seq=3, took=.0001)


@rejects("kv-seq")
def a_restarted_publisher_is_taken_for_the_old_one() -> Builder:
    h = _applies(_published(1), 0).observes("core.0@1", "kv-published", seq=0, took=.0001)
    return _applies(h.observes("core.0@1", "kv-published", seq=1, took=.0001), 1)


@accepts("kv-seq")
def a_restart_is_told_from_a_gap() -> Builder:
    h = _applies(_published(1), 0).observes("core.0@1", "kv-published", seq=0, took=.0001)
    return _applies(h.observes(SUBSCRIBER, "kv-restarted", epoch=2), 0)


@accepts("kv-gap-too-old")
def a_dropped_batch_is_unrecoverable_inside_the_window() -> Builder:
    return _applies(_says(_says(_applies(_dropped(), 0, 1), "kv-gap", 2, 2), "kv-unrecoverable", 2, 2), 3)


def _mirrored(hashes: list[int]) -> Builder:
    h = _healed().observes("core.0", "kv-cache", hashes=[1, 2])
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=hashes, next_seq=4, unknown_since=None)


@accepts("kv-mirror-true")
def the_mirror_equals_the_cache_after_a_gap() -> Builder:
    return _mirrored([2, 1])


@rejects("kv-mirror-true")
def the_mirror_itself_says_that_it_is_not_in_order() -> Builder:
    h = _healed().observes("core.0", "kv-cache", hashes=[1, 2])
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=[1, 2], next_seq=4, unknown_since=None,
                      errors=["block 1 is its own ancestor"])


@rejects("kv-mirror-true")
def the_mirror_lacks_a_block_of_a_missed_batch() -> Builder:
    return _mirrored([1])


@silent("kv-mirror-true")
def a_mirror_that_knows_that_it_does_not_know() -> Builder:
    return _after_a_loss(1)


def _after_a_loss(unknown_since: int | None, source: str = "live", **said: bool) -> Builder:
    h = _says(_says(_applies(_published(4), 0), "kv-gap", 1, 2), "kv-unrecoverable", 1, 2)
    h.crosses("core.0->subscriber.0/kv:send", seq=3, epoch=1, payload=1, **said)
    h = _applies(h, 3, source=source).observes("core.0", "kv-cache", hashes=[1])
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=[1], next_seq=4, unknown_since=unknown_since)


@rejects("kv-mirror-true")
def a_loss_is_told_and_forgotten() -> Builder:
    return _after_a_loss(None)


@rejects("kv-mirror-true")
def another_loss_is_remembered() -> Builder:
    return _after_a_loss(2)


@accepts("kv-mirror-true")
def a_loss_no_longer_matters_when_the_cache_is_cleared() -> Builder:
    return _after_a_loss(None, clears=True)


@rejects("kv-mirror-true")
def a_loss_is_remembered_although_the_cache_is_cleared() -> Builder:
    return _after_a_loss(1, clears=True)


@rejects("kv-mirror-true")
def the_mirror_keeps_a_block_that_is_gone() -> Builder:
    return _mirrored([1, 2, 3])


def _spells(*blocks: tuple[int, int | None, list[int]], size: int = 2) -> Builder:
    """A mirror of these blocks, hash, parent and tokens, of requests that are [1, 2] -> [7, 8, 9] and [3] -> [5, 6]."""
    h = history(subscribers=1, cache=CacheConfig(num_gpu_blocks=8, block_size=size))
    h.observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(4):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    h = _says(_applies(h, 0), "kv-gap", 1, 2)
    h = _applies(_says(_applies(h, 1, 2, source="replay"), "kv-healed", 1, 2), 3)
    hashes = sorted({block_hash for block_hash, _, _ in blocks})
    h.observes("core.0", "kv-cache", hashes=hashes)
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=hashes, next_seq=4, unknown_since=None,
                      blocks=[list(block) for block in blocks])


@accepts("kv-mirror-true")
def the_blocks_of_the_mirror_spell_the_requests() -> Builder:
    return _spells((1, None, [1, 2]), (2, 1, [7, 8]), (4, None, [3, 5]))


@rejects("kv-mirror-true")
def a_block_of_the_mirror_holds_tokens_of_another_request() -> Builder:
    return _spells((1, None, [1, 2]), (2, 1, [5, 6]))


@rejects("kv-mirror-true")
def a_block_of_the_mirror_has_a_parent_of_another_request() -> Builder:
    return _spells((4, None, [3, 5]), (1, None, [1, 2]), (2, 4, [7, 8]))


@rejects("kv-mirror-true")
def a_block_of_the_mirror_is_without_its_parent() -> Builder:
    return _spells((2, 1, [7, 8]))


@rejects("kv-mirror-true")
def a_block_of_the_mirror_is_its_own_ancestor() -> Builder:
    return _spells((1, 2, [1, 2]), (2, 1, [7, 8]))


@rejects("kv-mirror-true")
def a_block_of_the_mirror_is_too_short() -> Builder:
    return _spells((1, None, [1, 2]), (2, 1, [7]))


@rejects("kv-mirror-true")
def two_blocks_of_the_mirror_hold_the_same() -> Builder:
    return _spells((1, None, [1, 2]), (2, None, [1, 2]))


@rejects("kv-mirror-true")
def a_block_lies_in_the_mirror_twice() -> Builder:
    return _spells((1, None, [1, 2]), (1, None, [1, 2]))


def _overrun(place: int = 9) -> Builder:
    """Joins late, out of the window: batches 0 to 4 are given up, the rest is replayed, the state is asked for."""
    h = _applies(_says(_late(0), "kv-unrecoverable", 0, 4), 5, 6, 7, 8, source="replay")
    h.observes("core.0", "kv-cache", hashes=[1, 2])
    return h.observes(SUBSCRIBER, "kv-snapshot", next_seq=place, blocks=2)


def _mirror_of_a_snapshot(h: Builder, hashes: list[int], unknown_since: int | None = None) -> Builder:
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=hashes, next_seq=9, unknown_since=unknown_since)


@accepts("kv-mirror-true", "kv-gap-too-old")
def a_snapshot_makes_the_mirror_true_again() -> Builder:
    return _mirror_of_a_snapshot(_overrun(), [1, 2])


@rejects("kv-mirror-true")
def a_snapshot_holds_a_block_that_is_long_gone() -> Builder:
    return _mirror_of_a_snapshot(_overrun(), [1, 2, 3])


@rejects("kv-mirror-true")
def a_snapshot_lacks_a_piece() -> Builder:
    return _mirror_of_a_snapshot(_overrun(), [1])


@rejects("kv-mirror-true")
def a_snapshot_is_put_in_the_wrong_place_of_the_stream() -> Builder:
    return _mirror_of_a_snapshot(_overrun(place=7), [1, 2])


@silent("kv-mirror-true")
def without_a_snapshot_the_mirror_stays_unknown() -> Builder:
    h = _applies(_says(_late(0), "kv-unrecoverable", 0, 4), 5, 6, 7, 8, source="replay")
    return _mirror_of_a_snapshot(h.observes("core.0", "kv-cache", hashes=[1, 2]), [2], unknown_since=0)


def _restarted(hashes: list[int]) -> Builder:
    """The publisher's second life has one batch and another cache."""
    h = _applies(_published(1), 0).observes("core.0@1", "kv-published", seq=0, took=.0001)
    h.observes("core.0@1", "kv-cache", hashes=[7])
    h = _applies(h.observes(SUBSCRIBER, "kv-restarted", epoch=2), 0)
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=hashes, next_seq=1, unknown_since=None)


@accepts("kv-mirror-true", "kv-seq")
def after_a_restart_the_mirror_equals_the_new_cache() -> Builder:
    return _restarted([7])


@rejects("kv-mirror-true")
def after_a_restart_blocks_of_the_old_life_are_kept() -> Builder:
    return _restarted([1, 7])


def _stalled(took: float) -> Builder:
    h = _published(2).fires("stall", "core.0->subscriber.0/kv:receive")
    return h.wait(took).observes("core.0", "kv-published", seq=2, took=took)


@accepts("kv-never-stalls")
def a_stopped_subscriber_delays_nothing() -> Builder:
    return _stalled(.0001)


def _asked_nonsense(took: float) -> Builder:
    """The publisher gets a replay request that is none, and a batch is handed over then."""
    h = _published(2).observes("core.0", "bad-frame", edge="replay", error="a number has 8 bytes, got 3")
    return h.wait(took).observes("core.0", "kv-published", seq=2, took=took)


@accepts("kv-never-stalls", "no-foreign-code")
def a_malformed_replay_request_delays_nothing() -> Builder:
    return _asked_nonsense(.0001)


@rejects("kv-never-stalls")
def a_step_waits_for_who_asks_nonsense() -> Builder:
    return _asked_nonsense(.9)


@rejects("kv-replay-complete")
def after_a_malformed_request_nobody_is_answered() -> Builder:
    h = _says(_applies(_asked_nonsense(.0001), 0), "kv-gap", 1, 1)
    h = h.observes(SUBSCRIBER, "kv-unrecoverable", first=1, last=1, reason="no answer to replay requests")
    return _applies(h, 2)


@rejects("kv-never-stalls")
def a_step_waits_for_room_in_the_queue() -> Builder:
    return _stalled(.5)

"""Histories about what a publisher sends: its batches, and its answers. The window holds 4 batches."""

from engine.config import KVEventsConfig
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent

CORE, SUBSCRIBER = "core.0", "subscriber.0"
LIVE, ANSWERS = "core.0->subscriber.0/kv:send", "core.0->subscriber.0/replay:send"
QUESTIONS = "subscriber.0->core.0/replay:receive"
EPOCH, TAG = 7, 3


def _begun(world: str = "sim", **events: int) -> Builder:
    settings = KVEventsConfig(enable_kv_cache_events=True, buffer_steps=4, **events)
    h = history(world=world, subscribers=1, kv_events=settings)
    return h.observes(SUBSCRIBER, "born", pid=9).started()


def _hands_over(h: Builder, *seqs: int) -> Builder:
    for seq in seqs:
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    return h


def _loses(h: Builder, seq: int, *, marked: bool = True, warned: int = 1) -> Builder:
    """At its full queue."""
    if marked:
        h.crosses(f"{CORE}/mark:kv-dropped", seq=seq)
    h.observes(CORE, "kv-lost", seq=seq, reason="2 batches wait already")
    return h.observes(CORE, "warned", kind="kv-lost", data={"batches": warned}, line="") if warned else h


def _sends(h: Builder, *seqs: int, epoch: int | None = EPOCH, **data: object) -> Builder:
    for seq in seqs:
        h.crosses(LIVE, seq=seq, epoch=epoch, payload=100 + seq, **data)
    return h


def _publishes(*seqs: int, **events: int) -> Builder:
    h = _begun(**events)
    for seq in seqs:
        _sends(_hands_over(h, seq), seq)
    return h


def _leaves(h: Builder, *threads: str) -> Builder:
    h.observes(CORE, "dying", reason="SIGTERM", queued=0)
    for thread in threads or ("zmq-publisher", "zmq-replay"):
        h.observes(CORE, "thread-ended", thread=thread, why="done")
    return h.observes(CORE, "bye", reason="SIGTERM")


@accepts("kv-sent-once")
def every_batch_is_sent_once() -> Builder:
    return _leaves(_sends(_hands_over(_begun(), 0, 1, 2), 0, 1, 2))


@silent("kv-sent-once", "kv-answers-exact")
def a_publisher_that_is_still_there() -> Builder:
    return _publishes(0, 1)


@rejects("kv-sent-once")
def a_batch_is_sent_again() -> Builder:
    return _sends(_publishes(0, 1), 1)


@accepts("kv-sent-once")
def a_batch_is_on_its_way_when_the_core_notes_that_it_handed_it_over() -> Builder:
    return _leaves(_hands_over(_sends(_hands_over(_begun("engine"), 0), 0, 1), 1))


@rejects("kv-sent-once")
def a_batch_is_sent_before_the_twins_core_has_handed_it_over() -> Builder:
    return _leaves(_hands_over(_sends(_hands_over(_begun(), 0), 0, 1), 1))


@rejects("kv-sent-once")
def a_batch_is_sent_that_nobody_handed_over() -> Builder:
    return _sends(_publishes(0, 1), 2)


def _sent_by_a_core_that_is_killed(*seqs: int, after: float = .0, world: str = "engine") -> Builder:
    """It handed over 0, and wrote nothing down of what it handed over behind that."""
    h = _sends(_hands_over(_begun(world), 0), 0, *seqs).wait(after)
    return h.fires("kill", f"{CORE}/mark:step").wait(.01).ends(CORE, exitcode=-9)


@silent("kv-sent-once")
def a_core_does_not_live_to_note_that_it_handed_a_batch_over() -> Builder:
    return _sent_by_a_core_that_is_killed(1)


@rejects("kv-sent-once")
def a_core_notes_of_no_two_batches_that_it_handed_them_over() -> Builder:
    return _sent_by_a_core_that_is_killed(1, 2)


@rejects("kv-sent-once")
def a_core_lives_long_after_a_batch_that_it_never_handed_over() -> Builder:
    return _sent_by_a_core_that_is_killed(1, after=.6)


@rejects("kv-sent-once")
def a_twins_core_notes_what_it_handed_over_before_it_is_killed() -> Builder:
    return _sent_by_a_core_that_is_killed(1, world="sim")


@rejects("kv-sent-once")
def a_later_batch_is_sent_first() -> Builder:
    return _sends(_hands_over(_begun(), 0, 1), 1, 0)


@rejects("kv-sent-once")
def a_batch_is_left_unsent() -> Builder:
    return _leaves(_hands_over(_publishes(0, 1), 2))


@rejects("kv-sent-once")
def a_batch_says_nothing_of_its_publishers_life() -> Builder:
    return _sends(_hands_over(_begun(), 0), 0, epoch=None)


@rejects("kv-sent-once")
def a_thread_of_the_publisher_runs_on() -> Builder:
    return _leaves(_publishes(0), "zmq-publisher")


@rejects("kv-sent-once")
def blocks_are_cached_and_nothing_is_published() -> Builder:
    return _begun().observes(CORE, "blocks", free=8, used=0, cached=3, total=8, requests=0, errors=[])


@accepts("kv-sent-once")
def the_queue_is_full_for_a_while() -> Builder:
    h = _loses(_hands_over(_begun(max_queue_size=2), 0, 1), 2)
    return _leaves(_sends(h, 0, 1))


@rejects("kv-sent-once")
def a_batch_is_lost_although_there_is_room() -> Builder:
    return _loses(_hands_over(_begun(max_queue_size=2), 0), 1)


@rejects("kv-sent-once")
def a_batch_is_lost_although_any_number_may_wait() -> Builder:
    return _loses(_hands_over(_begun(max_queue_size=0), 0), 1)


@rejects("kv-sent-once")
def a_batch_is_queued_beyond_the_limit() -> Builder:
    return _hands_over(_begun(max_queue_size=2), 0, 1, 2)


@rejects("kv-sent-once")
def a_batch_is_lost_without_a_warning() -> Builder:
    return _leaves(_sends(_loses(_hands_over(_begun(max_queue_size=1), 0), 1, warned=0), 0))


@rejects("kv-sent-once")
def a_batch_is_lost_where_no_plan_can_strike() -> Builder:
    return _leaves(_sends(_loses(_hands_over(_begun(max_queue_size=1), 0), 1, marked=False), 0))


@rejects("kv-sent-once")
def a_batch_that_cannot_be_sent_is_passed_over_in_silence() -> Builder:
    return _leaves(_sends(_hands_over(_begun(), 0), 0, fate="raise").fires("raise", LIVE))


@rejects("kv-sent-once")
def a_batch_that_cannot_be_sent_is_told_to_the_judges_alone() -> Builder:
    return _leaves(_publishes(0).observes(CORE, "kv-unsent", seq=0, error="no"))


@rejects("kv-sent-once")
def a_question_that_is_none_is_told_to_the_judges_alone() -> Builder:
    return _leaves(_publishes(0).observes(CORE, "bad-frame", edge="replay", error="no"))


def _leaves_with_a_thread_that_stands_still(waits_s: float) -> Builder:
    h = _publishes(0).fires("hang", LIVE).observes(CORE, "dying", reason="SIGTERM", queued=0).wait(waits_s).releases()
    for thread in ("zmq-publisher", "zmq-replay"):
        h.observes(CORE, "thread-ended", thread=thread, why="done")
    return h.observes(CORE, "bye", reason="SIGTERM")


@accepts("kv-sent-once")
def a_thread_that_stands_still_is_waited_for_for_a_while() -> Builder:
    return _leaves_with_a_thread_that_stands_still(2.9)


@rejects("kv-sent-once")
def a_thread_that_stands_still_is_waited_for_for_ever() -> Builder:
    return _leaves_with_a_thread_that_stands_still(5.9)


@rejects("kv-sent-once")
def the_publisher_is_late_to_end_without_anything_to_send() -> Builder:
    h = _publishes(0).observes(CORE, "dying", reason="SIGTERM", queued=0).wait(1)
    for thread in ("zmq-publisher", "zmq-replay"):
        h.observes(CORE, "thread-ended", thread=thread, why="done")
    return h.observes(CORE, "bye", reason="SIGTERM")


def _warns(h: Builder, line: str | None) -> Builder:
    return h.observes(CORE, "bad-frame", edge="requests", error="?").observes(
        CORE, "warned", kind="bad-frame", data={"error": "?"}, line=line)


@accepts("kv-sent-once")
def a_line_counts_what_was_passed_over() -> Builder:
    h = _warns(_warns(_publishes(0), "bad-frame: ?"), None).wait(11)
    return _leaves(_warns(h, "bad-frame: ? (1 more since the last line)"))


@rejects("kv-sent-once")
def a_line_does_not_count_what_was_passed_over() -> Builder:
    return _leaves(_warns(_warns(_warns(_publishes(0), "bad-frame: ?"), None).wait(11), "bad-frame: ?"))


@rejects("kv-sent-once")
def a_kind_is_a_line_each_time() -> Builder:
    return _leaves(_warns(_warns(_publishes(0), "bad-frame: ?"), "bad-frame: ?"))


@rejects("kv-sent-once")
def the_first_of_a_kind_is_passed_over() -> Builder:
    return _leaves(_warns(_publishes(0), None))


@outside("kv-sent-once", "kv-answers-exact")
def the_core_stands_still_as_it_numbers() -> Builder:
    return _publishes(0).fires("hang", f"{CORE}/mark:kv-dropped")


# -- answers


def _asks(h: Builder, start: int = 0, tag: int | None = TAG, **data: object) -> Builder:
    return h.crosses(QUESTIONS, start=start, **({} if tag is None else {"tag": tag}), **data)


def _replays(h: Builder, *seqs: int, payload: int = 100) -> Builder:
    for seq in seqs:
        h.crosses(ANSWERS, seq=seq, epoch=EPOCH, payload=payload + seq)
    return h


def _reports(h: Builder, **said: int) -> Builder:
    return h.crosses(ANSWERS, end=True, **{"tag": TAG, "start": 0, "epoch": EPOCH, "oldest": 0, "next": 3, "count": 3,
                                           **said})


@accepts("kv-answers-exact")
def all_is_asked_for_and_replayed() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 2))


@accepts("kv-answers-exact")
def the_window_has_moved_on() -> Builder:
    h = _replays(_asks(_publishes(0, 1, 2, 3, 4, 5)), 2, 3, 4, 5)
    return _reports(h, oldest=2, next=6, count=4)


@accepts("kv-answers-exact")
def a_question_without_a_tag_is_answered_without_a_report() -> Builder:
    return _replays(_asks(_publishes(0, 1), 1, tag=None), 1).crosses(ANSWERS, end=True)


@accepts("kv-answers-exact")
def a_second_question_takes_the_place_of_the_first() -> Builder:
    h = _replays(_asks(_publishes(0, 1, 2)), 0, 1)
    return _reports(_replays(_asks(h, 1, tag=4), 1, 2), tag=4, start=1, count=2)


def _goes_on_between(*answered: int, world: str = "sim", **said: int) -> Builder:
    """Batches 3 and 4 go out behind the first message of the answer."""
    h = _replays(_asks(_publishes(0, 1, 2)), *answered[:1])
    h.world = world
    for seq in (3, 4):
        _sends(_hands_over(h, seq), seq)
    return _reports(_replays(h, *answered[1:]), **said)


@accepts("kv-answers-exact")
def batches_go_out_while_an_answer_stands_still() -> Builder:
    return _goes_on_between(0, 1, 2)


@accepts("kv-answers-exact")
def batches_go_out_while_a_real_answer_stands_still() -> Builder:
    return _goes_on_between(0, 1, 2, world="engine")


@rejects("kv-answers-exact")
def an_answer_is_of_two_moments() -> Builder:
    return _goes_on_between(0, 1, 2, 3, 4, next=5, count=5)


@rejects("kv-answers-exact")
def a_real_answer_is_of_two_moments() -> Builder:
    return _goes_on_between(0, 1, 2, 3, 4, world="engine", next=5, count=5)


@rejects("kv-answers-exact")
def a_report_is_of_a_later_moment_than_its_answer() -> Builder:
    return _goes_on_between(0, 1, 2, next=5)


def _is_about_to_send_another(*answered: int) -> Builder:
    """It has sent all up to batch 4, and keeps four."""
    h = _replays(_hands_over(_asks(_publishes(0, 1, 2, 3, 4)), 5), *answered)
    h.world = "engine"
    return _sends(_reports(h, oldest=answered[0], next=answered[-1] + 1, count=len(answered)), 5)


@accepts("kv-answers-exact")
def a_batch_that_is_about_to_go_out_has_the_oldest_one_s_place() -> Builder:
    return _is_about_to_send_another(2, 3, 4, 5)


@accepts("kv-answers-exact")
def a_batch_that_is_about_to_go_out_has_no_place_yet() -> Builder:
    return _is_about_to_send_another(1, 2, 3, 4)


@rejects("kv-answers-exact")
def the_oldest_one_s_place_is_nobody_s() -> Builder:
    return _is_about_to_send_another(2, 3, 4)


@rejects("kv-answers-exact")
def a_batch_that_is_about_to_go_out_has_two_places() -> Builder:
    return _is_about_to_send_another(3, 4, 5)


def _reads_late(*seqs: int, **said: int) -> Builder:
    """The question comes behind batch 0, and is read behind batch 2, while batch 3 waits."""
    h = _asks(_publishes(0), fate="delay", fault="f1").fires("delay", QUESTIONS)
    for seq in (1, 2):
        _sends(_hands_over(h, seq), seq)
    return _reports(_replays(_hands_over(h, 3).releases(), *seqs), **said)


@accepts("kv-answers-exact")
def a_late_question_is_answered_when_it_is_read() -> Builder:
    return _reads_late(0, 1, 2)


@rejects("kv-answers-exact")
def a_late_question_is_answered_with_what_was_there_when_it_came() -> Builder:
    return _reads_late(0, count=1, next=1)


@rejects("kv-answers-exact")
def a_late_question_is_told_of_a_batch_that_waits() -> Builder:
    return _reads_late(0, 1, 2, next=4)


@rejects("kv-answers-exact")
def a_second_question_gets_the_rest_of_the_first() -> Builder:
    h = _replays(_asks(_publishes(0, 1, 2)), 0, 1)
    return _reports(_replays(_asks(h, 1, tag=4), 2), tag=4, start=1, count=1)


@rejects("kv-answers-exact")
def a_batch_is_left_out_of_an_answer() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 2), count=2)


@rejects("kv-answers-exact")
def a_batch_comes_twice_in_an_answer() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 1, 2), count=4)


@rejects("kv-answers-exact")
def a_batch_before_the_start_is_replayed() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2), 1), 0, 1, 2), start=1)


@rejects("kv-answers-exact")
def a_replayed_batch_has_other_bytes() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 2, payload=200))


@rejects("kv-answers-exact")
def a_report_promises_a_batch_that_was_not_sent() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 2), next=4)


@rejects("kv-answers-exact")
def a_report_hides_the_last_batch_that_was_lost() -> Builder:
    h = _loses(_hands_over(_publishes(0, 1, 2, max_queue_size=1), 3), 4)
    return _reports(_replays(_asks(_sends(h, 3)), 0, 1, 2, 3), next=4, count=4)


@rejects("kv-answers-exact")
def a_report_is_of_another_window() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 2), oldest=1)


@rejects("kv-answers-exact")
def a_report_is_of_another_question() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2)), 0, 1, 2), tag=9)


@rejects("kv-answers-exact")
def a_question_without_a_tag_gets_a_report() -> Builder:
    return _reports(_replays(_asks(_publishes(0, 1, 2), tag=None), 0, 1, 2))


@rejects("kv-answers-exact")
def a_question_is_never_answered() -> Builder:
    return _leaves(_asks(_publishes(0)).wait(5))


@rejects("kv-answers-exact")
def a_question_is_put_again_because_nobody_answered() -> Builder:
    h = _asks(_asks(_publishes(0)).wait(.5), tag=4)
    return _reports(_replays(h, 0), tag=4, next=1, count=1)


@rejects("kv-answers-exact")
def somebody_is_answered_who_has_asked_nothing() -> Builder:
    return _replays(_publishes(0), 0)


@rejects("kv-answers-exact")
def a_question_that_is_none_is_passed_over_in_silence() -> Builder:
    return _leaves(_publishes(0).crosses(QUESTIONS))


@rejects("kv-answers-exact")
def a_good_question_is_told_as_a_bad_one() -> Builder:
    h = _reports(_replays(_asks(_publishes(0)), 0), next=1, count=1)
    return _leaves(h.observes(CORE, "bad-frame", edge="replay", error="?"))


def _state(h: Builder, *pieces: int, of: int = 2, known: int = 1, place: int = 3) -> Builder:
    h.crosses(QUESTIONS, tag=TAG, snapshot=True)
    for piece in pieces:
        h.crosses(ANSWERS, tag=TAG, epoch=EPOCH, next=place, piece=piece, pieces=of, known=known)
    return h


@accepts("kv-answers-exact")
def a_state_is_told_in_pieces() -> Builder:
    return _state(_publishes(0, 1, 2), 0, 1)


def _goes_on_between_pieces(place: int) -> Builder:
    h = _state(_publishes(0, 1, 2), 0)
    _sends(_hands_over(h, 3), 3)
    return h.crosses(ANSWERS, tag=TAG, epoch=EPOCH, next=place, piece=1, pieces=2, known=1)


@accepts("kv-answers-exact")
def a_batch_goes_out_between_two_pieces() -> Builder:
    return _goes_on_between_pieces(3)


@rejects("kv-answers-exact")
def the_pieces_of_a_state_are_of_two_moments() -> Builder:
    return _goes_on_between_pieces(4)


@rejects("kv-answers-exact")
def a_piece_of_a_state_is_told_twice() -> Builder:
    return _state(_publishes(0, 1, 2), 0, 0)


@rejects("kv-answers-exact")
def a_state_is_told_of_another_place() -> Builder:
    return _state(_publishes(0, 1, 2), 0, 1, place=2)


@rejects("kv-answers-exact")
def a_state_is_kept_back() -> Builder:
    return _state(_publishes(0, 1, 2), 0, of=1, known=0)


@rejects("kv-answers-exact")
def a_state_is_told_that_lacks_a_lost_batch() -> Builder:
    h = _loses(_hands_over(_begun(max_queue_size=2), 0, 1), 2)
    return _state(_sends(_hands_over(_sends(h, 0, 1), 3), 3), 0, of=1, place=4)


@rejects("kv-answers-exact")
def a_real_publisher_tells_a_state_that_lacks_a_lost_batch() -> Builder:
    h = _loses(_hands_over(_begun(max_queue_size=2), 0, 1), 2)
    h.world = "engine"
    return _state(_sends(_hands_over(_sends(h, 0, 1), 3), 3), 0, of=1, place=4)


@accepts("kv-answers-exact")
def a_state_is_known_again_behind_a_reset() -> Builder:
    h = _loses(_hands_over(_begun(max_queue_size=2), 0, 1), 2)
    return _state(_sends(_hands_over(_sends(h, 0, 1), 3), 3, clears=True), 0, of=1, place=4)


@rejects("kv-answers-exact")
def a_state_is_asked_for_and_batches_come() -> Builder:
    return _replays(_state(_publishes(0, 1, 2)), 0)

"""Histories about how long, and how often: patience at a publisher's end, and of who asks. A silence lasts 0.5 s."""

from __future__ import annotations

from scenarios.history.play import Options
from tests.guarantees.build import Builder, bounds, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_kv_publishing import CORE, EPOCH, LIVE, _begun, _hands_over, _sends
from tests.guarantees.cases_kv_reading import SUBSCRIBER, Line, _batch, _came, _end, _holds, _writes
from tests.guarantees.cases_kv_strange import _without_epochs

_LIVE_SITE = "core.0->subscriber.0/kv:receive"

# -- a publisher that has no more time --------------------------------------------------------------------------------


def _ends_late(waits_s: float, *sent: int, world: str = "sim") -> Builder:
    """It stands still before batch 1 when it is asked to end, for so long; then it sends these and leaves."""
    h = _sends(_hands_over(_begun(world), 0, 1, 2), 0)
    h.crosses(LIVE, seq=1, epoch=EPOCH, payload=101, fate="hang", fault="f1").fires("hang", LIVE, nth=2)
    h.observes(CORE, "dying", reason="SIGTERM", queued=0).wait(waits_s).releases()
    _sends(h, *sent)
    for thread in ("zmq-publisher", "zmq-replay"):
        h.observes(CORE, "thread-ended", thread=thread, why="done")
    return h.observes(CORE, "bye", reason="SIGTERM")


@accepts("kv-sent-once")
def what_waits_is_sent_while_there_is_patience() -> Builder:
    return _ends_late(0.9, 2)


@accepts("kv-sent-once")
def what_waits_is_given_up_when_the_patience_is_over() -> Builder:
    return _ends_late(1.1)


@rejects("kv-sent-once")
def what_waits_is_given_up_while_there_is_patience() -> Builder:
    return _ends_late(0.9)


@rejects("kv-sent-once")
def what_waits_is_sent_when_the_patience_is_over() -> Builder:
    return _ends_late(1.1, 2)


@accepts("kv-sent-once")
def a_real_thread_looks_at_the_clock_a_little_later() -> Builder:
    return _ends_late(1.05, 2, world="engine")


@rejects("kv-sent-once")
def a_real_thread_sends_long_after_the_patience_is_over() -> Builder:
    return _ends_late(2.1, 2, world="engine")


# -- a life that is over, behind the next one -------------------------------------------------------------------------


def _misled(*, held_back: bool = False, replayed: bool = True) -> Builder:
    """A batch of a life that is over comes behind one of the next life, which answers, and is followed again."""
    h = history(subscribers=1).started()
    h.observes(CORE, "born", pid=10).observes(CORE, "kv-published", seq=0, took=.0001)
    h.observes(f"{CORE}@1", "born", pid=11).observes(f"{CORE}@1", "kv-published", seq=0, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    if held_back:
        h.fires("delay", "core.0->subscriber.0/kv:receive", node=SUBSCRIBER).releases()
    return _writes(h, [
        (2.1, "live", _came(0, epoch=2)), (2.1, "kv-batch", _batch(0)), (2.2, "live", _came(0)),
        (2.2, "kv-restarted", {"epoch": 1}), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 1, "tag": 1}),
        (2.71, "end", _end(1, 1, 1, 0, epoch=2)), (2.91, "asked", {"start": 0, "tag": 2}),
        (2.91, "kv-restarted", {"epoch": 2}), (2.91, "kv-gap", {"first": 0, "last": 0}),
        *([(2.92, "replayed", _came(0, epoch=2))] if replayed else []), (2.92, "kv-batch", _batch(0, "replay")),
        (2.92, "kv-healed", {"first": 0, "last": 0}), (2.92, "end", _end(2, 0, 1, 1, epoch=2)),
        (2.92, "kv-mirror", _holds(1))])


@accepts("kv-tells-what-came")
def what_had_come_of_a_life_is_asked_for_again_when_it_is_followed_again() -> Builder:
    return _misled()


@rejects("kv-tells-what-came")
def what_had_come_of_a_life_before_it_was_left_is_believed() -> Builder:
    return _misled(replayed=False)


@rejects("kv-ranks-apart")
def a_publisher_has_more_restarts_than_lives() -> Builder:
    return _misled()


@silent("kv-ranks-apart")
def a_batch_that_is_held_back_may_be_of_a_life_that_is_over() -> Builder:
    return _misled(held_back=True)


def _answered_by_the_next_life(after_s: float, world: str) -> Builder:
    """Its question reaches the next life alone, which answers so long after it was asked, and had nothing then."""
    h = history(world=world, subscribers=1, bounds=bounds(replay_s=0.5)).started()
    h.observes(CORE, "born", pid=10).observes(CORE, "kv-published", seq=0, took=.0001)
    h.observes(f"{CORE}@1", "born", pid=11).observes(f"{CORE}@1", "kv-published", seq=0, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    answered_at = 2.2 + after_s
    told_at = answered_at + 0.2
    return _writes(h, [
        (2.1, "live", _came(0)), (2.1, "kv-batch", _batch(0)), (2.2, "asked", {"start": 1, "tag": 1}),
        (answered_at, "end", _end(1, 1, 0, 0, epoch=2)), (told_at, "asked", {"start": 0, "tag": 2}),
        (told_at, "kv-restarted", {"epoch": 2}), (told_at, "kv-gap", {"first": 0, "last": 0}),
        (told_at, "replayed", _came(0, epoch=2)), (told_at, "kv-batch", _batch(0, "replay")),
        (told_at, "kv-healed", {"first": 0, "last": 0}), (told_at, "end", _end(2, 0, 1, 1, epoch=2)),
        (told_at, "kv-mirror", _holds(1))])


@accepts("kv-tells-what-came")
def a_real_reader_takes_an_answer_a_little_later_than_it_waits_for_one() -> Builder:
    return _answered_by_the_next_life(0.51, "engine")


@rejects("kv-tells-what-came")
def a_real_reader_takes_an_answer_for_which_it_waits_no_more() -> Builder:
    return _answered_by_the_next_life(1.2, "engine")


@rejects("kv-tells-what-came")
def in_the_twin_an_answer_has_its_time() -> Builder:
    return _answered_by_the_next_life(0.51, "sim")


@accepts("kv-asks-in-time")
def a_real_one_asks_the_next_life_from_where_it_asked_the_one_before() -> Builder:
    h = history("engine", subscribers=1).started().promised(options=Options(without_epochs=True))
    h.observes(CORE, "kv-published", seq=0, took=.0001).now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    polls = [line for n in range(4) for line in (
        (2.8 + n / 2, "asked", {"start": 0}), (2.81 + n / 2, "replayed", _came(0, epoch=2)),
        (2.81 + n / 2, "end", {"end": True}))]
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(0, epoch=2)),
                       (2.3, "kv-restarted", {"epoch": None}), (2.3, "kv-batch", _batch(0)), *polls,
                       (4.32, "kv-mirror", _holds(1))])


# -- how long and how often it asks -----------------------------------------------------------------------------------


def _waits(silence_s: float, *, known: bool) -> Builder:
    """Where an answer may take 2 s: nothing comes, to who knows that its publisher knows tags or who does not."""
    h = history(subscribers=1, bounds=bounds(replay_s=2.0)).started()
    h.observes(CORE, "kv-published", seq=0, took=.0001).observes(CORE, "kv-published", seq=1, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    if not known:
        again_at = 2.0 + silence_s + 2.0  # it is given up, and nothing is missing
        return _writes(h, [(2.0, "asked", {"start": 0, "tag": 1}), (again_at, "asked", {"start": 0}),
                           (again_at, "end", {"end": True}), (again_at, "kv-mirror", _holds(0))])
    return _writes(h, [(2.0, "asked", {"start": 0, "tag": 1}), (2.0, "end", _end(1, 0, 0, 0)),
                       (2.1, "live", _came(1)), (2.1, "asked", {"start": 0, "tag": 2}),
                       (2.1, "kv-gap", {"first": 0, "last": 0}),
                       (2.1 + silence_s, "asked", {"start": 0, "tag": 3}), (2.1 + silence_s, "kv-mirror", _holds(0))])


@accepts("kv-asks-in-time")
def who_may_not_know_tags_is_not_waited_for_as_long() -> Builder:
    return _waits(1.0, known=False)


@rejects("kv-asks-in-time")
def who_may_not_know_tags_is_waited_for_like_any_other() -> Builder:
    return _waits(2.0, known=False)


@accepts("kv-asks-in-time")
def who_knows_tags_is_waited_for() -> Builder:
    return _waits(2.0, known=True)


@rejects("kv-asks-in-time")
def who_knows_tags_is_not_waited_for_as_long() -> Builder:
    return _waits(1.0, known=True)


def _for_a_state(*last: Line) -> Builder:
    """Batch 1 is older than the window; three questions for the state are not answered, those for batches are."""
    h = history(subscribers=1).started()
    for seq in range(3):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    asked: list[Line] = [line for n in range(3) for line in (
        (2.31 + n, "asked", {"tag": 4 + 2 * n, "snapshot": True}), (2.81 + n, "asked", {"start": 3, "tag": 5 + 2 * n}),
        (2.81 + n, "end", _end(5 + 2 * n, 3, 3, 0)))]
    return _writes(h, [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)),
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 2}), (2.3, "kv-gap", {"first": 1, "last": 1}),
        (2.31, "replayed", _came(2)), (2.31, "end", _end(2, 1, 3, 1, oldest=2)), asked[0],
        (2.31, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "old"}), (2.31, "kv-batch", _batch(2)),
        *asked[1:], *last, (5.31, "kv-mirror", _holds(3, 1))])


@accepts("kv-asks-in-time")
def a_state_is_asked_for_three_times() -> Builder:
    return _for_a_state((5.31, "asked", {"start": 3, "tag": 10}), (5.31, "end", _end(10, 3, 3, 0)))


@rejects("kv-asks-in-time")
def a_state_is_asked_for_a_fourth_time() -> Builder:
    return _for_a_state((5.31, "asked", {"tag": 10, "snapshot": True}))


def _who_was_away(answers: int) -> Builder:
    """Of a publisher without epochs batch 1 comes a second later; so many answers hold nothing of both."""
    h = _without_epochs(2)
    asked = [line for n in range(answers) for line in (
        (3.3 + n / 10, "asked", {"start": 0}), (3.3 + n / 10, "replayed", {**_came(1), "ts": 1.1 + n / 10}))]
    return _writes(h, [
        (2.2, "live", {**_came(0), "ts": 0.0}), (2.2, "kv-batch", _batch(0)), (3.3, "live", {**_came(1), "ts": 1.1}),
        *asked, (3.3 + answers / 10, "kv-unverified", {"next_seq": 1, "reason": "?"}),
        (3.3 + answers / 10, "kv-batch", _batch(1)), (3.3 + answers / 10, "kv-mirror", _holds(2, 1))])


@silent("kv-tells-what-came")
def who_was_away_is_asked_three_times() -> Builder:
    return _who_was_away(3)


@rejects("kv-tells-what-came")
def who_was_away_is_asked_a_fourth_time() -> Builder:
    return _who_was_away(4)


def _unread(*said: Line) -> Builder:
    """Of a publisher without epochs the last batch comes cut short, and no answer brings it."""
    h = _without_epochs(2)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)),
                       (2.3, "live", {**_came(1), "fate": "truncate"}), (2.3, "asked", {"start": 0}),
                       (2.31, "replayed", _came(0)), (2.31, "end", {"end": True}), *said,
                       (2.51, "asked", {"start": 0}), (2.52, "replayed", _came(0)), (2.52, "replayed", _came(1)),
                       (2.52, "end", {"end": True}), *([] if not said else [
                           (2.52, "kv-batch", _batch(1, "replay")), (2.52, "kv-healed", {"first": 1, "last": 1})]),
                       (2.52, "kv-mirror", _holds(2 if said else 1))])


@accepts("kv-tells-what-came")
def a_last_batch_that_cannot_be_read_is_missing() -> Builder:
    return _unread((2.51, "kv-gap", {"first": 1, "last": 1}))


@rejects("kv-tells-what-came")
def a_last_batch_that_cannot_be_read_is_passed_over() -> Builder:
    return _unread()


def _learns_of_answers(again_at: float) -> Builder:
    """A publisher without epochs is heard by its answers alone: the second one tells that it knows no tags."""
    h = _without_epochs(1)
    return _writes(h, [(2.5, "asked", {"start": 0}), (2.5, "replayed", _came(0)), (2.5, "end", {"end": True}),
                       (2.7, "kv-gap", {"first": 0, "last": 0}), (2.7, "kv-batch", _batch(0, "replay")),
                       (2.7, "kv-healed", {"first": 0, "last": 0}), (3.5, "asked", {"start": 0}),
                       (3.5, "replayed", _came(0)), (3.5, "end", {"end": True}), (again_at, "asked", {"start": 0}),
                       (again_at, "kv-mirror", _holds(1))])


@accepts("kv-asks-in-time")
def who_has_learnt_of_answers_that_nobody_knows_tags_asks_without_one() -> Builder:
    return _learns_of_answers(4.0)


@rejects("kv-asks-in-time")
def who_has_learnt_of_answers_that_nobody_knows_tags_asks_with_one_again() -> Builder:
    return _learns_of_answers(4.5)


def _meets_the_next_life(*starts: int) -> Builder:
    """A real one without epochs has batch 0 of one life, and batch 1 of the next: it asks from these on, in vain.

    The first question is on its way while batch 1 comes, before it is told that there is another life.
    """
    h = history("engine", subscribers=1).started().promised(options=Options(without_epochs=True))
    h.observes(CORE, "kv-published", seq=0, took=.0001).now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    first, *rest = starts
    asked = [line for n, start in enumerate(rest) for line in (
        (2.4 + n / 10, "asked", {"start": start}), (2.41 + n / 10, "replayed", _came(1, epoch=2)),
        (2.41 + n / 10, "end", {"end": True}))]
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(1, epoch=2)),
                       (2.3001, "asked", {"start": first}), (2.31, "kv-restarted", {"epoch": None}),
                       (2.31, "kv-gap", {"first": 0, "last": 0}), (2.31, "end", {"end": True}), *asked,
                       (2.8, "kv-mirror", _holds(1))])


@accepts("kv-asks-in-time")
def who_asks_from_further_on_still_asks_for_the_life_before() -> Builder:
    return _meets_the_next_life(1, 0, 0, 0)


@rejects("kv-asks-in-time")
def who_asks_from_the_beginning_asks_for_the_next_life() -> Builder:
    return _meets_the_next_life(1, 0, 0, 0, 0)


# -- what may still be under way --------------------------------------------------------------------------------------


def _both_unreadable(told_at: float) -> Builder:
    """Batches 0 and 1 come live and cannot be read, the second while an answer has just brought the first."""
    h = history(subscribers=1).started()
    h.observes(CORE, "kv-published", seq=0, took=.0001).observes(CORE, "kv-published", seq=1, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)), (2.1, "kv-mirror", _holds(0)),
        (2.2, "live", {**_came(0), "fate": "truncate"}), (2.2, "asked", {"start": 0, "tag": 2}),
        (2.21, "replayed", _came(0)), (2.21, "end", _end(2, 0, 1, 1)), (2.3, "live", {**_came(1), "fate": "truncate"}),
        (told_at, "asked", {"start": 1, "tag": 3}), (told_at, "kv-gap", {"first": 0, "last": 0}),
        (told_at, "kv-batch", _batch(0, "replay")), (told_at, "kv-healed", {"first": 0, "last": 0}),
        (told_at, "kv-mirror", _holds(1))])


@accepts("kv-tells-what-came")
def what_was_passed_by_is_told_when_live_is_silent() -> Builder:
    return _both_unreadable(2.5)


@rejects("kv-tells-what-came")
def what_was_passed_by_is_told_long_after_live_is_silent() -> Builder:
    return _both_unreadable(2.6)


def _is_told_of(*, live: bool) -> Builder:
    """An answer brings batches 0 and 1, of which batch 1 has come live, or not yet; then a state is there, too."""
    h = history(subscribers=1).started()
    h.observes(CORE, "kv-published", seq=0, took=.0001).observes(CORE, "kv-published", seq=1, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [
        (2.0, "asked", {"start": 0, "tag": 1}), *([(2.01, "live", _came(1))] if live else []),
        (2.01, "replayed", _came(0)), (2.01, "replayed", _came(1)), (2.01, "end", _end(1, 0, 2, 2)),
        (2.51, "asked", {"start": 0, "tag": 2}), (2.51, "kv-mirror", _holds(2))])


@accepts("kv-asks-in-time")
def what_answers_alone_have_brought_is_asked_for_again() -> Builder:
    return _is_told_of(live=False)


@rejects("kv-asks-in-time")
def what_is_known_and_there_is_asked_for_again() -> Builder:
    return _is_told_of(live=True)


def _stands_with_the_next_one(*, it_has_come: bool) -> Builder:
    """Batch 1 is held back, and let go while its reader stands still with batch 2 in its hands, or before."""
    h = history(subscribers=1).started()
    for seq in range(3):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    _writes(h, [(2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)),
                (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)),
                (2.3, "live", {**_came(1), "fate": "delay", "fault": "f1"})])
    h.fires("delay", _LIVE_SITE, nth=2)
    if it_has_come:
        h.releases(0)
    _writes(h, [(2.31, "live", {**_came(2), "fate": "hang", "fault": "f2"})])
    h.fires("hang", _LIVE_SITE, nth=3)
    if not it_has_come:
        h.releases(0)
    h.now = 2.6
    return _writes(h.releases(1), [
        (h.now, "asked", {"start": 1, "tag": 2}), (h.now, "kv-gap", {"first": 1, "last": 1}),
        (h.now, "kv-batch", _batch(1)), (h.now, "kv-healed", {"first": 1, "last": 1}), (h.now, "kv-batch", _batch(2)),
        (h.now + .01, "replayed", _came(1)), (h.now + .01, "replayed", _came(2)),
        (h.now + .01, "end", _end(2, 1, 3, 2)), (h.now + .01, "kv-mirror", _holds(3))])


@accepts("kv-tells-what-came")
def what_comes_to_who_stands_still_comes_behind_what_it_has_in_hand() -> Builder:
    return _stands_with_the_next_one(it_has_come=False)


@rejects("kv-tells-what-came")
def what_has_come_before_it_stood_still_is_told_as_missing() -> Builder:
    return _stands_with_the_next_one(it_has_come=True)

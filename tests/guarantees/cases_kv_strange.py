"""Histories about publishers that say what cannot be, and about lives that only answers tell of."""

from __future__ import annotations

from typing import Any

from scenarios.history.play import Options
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_kv_publishing import _begun, _hands_over, _leaves, _sends
from tests.guarantees.cases_kv_reading import _SITES, SUBSCRIBER, Line, _batch, _came, _end, _holds, _story, _writes

CORE = "core.0"
#: Batch 1 stores block 900, which cannot be, and removes block 901, which was never there.
TOLD = {"seq": 1, "hashes": [900], "named": [900, 901], "sentences": 2}
SAID = ("block 900 is its own ancestor", "batch 1 removes block 901, which was not stored")


def _without_epochs(published: int) -> Builder:
    """A publisher without epochs has so many batches, and then its subscriber is born."""
    h = history(subscribers=1).started().promised(options=Options(without_epochs=True))
    for seq in range(published):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    return h.observes(SUBSCRIBER, "born", pid=9)


def _impossible(hashes: list[int], *errors: str, then: str = "") -> Builder:
    """Batch 2 is missed and replayed; the cache holds block 1. `then`: what comes between batch 3 and the mirror."""
    h = history(subscribers=1).promised(options=Options(impossible_events=True))
    h.observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(4):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.observes(SUBSCRIBER, "kv-batch", **_batch(0)).observes(SUBSCRIBER, "impossible", **TOLD)
    h.observes(SUBSCRIBER, "kv-batch", **_batch(1)).observes(SUBSCRIBER, "kv-gap", first=2, last=2)
    h.observes(SUBSCRIBER, "kv-batch", **_batch(2, "replay")).observes(SUBSCRIBER, "kv-healed", first=2, last=2)
    h.observes(SUBSCRIBER, "kv-batch", **_batch(3)).observes(CORE, "kv-cache", hashes=[1])
    if then:
        h.observes(SUBSCRIBER, then, next_seq=4, blocks=len(hashes))
    return h.observes(SUBSCRIBER, "kv-mirror", hashes=hashes, next_seq=4, unknown_since=None, errors=list(errors))


@accepts("kv-mirror-true")
def what_cannot_be_is_held_and_said() -> Builder:
    return _impossible([1, 900], *SAID)


@rejects("kv-mirror-true")
def what_cannot_be_is_held_and_not_said() -> Builder:
    return _impossible([1, 900], SAID[0])


@rejects("kv-mirror-true")
def what_cannot_be_is_said_twice() -> Builder:
    return _impossible([1, 900], *SAID, SAID[0])


@rejects("kv-mirror-true")
def another_block_is_said_not_to_be() -> Builder:
    return _impossible([1, 900], SAID[0], "block 1 is its own ancestor")


@rejects("kv-mirror-true")
def what_cannot_be_is_said_and_not_held() -> Builder:
    return _impossible([1], *SAID)


@rejects("kv-mirror-true")
def amid_what_cannot_be_a_block_of_the_cache_is_lost() -> Builder:
    return _impossible([900], *SAID)


@accepts("kv-mirror-true")
def a_state_makes_up_for_what_cannot_be() -> Builder:
    return _impossible([1], then="kv-snapshot")


@rejects("kv-mirror-true")
def what_cannot_be_is_still_said_behind_a_state() -> Builder:
    return _impossible([1], *SAID, then="kv-snapshot")


def _misnumbered(*said: tuple[str, dict[str, Any]], upto: int = 3) -> Builder:
    """Batches 1 and 2 come behind a number that nobody gave; an answer says that the publisher is at `upto`."""
    h = history(subscribers=1).promised(options=Options(misnumbered_batch=True))
    h.observes(SUBSCRIBER, "born", pid=9).started()
    for seq in range(3):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.observes(SUBSCRIBER, "kv-batch", **_batch(0)).observes(SUBSCRIBER, "malformed", edge="kv")
    h.observes(SUBSCRIBER, "kv-gap", first=1, last=999)
    for seq in (1, 2):
        h.observes(SUBSCRIBER, "kv-batch", **_batch(seq, "replay"))
    h.crosses(_SITES["end"], end=True, tag=1, start=1, epoch=1, oldest=0, next=upto, count=2)
    for name, data in said:
        h.observes(SUBSCRIBER, name, **data)
    return h


_FOUND_OUT = ("bad-frame", {"edge": "kv", "error": "batch 1000 does not exist"})


@accepts("kv-replay-complete")
def what_a_wrong_number_hid_is_healed() -> Builder:
    return _misnumbered(_FOUND_OUT, ("kv-healed", {"first": 1, "last": 2}))


@rejects("kv-replay-complete")
def a_wrong_number_is_never_found_out() -> Builder:
    return _misnumbered(("kv-healed", {"first": 1, "last": 2}))


@rejects("kv-replay-complete")
def what_a_wrong_number_hid_is_never_said_to_be_healed() -> Builder:
    return _misnumbered(_FOUND_OUT)


@silent("kv-replay-complete")
def behind_a_wrong_number_there_was_nothing_yet() -> Builder:
    return _misnumbered(_FOUND_OUT, upto=1)


def _unsendable(*told: str) -> Builder:
    """A part of an answer goes to somebody who has left. `told`: to the judges, to whoever runs it."""
    h = _sends(_hands_over(_begun(), 0), 0)
    h.observes(CORE, "not-sent", site="core.0->subscriber.0/replay:send", nth=1)
    said = {"edge": "replay", "error": "it left"}
    if "judges" in told:
        h.observes(CORE, "replay-ended", **said)
    if "operator" in told:
        h.observes(CORE, "warned", kind="replay-ended", data=said, line="replay-ended: it left")
    return _leaves(h)


@accepts("kv-sent-once")
def it_is_told_that_an_answer_cannot_be_sent() -> Builder:
    return _unsendable("judges", "operator")


@rejects("kv-sent-once")
def nobody_is_told_that_an_answer_cannot_be_sent() -> Builder:
    return _unsendable()


@rejects("kv-sent-once")
def whoever_runs_it_is_not_told_that_an_answer_cannot_be_sent() -> Builder:
    return _unsendable("judges")


@rejects("kv-sent-once")
def it_is_told_that_an_answer_cannot_be_sent_and_nothing_hindered_it() -> Builder:
    h = _sends(_hands_over(_begun(), 0), 0)
    said = {"edge": "replay", "error": "no answer"}
    h.observes(CORE, "replay-ended", **said)
    return _leaves(h.observes(CORE, "warned", kind="replay-ended", data=said, line="replay-ended: no answer"))


def _asked_three_times(*without: str) -> Builder:
    """The first question leaves as the gap is told, and is lost; two answers do not bring the batch."""
    lines: dict[str, Line] = {
        "second": (2.8, "asked", {"start": 1, "tag": 3}),
        "end": (2.81, "end", {"end": True, "tag": 3, "start": 1, "epoch": 1, "oldest": 0, "next": 3, "count": 1}),
        "third": (2.81, "asked", {"start": 1, "tag": 4}),
        "last": (2.82, "end", {"end": True, "tag": 4, "start": 1, "epoch": 1, "oldest": 0, "next": 3, "count": 1}),
        "lost": (2.82, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "asked 3 times"}),
        "takes 2": (2.82, "kv-batch", _batch(2)), "mirror": (2.82, "kv-mirror", _holds(3, 1)),
        "bye": (2.82, "bye", {"reason": "done"})}
    return _writes(_story("replayed 1", "replayed 2", "end", "takes 1", "healed", "takes 2", "holds", "poll",
                          "last end", "at last", "bye"), [line for name, line in lines.items() if name not in without])


@accepts("kv-tells-what-came")
def the_question_of_the_moment_counts_as_the_first_of_three() -> Builder:
    return _asked_three_times()


@rejects("kv-tells-what-came")
def two_questions_are_not_three() -> Builder:
    return _asked_three_times("third", "last")


def _told_of_by_answers(*seqs: int) -> Builder:
    """No batch of the next life comes live: three answers hold what joins nothing, and it is asked from 0."""
    h = _without_epochs(2)
    answers = [line for n in range(3) for line in (
        (2.7 + n / 2, "asked", {"start": 0}), (2.7 + n / 2, "replayed", _came(1, epoch=2)),
        (2.7 + n / 2, "end", {"end": True}))]
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), *answers, (3.7, "asked", {"start": 0}),
                       (3.7, "kv-restarted", {"epoch": None}), (3.7, "replayed", _came(0, epoch=2)),
                       (3.7, "replayed", _came(1, epoch=2)), (3.7, "end", {"end": True}),
                       (3.9, "kv-gap", {"first": 0, "last": 1}),
                       *((3.9, "kv-batch", _batch(seq, "replay")) for seq in seqs),
                       (3.9, "kv-healed", {"first": 0, "last": 1}), (3.9, "kv-mirror", _holds(2))])


@accepts("kv-tells-what-came")
def a_life_that_only_answers_tell_of_is_begun_from_its_first_batch() -> Builder:
    return _told_of_by_answers(0, 1)


@rejects("kv-tells-what-came")
def of_a_life_that_only_answers_tell_of_the_first_batch_is_left_out() -> Builder:
    return _told_of_by_answers(1)


def _late(seq: int, *asked: Line) -> Builder:
    """Of a publisher without epochs a batch of an earlier life comes late; batch 1 comes behind it."""
    h = _without_epochs(1)
    return _writes(h, [(2.2, "live", _came(0, epoch=2)), (2.2, "kv-batch", _batch(0)),
                       (2.3, "live", _came(seq, epoch=1)), *asked, (2.35, "live", _came(1, epoch=2)),
                       (2.35, "kv-batch", _batch(1)), (2.85, "asked", {"start": 1}), (2.86, "end", {"end": True})])


@accepts("kv-asks-in-time")
def who_may_have_come_back_is_asked() -> Builder:
    return _late(1, (2.3, "asked", {"start": 0}), (2.31, "end", {"end": True}))


@rejects("kv-asks-in-time")
def who_may_have_come_back_is_not_asked() -> Builder:
    return _late(1)


@rejects("kv-asks-in-time")
def who_may_have_come_back_is_asked_too_late() -> Builder:
    return _late(1, (2.32, "asked", {"start": 0}), (2.33, "end", {"end": True}))


@accepts("kv-asks-in-time")
def an_earlier_life_that_says_nothing_new_asks_for_nothing() -> Builder:
    return _late(0)


def _polled(told: int, took: float) -> Builder:
    return _story("at last", polled=(2.82, "polled", {"told": told, "took": took, "most": 0.1}),
                  mirror=(2.82, "kv-mirror", _holds(3)))


@accepts("kv-tells-what-came")
def who_polls_waits_as_long_as_it_said() -> Builder:
    return _polled(0, 0.1)


@accepts("kv-tells-what-came")
def who_polls_has_at_once_what_there_is() -> Builder:
    return _polled(1, 0.0)


@rejects("kv-tells-what-came")
def who_polls_is_sent_away_too_early() -> Builder:
    return _polled(0, 0.05)


@rejects("kv-tells-what-came")
def who_polls_is_kept_for_too_long() -> Builder:
    return _polled(0, 0.2)


def _nobody_answers(*after: Line) -> Builder:
    """Batches 1 and 3 are missing, and three questions are not answered; batch 1 is given up."""
    h = history(subscribers=1).started()
    for seq in range(5):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 1}), (2.4, "live", _came(4)),
        (2.4, "kv-gap", {"first": 3, "last": 3}), (2.8, "asked", {"start": 1, "tag": 2}),
        (3.3, "asked", {"start": 1, "tag": 3}),
        (3.8, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "no answer"}), (3.8, "kv-batch", _batch(2)),
        *after, (4.3, "asked", {"start": 5, "tag": 4}),
        (4.4, "end", {"end": True, "tag": 4, "start": 5, "epoch": 1, "oldest": 0, "next": 5, "count": 0}),
        (4.4, "kv-mirror", _holds(5, 1))])


@accepts("kv-tells-what-came")
def where_nobody_answers_all_that_is_missing_is_lost() -> Builder:
    return _nobody_answers((3.8, "kv-unrecoverable", {"first": 3, "last": 3, "reason": "no answer"}),
                           (3.8, "kv-batch", _batch(4)))


@rejects("kv-tells-what-came")
def where_nobody_answers_something_is_still_waited_for() -> Builder:
    return _nobody_answers()


def _answered_in_part(again: dict[str, Any]) -> Builder:
    """The window begins at batch 2, and the answer lacks a frame: batch 1 is gone nevertheless."""
    return _story("replayed 1", "replayed 2", "healed", "holds", "takes 2", "poll", "last end", "at last",
                  end=(2.31, "end", _end(2, 1, 3, 1, oldest=2)), takes_1=(2.31, "asked", again),
                  bye=(2.31, "kv-unrecoverable", {
                      "first": 1, "last": 1, "reason": "older than the publisher's replay window"}))


@accepts("kv-asks-in-time")
def what_is_older_than_the_window_is_not_asked_for_again() -> Builder:
    return _answered_in_part({"tag": 3, "snapshot": True})


@rejects("kv-asks-in-time")
def what_is_older_than_the_window_is_asked_for_again() -> Builder:
    return _answered_in_part({"tag": 3, "start": 1})


@rejects("kv-tells-what-came")
def it_is_not_sure_of_who_answered_well() -> Builder:
    h = _without_epochs(1)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 0}),
                       (2.7, "replayed", _came(0)), (2.7, "end", {"end": True}),
                       (2.7, "kv-unverified", {"next_seq": 1, "reason": "?"}), (2.7, "kv-mirror", _holds(1, 1))])


def _leaves_a_gap(*said: Line) -> Builder:
    """Of a publisher without epochs batch 1 is missing when another life answers."""
    h = _without_epochs(2)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
                       (2.3, "asked", {"start": 0}), (2.3, "kv-gap", {"first": 1, "last": 1}),
                       (2.4, "replayed", _came(0, epoch=2)), (2.4, "asked", {"start": 0}), *said,
                       (2.4, "kv-restarted", {"epoch": None}), (2.41, "end", {"end": True}),
                       (2.42, "kv-mirror", _holds(0))])


@accepts("kv-tells-what-came")
def what_is_open_of_a_life_without_an_epoch_is_lost_before_the_next_one() -> Builder:
    return _leaves_a_gap((2.4, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "the publisher restarted"}),
                         (2.4, "kv-batch", _batch(2)))


@rejects("kv-tells-what-came")
def what_is_open_of_a_life_without_an_epoch_is_left_open() -> Builder:
    return _leaves_a_gap()


@rejects("kv-replay-complete")
def nothing_is_told_as_healed() -> Builder:
    return _misnumbered(_FOUND_OUT, ("kv-healed", {"first": 1, "last": 0}), upto=1)


def _lost_below_the_state(again: dict[str, Any]) -> Builder:
    """Batch 1 is lost, and the state before batch 5 comes; batch 3 is lost below it. Then this is asked."""
    h = history(subscribers=1).started()
    for seq in range(5):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [
        (2.0, "asked", {"start": 0, "tag": 0}), (2.1, "end", _end(0, 0, 0, 0)),
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 1}),
        (2.31, "replayed", _came(2)), (2.31, "end", _end(1, 1, 3, 1, oldest=2)),
        (2.31, "asked", {"tag": 2, "snapshot": True}),
        (2.31, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "old"}),
        (2.4, "live", _came(4)), (2.5, "piece", {"tag": 2, "epoch": 1, "next": 5, "piece": 0, "pieces": 1, "known": 1}),
        (2.5, "asked", {"start": 3, "tag": 3}), (2.51, "replayed", _came(4)), (2.51, "end", _end(3, 3, 5, 1, oldest=4)),
        (2.51, "kv-unrecoverable", {"first": 3, "last": 3, "reason": "old"}), (2.51, "kv-batch", _batch(4)),
        (2.51, "kv-snapshot", {"next_seq": 5, "blocks": 1}), (3.01, "asked", again), (3.01, "kv-mirror", _holds(5))])


@accepts("kv-asks-in-time")
def a_state_makes_up_for_what_is_lost_below_it_afterwards() -> Builder:
    return _lost_below_the_state({"start": 5, "tag": 4})


@rejects("kv-asks-in-time")
def for_what_is_lost_below_a_state_another_one_is_asked_for() -> Builder:
    return _lost_below_the_state({"tag": 4, "snapshot": True})


def _plain_rumour(*said: Line) -> Builder:
    """Of a publisher without epochs an answer brings what is known, and batch 1, which does not come live."""
    h = _without_epochs(2)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 0}),
                       (2.7, "replayed", _came(0)), (2.7, "replayed", _came(1)), (2.7, "end", {"end": True}), *said,
                       (3.2, "asked", {"start": 1}), (3.2, "kv-mirror", _holds(2 if said else 1))])


@accepts("kv-tells-what-came")
def what_an_answer_without_a_report_brought_is_missing_live() -> Builder:
    return _plain_rumour((2.9, "kv-gap", {"first": 1, "last": 1}), (2.9, "kv-batch", _batch(1, "replay")),
                         (2.9, "kv-healed", {"first": 1, "last": 1}))


@rejects("kv-tells-what-came")
def what_an_answer_without_a_report_brought_is_passed_over() -> Builder:
    return _plain_rumour()

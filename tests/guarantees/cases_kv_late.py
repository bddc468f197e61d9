"""Histories about answers that come late, twice, or to a question that was given up. A silence lasts 0.5 s."""

from __future__ import annotations

from tests.guarantees.build import TICK_S, Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_kv_reading import _SITES, SUBSCRIBER, Line, _batch, _came, _end, _holds, _writes
from tests.guarantees.cases_kv_strange import _without_epochs

CORE = "core.0"


def _born(published: int) -> Builder:
    h = history(subscribers=1).started()
    for seq in range(published):
        h.observes(CORE, "kv-published", seq=seq, took=.0001)
    h.now = 2.0 - TICK_S
    return h.observes(SUBSCRIBER, "born", pid=9)


def _behind_the_end(asked_at: float) -> Builder:
    """The last batch that is missing comes behind the end of its answer. In silence it asks at this time."""
    taken: list[Line] = [(2.3, "kv-batch", _batch(seq, "replay")) for seq in range(3)]
    return _writes(_born(3), [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "replayed", _came(0)), (2.1, "replayed", _came(2)),
        (2.1, "end", _end(1, 0, 3, 3)), (2.15, "replayed", _came(1)), (2.3, "kv-gap", {"first": 0, "last": 2}), *taken,
        (2.3, "kv-healed", {"first": 0, "last": 2}), (2.3, "kv-mirror", _holds(3)),
        (asked_at, "asked", {"start": 3, "tag": 2}), (asked_at, "end", _end(2, 3, 3, 0)),
        (asked_at, "kv-mirror", _holds(3))])


@accepts("kv-asks-in-time")
def what_comes_behind_the_end_makes_its_question_needless() -> Builder:
    return _behind_the_end(2.6)


@rejects("kv-asks-in-time")
def it_does_not_ask_in_silence_behind_what_came_late() -> Builder:
    return _behind_the_end(2.65)


def _to_words_that_nobody_sees(asked_at: float) -> Builder:
    """The question without a tag is answered while one with a tag is under way, which its publisher does not know."""
    return _writes(_without_epochs(1), [
        (3.0, "asked", {"start": 0}), (4.1, "end", {"end": True}), (asked_at, "asked", {"start": 0}),
        (asked_at, "end", {"end": True}), (asked_at, "kv-mirror", _holds(0))])


@accepts("kv-asks-in-time")
def it_waits_on_for_an_answer_to_words_that_nobody_sees() -> Builder:
    return _to_words_that_nobody_sees(5.1)


@rejects("kv-asks-in-time")
def it_waits_too_long_for_an_answer_to_words_that_nobody_sees() -> Builder:
    return _to_words_that_nobody_sees(5.2)


def _ends_twice(**said: str) -> Builder:
    """Of a publisher without epochs batch 1 is missing. Behind an answer that holds nothing it asks twice at once."""
    h = _writes(_without_epochs(3), [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)), (2.3, "asked", {"start": 0}),
        (2.3, "kv-gap", {"first": 1, "last": 1}), (2.4, "end", {"end": True, **said})])
    if said:
        h.now -= TICK_S
        h.fires("duplicate", _SITES["end"])
    return _writes(h, [
        (2.4, "asked", {"start": 0}), (2.4, "asked", {"start": 0}), *((2.5, "replayed", _came(n)) for n in range(3)),
        (2.5, "end", {"end": True}), (2.5, "kv-batch", _batch(1, "replay")),
        (2.5, "kv-healed", {"first": 1, "last": 1}), (2.5, "kv-batch", _batch(2)), (2.5, "kv-mirror", _holds(3)),
        (3.0, "asked", {"start": 2}), (3.0, "end", {"end": True}), (3.0, "kv-mirror", _holds(3))])


@accepts("kv-asks-in-time")
def an_end_that_comes_twice_ends_what_was_asked_behind_the_first() -> Builder:
    return _ends_twice(fate="duplicate", fault="f1")


@rejects("kv-asks-in-time")
def behind_an_end_that_comes_once_it_asks_twice() -> Builder:
    return _ends_twice()


@silent("kv-tells-what-came")
def an_answer_to_what_was_given_up_settles_nothing() -> Builder:
    """The one with a tag is given up, the one without is answered; then the first one's answer comes."""
    return _writes(_born(2), [
        (2.0, "asked", {"start": 0, "tag": 1}), (3.0, "asked", {"start": 0}), (3.1, "end", {"end": True}),
        (3.1, "kv-mirror", _holds(0)), (3.2, "live", _came(0)), (3.2, "kv-batch", _batch(0)),
        (3.3, "replayed", _came(0)), (3.3, "end", _end(1, 0, 1, 1)), (3.4, "live", _came(1)),
        (3.4, "kv-batch", _batch(1)), (3.9, "asked", {"start": 2, "tag": 2}), (3.9, "end", _end(2, 2, 2, 0)),
        (3.9, "kv-mirror", _holds(2))])


def _proves_nothing(asked_at: float) -> Builder:
    """Of a next life without an epoch an answer has brought batch 1 and not its end. It asks again at this time."""
    return _writes(_without_epochs(1), [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 0}),
        (2.8, "replayed", _came(0, epoch=2)), (2.8, "asked", {"start": 0}), (2.8, "kv-restarted", {"epoch": None}),
        (2.81, "end", {"end": True}), (3.3, "asked", {"start": 0}), (3.3, "replayed", _came(1, epoch=2)),
        (asked_at, "asked", {"start": 0}), (asked_at, "end", {"end": True}), (asked_at, "kv-mirror", _holds(0))])


@accepts("kv-asks-in-time")
def an_answer_without_an_end_proves_nothing_of_a_life_that_nobody_names() -> Builder:
    return _proves_nothing(4.3)


@rejects("kv-asks-in-time")
def it_waits_too_long_behind_an_answer_without_an_end() -> Builder:
    return _proves_nothing(4.4)


def _given_up(came_at: float) -> Builder:
    """Of a publisher without epochs batch 1 comes behind the end of its answer, and another question brings nothing."""
    lost = {"first": 1, "last": 1, "reason": "no answer"}
    lines = [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
             (2.3, "asked", {"start": 0}), (2.3, "kv-gap", {"first": 1, "last": 1}), (2.4, "replayed", _came(0)),
             (came_at, "replayed", _came(1)), (2.41, "end", {"end": True}), (2.42, "asked", {"start": 0}),
             (2.43, "end", {"end": True}), (2.43, "kv-unrecoverable", lost),
             (2.43, "kv-batch", _batch(2)), (2.43, "kv-mirror", _holds(3, 1))]
    return _writes(_without_epochs(3), sorted(lines, key=lambda line: line[0]))


@accepts("kv-tells-what-came")
def what_nobody_waited_for_is_given_up() -> Builder:
    return _given_up(2.415)


@rejects("kv-tells-what-came")
def what_was_waited_for_is_given_up() -> Builder:
    return _given_up(2.405)


def _struck_twice(asked_at: float) -> Builder:
    """Two answers are lost, and it asks again when it has waited, or at this time."""
    h = _born(1).fires("drop", _SITES["end"], nth=1).fires("drop", _SITES["end"], nth=2)
    h.now = 2.0 - TICK_S
    return _writes(h, [(2.0, "asked", {"start": 0, "tag": 1}), (3.0, "asked", {"start": 0, "tag": 2}),
                       (asked_at, "asked", {"start": 0, "tag": 3}), (asked_at, "end", _end(3, 0, 0, 0)),
                       (asked_at, "kv-mirror", _holds(0))])


@accepts("kv-asks-in-time")
def two_losses_are_foreseen() -> Builder:
    return _struck_twice(4.0)


@rejects("kv-asks-in-time")
def it_is_late_and_two_losses_are_no_excuse() -> Builder:
    return _struck_twice(4.1)


@rejects("kv-asks-in-time")
def who_has_answered_by_a_tag_is_asked_without_one() -> Builder:
    return _writes(_born(1), [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)), (2.6, "asked", {"start": 0}),
        (2.6, "end", {"end": True}), (2.6, "kv-mirror", _holds(0))])


def _overtaken(asked_at: float) -> Builder:
    """An answer says that batch 1 is gone, and has overtaken batches 3 and 4, which live passes by at 2.5.

    It asks for the state then, or at this time.
    """
    lost = {"first": 1, "last": 1, "reason": "too old"}
    told: list[Line] = [(2.5, "kv-gap", {"first": 3, "last": 4}), (2.5, "kv-batch", _batch(3, "replay")),
                        (2.5, "kv-batch", _batch(4, "replay")), (2.5, "kv-healed", {"first": 3, "last": 4}),
                        (2.5, "kv-batch", _batch(5))]
    lines: list[Line] = [
        (2.0, "asked", {"start": 0, "tag": 0}), (2.1, "end", _end(0, 0, 0, 0)),
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 1}),
        (2.4, "replayed", _came(3)), (2.4, "replayed", _came(4)), (2.4, "end", _end(1, 1, 5, 2, oldest=3)),
        (2.4, "kv-unrecoverable", lost), (2.4, "kv-batch", _batch(2)), (2.5, "live", _came(5)),
        (asked_at, "asked", {"tag": 2, "snapshot": True}), *told,
        (2.6, "piece", {"tag": 2, "epoch": 1, "next": 6, "piece": 0, "pieces": 1, "known": 1}),
        (2.6, "kv-snapshot", {"next_seq": 6, "blocks": 1}), (2.6, "kv-mirror", _holds(6))]
    return _writes(_born(6), sorted(lines, key=lambda line: line[0]))


@accepts("kv-asks-in-time")
def what_an_answer_has_overtaken_holds_the_next_question_up() -> Builder:
    return _overtaken(2.5)


@rejects("kv-asks-in-time")
def what_an_answer_has_overtaken_has_come_and_it_does_not_ask() -> Builder:
    return _overtaken(2.55)


def _another_answers(told_at: float | None) -> Builder:
    """Behind batch 0 an answer of another life ends at 2.7, and nothing comes live. A restart is told at this time."""
    told: list[Line] = [] if told_at is None else [
        (told_at, "kv-restarted", {"epoch": 2}), (told_at, "asked", {"start": 0, "tag": 3}),
        (told_at, "end", _end(3, 0, 0, 0, epoch=2))]
    return _writes(_born(1), [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)), (2.1, "kv-mirror", _holds(0)),
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 1, "tag": 2}),
        (2.7, "end", _end(2, 1, 0, 0, epoch=2)), *told,
        (3.0, "kv-mirror", _holds(1 if told_at is None else 0)), (3.0, "bye", {"reason": "done"})])


@silent("kv-tells-what-came")
def a_life_that_answers_is_followed_when_live_stayed_silent() -> Builder:
    return _another_answers(2.9)


@rejects("kv-tells-what-came")
def a_life_that_answers_is_followed_while_live_may_still_come() -> Builder:
    return _another_answers(2.8)


@rejects("kv-tells-what-came")
def another_life_answers_and_nothing_is_told() -> Builder:
    return _another_answers(None)


@accepts("kv-asks-in-time")
def what_comes_behind_its_answer_is_no_other_life_yet() -> Builder:
    """Of a publisher without epochs batch 0 comes with another time, and nobody waits for an answer."""
    return _writes(_without_epochs(1), [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 0}),
        (2.71, "end", {"end": True}), (2.8, "replayed", _came(0, epoch=2)), (3.21, "asked", {"start": 0}),
        (3.21, "end", {"end": True}), (3.21, "kv-mirror", _holds(1))])


def _of_a_life_before(asked_at: float) -> Builder:
    """Batch 1 of the life before comes at 2.7, amid the next one."""
    return _writes(_without_epochs(1), [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.4, "live", _came(0, epoch=2)),
        (2.4, "kv-restarted", {"epoch": None}), (2.4, "kv-batch", _batch(0)), (2.5, "live", _came(1, epoch=2)),
        (2.5, "kv-batch", _batch(1)), (2.7, "live", _came(1)), (asked_at, "asked", {"start": 1}),
        (asked_at, "end", {"end": True}), (asked_at, "kv-mirror", _holds(2))])


@accepts("kv-asks-in-time")
def what_comes_late_of_a_life_before_breaks_the_silence() -> Builder:
    return _of_a_life_before(3.2)


@rejects("kv-asks-in-time")
def it_waits_too_long_behind_what_came_late_of_a_life_before() -> Builder:
    return _of_a_life_before(3.3)


@rejects("kv-asks-in-time")
def what_comes_late_without_an_epoch_is_taken() -> Builder:
    """Batch 1 comes behind batch 2, and may be another life's: it is still to be asked for."""
    return _writes(_without_epochs(3), [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)), (2.3, "asked", {"start": 0}),
        (2.3, "kv-gap", {"first": 1, "last": 1}), (2.35, "live", _came(1)), (3.3, "asked", {"start": 0}),
        (3.3, "end", {"end": True}), (3.3, "kv-mirror", _holds(1))])


def _behind_its_publisher(came: Line, asked: Line) -> Builder:
    """Batch 1 is held back and replayed meanwhile; then its publisher ends."""
    h = _writes(_born(2), [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "replayed", _came(0)), (2.1, "replayed", _came(1)),
        (2.1, "end", _end(1, 0, 2, 2)), (2.1, "kv-gap", {"first": 0, "last": 1}),
        (2.1, "kv-batch", _batch(0, "replay")), (2.1, "kv-batch", _batch(1, "replay")),
        (2.1, "kv-healed", {"first": 0, "last": 1}), (2.1, "kv-mirror", _holds(2))])
    h.now = 2.2 - TICK_S
    h.observes(CORE, "bye", reason="SIGTERM")
    return _writes(h, [came, asked, (asked[0], "kv-mirror", _holds(2))])


@accepts("kv-asks-in-time")
def it_asks_at_once_when_a_batch_comes_behind_the_end_of_its_publisher() -> Builder:
    return _behind_its_publisher((2.3, "live", _came(1)), (2.3, "asked", {"start": 2, "tag": 2}))


@rejects("kv-asks-in-time")
def it_asks_at_once_when_a_batch_comes_before_the_end_of_its_publisher() -> Builder:
    return _behind_its_publisher((2.15, "live", _came(1)), (2.3, "asked", {"start": 2, "tag": 2}))


def _state_in_pieces(*pieces: int) -> Builder:
    """Batch 1 is lost for good, and these pieces of the state before batch 3 come, of two. Batch 3 is told late."""
    told: list[Line] = [(2.42, "kv-snapshot", {"next_seq": 3, "blocks": 1})] if len(pieces) == 2 else []
    return _writes(_born(4), [
        (2.0, "asked", {"start": 0, "tag": 1}), (2.1, "end", _end(1, 0, 0, 0)), (2.1, "kv-mirror", _holds(0)),
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 2}), (2.3, "kv-gap", {"first": 1, "last": 1}), (2.4, "replayed", _came(2)),
        (2.4, "end", _end(2, 1, 3, 1, oldest=2)),
        (2.4, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "too old"}), (2.4, "kv-batch", _batch(2)),
        (2.4, "asked", {"tag": 3, "snapshot": True}),
        *((2.41, "piece", {"tag": 3, "epoch": 1, "next": 3, "piece": piece, "pieces": 2, "known": 1})
          for piece in pieces),
        *told, (2.45, "live", _came(3)), (2.7, "kv-batch", _batch(3)),
        (2.7, "kv-mirror", _holds(4) if told else _holds(4, 1))])


@accepts("kv-tells-what-came")
def a_batch_waits_for_the_rest_of_a_state() -> Builder:
    return _state_in_pieces(0)


@rejects("kv-tells-what-came")
def a_batch_waits_behind_a_state_that_has_come() -> Builder:
    return _state_in_pieces(0, 1)

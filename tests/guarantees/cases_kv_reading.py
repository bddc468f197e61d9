"""Histories about what reaches a subscriber, what it asks and what it tells, to the moment. A silence lasts 0.5 s.

Each is the same story with a line changed: batch 1 does not come live, is asked for when batch 2 comes, and
replayed.
"""

from __future__ import annotations

from typing import Any

from engine.config import KVEventsConfig
from scenarios.history.play import Options
from tests.guarantees.build import TICK_S, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent

KV, ANSWERS, QUESTIONS = "core.0->subscriber.0/kv", "core.0->subscriber.0/replay", "subscriber.0->core.0/replay"
SUBSCRIBER = "subscriber.0"
_SITES = {"live": f"{KV}:receive", "replayed": f"{ANSWERS}:receive", "end": f"{ANSWERS}:receive",
          "piece": f"{ANSWERS}:receive", "asked": f"{QUESTIONS}:send"}
Line = tuple[float, str, dict[str, Any]]


def _end(tag: int, start: int, upto: int, count: int, epoch: int = 1, oldest: int = 0) -> dict[str, Any]:
    return {"end": True, "tag": tag, "start": start, "epoch": epoch, "oldest": oldest, "next": upto, "count": count}


def _batch(seq: int, source: str = "live") -> dict[str, Any]:
    return {"seq": seq, "source": source, "rank": 0}


def _came(seq: int, epoch: int = 1) -> dict[str, Any]:
    return {"seq": seq, "epoch": epoch}


def _holds(upto: int, unknown_since: int | None = None) -> dict[str, Any]:
    return {"hashes": [1], "next_seq": upto, "unknown_since": unknown_since, "errors": []}


STORY: dict[str, Line] = {
    "first question": (2.0, "asked", {"start": 0, "tag": 1}),
    "first end": (2.1, "end", _end(1, 0, 0, 0)),
    "empty": (2.1, "kv-mirror", _holds(0)),
    "live 0": (2.2, "live", _came(0)),
    "takes 0": (2.2, "kv-batch", _batch(0)),
    "live 2": (2.3, "live", _came(2)),
    "question": (2.3, "asked", {"start": 1, "tag": 2}),
    "gap": (2.3, "kv-gap", {"first": 1, "last": 1}),
    "replayed 1": (2.31, "replayed", _came(1)),
    "replayed 2": (2.31, "replayed", _came(2)),
    "end": (2.31, "end", _end(2, 1, 3, 2)),
    "takes 1": (2.31, "kv-batch", _batch(1, "replay")),
    "healed": (2.31, "kv-healed", {"first": 1, "last": 1}),
    "takes 2": (2.31, "kv-batch", _batch(2)),
    "holds": (2.31, "kv-mirror", _holds(3)),
    "poll": (2.81, "asked", {"start": 3, "tag": 3}),
    "last end": (2.82, "end", _end(3, 3, 3, 0)),
    "at last": (2.82, "kv-mirror", _holds(3)),
    "bye": (2.82, "bye", {"reason": "done"}),
}


def _story(*without: str, world: str = "sim", **changed: Line | None) -> Builder:
    """The story without these lines; `changed` are others in their places, or before "bye" where they are new."""
    changes = {name.replace("_", " "): line for name, line in changed.items()}
    new = {name: line for name, line in changes.items() if name not in STORY}
    h = history(world, subscribers=1).started()
    for seq in range(3):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    h.now = 2.0 - TICK_S
    h.observes(SUBSCRIBER, "born", pid=9)
    lines = [changes.get(name, line) for name, line in STORY.items() if name not in (*without, "bye")]
    ending = [changes.get("bye", STORY["bye"])] if "bye" not in without else []
    return _writes(h, [*lines, *new.values(), *ending])  # type: ignore[list-item]


def _writes(h: Builder, lines: list[Line]) -> Builder:
    for at, what, data in lines:
        h.now = at - TICK_S
        if what in _SITES:
            h.crosses(_SITES[what], **data)
        else:
            h.observes(SUBSCRIBER, what, **data)
    return h


@accepts("kv-asks-in-time", "kv-tells-what-came")
def a_batch_is_missed_asked_for_and_replayed() -> Builder:
    return _story()


@silent("kv-tells-what-came")
def nothing_was_missing() -> Builder:
    return _story("gap", "healed", "question", "replayed 1", "replayed 2", "end", "live 2", "takes 1", "takes 2",
                  "holds", "poll", "last end", at_last=(2.7, "kv-mirror", _holds(1)),
                  bye=(2.7, "bye", {"reason": "done"}))


@silent("kv-asks-in-time")
def there_is_nobody_to_ask() -> Builder:
    events = KVEventsConfig(enable_kv_cache_events=True, replay=False)
    return history(subscribers=1, kv_events=events).started().observes(SUBSCRIBER, "born", pid=9)


@outside("kv-asks-in-time", "kv-tells-what-came")
def a_batch_is_damaged_and_can_be_read() -> Builder:
    return _story().fires("corrupt", f"{KV}:receive")


# -- what it asks ---------------------------------------------------------------------------------------------


@rejects("kv-asks-in-time")
def it_does_not_ask_at_once() -> Builder:
    return _story(question=(2.305, "asked", {"start": 1, "tag": 2}))


@rejects("kv-asks-in-time")
def it_asks_from_a_batch_that_it_has() -> Builder:
    return _story(question=(2.3, "asked", {"start": 0, "tag": 2}))


def _plain_answer(*seqs: int, again_at: float) -> Builder:
    """Of a publisher without epochs batch 0 has come live, and an answer brings these; then it asks again."""
    h = history(subscribers=1).started().promised(options=Options(without_epochs=True))
    h.observes("core.0", "kv-published", seq=0, took=.0001).now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.7, "asked", {"start": 0}),
                       *((2.7, "replayed", _came(seq)) for seq in seqs), (2.7, "end", {"end": True}),
                       (again_at, "asked", {"start": 0}), (again_at, "end", {"end": True})])


@accepts("kv-asks-in-time")
def it_asks_in_silence_behind_an_answer_that_holds_nothing_known() -> Builder:
    return _plain_answer(2, 3, again_at=3.2)


@accepts("kv-asks-in-time")
def it_asks_when_an_answer_of_known_batches_has_overtaken_no_live_one() -> Builder:
    return _plain_answer(0, 2, again_at=2.9)


@rejects("kv-asks-in-time")
def it_waits_for_silence_behind_an_answer_that_holds_what_is_known() -> Builder:
    return _plain_answer(0, 2, again_at=3.2)


@rejects("kv-asks-in-time")
def it_leaves_out_what_is_missing() -> Builder:
    return _story(question=(2.3, "asked", {"start": 2, "tag": 2}))


@rejects("kv-asks-in-time")
def it_uses_a_tag_twice() -> Builder:
    return _story(question=(2.3, "asked", {"start": 1, "tag": 1}), end=(2.31, "end", _end(1, 1, 3, 2)))


@rejects("kv-asks-in-time")
def it_asks_again_while_it_is_answered() -> Builder:
    return _story(replayed_2=(2.305, "asked", {"start": 1, "tag": 3}), end=(2.31, "end", _end(3, 1, 3, 1)),
                  poll=(2.81, "asked", {"start": 3, "tag": 4}), last_end=(2.82, "end", _end(4, 3, 3, 0)))


@rejects("kv-asks-in-time")
def it_asks_before_there_was_silence() -> Builder:
    return _story(poll=(2.6, "asked", {"start": 3, "tag": 3}))


@rejects("kv-asks-in-time")
def it_does_not_ask_in_silence() -> Builder:
    return _story("last end", poll=(3.0, "kv-mirror", _holds(3)), at_last=(3.0, "kv-mirror", _holds(3)),
                  bye=(3.0, "bye", {"reason": "done"}))


@rejects("kv-asks-in-time")
def it_asks_late_in_silence() -> Builder:
    return _story(poll=(2.815, "asked", {"start": 3, "tag": 3}))


@rejects("kv-asks-in-time")
def it_asks_for_a_snapshot_where_nothing_is_lost() -> Builder:
    return _story(poll=(2.81, "asked", {"tag": 3, "snapshot": True}))


def _unanswered(again_at: float) -> Builder:
    return _story("replayed 1", "replayed 2", "end", "takes 1", "healed", "takes 2", "holds", "last end", "at last",
                  poll=(again_at, "asked", {"start": 1, "tag": 3}), bye=(again_at, "kv-mirror", _holds(1)))


@accepts("kv-asks-in-time")
def it_asks_again_when_nothing_came() -> Builder:
    return _unanswered(2.8)


@rejects("kv-asks-in-time")
def it_does_not_wait_for_an_answer() -> Builder:
    return _unanswered(2.7)


@rejects("kv-asks-in-time")
def it_waits_for_an_answer_for_too_long() -> Builder:
    return _unanswered(2.9)


def _breaks_off(asked_at: float) -> Builder:
    """A real answer brings what is missing and never ends; then a live batch comes, and silence begins behind that."""
    return _story("end", "holds", world="engine", poll=(2.9, "live", _came(3)), last_end=(2.9, "kv-batch", _batch(3)),
                  at_last=(asked_at, "asked", {"start": 4, "tag": 3}), ended=(asked_at, "end", _end(3, 4, 4, 0)),
                  bye=(asked_at, "kv-mirror", _holds(4)))


@accepts("kv-asks-in-time")
def a_real_answer_breaks_off_and_live_goes_on() -> Builder:
    return _breaks_off(3.4)


@rejects("kv-asks-in-time")
def it_does_not_ask_behind_a_real_answer_that_broke_off() -> Builder:
    return _breaks_off(3.6)


@rejects("kv-asks-in-time")
def it_asks_a_fourth_time() -> Builder:
    asked = {f"again {n}": (2.8 + n / 2, "asked", {"start": 1, "tag": 4 + n}) for n in range(3)}
    return _story("replayed 1", "replayed 2", "end", "takes 1", "healed", "takes 2", "holds", "last end", "at last",
                  "poll", **asked, bye=(4.0, "kv-mirror", _holds(1)))


def _too_old(question: dict[str, Any], *without: str) -> Builder:
    """The window begins at batch 2: batch 1 is given up, and the question after that is this one."""
    return _story("replayed 1", "healed", *without, end=(2.31, "end", _end(2, 1, 3, 1, oldest=2)),
                  takes_1=(2.31, "asked", question), takes_2=(2.31, "kv-unrecoverable", {
                      "first": 1, "last": 1, "reason": "older than the publisher's replay window"}),
                  holds=(2.31, "kv-batch", _batch(2)), poll=(2.33, "piece", {
                      "tag": 3, "epoch": 1, "next": 3, "piece": 0, "pieces": 1, "known": 1}),
                  last_end=(2.33, "kv-snapshot", {"next_seq": 3, "blocks": 1}),
                  at_last=(2.33, "kv-mirror", _holds(3)), bye=(2.33, "bye", {"reason": "done"}))


@accepts("kv-asks-in-time", "kv-tells-what-came")
def it_asks_for_a_snapshot_after_a_loss_for_good() -> Builder:
    return _too_old({"tag": 3, "snapshot": True})


@rejects("kv-asks-in-time")
def it_asks_for_a_snapshot_again_that_has_come() -> Builder:
    h = _too_old({"tag": 3, "snapshot": True})
    return h.crosses(_SITES["asked"], tag=4, snapshot=True)


@rejects("kv-tells-what-came")
def it_takes_a_state_that_nobody_told() -> Builder:
    return _story(state=(2.82, "kv-snapshot", {"next_seq": 3, "blocks": 1}), mirror=(2.82, "kv-mirror", _holds(3)))


@rejects("kv-tells-what-came")
def it_takes_a_state_that_it_had_given_up() -> Builder:
    """The piece answers another question than the one under way."""
    h = _story("bye")
    h.crosses(_SITES["asked"], tag=4, snapshot=True).crosses(
        _SITES["piece"], tag=3, epoch=1, next=3, piece=0, pieces=1, known=1)
    return h.observes(SUBSCRIBER, "kv-snapshot", next_seq=3, blocks=1).observes(SUBSCRIBER, "kv-mirror", **_holds(3))


def _state_after(seconds: float, *, held: bool) -> Builder:
    """It asks for the state, which it is told so much later; its own thread may stand still in between."""
    h, site = _story("bye"), _SITES["piece"]
    h.crosses(_SITES["asked"], tag=4, snapshot=True)
    piece = {"tag": 4, "epoch": 1, "next": 3, "piece": 0, "pieces": 1, "known": 1}
    if held:
        h.crosses(site, **piece, fate="hang", fault="f1").fires(
            "hang", site, node=SUBSCRIBER, nth=1 + sum(_SITES.get(what) == site for _, what, _ in STORY.values()))
        h.wait(seconds).releases()
    else:
        h.wait(seconds).crosses(site, **piece)
    h.crosses(_SITES["asked"], tag=5, start=3)
    return h.observes(SUBSCRIBER, "kv-snapshot", next_seq=3, blocks=1).observes(SUBSCRIBER, "kv-mirror", **_holds(3))


@accepts("kv-tells-what-came")
def it_stood_still_when_the_state_came() -> Builder:
    return _state_after(6.0, held=True)


@rejects("kv-tells-what-came")
def it_takes_a_state_for_which_it_waited_no_longer() -> Builder:
    return _state_after(6.0, held=False)


@rejects("kv-asks-in-time")
def it_asks_again_for_what_is_gone() -> Builder:
    return _too_old({"tag": 3, "start": 1})


def _lost_and(**clears: bool) -> Builder:
    """Batch 1 is given up, batch 2 behind it is the last one, and nothing is asked but in silence."""
    return _story("replayed 1", "healed", live_2=(2.3, "live", {**_came(2), **clears}),
                  replayed_2=(2.31, "replayed", {**_came(2), **clears}), end=(2.31, "end", _end(2, 1, 3, 1, oldest=2)),
                  takes_1=(2.31, "kv-unrecoverable", {
                      "first": 1, "last": 1, "reason": "older than the publisher's replay window"}))


@rejects("kv-asks-in-time")
def it_asks_for_a_snapshot_of_what_was_lost_before_the_cache_was_cleared() -> Builder:
    return _lost_and(clears=True).crosses(_SITES["asked"], tag=4, snapshot=True)


@accepts("kv-asks-in-time")
def what_was_lost_before_the_cache_was_cleared_is_missed_no_more() -> Builder:
    return _lost_and(clears=True)


@rejects("kv-asks-in-time")
def it_lost_something_for_good_and_asks_for_no_snapshot() -> Builder:
    return _lost_and()


# -- what it tells --------------------------------------------------------------------------------------------


@rejects("kv-tells-what-came")
def it_tells_of_a_batch_that_has_not_come() -> Builder:
    return _story("replayed 1", end=(2.31, "end", _end(2, 1, 3, 1)))


def _comes_both_ways(world: str) -> Builder:
    """Batch 1 is replayed, and comes live after all before it is its turn."""
    return _story(world=world, replayed_2=(2.31, "live", _came(1)), takes_1=(2.31, "kv-batch", _batch(1)))


@accepts("kv-tells-what-came")
def a_real_reader_may_take_either_of_two_that_came() -> Builder:
    return _comes_both_ways("engine")


@rejects("kv-tells-what-came")
def in_the_twin_the_first_one_counts() -> Builder:
    return _comes_both_ways("sim")


@rejects("kv-tells-what-came")
def it_says_of_a_replayed_batch_that_it_came_live() -> Builder:
    return _story(takes_1=(2.31, "kv-batch", _batch(1, "live")))


@rejects("kv-tells-what-came")
def it_holds_a_batch_back() -> Builder:
    return _story(takes_0=(2.25, "kv-batch", _batch(0)))


@rejects("kv-tells-what-came")
def it_never_tells_of_a_batch_that_it_has() -> Builder:
    return _story("takes 2", "holds", at_last=(3.9, "kv-mirror", _holds(2)), bye=(3.9, "bye", {"reason": "done"}))


@rejects("kv-tells-what-came")
def it_takes_a_replayed_batch_that_may_still_come_live() -> Builder:
    return _story("gap", "healed")


@rejects("kv-tells-what-came")
def it_tells_a_gap_late() -> Builder:
    return _story(gap=(2.305, "kv-gap", {"first": 1, "last": 1}))


@rejects("kv-tells-what-came")
def it_tells_a_gap_that_is_too_wide() -> Builder:
    return _story(gap=(2.3, "kv-gap", {"first": 0, "last": 1}))


@rejects("kv-tells-what-came")
def it_tells_as_missing_what_an_answer_has_only_overtaken() -> Builder:
    return _story("live 2", "question", "gap", "replayed 1", "replayed 2", "takes 1", "healed", "takes 2", "holds",
                  "poll", "last end", end=(2.8, "asked", {"start": 1, "tag": 2}), came=(2.81, "end", _end(2, 1, 2, 0)),
                  early=(2.9, "kv-gap", {"first": 1, "last": 1}), at_last=(2.9, "kv-mirror", _holds(1)))


@rejects("kv-tells-what-came")
def it_never_says_that_a_gap_is_healed() -> Builder:
    return _story("healed")


@rejects("kv-tells-what-came")
def it_says_too_early_that_a_gap_is_healed() -> Builder:
    return _story(takes_1=STORY["healed"], healed=STORY["takes 1"])


@rejects("kv-tells-what-came")
def it_gives_up_a_batch_that_was_never_asked_for_in_vain() -> Builder:
    return _story("replayed 1", "takes 1", end=(2.31, "end", _end(2, 1, 3, 2)), healed=(2.31, "kv-unrecoverable", {
        "first": 1, "last": 1, "reason": "why not"}), holds=(2.31, "kv-mirror", _holds(3, 1)),
        at_last=(2.82, "kv-mirror", _holds(3, 1)))


@rejects("kv-tells-what-came")
def it_says_that_nothing_is_healed() -> Builder:
    return _story(again=(2.82, "kv-healed", {"first": 3, "last": 2}), mirror=(2.82, "kv-mirror", _holds(3)))


def _halves(in_vain: int) -> Builder:
    """Batches 1 and 2 are missing. The second answer brings the first of them, so many behind it nothing more."""
    h = history(subscribers=1).started()
    for seq in range(4):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    lines: list[Line] = [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(3)),
                         (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 2}),
                         (2.4, "replayed", _came(3)), (2.4, "end", _end(1, 1, 4, 3)),
                         (2.4, "asked", {"start": 1, "tag": 2}), (2.5, "replayed", _came(1)),
                         (2.5, "replayed", _came(3)), (2.5, "end", _end(2, 1, 4, 3)),
                         (2.5, "asked", {"start": 2, "tag": 3}), (2.5, "kv-batch", _batch(1, "replay"))]
    for n in range(in_vain):
        at, tag = 2.6 + n / 10, 3 + n
        lines += [(at, "replayed", _came(3)), (at, "end", _end(tag, 2, 4, 2))]
        if n + 1 < in_vain:
            lines.append((at, "asked", {"start": 2, "tag": tag + 1}))
    lines += [(at, "kv-healed", {"first": 1, "last": 1}), (at, "kv-unrecoverable", {
        "first": 2, "last": 2, "reason": "replay does not bring it"}), (at, "kv-batch", _batch(3)),
        (at, "kv-mirror", _holds(4, 2)), (at, "bye", {"reason": "done"})]
    return _writes(h, lines)


@accepts("kv-tells-what-came")
def it_gives_up_what_three_answers_did_not_bring() -> Builder:
    return _halves(3)


@rejects("kv-tells-what-came")
def it_counts_answers_that_brought_something() -> Builder:
    return _halves(2)


@rejects("kv-tells-what-came")
def it_gives_up_a_batch_that_came() -> Builder:
    return _story("takes 1", healed=(2.31, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "lost"}),
                  holds=(2.31, "kv-mirror", _holds(3, 1)), at_last=(2.82, "kv-mirror", _holds(3, 1)))


@rejects("kv-tells-what-came")
def its_mirror_forgets_a_loss() -> Builder:
    return _story("replayed 1", "takes 1", end=(2.31, "end", _end(2, 1, 3, 1, oldest=2)),
                  healed=(2.31, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "too old"}))


@rejects("kv-tells-what-came")
def its_mirror_is_behind() -> Builder:
    return _story(holds=(2.31, "kv-mirror", _holds(2)))


@rejects("kv-tells-what-came")
def it_does_not_say_what_it_mirrors_when_nothing_is_missing() -> Builder:
    return _story("holds")


@rejects("kv-tells-what-came")
def it_leaves_without_a_word_of_its_mirror() -> Builder:
    return _story("at last")


@rejects("kv-tells-what-came")
def it_tells_of_a_restart_that_it_has_not_heard_of() -> Builder:
    return _story(restart=(2.82, "kv-restarted", {"epoch": 2}))


@rejects("kv-tells-what-came")
def it_doubts_a_publisher_that_says_which_life_it_is() -> Builder:
    return _story(doubt=(2.82, "kv-unverified", {"next_seq": 3, "reason": "it was gone"}))


@rejects("kv-tells-what-came")
def it_stays_after_sigterm() -> Builder:
    h = _story("bye").fires("terminate", f"{KV}:receive", node=SUBSCRIBER)
    return h.wait(1.0).observes(SUBSCRIBER, "kv-mirror", **_holds(3)).observes(SUBSCRIBER, "bye", reason="done")


def _leaves_for_another_reason(seconds: float) -> Builder:
    """So long after it was sent SIGTERM."""
    h = _story("bye", "at last").fires("terminate", f"{KV}:receive", node=SUBSCRIBER)
    h.wait(seconds - 2 * TICK_S)  # each record takes one
    return h.observes(SUBSCRIBER, "kv-mirror", **_holds(3)).observes(SUBSCRIBER, "bye", reason="done")


@rejects("kv-tells-what-came")
def it_was_sent_sigterm_and_left_for_another_reason() -> Builder:
    return _leaves_for_another_reason(.001)


@accepts("kv-tells-what-came")
def who_is_about_to_leave_may_be_gone_before_it_hears_of_sigterm() -> Builder:
    return _leaves_for_another_reason(.0005)


@rejects("kv-tells-what-came")
def it_believes_who_was_gone_and_may_be_another() -> Builder:
    h = history(subscribers=1).started().observes("core.0", "kv-published", seq=0, took=.0001)
    h.promised(options=Options(without_epochs=True)).observes(SUBSCRIBER, "born", pid=9)
    h.observes("core.0", "kv-published", seq=1, took=.0001)
    for seq in range(2):
        h.crosses(_SITES["live"], **_came(seq)).observes(SUBSCRIBER, "kv-batch", **_batch(seq))
        if not seq:
            h.fires("cut", f"{KV}:wire")
    return h.observes(SUBSCRIBER, "kv-mirror", **_holds(2))


def _nobody_is_there_to_ask(*said: str) -> Builder:
    """A publisher without epochs was gone and is back, and there is no replay socket."""
    events = KVEventsConfig(enable_kv_cache_events=True, replay=False)
    h = history(subscribers=1, kv_events=events).started().promised(options=Options(without_epochs=True))
    h.observes("core.0", "kv-published", seq=0, took=.0001).observes("core.0", "kv-published", seq=1, took=.0001)
    h.observes(SUBSCRIBER, "born", pid=9)
    _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0))])
    h.fires("cut", f"{KV}:wire")
    told = {"next_seq": 1, "reason": "it was gone"}
    return _writes(h, [(2.3, "live", _came(1)), *((2.3, site, told) for site in said), (2.3, "kv-batch", _batch(1)),
                       (2.3, "kv-mirror", _holds(2, 1 if said else None))])


@accepts("kv-tells-what-came")
def it_does_not_believe_who_was_gone_and_cannot_be_asked() -> Builder:
    return _nobody_is_there_to_ask("kv-unverified")


@rejects("kv-tells-what-came")
def it_believes_who_was_gone_and_cannot_be_asked() -> Builder:
    return _nobody_is_there_to_ask()


@rejects("kv-tells-what-came")
def it_does_not_give_up_what_nobody_can_be_asked_for() -> Builder:
    events = KVEventsConfig(enable_kv_cache_events=True, replay=False)
    h = history(subscribers=1, kv_events=events).started().observes("core.0", "kv-published", seq=0, took=.0001)
    h.observes("core.0", "kv-published", seq=1, took=.0001).observes(SUBSCRIBER, "born", pid=9)
    h.crosses(_SITES["live"], **_came(1))
    h.now -= TICK_S
    h.observes(SUBSCRIBER, "kv-gap", first=0, last=0)
    return h.observes(SUBSCRIBER, "kv-mirror", **_holds(0))


def _noise(dropped: int) -> Builder:
    h = history(subscribers=1).started()
    h.observes(SUBSCRIBER, "malformed", edge="replay").observes(SUBSCRIBER, "malformed", edge="replay")
    for _ in range(dropped):
        h.observes(SUBSCRIBER, "bad-frame", edge="replay", error="none")
    return h.request("a", tokens=[[1], [2, 3]]).observes(SUBSCRIBER, "bye", reason="done")


@accepts("bad-frame-isolated")
def each_message_that_is_none_is_told_once() -> Builder:
    return _noise(2)


@rejects("bad-frame-isolated")
def a_message_that_is_none_is_passed_over_in_silence() -> Builder:
    return _noise(1)


@rejects("bad-frame-isolated")
def a_good_message_is_told_as_none() -> Builder:
    return _noise(3)


def _restarts_with(*lines: Line) -> Builder:
    """Batch 1 is missing, and nobody answers; the first batch of the next life comes, and these are told."""
    h = history(subscribers=1).started()
    for seq in range(3):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
                       (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 1}),
                       (2.4, "live", _came(0, epoch=2)), *lines, (2.4, "kv-restarted", {"epoch": 2}),
                       (2.4, "kv-batch", _batch(0)), (2.4, "kv-mirror", _holds(1))])


_GIVEN_UP: Line = 2.4, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "the publisher restarted"}


@accepts("kv-tells-what-came")
def a_life_is_closed_before_the_next_one_is_told() -> Builder:
    return _restarts_with(_GIVEN_UP, (2.4, "kv-batch", _batch(2)))


@rejects("kv-tells-what-came")
def what_was_held_back_of_a_life_is_forgotten_at_the_next_one() -> Builder:
    return _restarts_with(_GIVEN_UP)


@rejects("kv-tells-what-came")
def a_gap_of_a_life_is_left_open_at_the_next_one() -> Builder:
    return _restarts_with()


def _rumour(told_at: float) -> Builder:
    """An answer tells of batch 3, which never comes live."""
    return _story("poll", "last end", end=(2.31, "end", _end(2, 1, 4, 2)), holds=(told_at, "kv-gap", {
        "first": 3, "last": 3}), at_last=(told_at + .001, "asked", {"start": 3, "tag": 3}),
        bye=(told_at + .002, "kv-mirror", _holds(3)))


@accepts("kv-tells-what-came")
def what_an_answer_told_of_is_missing_when_live_stayed_empty() -> Builder:
    return _rumour(2.51)


@rejects("kv-tells-what-came")
def what_an_answer_told_of_is_not_said_to_be_missing() -> Builder:
    return _story("holds", "last end", end=(2.31, "end", _end(2, 1, 4, 2)),
                  poll=(2.81, "asked", {"start": 3, "tag": 3}))


def _breaks_off_and_is_silent(silences: int) -> Builder:
    """An answer brings batch 2, which was known, and never ends; so many questions behind it are not answered."""
    h = history(subscribers=1).started()
    for seq in range(3):
        h.observes("core.0", "kv-published", seq=seq, took=.0001)
    h.now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    given_up_at = 2.81 + silences / 2
    return _writes(h, [
        (2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), (2.3, "live", _came(2)),
        (2.3, "asked", {"start": 1, "tag": 1}), (2.3, "kv-gap", {"first": 1, "last": 1}), (2.31, "replayed", _came(2)),
        *((2.81 + n / 2, "asked", {"start": 1, "tag": 2 + n}) for n in range(silences)),
        (given_up_at, "kv-unrecoverable", {"first": 1, "last": 1, "reason": "no answer"}),
        (given_up_at, "kv-batch", _batch(2)), (given_up_at, "kv-mirror", _holds(3, 1))])


@accepts("kv-tells-what-came")
def an_answer_that_never_ends_is_a_silence_too() -> Builder:
    return _breaks_off_and_is_silent(2)


@rejects("kv-tells-what-came")
def it_gives_up_after_two_silences() -> Builder:
    return _breaks_off_and_is_silent(1)


@rejects("kv-tells-what-came")
def it_does_not_tell_the_state_that_it_asked_for() -> Builder:
    return _too_old({"tag": 3, "snapshot": True}, "last end")


def _strange_answers(*said: Line) -> Builder:
    """Of a publisher without epochs three answers hold nothing that was heard."""
    h = history(subscribers=1).started().promised(options=Options(without_epochs=True))
    h.observes("core.0", "kv-published", seq=0, took=.0001).now = 2.0
    h.observes(SUBSCRIBER, "born", pid=9)
    answers = [line for n in range(3) for line in (
        (2.7 + n / 2, "asked", {"start": 0}), (2.7 + n / 2, "replayed", _came(5)), (2.7 + n / 2, "end", {"end": True}))]
    return _writes(h, [(2.2, "live", _came(0)), (2.2, "kv-batch", _batch(0)), *answers, *said,
                       (4.2, "asked", {"start": 0}), (4.2, "kv-mirror", _holds(1, 1 if said else None))])


@silent("kv-tells-what-came")
def three_answers_that_hold_nothing_known_leave_it_open_whose_they_are() -> Builder:
    return _strange_answers((3.7, "kv-unverified", {"next_seq": 1, "reason": "its answers hold nothing that is known"}))


@rejects("kv-tells-what-came")
def three_answers_that_hold_nothing_known_are_passed_over() -> Builder:
    return _strange_answers()

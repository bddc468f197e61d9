"""Of whoever follows KV events."""

from __future__ import annotations

from tests.mutation.equivalent.base import Equivalent

_ROOM = "engine/kv_events/subscriber/"
_NOT_NEW = "whoever asks looks only whether it is a new life"
_INSTANT = "they differ in one instant of a clock, and in the next one it is asked again"
_ORDER = "of this count only the order matters, and it still grows with each"
_APPLIED = "a batch that was applied is neither seen, held nor asked for anew, whichever of the two it is called"
_SAME_AS_LAST = "number == last[0] and ts == last[1]"

SUBSCRIBER: tuple[Equivalent, ...] = (
    Equivalent(_ROOM + "follower.py", "KVEventFollower.on_live", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "follower.py", "KVEventFollower.on_replay", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "question.py", "Questions.ended", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "question.py", "Questions._new_tag", "off-by-one", "1", _ORDER),
    Equivalent(_ROOM + "order.py", "BatchOrder.__init__", "off-by-one", "0", _ORDER),
    Equivalent(_ROOM + "follower.py", "KVEventFollower._is_followed", "statement-gone", "return False",
               "whoever asks looks only whether it is true, and None is not"),
    Equivalent(_ROOM + "follower.py", "KVEventFollower.on_time", "off-by-one", "now >= self._ended.quiet_at", _INSTANT),
    Equivalent(_ROOM + "question.py", "Questions.is_due", "off-by-one", "now >= self._poll_at", _INSTANT),
    Equivalent(_ROOM + "question.py", "Questions.unanswered", "off-by-one", "now < asked.deadline", _INSTANT),
    Equivalent(_ROOM + "follow.py", "feed", "off-by-one", "1",
               "a mirror takes the larger one of its own next number and this one, which is smaller", "2"),
    Equivalent(_ROOM + "answer.py", "AnswerJudge._judge_progress", "statement-gone", "order.failed = 0",
               "whatever moved the next number since it was asked set it to 0, and no other question failed meanwhile",
               behind="elif order.next > asked.next:\n            "),
    Equivalent(_ROOM + "order.py", "BatchOrder.drop_from", "off-by-one", "0",
               "what is doubted comes behind what is known, so its number is above 0, and counts already", "1"),
    Equivalent(_ROOM + "without_epochs.py", "PlainPublisher.begin", "statement-gone", "self._doubt()",
               "of a new life nothing is doubted, and its order has begun just before, and trusts all of it"),
    Equivalent(_ROOM + "without_epochs.py", "PlainPublisher.on_answered", "statement-gone", "asked.waiting.clear()",
               "what waits is taken of an answer that is ours, or at its end where it is not late: this one is late"),
    Equivalent(_ROOM + "snapshot.py", "Fetching.due", "off-by-one", "now >= self.at", _INSTANT),
    Equivalent(_ROOM + "snapshot.py", "Fetching.__init__", "statement-gone", "self.forget()",
               "the order that it belongs to forgets it as it begins"),
    Equivalent(_ROOM + "lives.py", "Lineage.see", "off-by-one", "number > self._top[0]",
               "a batch of the same number and another time is of another life, and never comes here"),
    *(Equivalent(_ROOM + "lives.py", "Lineage.live", "condition-turned", text, _APPLIED)
      for text in (_SAME_AS_LAST, *_SAME_AS_LAST.split(" and "))),
    Equivalent(_ROOM + "lives.py", "Lineage.live", "statement-gone",
               f"return Origin.SAME if {_SAME_AS_LAST} else Origin.LATE", _APPLIED),
    Equivalent(_ROOM + "lives.py", "Lineage.live", "off-by-one", "0", _APPLIED,
               behind="Origin.SAME if number == last["),
    Equivalent(_ROOM + "follower.py", "KVEventFollower._on_piece", "statement-gone", "self.questions.drop()",
               "whoever asks next drops a question for a state that is not under way any more"),
    Equivalent(_ROOM + "without_epochs.py", "PlainPublisher.on_answered", "statement-gone", "return Origin.SAME",
               _NOT_NEW),
    Equivalent(_ROOM + "without_epochs.py", "PlainPublisher.on_answered", "statement-gone", "return Origin.LATE",
               _NOT_NEW),
    Equivalent(_ROOM + "without_epochs.py", "PlainPublisher.on_end", "statement-gone", "return Origin.SAME",
               _NOT_NEW),
    Equivalent(_ROOM + "life.py", "subscriber_life", "effects-swapped",
               'yield Observe("bye", {"reason": reason})\n    yield Put(ENDINGS, None)',
               "neither waits, and who takes the second one only ends"),
    Equivalent(_ROOM + "reading.py", "Reading.__init__", "statement-gone", "self._found = False",
               "it is read in a turn alone, and each turn begins by saying so itself"),
    Equivalent(_ROOM + "order.py", "BatchOrder.begin", "statement-gone", "self._held.clear()",
               "before another life begins the one before is let out, lost or dropped up to its last number"),
    Equivalent(_ROOM + "order.py", "BatchOrder.lose_holes", "statement-gone", "self.apply()",
               "whatever could be let out was: who brings, trusts or tells of batches does so before anything is lost",
               behind="upto = min(upto, self.wire)\n        "),
    Equivalent(_ROOM + "order.py", "BatchOrder.lose_holes", "off-by-one", "ends[-1] < self.next",
               "one that is next and still waits ends the loop above it, so none of them is the next number"),
    Equivalent(_ROOM + "follower.py", "KVEventFollower._restart", "off-by-one", "self.next < self.wire",
               "where nothing is missing below the wire, losing what is missing below it loses nothing"),
    Equivalent(_ROOM + "life.py", "_leave_with_the_parent", "sent-twice", 'yield Put(ENDINGS, "the parent is gone")',
               "who waits for an ending takes all that there are at once, and then waits no more"),
    Equivalent(_ROOM + "life.py", "subscriber_life", "sent-twice", "yield Put(ENDINGS, None)",
               "who waits for an ending takes all that there are at once, and then waits no more"),
)

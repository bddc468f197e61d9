"""What a follower asks the replay socket, in whose words, and how long it waits. Pure.

Promises
- One question is under way at a time. Silence of the live socket for `poll_s` makes the next one due.
- An answer counts as lost when nothing of it came for `answer_s`; after `tries` of these in a row nobody is expected
  to answer, until somebody does.
- A publisher that may not know tags is asked with one and without one in turns, and is not waited for as long.
"""

from __future__ import annotations

import msgspec

from engine.kv_events.codec import EndReport, LivedBatch, request_frames, snapshot_request
from engine.kv_events.reports import Question


class Asked(msgspec.Struct):
    """The question under way."""

    start: int
    tag: int | None
    deadline: float
    arrivals: int  # messages that had come when it was asked
    next: int  # what was to be applied then
    is_ours: bool = False  # the answer holds a batch that is known (where there are no epochs)
    is_near: bool = False  # it holds a batch that has been heard, of whichever life
    is_late: bool = False  # it comes from a life that is over
    waiting: list[tuple[int, LivedBatch]] = msgspec.field(default_factory=list)  # until it is ours
    numbers: set[int] = msgspec.field(default_factory=set)  # that its answer brought
    snapshot: bool = False


class Questions:
    """`tag`: where the tags of its questions begin."""

    def __init__(self, *, poll_s: float, answer_s: float, tries: int, tag: int) -> None:
        self.tags: bool | None = None  # whether the publisher knows them; None: not known yet
        self.answers = 0  # questions that were answered to the end
        self._poll_s = poll_s
        self._answer_s = answer_s
        self._tries = tries
        self._tag = tag
        self._plain_turn = False
        self.begin()

    def begin(self) -> None:
        """A new life of the publisher: what was asked is void, and the next question due."""
        self.under_way: Asked | None = None
        self.silences = 0  # questions for batches in a row that nothing came to
        self._poll_at: float | None = None  # None: at once

    # -- when

    @property
    def due_at(self) -> float:
        return self._poll_at or 0.0

    def is_due(self, now: float) -> bool:
        return self._poll_at is None or now >= self._poll_at

    def hurry(self) -> None:
        """There is something to ask for."""
        self._poll_at = None

    def rest(self, now: float) -> None:
        """There is nothing to ask for until it has been silent again."""
        self._poll_at = now + self._poll_s

    @property
    def is_deaf(self) -> bool:
        """The replay socket does not answer: until it does, whatever is missing is lost after one more question."""
        return self.silences >= self._tries

    @property
    def serves_snapshots(self) -> bool:
        return bool(self.tags) and not self.is_deaf

    # -- asking

    def ask(self, next_number: int, known: int | None, arrivals: int, now: float) -> Question:
        """For batches from `next_number` on. `known`: the batch applied last."""
        plain = self.tags is False or (self.tags is None and self._plain_turn)
        start, tag = next_number, None
        if not plain:
            tag = self._new_tag()
        elif known is not None:
            start = known  # an answer that lacks it comes from another life
        patience_s = self._answer_s if self.tags is not None else min(self._answer_s, 1.0)
        self.under_way = Asked(start, tag, now + patience_s, arrivals, next_number)
        return Question(request_frames(start, tag))

    def ask_for_snapshot(self, next_number: int, arrivals: int, now: float) -> Question:
        tag = self._new_tag()
        self.under_way = Asked(next_number, tag, now + self._answer_s, arrivals, next_number, snapshot=True)
        return Question(snapshot_request(tag))

    def _new_tag(self) -> int:
        self._tag += 1
        return self._tag

    # -- what comes of it

    def heard(self) -> None:
        """Somebody is there, whatever it says."""
        self.silences = 0

    def go_on(self, now: float) -> None:
        """A message of an answer came."""
        if self.under_way is not None:
            self.under_way.deadline = now + self._answer_s

    def ended(self, now: float) -> None:
        """The question under way is answered."""
        self.answers += 1
        self.under_way = None
        self.rest(now)

    def drop(self) -> None:
        """The question under way is needless, or settled otherwise."""
        self.under_way = None

    def unanswered(self, now: float) -> Asked | None:
        """The question that nothing came to any more, if its time is up: it is given up."""
        asked = self.under_way
        if asked is None or now < asked.deadline:
            return None
        self.under_way = None
        return asked

    def count_silence(self, asked: Asked) -> None:
        if self.tags is None:
            self._plain_turn = asked.tag is not None  # it may not know tags: take turns
        self.silences += 1

    def answered_by(self, report: EndReport) -> Asked | None:
        """The question under way, if this report ends its answer, and not that of one that was given up."""
        self.tags = True
        asked = self.under_way
        return asked if asked is not None and (asked.tag, asked.start) == (report.tag, report.start) else None

    def answered_plainly(self, *, applied: bool) -> None:
        """An end without a report. `applied`: batches were, and none of them told by an epoch that it knows tags."""
        self._plain_turn = False
        if self.tags is None and applied:
            self.tags = False

    def heard_plain(self) -> None:
        """A live batch came without an epoch: its publisher knows no tags, and not the question that has one."""
        if self.tags is None and self.under_way is not None and self.under_way.tag is not None:
            self.under_way = None
        self.tags = False

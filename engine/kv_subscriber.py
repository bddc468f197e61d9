"""The subscriber's half of the KV-event path: holes seen, asked for, filled or told. Pure.

Promises
- Batches come out once each and in the order of their numbers, whether they arrived live or by replay.
- Every loss is known: by the next batch, or in silence by asking the replay socket every `poll_s`.
- A hole is told as a Gap when it is seen, and ends in Healed or in Unrecoverable: when the publisher no longer has it,
  when the publisher proves that it was never sent, or when `tries` questions in a row brought nothing.
- After a loss for good the publisher is asked for its present state; what comes is told as Snapshot, in its place
  between two batches (kv_fetch). Where there is none to be had, the batches go on without it.
- A new life of the publisher is told as Restarted, after what was still open of the old one was told as lost.
  Its numbers begin at 0 and are asked for from 0: so does a late subscriber.
- Nothing is waited for here: frames and the time go in, reports and questions come out.

    number   0 1 2 3 4 5 6 7 8 9
             = = = =   - - -            = applied     - held back
                     ^next (applied)  ^wire: every number below it was seen, or told as a hole

A publisher that knows tags ends its answers with a report (kv_codec), which makes a lost frame of an answer
different from a lost batch. One that does not (vLLM's) stays silent, and is asked in its own words instead.
Its restarts carry no epoch; they are told by a number that went back while the time of the batch went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.core.kv_codec import (
    EndReport,
    LivedBatch,
    Place,
    read_answer,
    read_live,
    request_frames,
    snapshot_request,
)
from engine.errors import BadFrameError
from engine.kv_fetch import Fetching
from engine.kv_reports import (
    Applied,
    Gap,
    Healed,
    Malformed,
    Notice,
    Question,
    Report,
    Restarted,
    Settled,
    Snapshot,
    Unrecoverable,
)
from engine.messages import AllBlocksCleared

__all__ = ["Applied", "Gap", "Healed", "KVEventFollower", "Malformed", "Notice", "Question", "Report", "Restarted",
           "Settled", "Snapshot", "Unrecoverable"]


class _Held(msgspec.Struct):
    batch: LivedBatch
    source: str
    arrival: int


class _Asked(msgspec.Struct):
    """The question under way."""

    start: int
    tag: int | None
    deadline: float
    arrivals: int  # messages that had come when it was asked
    next: int  # what was to be applied then
    numbers: set[int] = msgspec.field(default_factory=set)  # that its answer brought
    snapshot: bool = False


class KVEventFollower:
    """Follows one publisher.

    `replay`: there is a replay socket. `poll_s`: silence until it is asked. `answer_s`: silence of an answer until it
    counts as lost. `tries`: answers without progress, or lost ones, until a hole counts as unrecoverable.
    `max_held`: live batches kept while a hole is open; further ones are asked for later. `tag` (below 2**62): where
    the tags of its questions begin, so that answers to an earlier life of this subscriber are known as such.
    `snapshots`: what is lost for good makes it ask for the publisher's state.
    """

    def __init__(self, *, replay: bool = True, poll_s: float = 5.0, answer_s: float = 5.0, tries: int = 3,
                 max_held: int = 100_000, tag: int = 0, snapshots: bool = True) -> None:
        self.replay = replay
        self.poll_s = poll_s
        self.answer_s = answer_s
        self.tries = tries
        self.max_held = max_held
        self.snapshots = snapshots and replay
        self.fetching = Fetching(tries, poll_s)
        self.next = 0
        self.wire = 0
        self.epoch: int | None = None
        self.tags: bool | None = None  # whether the publisher knows them; None: not known yet
        self.gaps: list[tuple[int, int]] = []  # told and still open, ascending
        self._held: dict[int, _Held] = {}
        self._unseen_upto = 0  # end of what an answer brought beyond `wire`; told when the answer ends
        self._asked: _Asked | None = None
        self._poll_at: float | None = None  # None: at once
        self.answers = 0  # questions to the replay socket that were answered to the end
        self._failed = 0
        self._arrivals = 0
        self._tag = tag
        self._plain_turn = False
        self._went_back = 0
        self._last: tuple[int, float] | None = None  # number and time of the batch applied last
        self._epochs: set[int] = set()  # lives that are over
        self._out: list[Report] = []

    # -- what the shell calls

    def on_live(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the live socket arrived."""
        self._arrivals += 1
        self._poll_at = now + self.poll_s
        try:
            number, batch = read_live(frames)
        except BadFrameError as error:
            self._out.append(Malformed("kv", str(error)))
            self._poll_at = None
        else:
            if self._same_life(number, batch):
                self._see(number)
                self._hold(number, batch, "live")
                self._apply()
        return self._done(now)

    def on_replay(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the replay socket arrived."""
        self._arrivals += 1
        try:
            answer = read_answer(frames)
        except BadFrameError as error:
            self._out.append(Malformed("replay", str(error)))
            return self._done(now)
        if self._asked is not None:
            self._asked.deadline = now + self.answer_s
        if answer.place is not None:
            self._on_piece(answer.place, answer.batch, now)
        elif answer.batch is not None:
            self._on_replayed(answer.number, answer.batch)
        elif answer.report is not None:
            self._on_report(answer.report, now)
        elif self._asked is not None and self._asked.tag is None:
            self._on_plain_end(now)
        return self._done(now)

    def on_time(self, now: float) -> list[Report]:
        """Call at `deadline()`, and whenever convenient."""
        asked = self._asked
        if asked is not None and now >= asked.deadline:
            self._asked = None
            self._tell_unseen()
            if asked.snapshot:
                self.fetching.fail(now)
                self._apply()
                return self._done(now)
            if self.tags is None:
                self._plain_turn = asked.tag is not None  # it may not know tags: take turns
            self._fail("no answer to replay requests", now)
            if self.next >= self.wire:
                self._poll_at = now + self.poll_s
        return self._done(now)

    def deadline(self) -> float | None:
        """When `on_time` has something to do; None: not before the next message."""
        if self._asked is not None:
            return self._asked.deadline
        if not self.replay:
            return None
        times = [time for time in (self._poll_at, self._snapshot_at()) if time is not None]
        return min(times, default=None)

    @property
    def caught_up(self) -> bool:
        """Nothing that was seen is missing, and nothing is being fetched."""
        return self.next == self.wire and not self.fetching.wanted

    @property
    def held(self) -> int:
        """Batches that wait behind a hole, or for the end of an answer."""
        return len(self._held)

    # -- messages

    def _on_replayed(self, number: int, batch: LivedBatch) -> None:
        if not self._same_life(number, batch, live=False):
            return
        if self._last is not None and batch.epoch is None and number == self._last[0] and batch.ts != self._last[1]:
            self._restart(None)
            return
        if self._asked is not None:
            self._asked.numbers.add(number)
        self._hold(number, batch, "replay")
        if number >= self.wire:
            self._unseen_upto = max(self._unseen_upto, number + 1)
        self._apply()

    def _on_report(self, report: EndReport, now: float) -> None:
        asked = self._asked
        self.tags = True
        if asked is None or (asked.tag, asked.start) != (report.tag, report.start):
            return  # the end of an answer that was given up
        self._end_of_answer(now)
        if report.epoch != self.epoch:
            self._epochs.discard(report.epoch)  # who answers is alive: late batches of another life misled us
            if self.epoch is not None:
                self._restart(report.epoch)
                self._see_upto(report.next)
                return
            self.epoch = report.epoch
        self._forget_impossible(report.next, asked.arrivals)
        self._see_upto(report.next)
        self._lose_upto(report.oldest, "older than the publisher's replay window")
        if len(asked.numbers) == report.count:  # the answer came whole: what it lacks was never sent
            self._lose_holes(asked.start, report.next, "lost in the publisher, before it was sent")
        self._apply()
        self._judge_progress(asked, now)

    def _on_piece(self, place: Place, piece: LivedBatch, now: float) -> None:
        asked = self._asked
        if asked is None or not asked.snapshot or asked.tag != place.tag:
            return  # a piece of an answer that was given up
        if self.epoch is not None and place.epoch != self.epoch:
            self._epochs.discard(place.epoch)
            self._restart(place.epoch)
            return
        self.fetching.take(place, piece, self.next, now)
        if not self.fetching.under_way:
            self._asked = None
            if self.fetching.complete:
                self._see_upto(place.next)
        self._apply()

    def _on_plain_end(self, now: float) -> None:
        asked = self._asked
        self._plain_turn = False
        if self.tags is None and self._last is not None:  # its batches carry no epoch, and it answers
            self.tags = False
        self._end_of_answer(now)
        if asked.start < asked.next:  # it had this batch: without it, it is not the one that we knew
            self._went_back = 0 if asked.numbers else self._went_back + 1
            if self._went_back >= 2:  # once may be a frame that was lost
                self._restart(None)
                return
        self._judge_progress(asked, now)

    def _end_of_answer(self, now: float) -> None:
        self._asked = None
        self._poll_at = now + self.poll_s
        self._tell_unseen()

    def _judge_progress(self, asked: _Asked, now: float) -> None:
        self.answers += 1
        if self.next >= self.wire:
            self._failed = 0
            self._out.append(Settled(self.next))
        elif self.next > asked.next:
            self._failed = 0
        else:
            self._fail("replay does not bring it", now)

    # -- lives

    def _same_life(self, number: int, batch: LivedBatch, live: bool = True) -> bool:
        """Whether a batch belongs to the life that is followed, after a change of life was told."""
        if batch.epoch is not None:
            if batch.epoch in self._epochs:
                return False
            if self.epoch is not None and batch.epoch != self.epoch:
                self._restart(batch.epoch)
            self.epoch, self.tags = batch.epoch, True
        elif live and number < self.next and self._last is not None and batch.ts > self._last[1]:
            self._restart(None)
        return True

    def _restart(self, epoch: int | None) -> None:
        self.fetching.forget()  # what it held back is applied: a state of the old life comes no more
        self._tell_unseen()
        if self.next < self.wire:
            self._lose_upto(self.wire, "the publisher restarted")
        if self.epoch is not None:
            self._epochs.add(self.epoch)
        self._held.clear()
        self.gaps.clear()
        self.next = self.wire = self._unseen_upto = self._failed = self._went_back = 0
        self._asked = self._last = self._poll_at = None
        self.fetching.forget()
        self.epoch = epoch
        self._out.append(Restarted(epoch))

    # -- numbers

    def _see(self, number: int) -> None:
        """A live batch: what lies between `wire` and it did not come."""
        if number < self.wire or (number > self.next and len(self._held) >= self.max_held):
            return  # there is no room for it: as if it had not come
        self._see_upto(number)
        self.wire = number + 1

    def _see_upto(self, upto: int) -> None:
        if upto > self.wire:
            self._tell_gap(self.wire, upto - 1)

    def _tell_unseen(self) -> None:
        """An answer brought batches that no live message had told of: they were a hole."""
        self._see_upto(self._unseen_upto)
        self._apply()

    def _tell_gap(self, first: int, last: int) -> None:
        self.gaps.append((first, last))
        self.wire = last + 1
        self._out.append(Gap(first, last))

    def _hold(self, number: int, batch: LivedBatch, source: str) -> None:
        if number >= self.next and number not in self._held and (
                len(self._held) < self.max_held or number == self.next):
            self._held[number] = _Held(batch, source, self._arrivals)

    def _apply(self) -> None:
        self._place_snapshot()
        while self.next < min(self.wire, self.fetching.limit(self.next)) and self.next in self._held:
            held = self._held.pop(self.next)
            self._out.append(Applied(self.next, held.batch, held.source))
            self._last = (self.next, held.batch.ts)
            self.next += 1
            self._failed = 0
            if self.gaps and self.gaps[0][1] < self.next:
                self._out.append(Healed(*self.gaps.pop(0)))
            if self.fetching.wanted:
                if any(isinstance(event, AllBlocksCleared) for event in held.batch.events):
                    self._forget_snapshot()  # whatever was lost, it was cleared
                self._place_snapshot()

    def _place_snapshot(self) -> None:
        snapshot = self.fetching.arrive(self.next)
        if snapshot is not None:
            self._out.append(snapshot)

    def _forget_snapshot(self) -> None:
        if self._asked is not None and self._asked.snapshot:
            self._asked = None
        self.fetching.forget()

    def _lose_upto(self, upto: int, reason: str) -> None:
        """Numbers from `next` up to `upto` that are not held will never come; those that are, are applied."""
        self._lose_holes(self.next, min(upto, self.wire), reason)

    def _lose_holes(self, start: int, upto: int, reason: str) -> None:
        upto = min(upto, self.wire)
        self._apply()
        while start <= self.next < upto and self.next not in self._held:  # what is held waits for a snapshot
            last = min([number for number in self._held if number >= self.next] + [upto]) - 1
            self._lose(last, reason)
            self._apply()

    def _lose(self, last: int, reason: str) -> None:
        if self.gaps and self.gaps[0][0] < self.next:
            self._out.append(Healed(self.gaps[0][0], self.next - 1))
        self._out.append(Unrecoverable(self.next, last, reason))
        self.next = last + 1
        self._failed = 0
        if self.snapshots:
            self.fetching.want()
        while self.gaps and self.gaps[0][0] < self.next:
            _, end = self.gaps.pop(0)
            if end >= self.next:
                self.gaps.insert(0, (self.next, end))

    def _forget_impossible(self, upto: int, arrivals: int) -> None:
        """Held batches that came before the publisher said it had not got that far: their number was damaged."""
        false = [number for number, held in self._held.items() if number >= upto and held.arrival <= arrivals]
        if false:
            for number in false:
                del self._held[number]
            self.wire = max(upto, self.next, max(self._held, default=-1) + 1)
            self.gaps = [(first, min(last, self.wire - 1)) for first, last in self.gaps if first < self.wire]
            self._out.append(Malformed("kv", f"batch {min(false)} does not exist: the publisher is at {upto}"))

    def _fail(self, why: str, now: float) -> None:
        if self.next >= self.wire:
            return
        self._failed += 1
        if self._failed >= self.tries:
            reason = f"{why}, asked {self._failed} times"
            hole = min([number for number in self._held if number > self.next] + [self.wire])
            self._lose_holes(self.next, hole, reason)

    # -- questions

    def _done(self, now: float) -> list[Report]:
        if not self.replay:
            self._lose_upto(self.wire, "there is no replay socket to ask")
        elif self._asked is None and self.tags and self.fetching.due(now):
            self._ask_for_snapshot(now)
        elif self._asked is None and (self.next < self.wire or self._poll_at is None or now >= self._poll_at):
            self._ask(now)
        out, self._out = self._out, []
        return out

    def _snapshot_at(self) -> float | None:
        return self.fetching.next_at if self.tags else None

    def _ask_for_snapshot(self, now: float) -> None:
        self._tag += 1
        self.fetching.begin()
        self._asked = _Asked(self.next, self._tag, now + self.answer_s, self._arrivals, self.next, snapshot=True)
        self._out.append(Question(snapshot_request(self._tag)))

    def _ask(self, now: float) -> None:
        plain = self.tags is False or (self.tags is None and self._plain_turn)
        start, tag = self.next, None
        if not plain:
            self._tag += 1
            tag = self._tag
        elif self._last is not None:
            start = self._last[0]  # an answer that lacks it comes from another life
        patience_s = self.answer_s if self.tags is not None else min(self.answer_s, 1.0)
        self._asked = _Asked(start, tag, now + patience_s, self._arrivals, self.next)
        self._out.append(Question(request_frames(start, tag)))

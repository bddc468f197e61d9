"""The subscriber's half of the KV-event path: holes seen, asked for, filled or told. Pure.

Promises
- Batches come out once each and in the order of their numbers, whether they arrived live or by replay.
- Every loss is known: by the next batch, or in silence by asking the replay socket every `poll_s`.
- A hole is told as a Gap when it is seen, and ends in Healed or in Unrecoverable: when the publisher no longer has it,
  when the publisher proves that it was never sent, or when `tries` questions in a row brought nothing.
- Nothing is missing that may still be under way. An answer overtakes live batches: they come by another connection
  and wait in the reader's own socket. So a hole that only an answer tells of counts as one when a later batch came
  live, for those keep their order, or when live was found empty for `quiet_s` since the answer's end. A live
  connection that stands still for longer while the other one delivers is told as a gap too early; no proof exists.
- After a loss for good the publisher is asked for its present state; what comes is told as Snapshot, in its place
  between two batches (kv_fetch). Where there is none to be had, the batches go on without it.
- A new life of the publisher is told as Restarted, after what was still open of the old one was told as lost.
  Its numbers begin at 0 and are asked for from 0: so does a late subscriber.
- While the replay socket does not answer, batches are held back for `answer_s` at most, however many holes there are.
- Nothing is waited for here: frames and the time go in, reports and questions come out.

What is decided by numbers alone stands in kv_order; here is whom they came from, and what is asked when.

A publisher that knows tags ends its answers with a report (kv_codec), which makes a lost frame of an answer
different from a lost batch. One that does not (vLLM's) stays silent, and is asked in its own words instead.
Its restarts carry no epoch: kv_lineage tells lives apart, and what cannot be told. Where it has to stay open the
mirror is unknown, and that is told as Unverified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import BadFrameError
from engine.kv_events.codec import (
    EndReport,
    LivedBatch,
    Place,
    read_answer,
    read_live,
    request_frames,
    snapshot_request,
)
from engine.kv_events.reports import (
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
    Unverified,
)
from engine.kv_events.subscriber.lives import Lineage
from engine.kv_events.subscriber.order import ENDLESS, BatchOrder
from engine.kv_events.subscriber.question import Asked, Verdict
from engine.kv_events.subscriber.snapshot import Fetching
from engine.kv_events.subscriber.without_epochs import WithoutEpochs

__all__ = ["Applied", "Gap", "Healed", "KVEventFollower", "Malformed", "Notice", "Question", "Report", "Restarted",
           "Settled", "Snapshot", "TAGS_OF_A_LIFE", "Unrecoverable", "Unverified"]

#: `tag` of a subscriber's n-th life is n times this: answers to questions of an earlier one are known as such.
TAGS_OF_A_LIFE = 1 << 32


class KVEventFollower(WithoutEpochs):
    """Follows one publisher.

    `replay`: there is a replay socket. `poll_s`: silence until it is asked. `answer_s`: silence of an answer until it
    counts as lost. `tries`: answers without progress, or lost ones, until a hole counts as unrecoverable.
    `max_held`: live batches kept while a hole is open; further ones are asked for later. `tag` (below 2**62): where
    the tags of its questions begin, so that answers to an earlier life of this subscriber are known as such.
    `quiet_s`: silence of the live socket after which an answer has overtaken nothing more.
    `snapshots`: what is lost for good makes it ask for the publisher's state. `restart_s`: see kv_lineage.
    """

    def __init__(self, *, replay: bool = True, poll_s: float = 5.0, answer_s: float = 5.0, tries: int = 3,
                 max_held: int = 100_000, tag: int = 0, snapshots: bool = True, quiet_s: float = 0.2,
                 restart_s: float = 1.0) -> None:
        self.replay = replay
        self.poll_s = poll_s
        self.answer_s = answer_s
        self.tries = tries
        self.quiet_s = quiet_s
        self._out: list[Report] = []
        self.fetching = Fetching(tries, poll_s)
        self.order = BatchOrder(self._out, self.fetching, max_held=max_held, snapshots=snapshots and replay)
        self.epoch: int | None = None
        self.tags: bool | None = None  # whether the publisher knows them; None: not known yet
        self._asked: Asked | None = None
        self._verdict: Verdict | None = None
        self._quiet_at = 0.0
        self._silences = 0  # questions for batches in a row that nothing came to
        self.live_first = True  # which socket is looked at first
        self._poll_at: float | None = None  # None: at once
        self.answers = 0  # questions to the replay socket that were answered to the end
        self._arrivals = 0
        self._tag = tag
        self._plain_turn = False
        self.lineage = Lineage(restart_s)
        self._unverified_at: int | None = None
        self._epochs: set[int] = set()  # lives that are over

    # -- what the shell calls

    def on_live(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the live socket arrived."""
        self._arrivals += 1
        self._poll_at = now + self.poll_s
        self._quiet_at = now + self.quiet_s
        try:
            number, batch = read_live(frames)
        except BadFrameError as error:
            self._out.append(Malformed("kv", str(error)))
            self._poll_at = None
            self._note_unread(error)
        else:
            if self._same_life(number, batch):
                self.order.see(number)
                self.order.hold(number, batch, "live", self._arrivals)
                self.order.apply()
                self._judge(now)
        return self._done(now)

    def on_replay(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the replay socket arrived."""
        self._arrivals += 1
        self._silences = 0
        try:
            answer = read_answer(frames)
        except BadFrameError as error:
            self._out.append(Malformed("replay", str(error)))
            self._note_unread(error)
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
        """Call at `deadline()`, and whenever convenient, when both sockets have just been found empty.

        Where live messages never end: just after one of them, when the replay socket has been found empty.
        """
        asked = self._asked
        quiet = now >= self._quiet_at
        if quiet and self._verdict is not None:
            self._judge(now, quiet=True)
        elif quiet and asked is None:
            self.order.tell_unseen()
        if asked is not None and now >= asked.deadline:
            self._asked = None
            self.order.tell_unseen(ENDLESS if quiet else self.order.live_upto)
            if asked.snapshot:
                self.fetching.fail(now)
                self.order.apply()
                return self._done(now)
            if self.tags is None:
                self._plain_turn = asked.tag is not None  # it may not know tags: take turns
            self._silences += 1
            if self._is_deaf:
                while self.lineage.doubted_from is not None:
                    self._lose_track("no answer to replay requests")
                self.order.lose_upto(self.wire, f"no answer to {self._silences} replay requests in a row")
            else:
                self._fail("no answer to replay requests", now)
            if self.next >= self.wire:
                self._poll_at = now + self.poll_s
        return self._done(now)

    def on_reconnect(self, now: float) -> list[Report]:
        """The live connection was cut and is back. A publisher without epochs is verified before it is believed."""
        self.lineage.reconnected()
        self._poll_at = None
        if not self.replay and self.tags is False:
            self._lose_track("it was gone, and there is no replay socket to ask")
        return self._done(now)

    def deadline(self) -> float | None:
        """When `on_time` has something to do; None: not before the next message."""
        if self._asked is not None:
            return self._asked.deadline
        if not self.replay:
            return None
        if self._verdict is not None:
            return self._quiet_at
        times = [self._poll_at or 0.0, self._snapshot_at(), self._quiet_at if self.order.is_unsure else None]
        return min(time for time in times if time is not None)

    @property
    def next(self) -> int:
        """The number of the batch that is applied next."""
        return self.order.next

    @property
    def wire(self) -> int:
        """Every number below it was seen, or told as a hole."""
        return self.order.wire

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Told and still open: first and last number, ascending."""
        return list(self.order.gaps)

    @property
    def caught_up(self) -> bool:
        """Nothing that was seen is missing, and nothing is being fetched."""
        return self.next == self.wire and not self.fetching.wanted and self._verdict is None

    @property
    def held(self) -> int:
        """Batches that wait behind a hole, or for the end of an answer."""
        return self.order.held

    # -- messages

    def _on_replayed(self, number: int, batch: LivedBatch) -> None:
        if None not in (self.epoch, batch.epoch) and batch.epoch != self.epoch:
            return  # batches of the life that is followed may wait live: the report at the end tells
        if not self._same_life(number, batch, live=False):
            return
        if batch.epoch is None and self.epoch is None and not self.tags:
            self._on_plain_batch(number, batch)
            return
        if self._asked is not None:
            self._asked.numbers.add(number)
        self.order.bring(number, batch, self._arrivals)

    def _on_report(self, report: EndReport, now: float) -> None:
        asked = self._asked
        self.tags = True
        if asked is None or (asked.tag, asked.start) != (report.tag, report.start):
            return  # the end of an answer that was given up
        if self.epoch is None:
            self.epoch = report.epoch
        if report.epoch == self.epoch:
            self.order.forget_impossible(report.next, asked.arrivals)
            self.order.unseen_upto = report.next
        self._end_of_answer(asked, report, now)

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
                self.order.unseen_upto = max(self.order.unseen_upto, place.next)
                self._quiet_at = now + self.quiet_s
        self.order.apply()

    def _end_of_answer(self, asked: Asked, report: EndReport | None, now: float) -> None:
        self.answers += 1
        self._asked = None
        self._poll_at = now + self.poll_s
        self._quiet_at = now + self.quiet_s
        self._verdict = Verdict(asked, report)
        self._judge(now)

    def _judge(self, now: float, *, quiet: bool = False) -> None:
        """Tell what the answer that ended says of batches that do not come live any more."""
        if self._verdict is None:
            return
        asked, report = self._verdict.asked, self._verdict.report
        order = self.order
        if report is not None and report.epoch != self.epoch:
            if quiet:
                self._epochs.discard(report.epoch)  # who answers is alive: late batches of another life misled us
                self._restart(report.epoch)
                order.see_upto(report.next)
            return
        sure = ENDLESS if quiet else order.live_upto
        order.tell_unseen(sure)
        if report is not None:
            sure = min(sure, report.next)
            order.lose_upto(min(report.oldest, sure), "older than the publisher's replay window")
            if len(asked.numbers) == report.count:  # the answer came whole: what it lacks was never sent
                order.lose_holes(asked.start, sure, "lost in the publisher, before it was sent")
            order.apply()
        judged = quiet or self.next >= self.wire or report is None or sure == report.next
        if (judged and not order.is_unsure) or self.next < min(self.wire, order.live_upto):
            self._verdict = None
            self._judge_progress(asked, now)

    def _judge_progress(self, asked: Asked, now: float) -> None:
        if self.next >= self.wire:
            self.order.failed = 0
            self._out.append(Settled(self.next))
        elif self.next > asked.next:
            self.order.failed = 0
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
        elif live and not self.tags:
            return self._continues(number, batch.ts)
        return True

    def _restart(self, epoch: int | None) -> None:
        self.fetching.forget()  # what it held back is applied: a state of the old life comes no more
        self.order.tell_unseen()
        if self.lineage.doubted_from is not None:
            self.order.drop_from(self.lineage.doubted_from)
        if self.next < self.wire:
            self.order.lose_upto(self.wire, "the publisher restarted")
        if self.epoch is not None:
            self._epochs.add(self.epoch)
        self.order.begin()
        self.lineage.begin()
        self._unverified_at = None
        self._asked = self._poll_at = self._verdict = None
        self._silences = 0
        self.epoch = epoch
        self._out.append(Restarted(epoch))

    def _fail(self, why: str, now: float) -> None:
        if self.next >= self.wire:
            return
        self.order.failed += 1
        if self.order.failed >= self.tries and self.lineage.doubted_from == self.next:
            self._lose_track(why)
        elif self.order.failed >= self.tries:
            self.order.lose_first_hole(f"{why}, asked {self.order.failed} times")

    # -- questions

    def _done(self, now: float) -> list[Report]:
        if self._asked is not None and self._asked.snapshot and not self.fetching.under_way:
            self._asked = None  # a batch that cleared the cache made the snapshot needless
        if self.tags is False:
            self.fetching.forget()  # it has no snapshots
        if not self.replay:
            self.order.tell_unseen()
            self.order.lose_upto(self.wire, "there is no replay socket to ask")
        elif self._is_free and self._serves_snapshots and self.fetching.due(now):
            self._ask_for_snapshot(now)
        elif self._is_free and (self.next < self.wire or self._poll_at is None or now >= self._poll_at):
            self._ask(now)
        out = self._out[:]
        self._out.clear()
        return out

    @property
    def _is_free(self) -> bool:
        """No question is under way, and no answer waits to be judged."""
        return self._asked is None and self._verdict is None

    def _snapshot_at(self) -> float | None:
        return self.fetching.next_at if self._serves_snapshots else None

    @property
    def _serves_snapshots(self) -> bool:
        return bool(self.tags) and not self._is_deaf

    @property
    def _is_deaf(self) -> bool:
        """The replay socket does not answer: until it does, whatever is missing is lost after one more question."""
        return self._silences >= self.tries

    def _ask_for_snapshot(self, now: float) -> None:
        self._tag += 1
        self.fetching.begin()
        self._asked = Asked(self.next, self._tag, now + self.answer_s, self._arrivals, self.next, snapshot=True)
        self._out.append(Question(snapshot_request(self._tag)))

    def _ask(self, now: float) -> None:
        plain = self.tags is False or (self.tags is None and self._plain_turn)
        start, tag = self.next, None
        if not plain:
            self._tag += 1
            tag = self._tag
        elif self.order.last is not None:
            start = self.order.last[0]  # an answer that lacks it comes from another life
        patience_s = self.answer_s if self.tags is not None else min(self.answer_s, 1.0)
        self._asked = Asked(start, tag, now + patience_s, self._arrivals, self.next)
        self._out.append(Question(request_frames(start, tag)))

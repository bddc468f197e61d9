"""The subscriber's half of the KV-event path: holes seen, asked for, filled or told. Pure.

Promises
- Batches come out once each and in the order of their numbers, whether they arrived live or by replay.
- Every loss is known: by the next batch, or in silence by asking the replay socket every `poll_s`.
- A hole is told as a Gap when it is seen, and ends in Healed or in Unrecoverable: when the publisher no longer has it,
  when the publisher proves that it was never sent, or when `tries` questions in a row brought nothing.
- Nothing is missing that may still be under way (answer.py).
- After a loss for good the publisher is asked for its present state; what comes is told as Snapshot, in its place
  between two batches (snapshot.py). Where there is none to be had, the batches go on without it.
- A new life of the publisher is told as Restarted, after what was still open of the old one was told as lost.
  Its numbers begin at 0 and are asked for from 0: so does a late subscriber.
- While the replay socket does not answer, batches are held back for `answer_s` at most, however many holes there are.
- Nothing is waited for here: frames and the time go in, reports and questions come out.

A follower holds one object for each thing that it has to know, and passes on what happens:

    order       by number: what is applied, held back, missing, lost          order.py
    fetching    the snapshot, if one is wanted                                snapshot.py
    questions   what was asked, and when to ask next                          question.py
    ended       what the answer that ended last proves                        answer.py
    epochs      which life sends, where it says so                            lives.py
    plain       and where it does not                                         without_epochs.py

A publisher that knows tags ends its answers with a report (codec.py), which makes a lost frame of an answer
different from a lost batch. One that does not (vLLM's) stays silent, and is asked in its own words instead.
Its restarts carry no epoch: where it has to stay open which life it is the mirror is unknown, and that is told as
Unverified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import BadFrameError
from engine.kv_events.codec import EndReport, LivedBatch, Place, is_of_topic, read_answer, read_live
from engine.kv_events.reports import Malformed, Report, Restarted
from engine.kv_events.subscriber.answer import AnswerJudge
from engine.kv_events.subscriber.lives import Epochs, Origin
from engine.kv_events.subscriber.order import ENDLESS, BatchOrder
from engine.kv_events.subscriber.question import Asked, Questions
from engine.kv_events.subscriber.snapshot import Fetching
from engine.kv_events.subscriber.without_epochs import PlainPublisher

#: `tag` of a subscriber's n-th life is n times this: answers to questions of an earlier one are known as such.
TAGS_OF_A_LIFE = 1 << 32


class KVEventFollower:
    """Follows one publisher.

    `replay`: there is a replay socket. `poll_s`: silence until it is asked. `answer_s`: silence of an answer until it
    counts as lost. `tries`: answers without progress, or lost ones, until a hole counts as unrecoverable.
    `max_held`: live batches kept while a hole is open; further ones are asked for later. `tag` (below 2**62): where
    the tags of its questions begin, so that answers to an earlier life of this subscriber are known as such.
    `quiet_s`: silence of the live socket after which an answer has overtaken nothing more.
    `snapshots`: what is lost for good makes it ask for the publisher's state. `restart_s`: see lives.py.
    `topic`: what answers must begin with to be about what is followed: the replay socket knows no subscriptions.
    """

    def __init__(self, *, replay: bool = True, poll_s: float = 5.0, answer_s: float = 5.0, tries: int = 3,
                 max_held: int = 100_000, tag: int = 0, snapshots: bool = True, quiet_s: float = 0.2,
                 restart_s: float = 1.0, topic: str = "") -> None:
        self.replay = replay
        self._topic = topic.encode()
        self._met_another = False
        self._out: list[Report] = []
        self.fetching = Fetching(tries, poll_s)
        self.order = BatchOrder(self._out, self.fetching, max_held=max_held, snapshots=snapshots and replay)
        self.questions = Questions(poll_s=poll_s, answer_s=answer_s, tries=tries, tag=tag)
        self._epochs = Epochs()
        self._plain = PlainPublisher(self._out, self.order, self.questions, asks=replay, tries=tries,
                                     restart_s=restart_s)
        self._ended = AnswerJudge(self._out, self.order, self._plain, tries=tries, quiet_s=quiet_s)

    # -- what the shell calls

    def on_live(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the live socket arrived."""
        self.order.arrivals += 1
        self.questions.rest(now)
        self._ended.stir(now)
        try:
            number, batch = read_live(frames)
        except BadFrameError as error:
            self._out.append(Malformed("kv", str(error)))
            self.questions.hurry()
            self._plain.on_unread(error)
        else:
            if self._is_followed(number, batch):
                self.order.see(number)
                self.order.hold(number, batch, "live")
                self.order.apply()
                self._judge()
        return self._done(now)

    def on_replay(self, frames: Sequence[Any], now: float) -> list[Report]:
        """A message of the replay socket arrived. What a publisher of another topic sends is told once and dropped."""
        if not is_of_topic(frames, self._topic):
            return self._other_topic(frames)
        self.order.arrivals += 1
        self.questions.heard()
        try:
            answer = read_answer(frames)
        except BadFrameError as error:
            self._out.append(Malformed("replay", str(error)))
            self._plain.on_unread(error)
            return self._done(now)
        self.questions.go_on(now)
        asked = self.questions.under_way
        if answer.place is not None and answer.batch is not None:
            self._on_piece(answer.place, answer.batch, now)
        elif answer.batch is not None:
            self._on_replayed(answer.number, answer.batch)
        elif answer.report is not None:
            self._on_report(answer.report, now)
        elif asked is not None and asked.tag is None:
            self._on_plain_end(asked, now)
        return self._done(now)

    def on_time(self, now: float) -> list[Report]:
        """Call at `deadline()`, and whenever convenient, when both sockets have just been found empty.

        Where live messages never end: just after one of them, when the replay socket has been found empty.
        """
        quiet = now >= self._ended.quiet_at
        if quiet and self._ended.pending:
            self._judge(quiet=True)
        elif quiet and self.questions.under_way is None:
            self.order.tell_unseen()
        asked = self.questions.unanswered(now)
        if asked is not None:
            self.order.tell_unseen(ENDLESS if quiet else self.order.live_upto)
            self._on_silence(asked, now)
        return self._done(now)

    def on_reconnect(self, now: float) -> list[Report]:
        """The live connection was cut and is back. A publisher without epochs is verified before it is believed."""
        self.questions.hurry()
        self._plain.reconnected()
        return self._done(now)

    def deadline(self) -> float | None:
        """When `on_time` has something to do; None: not before the next message."""
        if self.questions.under_way is not None:
            return self.questions.under_way.deadline
        if not self.replay:
            return None
        if self._ended.pending:
            return self._ended.quiet_at
        times = [self.questions.due_at, self.fetching.next_at if self.questions.serves_snapshots else None,
                 self._ended.quiet_at if self.order.is_unsure else None]
        return min(time for time in times if time is not None)

    @property
    def epoch(self) -> int | None:
        """The life that is followed, as far as it has said."""
        return self._epochs.current

    @property
    def answers(self) -> int:
        """Questions to the replay socket that were answered to the end."""
        return self.questions.answers

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
        return self.next == self.wire and not self.fetching.wanted and not self._ended.pending

    @property
    def held(self) -> int:
        """Batches that wait behind a hole, or for the end of an answer."""
        return self.order.held

    # -- answers

    def _on_replayed(self, number: int, batch: LivedBatch) -> None:
        if batch.epoch is not None and self.epoch not in (None, batch.epoch):
            return  # batches of the life that is followed may wait live: the report at the end tells
        if not self._is_followed(number, batch, live=False):
            return
        asked = self.questions.under_way
        if batch.epoch is None and self.epoch is None and not self.questions.tags:
            if asked is not None and self._plain.on_answered(asked, number, batch) is Origin.NEW:
                self._restart(None)
            return
        if asked is not None:
            asked.numbers.add(number)
        self.order.bring(number, batch)

    def _on_report(self, report: EndReport, now: float) -> None:
        asked = self.questions.answered_by(report)
        if asked is None:
            return
        if self.epoch is None:
            self._epochs.learn(report.epoch)
        if report.epoch == self.epoch:
            self.order.learn_end(report.next, asked.arrivals)
        self._end_of_answer(asked, report, now)

    def _on_plain_end(self, asked: Asked, now: float) -> None:
        if self._plain.on_end(asked) is Origin.NEW:
            self._restart(None)
        else:
            self._end_of_answer(asked, None, now)

    def _on_piece(self, place: Place, piece: LivedBatch, now: float) -> None:
        asked = self.questions.under_way
        if asked is None or not asked.snapshot or asked.tag != place.tag:
            return  # a piece of an answer that was given up
        if self.epoch is not None and place.epoch != self.epoch:
            self._restart(place.epoch)
            return
        self.fetching.take(place, piece, self.next, now)
        if not self.fetching.under_way:
            self.questions.drop()
            if self.fetching.complete:
                self.order.expect_upto(place.next)
                self._ended.stir(now)
        self.order.apply()

    def _end_of_answer(self, asked: Asked, report: EndReport | None, now: float) -> None:
        self.questions.ended(now)
        self._ended.begin(asked, report, now)
        self._judge()

    def _judge(self, *, quiet: bool = False) -> None:
        other = self._ended.judge(self.epoch, quiet=quiet)
        if other is not None:  # who answers is alive: late batches of another life misled us
            self._restart(other.epoch)
            self.order.see_upto(other.next)

    def _on_silence(self, asked: Asked, now: float) -> None:
        """A question was given up."""
        if asked.snapshot:
            self.fetching.fail(now)
            self.order.apply()
            return
        self.questions.count_silence(asked)
        if self.questions.is_deaf:
            self._plain.lose_all_doubts("no answer to replay requests")
            self.order.lose_upto(self.wire, f"no answer to {self.questions.silences} replay requests in a row")
        else:
            self._ended.fail("no answer to replay requests")
        if self.next >= self.wire:
            self.questions.rest(now)

    def _other_topic(self, frames: Sequence[Any]) -> list[Report]:
        """Its numbers end as unrecoverable."""
        if self._met_another:
            return []
        self._met_another = True
        topic = bytes(frames[1])
        return [Malformed("replay", f"a batch of topic {topic!r}, which does not begin with {self._topic!r}")]

    # -- lives

    def _is_followed(self, number: int, batch: LivedBatch, live: bool = True) -> bool:
        """Whether a batch belongs to the life that is followed, after a change of life was told."""
        if batch.epoch is not None:
            origin = self._epochs.origin(batch.epoch)
            if origin is Origin.LATE:
                return False
            if origin is Origin.NEW:
                self._restart(batch.epoch)
            self._epochs.learn(batch.epoch)
            self.questions.tags = True
        elif live and not self.questions.tags:
            origin = self._plain.on_live(number, batch.ts)
            if origin is Origin.NEW:
                self._restart(None)
                self._plain.begin((number, batch.ts))
            return origin is not Origin.LATE
        return True

    def _restart(self, epoch: int | None) -> None:
        self.fetching.forget()  # what it held back is applied: a state of the old life comes no more
        self.order.tell_unseen()
        if self._plain.doubted_from is not None:
            self.order.drop_from(self._plain.doubted_from)
        if self.next < self.wire:
            self.order.lose_upto(self.wire, "the publisher restarted")
        self.order.begin()
        self._plain.begin()
        self.questions.begin()
        self._ended.forget()
        self._epochs.begin(epoch)
        self._out.append(Restarted(epoch))

    # -- questions

    def _done(self, now: float) -> list[Report]:
        """Ask what there is to ask. -> all that there is to tell"""
        questions, order = self.questions, self.order
        asked = questions.under_way
        if asked is not None and asked.snapshot and not self.fetching.under_way:
            questions.drop()  # a batch that cleared the cache made the snapshot needless
        if questions.tags is False:
            self.fetching.forget()  # it has no snapshots
        if not self.replay:
            order.tell_unseen()
            order.lose_upto(self.wire, "there is no replay socket to ask")
        elif questions.under_way is None and not self._ended.pending:
            if questions.serves_snapshots and self.fetching.due(now):
                self.fetching.begin()
                self._out.append(questions.ask_for_snapshot(self.next, order.arrivals, now))
            elif self.next < self.wire or questions.is_due(now):
                known = None if order.last is None else order.last[0]
                self._out.append(questions.ask(self.next, known, order.arrivals, now))
        out = self._out[:]
        self._out.clear()
        return out

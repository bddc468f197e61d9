"""What an answer that has ended proves of the batches that it lacks. Pure.

Promises
- An answer overtakes live batches: they come by another connection and wait in the reader's own socket. So a hole that
  only an answer tells of counts as one when a later batch came live, for those keep their order, or when live was found
  empty for `quiet_s` since the answer's end. A live connection that stands still for longer while the other one
  delivers is told as a gap too early; no proof exists.
- What the publisher no longer has is lost, and what an answer that came whole lacks was never sent.
- `tries` answers in a row that bring nothing of what is missing: its first hole is lost.
"""

from __future__ import annotations

import msgspec

from engine.kv_events.codec import EndReport
from engine.kv_events.reports import Report, Settled
from engine.kv_events.subscriber.order import ENDLESS, BatchOrder
from engine.kv_events.subscriber.question import Asked
from engine.kv_events.subscriber.without_epochs import PlainPublisher


class EndedAnswer(msgspec.Struct):
    """While live batches that it overtook may still come. `report`: None, if it has none."""

    asked: Asked
    report: EndReport | None


class AnswerJudge:
    """`out`: where reports go. `quiet_s`: silence of the live socket after which an answer has overtaken nothing."""

    def __init__(self, out: list[Report], order: BatchOrder, plain: PlainPublisher, *, tries: int,
                 quiet_s: float) -> None:
        self._out = out
        self._order = order
        self._plain = plain
        self._tries = tries
        self._quiet_s = quiet_s
        self._ended: EndedAnswer | None = None
        self.quiet_at = 0.0

    @property
    def pending(self) -> bool:
        """An answer waits to be judged."""
        return self._ended is not None

    def forget(self) -> None:
        self._ended = None

    def stir(self, now: float) -> None:
        """From now on live has to be found empty for `quiet_s`."""
        self.quiet_at = now + self._quiet_s

    def begin(self, asked: Asked, report: EndReport | None, now: float) -> None:
        """An answer has come to its end."""
        self._ended = EndedAnswer(asked, report)
        self.stir(now)

    def judge(self, epoch: int | None, *, quiet: bool = False) -> EndReport | None:
        """Tell what it says of batches that do not come live any more. `epoch`: of the life that is followed.

        -> its report, where that is surely of another life, which is alive
        """
        if self._ended is None:
            return None
        asked, report, order = self._ended.asked, self._ended.report, self._order
        if report is not None and report.epoch != epoch:
            return report if quiet else None
        sure = ENDLESS if quiet else order.live_upto
        order.tell_unseen(sure)
        if report is not None:
            sure = min(sure, report.next)
            order.lose_upto(min(report.oldest, sure), "older than the publisher's replay window")
            if len(asked.numbers) == report.count:  # the answer came whole: what it lacks was never sent
                order.lose_holes(asked.start, sure, "lost in the publisher, before it was sent")
            order.apply()
        judged = quiet or order.next >= order.wire or report is None or sure == report.next
        if (judged and not order.is_unsure) or order.next < min(order.wire, order.live_upto):
            self._ended = None
            self._judge_progress(asked)
        return None

    def _judge_progress(self, asked: Asked) -> None:
        order = self._order
        if order.next >= order.wire:
            order.failed = 0
            self._out.append(Settled(order.next))
        elif order.next > asked.next:
            order.failed = 0
        else:
            self.fail("replay does not bring it")

    def fail(self, why: str) -> None:
        """One more answer without progress."""
        order = self._order
        if order.next >= order.wire:
            return
        order.failed += 1
        if order.failed >= self._tries and self._plain.doubted_from == order.next:
            self._plain.lose_track(why)
        elif order.failed >= self._tries:
            order.lose_first_hole(f"{why}, asked {order.failed} times")

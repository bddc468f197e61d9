"""The part of a follower that deals with publishers without epochs and reports (vLLM's). Pure.

Promises
- A batch of an answer is taken only when the answer is known to be of the life that is followed (kv_lineage).
- `tries` answers in a row that hold nothing that is known leave it open whether that life goes on: the mirror is told
  to be unknown, once, and the publisher is followed as it is now.
- A batch whose number can be read and nothing else is a hole, also when nothing follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import BadFrameError
from engine.kv_events.codec import BadBatchError, EndReport, LivedBatch
from engine.kv_events.reports import Report, Unverified
from engine.kv_events.subscriber.lives import Lineage, Origin
from engine.kv_events.subscriber.order import ENDLESS, BatchOrder
from engine.kv_events.subscriber.question import Asked


class WithoutEpochs:
    """Mixed into `KVEventFollower`, whose fields these are."""

    order: BatchOrder
    lineage: Lineage
    tags: bool | None
    replay: bool
    tries: int
    wire: int
    next: int
    _asked: Asked | None
    _poll_at: float | None
    _arrivals: int
    _plain_turn: bool
    _unverified_at: int | None
    _out: list[Report]

    if TYPE_CHECKING:
        def _restart(self, epoch: int | None) -> None: ...
        def _end_of_answer(self, asked: Asked, report: EndReport | None, now: float) -> None: ...

    def _on_plain_end(self, now: float) -> None:
        asked = self._asked
        self._plain_turn = False
        if self.tags is None and self.order.last is not None:  # its batches carry no epoch, and it answers
            self.tags = False
        if asked.is_ours or self.lineage.is_unknown:
            self.lineage.misses = 0
            self._bring(asked)
        else:
            self.lineage.misses += 1
            if self.lineage.misses >= self.tries:  # fewer may be frames that were lost
                if asked.is_late or (asked.waiting and not asked.is_near):
                    self._restart(None)  # its clock was set back, or nothing joins it to what was heard
                    return
                self._lose_track("its answers hold nothing that is known")
                self._bring(asked)
        self._end_of_answer(asked, None, now)

    def _on_plain_batch(self, number: int, batch: LivedBatch) -> None:
        asked = self._asked
        if asked is None or asked.is_late:
            return
        known = self.order.ts_of(number)
        if known is not None and batch.ts > known:
            self._restart(None)
            return
        if known is not None and batch.ts < known:
            asked.is_late, asked.is_ours = True, False
            asked.waiting.clear()
            return
        asked.waiting.append((number, batch))
        doubted = self.lineage.doubted_from
        asked.is_near = asked.is_near or known is not None
        asked.is_ours = asked.is_ours or (known is not None and (doubted is None or number < doubted))
        if asked.is_ours:
            self._bring(asked)

    def _note_unread(self, error: BadFrameError) -> None:
        """A batch that cannot be read exists nevertheless, and no report will tell of it."""
        if isinstance(error, BadBatchError) and not self.tags:
            self.order.unseen_upto = max(self.order.unseen_upto, error.number + 1)

    def _bring(self, asked: Asked) -> None:
        """What was waiting belongs to the life that is followed."""
        for number, batch in asked.waiting:
            asked.numbers.add(number)
            self.lineage.see(number, batch.ts)
            self.lineage.trust(number)
            self._doubt()
            self.order.bring(number, batch, self._arrivals)
        asked.waiting.clear()

    def _continues(self, number: int, ts: float) -> bool:
        """Whether to take a live batch without an epoch, after a change of life was told."""
        if self.tags is None and self._asked is not None and self._asked.tag is not None:
            self._asked = None  # it does not know the question
        self.tags = False
        held = self.order.ts_of(number) == ts
        origin = self.lineage.live(number, ts, self.order.last, held=held, doubts=self.replay)
        if origin is Origin.LATE:
            if number >= self.wire:
                self._poll_at = None
            return False
        if origin is Origin.NEW:
            self._restart(None)
            self.lineage.begin((number, ts))
        self._doubt()
        return True

    def _doubt(self) -> None:
        doubted = self.lineage.doubted_from
        self.order.trusted_upto = ENDLESS if doubted is None else doubted

    def _lose_track(self, why: str) -> None:
        """It may be another life, and nobody can tell: what is applied from here on is the present one's.

        What was heard before the doubt comes first: a cache that an earlier life cleared says nothing of this one.
        """
        doubted = self.lineage.doubted_from
        if doubted is not None:
            self.order.lose_upto(doubted, why)
            self.lineage.trust(doubted)
        self.lineage.misses = 0
        self._doubt()
        if self._unverified_at != self.next:
            self._unverified_at = self.next
            self._out.append(Unverified(self.next, why))
        self.order.apply()

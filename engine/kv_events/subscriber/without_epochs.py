"""What a follower makes of a publisher without epochs and reports (vLLM's). Pure.

Promises
- A batch of an answer is taken only when the answer is known to be of the life that is followed (lives.py).
- `tries` answers in a row that hold nothing that is known leave it open whether that life goes on: the mirror is told
  to be unknown, once, and the publisher is followed as it is now.
- A batch whose number can be read and nothing else is a hole, also when nothing follows it.
"""

from __future__ import annotations

from engine.errors import BadFrameError
from engine.kv_events.codec import BadBatchError, LivedBatch
from engine.kv_events.reports import Report, Unverified
from engine.kv_events.subscriber.lives import Known, Lineage, Origin
from engine.kv_events.subscriber.order import BatchOrder
from engine.kv_events.subscriber.question import Asked, Questions


class PlainPublisher:
    """`out`: where reports go. `asks`: there is a replay socket. `tries`, `restart_s`: see the follower.

    Where it says that a batch is of a new life, or an answer, whoever asked tells the restart and calls `begin`.
    """

    def __init__(self, out: list[Report], order: BatchOrder, questions: Questions, *, asks: bool, tries: int,
                 restart_s: float) -> None:
        self._out = out
        self._order = order
        self._questions = questions
        self._asks = asks
        self._tries = tries
        self._lineage = Lineage(restart_s)
        self._unverified_at: int | None = None

    def begin(self, first: Known | None = None) -> None:
        """Nothing is known of a new life, but perhaps one live batch."""
        self._lineage.begin(first)
        self._unverified_at = None
        self._doubt()

    @property
    def doubted_from(self) -> int | None:
        """Batches from here on may be of a new life."""
        return self._lineage.doubted_from

    def reconnected(self) -> None:
        """The next live batch may be of another life. Where nobody can be asked, that stays open."""
        self._lineage.reconnected()
        if not self._asks and self._questions.tags is False:
            self.lose_track("it was gone, and there is no replay socket to ask")

    # -- live

    def on_live(self, number: int, ts: float) -> Origin:
        """Whose a live batch is. One that is late is not taken, and the replay socket is asked."""
        self._questions.heard_plain()
        held = self._order.ts_of(number) == ts
        origin = self._lineage.live(number, ts, self._order.last, held=held, doubts=self._asks)
        if origin is Origin.LATE and number >= self._order.wire:
            self._questions.hurry()
        elif origin is Origin.SAME:
            self._doubt()
        return origin

    def on_unread(self, error: BadFrameError) -> None:
        """A batch that cannot be read exists nevertheless, and no report will tell of it."""
        if isinstance(error, BadBatchError) and not self._questions.tags:
            self._order.expect_upto(error.number + 1)

    # -- answers

    def on_answered(self, asked: Asked, number: int, batch: LivedBatch) -> Origin:
        """A batch of the answer to `asked`."""
        if asked.is_late:
            return Origin.LATE
        known = self._order.ts_of(number)
        if known is not None and batch.ts > known:
            return Origin.NEW
        if known is not None and batch.ts < known:
            asked.is_late, asked.is_ours = True, False
            asked.waiting.clear()
            return Origin.LATE
        asked.waiting.append((number, batch))
        doubted = self._lineage.doubted_from
        asked.is_near = asked.is_near or known is not None
        asked.is_ours = asked.is_ours or (known is not None and (doubted is None or number < doubted))
        if asked.is_ours:
            self._bring(asked)
        return Origin.SAME

    def on_end(self, asked: Asked) -> Origin:
        """Whose the answer to `asked` was, which has ended."""
        lineage = self._lineage
        self._questions.answered_plainly(applied=self._order.last is not None)
        if asked.is_ours or lineage.is_unknown:
            lineage.misses = 0
            self._bring(asked)
            return Origin.SAME
        lineage.misses += 1
        if lineage.misses >= self._tries:  # fewer may be frames that were lost
            if asked.is_late or (asked.waiting and not asked.is_near):
                return Origin.NEW  # its clock was set back, or nothing joins it to what was heard
            self.lose_track("its answers hold nothing that is known")
            self._bring(asked)
        return Origin.SAME

    def _bring(self, asked: Asked) -> None:
        """What was waiting belongs to the life that is followed."""
        for number, batch in asked.waiting:
            asked.numbers.add(number)
            self._lineage.see(number, batch.ts)
            self._lineage.trust(number)
            self._doubt()
            self._order.bring(number, batch)
        asked.waiting.clear()

    # -- what stays open

    def lose_track(self, why: str) -> None:
        """It may be another life, and nobody can tell: what is applied from here on is the present one's.

        What was heard before the doubt comes first: a cache that an earlier life cleared says nothing of this one.
        """
        doubted = self._lineage.doubted_from
        if doubted is not None:
            self._order.lose_upto(doubted, why)
            self._lineage.trust(doubted)
        self._lineage.misses = 0
        self._doubt()
        if self._unverified_at != self._order.next:
            self._unverified_at = self._order.next
            self._out.append(Unverified(self._order.next, why))
        self._order.apply()

    def lose_all_doubts(self, why: str) -> None:
        while self._lineage.doubted_from is not None:
            self.lose_track(why)

    def _doubt(self) -> None:
        self._order.trust_upto(self._lineage.doubted_from)

"""The batches of one publisher's life in the order of their numbers: applied, held back, missing, or lost. Pure.

Promises
- Batches come out once each and in the order of their numbers.
- A hole is told as a Gap when it is seen, and ends in Healed or in Unrecoverable.
- A snapshot is told in its place between two batches, and after a loss for good one is wanted (snapshot.py).
- Live batches come in order: what is missing below `live_upto` was passed by, and comes live no more. What lies
  beyond may still be under way, whoever says that it was sent.

    number   0 1 2 3 4 5 6 7 8 9
             = = = =   - - -            = applied     - held back
                     ^next (applied)  ^wire: every number below it was seen, or told as a hole
"""

from __future__ import annotations

from collections import deque

import msgspec

from engine.kv_events.codec import LivedBatch
from engine.kv_events.reports import Applied, Gap, Healed, Malformed, Report, Unrecoverable
from engine.kv_events.subscriber.snapshot import Fetching
from engine.messages import AllBlocksCleared

#: Above every number.
ENDLESS = 2**63


class _Held(msgspec.Struct):
    batch: LivedBatch
    source: str
    arrival: int  # how many messages had come by then


class BatchOrder:
    """`out`: where reports go. `max_held`: batches kept behind a hole. `snapshots`: a loss for good wants one."""

    def __init__(self, out: list[Report], fetching: Fetching, *, max_held: int, snapshots: bool) -> None:
        self.fetching = fetching
        self.max_held = max_held
        self.snapshots = snapshots
        self._out = out
        self._held: dict[int, _Held] = {}
        self.arrivals = 0  # messages that have come, of every life
        self.begin()

    def begin(self) -> None:
        """Nothing is known of a new life."""
        self.fetching.forget()
        self._held.clear()
        self.next = 0
        self.wire = 0
        self.gaps: deque[tuple[int, int]] = deque()  # told and still open, ascending
        self.last: tuple[int, float] | None = None  # number and time of the batch applied last
        self.failed = 0  # answers without progress since the last progress
        self._trusted_upto = ENDLESS  # from here on it may be another life's: not to be applied yet
        self.live_upto = 0  # one more than the highest live number
        self._unseen_upto = 0  # end of what exists as answers tell; it is told as a hole when it is surely one

    @property
    def held(self) -> int:
        """Batches that wait behind a hole, or for the end of an answer."""
        return len(self._held)

    # -- what is seen

    def see(self, number: int) -> None:
        """A live batch: what lies between `wire` and it did not come."""
        if number >= self.wire:
            if number > self.next and len(self._held) >= self.max_held:
                return  # there is no room for it: as if it had not come
            self.see_upto(number)
            self.wire = number + 1
        self.live_upto = max(self.live_upto, number + 1)

    def see_upto(self, upto: int) -> None:
        if upto > self.wire:
            self.gaps.append((self.wire, upto - 1))
            self._out.append(Gap(self.wire, upto - 1))
            self.wire = upto

    def bring(self, number: int, batch: LivedBatch) -> None:
        """A batch of an answer. Beyond `wire` it waits for its turn live, or until `tell_unseen`."""
        self.hold(number, batch, "replay")
        if number >= self.wire:
            self.expect_upto(number + 1)
        self.apply()

    def expect_upto(self, upto: int) -> None:
        """Every number below it exists, whether or not it will be seen."""
        self._unseen_upto = max(self._unseen_upto, upto)

    def tell_unseen(self, upto: int = ENDLESS) -> None:
        """Below `upto`, what an answer told of and no live message did will not come live: it is a hole."""
        self.see_upto(min(self._unseen_upto, upto))
        self.apply()

    def hold(self, number: int, batch: LivedBatch, source: str) -> None:
        """Keep a batch until it is its turn."""
        if number >= self.next and number not in self._held and (
                len(self._held) < self.max_held or number == self.next):
            self._held[number] = _Held(batch, source, self.arrivals)

    def ts_of(self, number: int) -> float | None:
        """The time of a batch, if it waits or was applied last."""
        if self.last is not None and number == self.last[0]:
            return self.last[1]
        held = self._held.get(number)
        return None if held is None else held.batch.ts

    @property
    def is_unsure(self) -> bool:
        """An answer told of batches that may still come live."""
        return self._unseen_upto > self.wire

    # -- what comes out

    def trust_upto(self, number: int | None) -> None:
        """From this number on batches wait until they are known to be of the life that is followed; None: none do."""
        self._trusted_upto = ENDLESS if number is None else number

    def apply(self) -> None:
        """Let out what it is the turn of."""
        self._place_snapshot()
        while self.next in self._held and self.next < min(
                self.wire, self._trusted_upto, self.fetching.limit(self.next)):
            held = self._held.pop(self.next)
            self._out.append(Applied(self.next, held.batch, held.source))
            self.last = (self.next, held.batch.ts)
            self.next += 1
            self.failed = 0
            if self.gaps and self.gaps[0][1] < self.next:
                self._out.append(Healed(*self.gaps.popleft()))
            if self.fetching.wanted:
                if any(isinstance(event, AllBlocksCleared) for event in held.batch.events):
                    self.fetching.forget()  # whatever was lost, it was cleared
                self._place_snapshot()

    def _place_snapshot(self) -> None:
        snapshot = self.fetching.arrive(self.next)
        if snapshot is not None:
            self._out.append(snapshot)

    # -- what is lost

    def lose_upto(self, upto: int, reason: str) -> None:
        """Numbers from `next` up to `upto` that are not held will never come; those that are, are applied."""
        self.lose_holes(self.next, upto, reason)

    def lose_holes(self, start: int, upto: int, reason: str) -> None:
        """The same, if `next` is not below `start`."""
        upto = min(upto, self.wire)
        self.apply()
        ends: list[int] | None = None  # where holes end: numbers of held batches, descending
        while start <= self.next < upto and self.next not in self._held:  # what is held waits for a snapshot
            if ends is None:
                ends = sorted((number for number in self._held if self.next < number < upto), reverse=True)
            while ends and ends[-1] < self.next:
                ends.pop()
            self._lose((ends[-1] if ends else upto) - 1, reason)
            self.apply()

    def drop_from(self, number: int) -> None:
        """From here on what waits is of an unknown life. It is a hole, too, where one was told beyond it."""
        for doubted in [held for held in self._held if held >= number]:
            del self._held[doubted]
        end = max([last + 1 for _, last in self.gaps], default=0)
        self.wire = min(self.wire, max(number, self.next, end))
        told = [gap for gap in self.gaps if gap[1] >= number]
        for after, (first, _) in zip([max(number, self.next), *(last + 1 for _, last in told)], told, strict=False):
            if after < first:
                self.gaps.append((after, first - 1))
                self._out.append(Gap(after, first - 1))
        self.gaps = deque(sorted(self.gaps))

    def lose_first_hole(self, reason: str) -> None:
        self.lose_holes(self.next, min([number for number in self._held if number > self.next] + [self.wire]), reason)

    def _lose(self, last: int, reason: str) -> None:
        if self.gaps and self.gaps[0][0] < self.next:
            self._out.append(Healed(self.gaps[0][0], self.next - 1))
        self._out.append(Unrecoverable(self.next, last, reason))
        self.next = last + 1
        self.failed = 0
        if self.snapshots:
            self.fetching.want()
        while self.gaps and self.gaps[0][0] < self.next:
            _, end = self.gaps.popleft()
            if end >= self.next:
                self.gaps.appendleft((self.next, end))

    def learn_end(self, upto: int, arrivals: int) -> None:
        """The publisher is at `upto`, as it says to a question that was asked after so many messages.

        Held batches beyond it that came before have a damaged number.
        """
        self._unseen_upto = upto
        false = [number for number, held in self._held.items() if number >= upto and held.arrival <= arrivals]
        if false:
            for number in false:
                del self._held[number]
            self.wire = max(upto, self.next, max(self._held, default=-1) + 1)
            self.live_upto = min(self.live_upto, upto)
            self.gaps = deque((first, min(last, self.wire - 1)) for first, last in self.gaps if first < self.wire)
            self._out += [Malformed("kv", f"batch {number} does not exist: the publisher is at {upto}")
                          for number in sorted(false)]
            while self.gaps and self.gaps[0][1] < self.next:  # it was open for what does not exist
                self._out.append(Healed(*self.gaps.popleft()))

"""A follower's snapshot: when it is wanted, asked for, put together, and where it belongs. Pure.

Promises
- A snapshot stands at exactly one place of the stream: before batch `next`. Until it is known which, no batch is
  applied; a follower that is past that place asks again.
- A piece that is lost, doubled or of another question never makes a wrong snapshot: all pieces or none.
- Who serves none is asked `tries` times in a row, and then not before the next loss.

    nothing --loss--> wanted --asked--> under way --all pieces--> complete --batches up to `next` applied--> nothing
                        ^_____________________|_________________________|  (no answer; passed by)
"""

from __future__ import annotations

from engine.kv_events.codec import LivedBatch, Place
from engine.kv_events.reports import Snapshot
from engine.messages import BlockStored

_ENDLESS = 2**63


class Fetching:
    """`tries`: questions in a row without a snapshot. `pause_s`: between two of them."""

    def __init__(self, tries: int, pause_s: float) -> None:
        self._tries = tries
        self._pause_s = pause_s
        self.forget()

    def forget(self) -> None:
        """Nothing is wanted."""
        self.wanted = False
        self.at = 0.0  # not to be asked for before
        self.under_way = False
        self._failed = 0
        self._place: Place | None = None
        self._pieces: dict[int, LivedBatch] = {}

    def want(self) -> None:
        """Something was lost for good."""
        if not self.wanted:
            self.forget()
            self.wanted = True

    def due(self, now: float) -> bool:
        return self.wanted and not self.under_way and not self.complete and now >= self.at

    @property
    def next_at(self) -> float | None:
        return self.at if self.wanted and not self.under_way and not self.complete else None

    @property
    def complete(self) -> bool:
        return self._place is not None and len(self._pieces) == self._place.pieces

    def limit(self, next_number: int) -> int:
        """Batches from here on must not be applied yet."""
        if self._place is not None:
            return self._place.next
        return next_number if self.under_way else _ENDLESS

    def begin(self) -> None:
        self.under_way = True
        self._place = None
        self._pieces.clear()

    def take(self, place: Place, piece: LivedBatch, next_number: int, now: float) -> None:
        """A piece of the answer under way; `complete` tells whether it was the last one."""
        if not place.known:
            self.forget()
            return
        if self._place is None:
            self._place = place
        self._pieces[place.piece] = piece
        if place.next < next_number:
            self.fail(now)
        elif self.complete:
            self.under_way = False

    def fail(self, now: float) -> None:
        """No answer, an answer with a hole, or one whose place has been passed."""
        self._place = None
        self._pieces.clear()
        self.under_way = False
        self._failed += 1
        self.at = now + self._pause_s
        if self._failed >= self._tries:
            self.forget()

    def arrive(self, next_number: int) -> Snapshot | None:
        """The snapshot, if its place is reached. One that was passed by is asked for again."""
        place = self._place
        if place is None or not self.complete:
            return None
        if next_number > place.next:
            self.begin()
            self.under_way = False
        elif next_number == place.next:
            blocks = [event for _, piece in sorted(self._pieces.items()) for event in piece.events
                      if isinstance(event, BlockStored)]  # whatever else stands in a piece is no part of a state
            self.forget()
            return Snapshot(place.next, blocks)
        return None

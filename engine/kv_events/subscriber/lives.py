"""Which life of a publisher a batch belongs to. Pure.

Ours says so: each batch carries the epoch of its life. A publisher without epochs (vLLM's) begins again at number 0 and
says nothing of it. What tells its lives apart is the time of a batch, which is its publisher's wall clock: within a
life it grows with the number.

Promises
- An epoch that was followed and left comes back only where its publisher answers: a batch of it is late.
- A number that went back while the time went on is a new life.
- A batch whose time jumped by `restart_s`, or that is the first after the connection was cut (`reconnected`), may be
  of a new life that has reached just this number. It is doubted: held back until an answer holds both it and what was
  known before it. Nobody restarts faster than that, so what is not doubted continues the life.
- A batch that comes live late, doubled or with a time that went back is not taken; the replay socket is asked. Nor is
  one that answers overtook by `restart_s`: they may be of the life after its.
- An answer counts only if it holds a batch that is known, with the same time. One with an earlier time comes from a
  life that is over, one with a later time from a new one.

What cannot be told: a restart within `restart_s` of the last batch heard, by the publisher's own clock, that reaches
just the next number; the same after a clock was set back by about the pause; an answer that breaks off and, without
its own beginning, an answer of the next life right behind it. Without a replay socket nothing can be verified: times
are not doubted, and after `reconnected` the mirror is unknown.
"""

from __future__ import annotations

from enum import Enum

Known = tuple[int, float]  # number and time of a batch


class Origin(Enum):
    SAME = 1
    NEW = 2  # a new life
    LATE = 3  # not to be taken


class Epochs:
    """Lives that say which they are."""

    def __init__(self) -> None:
        self.current: int | None = None  # None: it has not said yet
        self._over: set[int] = set()

    def origin(self, epoch: int) -> Origin:
        if epoch in self._over:
            return Origin.LATE
        return Origin.SAME if self.current in (None, epoch) else Origin.NEW

    def learn(self, epoch: int) -> None:
        """The life that is followed is this one."""
        self.current = epoch

    def begin(self, epoch: int | None) -> None:
        """Another life, which is alive; the one before it is over."""
        if self.current is not None:
            self._over.add(self.current)
        if epoch is not None:
            self._over.discard(epoch)
        self.current = epoch


class Lineage:
    """Lives that do not. `restart_s`: no publisher is gone and back faster."""

    def __init__(self, restart_s: float) -> None:
        self._restart_s = restart_s
        self.begin()

    def begin(self, first: Known | None = None) -> None:
        """Nothing is known of a new life, but perhaps one live batch."""
        self._top = first  # the highest number that is known
        self._live_top = first
        self._doubts: list[int] = []  # ascending
        self.misses = 0  # answers in a row that held nothing that is known
        self._cut = False

    def reconnected(self) -> None:
        """The next live batch may be of another life."""
        self._cut = self._top is not None

    @property
    def doubted_from(self) -> int | None:
        """Batches from here on may be of a new life."""
        return self._doubts[0] if self._doubts else None

    def live(self, number: int, ts: float, last: Known | None, *, held: bool, doubts: bool) -> Origin:
        """A live batch. `last`: the batch applied last. `held`: just it waits. `doubts`: there is somebody to ask."""
        if self._top is not None and number <= self._top[0]:
            if ts > self._top[1]:
                return Origin.NEW
            if doubts and not held and self._top[1] - ts >= self._restart_s:
                return Origin.LATE
        if last is not None and number <= last[0]:
            return Origin.SAME if number == last[0] and ts == last[1] else Origin.LATE
        answered = self._top if self._top is not None and self._top[0] < number else None
        before = max((known for known in (self._live_top, last, answered) if known is not None), default=None)
        if before is not None:
            if number <= before[0] or ts < before[1]:
                return Origin.LATE
            if doubts and (self._cut or ts - before[1] >= self._restart_s):
                self._doubts.append(number)
        self._cut = False
        self._live_top = number, ts
        self.see(number, ts)
        return Origin.SAME

    @property
    def is_unknown(self) -> bool:
        """No batch of this life is known."""
        return self._top is None

    def see(self, number: int, ts: float) -> None:
        """A batch is known."""
        if self._top is None or number > self._top[0]:
            self._top = number, ts

    def trust(self, number: int) -> None:
        """It was doubted, perhaps, and continues what is known."""
        if number in self._doubts:
            self._doubts.remove(number)

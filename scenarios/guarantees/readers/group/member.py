"""What a rank of a group that steps together has to do, by what it was told: its rules, written down a second time and
not as it has them.

    told     requests, STARTs, what all have left to do, and to pause or to go on
    due      what it is to report at once: that it has work, and that a wave is over
    place    the wave and the step of it that comes next; `sum_due`: it is an all-reduce
"""

from __future__ import annotations

from typing import NamedTuple

from engine.config import DataParallelConfig


class Word(NamedTuple):
    """`over`: that wave is; else: this rank has work in it."""

    wave: int
    over: bool = False


class Member:
    """Rank `index` of `size`; `hub`: somebody wakes them."""

    def __init__(self, index: int, size: int, options: DataParallelConfig, *, hub: bool) -> None:
        self._index, self._size, self._hub = index, size, hub
        self._interval, self.old = options.sync_interval, options.wave_protocol == "old"
        self.place = (0, 0)
        self.runs = self.sum_due = self.pausing = self.paused = self.going_on = False

    @property
    def _told(self) -> list[Word]:
        return [Word(self.place[0])] if self._hub else []

    def asked(self, wave: int) -> list[Word]:
        """By a client, which believes that `wave` is to come or under way. Of the old protocol clients wake all, unless
        that wave is over.
        """
        if self.old:
            return self._told if wave < self.place[0] and not self.runs else []
        if self.runs or self.pausing or self.paused:
            return []
        self.runs = True
        return self._told

    def started(self, wave: int, exclude: int | None) -> bool:
        """-> whether that is what makes it run."""
        if self.runs or wave != self.place[0] or exclude == self._index or (self.paused and not self.old):
            return False
        self.runs = True
        return True

    def stepped(self) -> None:
        wave, step = self.place
        self.place = wave, step + 1
        self.runs = True
        self.sum_due = (step + 1) % self._interval == 0 or (step == 0 and not self.old)

    @property
    def pauses(self) -> list[int]:
        """What it says of a pause, beside what it has left to do."""
        return [] if self.old else [int(self.pausing and not self.going_on)]

    def agreed(self, answer: list[int]) -> list[Word]:
        wave, step = self.place
        left, pausing = answer[0], 0 if self.old else answer[1]
        going_on, self.going_on, self.sum_due = self.going_on, False, False
        self.runs = left > 0 or pausing not in (0, self._size)
        if self.runs:
            return self._told if step <= 1 and self._index == 0 and not self.old and not self.pausing else []
        if going_on:
            return []
        self.place = wave + 1, 0
        self.paused |= self.pausing
        self.pausing = False
        return [Word(wave, over=True)] if self._index == 0 or not self._hub else []

    def pause(self) -> None:
        if self.paused:
            return
        if self.old:
            self.pausing, self.paused = self.runs, not self.runs
        else:
            self.pausing = self.runs = True

    def halt(self) -> None:
        self.runs, self.paused = False, True

    def go_on(self, unfinished: bool) -> list[Word]:
        if not self.paused:
            return []
        self.paused = False
        if self.old:
            return self._told if unfinished else []
        self.going_on = self.sum_due = True
        return []

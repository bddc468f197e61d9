"""What a coordinator has to say, by what it was told: its rules, written down a second time and not as it has them.

    told     by a core that it has work (`start`), that a wave is over (`over`), what it has to do at a step (`count`);
             by a client of a first request (`first`, of the old protocol)
    due      what is to be said at once: a START to cores, and to clients where the group is
    in time  what clients are told again and again: counts, at `publish_at`
"""

from __future__ import annotations

from typing import NamedTuple

from engine.config import DataParallelConfig
from faults.journal import Record

Counts = tuple[int, int, float]
Place = tuple[int, int]


class Start(NamedTuple):
    wave: int
    exclude: int | None


class Notice(NamedTuple):
    counts: tuple[Counts, ...] | None
    wave: int
    running: bool


Word = Start | Notice


class Hub:
    """Of `ranks` cores; `now`: from when on it counts the time."""

    def __init__(self, ranks: int, options: DataParallelConfig, now: float, *, lockstep: bool, counted: bool) -> None:
        self._options, self._lockstep, self._counted = options, lockstep, counted
        self.wave, self.running = 0, False
        self._last: list[Counts] = [(0, 0, 0.0)] * ranks
        self._whole: list[Counts] | None = None  # of the step before, where the next one has begun
        self._news = False  # whether some of it was told to nobody
        self._place: Place = (0, 0)
        self._said_at = self._heard_at = now

    def start(self, rank: int | None, wave: int) -> list[Word]:
        """Nothing, where that wave is under way; only what a core has asked for, where it seems over."""
        if wave < self.wave:
            return [Start(wave, rank)]
        if (wave, self.running) == (self.wave, True):
            return []
        self.wave, self.running = wave, True
        return [Start(wave, rank), Notice(None, wave, True)]

    def over(self, wave: int) -> list[Word]:
        if wave < self.wave:
            return []
        self.wave, self.running = wave + 1, False
        return [Notice(None, self.wave, False)]

    def first(self, rank: int, wave: int) -> list[Word]:
        """A client believes that all rest. Whom it has asked is left out where it knows the wave."""
        if self._options.wave_protocol != "old" or self.running:
            return []
        return self.start(rank if wave >= self.wave else None, self.wave)

    def count(self, rank: int, counts: Counts, place: Place, now: float) -> None:
        if self._lockstep and place > self._place:
            self._place = place
            if self._news:
                self._whole = list(self._last)
        self._news |= self._last[rank] != counts
        self._last[rank] = counts
        self._heard_at = now

    @property
    def publish_at(self) -> float:
        """A step that not all have told of yet is given some time."""
        options = self._options
        due = self._said_at + (options.changed_s if self._news else options.unchanged_s)
        if self._whole is not None or not self._lockstep:
            return due
        return min(due + options.settle_s, max(due, self._heard_at + options.settle_s))

    @property
    def has_news(self) -> bool:
        """Whether some counts have changed since clients were told."""
        return self._news

    def publish(self, now: float) -> list[Word]:
        counts = self._whole
        if counts is None:
            counts, self._news = self._last, False
        self._whole, self._said_at = None, now
        said: list[Word] = [Notice(tuple(counts) if self._counted else None, self.wave, self.running)]
        return [*said, Start(self.wave, None)] if self.running and self._options.repair else said



def word_of(record: Record) -> Word:
    """A word, as it says that it says it."""
    data = record.data
    if record.site == "start":
        return Start(data["wave"], data["exclude"])
    counts = data["counts"]
    return Notice(None if counts is None else tuple((w, r, c) for w, r, c in counts), data["wave"], data["running"])


def hear(hub: Hub, record: Record, rank: int | None) -> list[Word]:
    """What one record of its brings. `rank`: of the core that has told it; None: a client has."""
    data = record.data
    if rank is None:
        return hub.first(data["first_request"], data["wave"]) if "first_request" in data else []
    if "scheduler_stats" in data:
        running, waiting, free, total = data["scheduler_stats"]
        wave, step = data.get("counted_at", (0, 0))
        hub.count(rank, (waiting, running, (total - free) / total if total else 0.0), (wave, step), record.at)
    said = hub.start(rank, data["start_wave"]) if "start_wave" in data else []
    return said + (hub.over(data["wave_complete"]) if "wave_complete" in data else [])

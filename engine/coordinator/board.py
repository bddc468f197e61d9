"""What the coordinator of a data-parallel group knows, and what it says (pure, told the time).

It carries the ranks' counts to the front ends, and the starts of waves from the rank that has work to all others.
That a wave runs is a belief: START was sent, and nobody said that it was heard. Only a wave's end was seen, by a rank.
So nothing may rest on the belief but advice.

Promises
- Ready is said once every rank's own subscription was seen, by the index in it, however often one of them came.
- The wave never falls. What is reported of a wave that is over changes nothing; a START carries its wave's number.
- Whether a wave is over its ranks know better: a START that a rank asks for is passed on, also where the wave seems
  over. One number that was read wrong would else leave a rank alone for good, and all others with it.
- While it believes that a wave runs, each publication repeats its START to all ranks: a START that was lost costs time.
- Counts that are published belong to one step of all ranks where ranks run in lockstep. They go out `changed_s` after
  the last ones if they differ, or the wave does, `unchanged_s` if not; in lockstep up to `settle_s` later while the
  ranks still report a step. Traffic puts this off no further.
- What cannot be (an unknown rank, a negative number) changes nothing and is named.

Times are of a monotonic clock.
"""

from __future__ import annotations

import msgspec

from engine.coordinator.waves import WaveProtocol

Counts = tuple[int, int, float]  # waiting, running, share of the cache in use


class Ready(msgspec.Struct, frozen=True):
    """To all ranks: each of them hears what is said from now on."""


class Start(msgspec.Struct, frozen=True):
    """To all ranks: run this wave; who is excluded runs it already."""

    wave: int
    exclude: int | None


class Notice(msgspec.Struct, frozen=True):
    """To all front ends. `counts` of all ranks, or None where only the wave has changed."""

    counts: tuple[Counts, ...] | None
    wave: int
    running: bool


class Odd(msgspec.Struct, frozen=True):
    """To whoever runs it: what was ignored, and why."""

    why: str


Said = Ready | Start | Notice | Odd


class Board:
    """The coordinator's books. A method says what is to be sent, in order."""

    def __init__(self, engines: int, *, changed_s: float, unchanged_s: float, settle_s: float, now: float,
                 lockstep: bool = True, protocol: WaveProtocol = "new", repair: bool = True,
                 counted: bool = True) -> None:
        """`counted` False: whoever asks chooses the rank, so nobody is told of counts."""
        self.engines = engines
        self.protocol = protocol
        self.wave = 0
        self.running = False
        self.subscribed: set[int] = set()
        self.counts: list[Counts] = [(0, 0, 0.0)] * engines
        self._lockstep, self._counted = lockstep, counted
        self._repair = repair
        self._changed_s, self._unchanged_s, self._settle_s = changed_s, unchanged_s, settle_s
        self._published_at = now
        self._heard_at = now  # counts
        self._changed = False
        self._newest = (0, 0)  # wave and step of the newest counts
        self._whole_step: tuple[Counts, ...] | None = None  # all ranks' counts of the step before, not published yet

    @property
    def is_ready(self) -> bool:
        return len(self.subscribed) == self.engines

    # -- the ranks

    def on_subscription(self, rank: int) -> list[Said]:
        """A rank that comes again waits for Ready again; the others have had theirs and need not mind."""
        if odd := self._odd(rank):
            return [odd]
        self.subscribed.add(rank)
        return [Ready()] if self.is_ready else []

    def on_counts(self, rank: int, counts: Counts, wave: int, step: int, now: float) -> list[Said]:
        """A rank's counts at a step. Those of an older one than the newest are used, too."""
        if odd := self._odd(rank, *counts, wave, step):
            return [odd]
        if self._lockstep and (wave, step) > self._newest:
            if self._changed:
                self._whole_step = tuple(self.counts)
            self._newest = wave, step
        self._heard_at = now
        self._changed = self._changed or counts != self.counts[rank]
        self.counts[rank] = counts
        return []

    def on_start_wave(self, rank: int, wave: int) -> list[Said]:
        """A rank at rest has work. It runs already."""
        if odd := self._odd_in_wave(rank, wave):
            return [odd]
        if wave < self.wave:
            return [Start(wave, rank)]
        return [] if wave == self.wave and self.running else self._start(wave, rank)

    def on_wave_complete(self, rank: int, wave: int) -> list[Said]:
        if odd := self._odd_in_wave(rank, wave):
            return [odd]
        if wave < self.wave:
            return []
        self.wave, self.running = wave + 1, False
        return [Notice(None, self.wave, False)]

    # -- the front ends

    def on_first_request(self, rank: int, wave: int) -> list[Said]:
        """"old": a front end that believes the group at rest has sent a request to this rank."""
        if odd := self._odd_in_wave(rank, wave):
            return [odd]
        if self.protocol != "old":
            return [Odd(f"a first request, which the {self.protocol} protocol does not have")]
        if self.running:
            return []
        return self._start(self.wave, None if wave < self.wave else rank)

    # -- time

    @property
    def publish_at(self) -> float:
        """When the counts go out, if nothing else comes before."""
        at = self._published_at + (self._changed_s if self._changed else self._unchanged_s)
        if not self._lockstep or self._whole_step is not None:
            return at
        return min(max(at, self._heard_at + self._settle_s), at + self._settle_s)

    def publish(self, now: float) -> list[Said]:
        """What goes out at `publish_at`."""
        counts, self._whole_step = self._whole_step, None
        if counts is None:
            counts, self._changed = tuple(self.counts), False
        self._published_at = now
        said: list[Said] = [Notice(counts if self._counted else None, self.wave, self.running)]
        if self._repair and self.running:
            said.append(Start(self.wave, None))
        return said

    # -- the rest

    def _start(self, wave: int, exclude: int | None) -> list[Said]:
        self.wave, self.running = wave, True
        return [Start(wave, exclude), Notice(None, wave, True)]

    def _odd_in_wave(self, rank: int, wave: int) -> Odd | None:
        return self._odd(rank, wave) or (None if self._lockstep else Odd(
            f"rank {rank} is in a wave, and the ranks do not step together"))

    def _odd(self, rank: int, *numbers: float) -> Odd | None:
        if not 0 <= rank < self.engines:
            return Odd(f"there is no rank {rank} of {self.engines}")
        if any(number < 0 for number in numbers):
            return Odd(f"rank {rank} told numbers that cannot be: {', '.join(map(str, numbers))}")
        return None

"""When a rank of a lockstep group runs, though it may have nothing to do itself (pure, told what happens).

A wave is what lies between two times of rest of the whole group. Within it every rank executes as many steps as every
other one, dummy batches where it has no work, and at fixed steps all of them add up what each has left to do. A sum of
nothing ends the wave on all ranks at once.

Promises
- Which steps have an all-reduce is told by wave and step alone, which are the same on all ranks.
- A wave's number only grows. A START of a wave that is over starts nothing, so a late or a doubled one is harmless.
- "new": a request at a rank at rest runs that rank and is reported, whatever its client believed. So a request that
  came too late for one wave begins the next.
- Who reports a start that nobody may have heard has it in `unheard`, for whoever can speak while the rank waits in an
  all-reduce, until a START or an all-reduce of that wave shows that it was heard.
- "new": paused, a rank executes nothing and hears no START. All ranks pause in the same all-reduce, and behind
  `resume` none executes before all have resumed.

"old" is the first protocol of this kind: a client that believes the group at rest reports its request itself, and
pause is each rank's own affair. It loses wake-ups (tests/explorer says which), and is kept to show that.

    for report in waves.on_request(request.current_wave): ...    # inputs, between two steps
    if waves.may_step(unfinished):
        ...                                                      # a step, or a dummy batch where there is none
        waves.stepped()
    if waves.due:                                                # before any other input
        for report in waves.on_answer((yield Reduce(..., waves.votes(unfinished), ...))): ...

Without a coordinator nobody wakes anybody: every rank needs a request of its own, and tells its own client of the
wave's end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

WaveProtocol = Literal["old", "new"]


class StartWave(msgspec.Struct, frozen=True):
    """A rank at rest has work: all others are to run this wave."""

    wave: int


class WaveComplete(msgspec.Struct, frozen=True):
    """All ranks have agreed that nothing is left to do in this wave."""

    wave: int


Report = StartWave | WaveComplete


class Waves:
    """One rank's part in the waves of its group. `interval`: steps from one all-reduce to the next."""

    def __init__(self, rank: int, size: int, *, interval: int, protocol: WaveProtocol = "new",
                 coordinated: bool = True, repair: bool = True) -> None:
        self.rank = rank
        self.size = size
        self.interval = interval
        self.protocol: WaveProtocol = protocol
        self.coordinated = coordinated
        self.wave = 0
        self.step = 0  # of this wave
        self.running = False
        self.due = False  # all that comes next is an all-reduce
        self.pausing = False  # asked to pause, and not all ranks have agreed
        self.paused = False
        self.unheard: StartWave | None = None
        self._repair = repair
        self._resuming = False

    # -- what the loop asks

    @property
    def holds(self) -> bool:
        """Whether nothing of this rank's own work may be scheduled."""
        return self.pausing or self.paused

    def may_step(self, unfinished: bool) -> bool:
        """Whether a step comes next, of work or dummy. `unfinished`: this rank has requests, held ones included."""
        return not self.due and (self.running or (unfinished and not self.holds))

    @property
    def op(self) -> Literal["sum", "max"]:
        return "sum" if self.protocol == "new" else "max"

    def votes(self, unfinished: bool) -> list[int]:
        """What this rank brings to the all-reduce that is due."""
        if self._resuming:
            return [int(unfinished or self.running), 0]
        working = int(unfinished and not self.holds)
        return [working, int(self.pausing)] if self.protocol == "new" else [working]

    # -- what happens

    def on_request(self, wave: int) -> list[Report]:
        """A request was added, which its client sent in `wave`: what a client believes moves no rank's number."""
        if self.protocol == "old":
            return self._start() if wave < self.wave and not self.running else []
        if self.running or self.holds:
            return []
        self.running = True  # itself: the START that answers the report leaves its sender out
        return self._start()

    def on_start(self, wave: int, exclude: int | None) -> None:
        """The coordinator starts a wave on all ranks but one."""
        if wave != self.wave:
            return
        self.unheard = None
        if exclude != self.rank and not (self.protocol == "new" and self.paused):
            self.running = True

    def stepped(self) -> None:
        """A step or a dummy batch was executed."""
        self.step += 1
        self.running = True  # until all agree that it is not
        self.due = self.step % self.interval == 0 or (self.protocol == "new" and self.step == 1)

    def on_answer(self, sums: list[int]) -> list[Report]:
        """The all-reduce that was due is over."""
        began = self.step <= 1
        resumed, self._resuming = self._resuming, False
        self.due = False
        self.unheard = None
        pausing = sums[1] if self.protocol == "new" else 0
        self.running = sums[0] > 0 or pausing % self.size != 0
        if self.running:
            # The coordinator may have heard of nobody: of a pause nothing is reported.
            edge = self.protocol == "new" and began and self.rank == 0 and not self.pausing
            return [StartWave(self.wave)] if edge and self.coordinated else []
        return [] if resumed else self._complete()

    def pause(self) -> bool:
        """-> whether it is paused already. Else it is once `paused` says so, after an all-reduce."""
        if self.paused:
            return True
        if self.protocol == "old":
            self.pausing, self.paused = self.running, not self.running
            return self.paused
        self.pausing = self.running = True
        return False

    def halt(self) -> None:
        """All ranks rest behind this step, as they were told before it: nobody has to be asked."""
        self.running, self.paused = False, True

    def resume(self, unfinished: bool) -> list[Report]:
        """"new": an all-reduce is due at once, before which nobody runs."""
        if not self.paused:
            return []
        self.paused = False
        if self.protocol == "old":
            return self._start() if unfinished else []
        self._resuming = self.due = True
        return []

    # -- the rest

    def _start(self) -> list[Report]:
        if not self.coordinated:
            return []
        report = StartWave(self.wave)
        if self._repair:
            self.unheard = report
        return [report]

    def _complete(self) -> list[Report]:
        ended = self.wave
        self.wave += 1
        self.step = 0
        if self.pausing:
            self.pausing, self.paused = False, True
        return [WaveComplete(ended)] if self.rank == 0 or not self.coordinated else []

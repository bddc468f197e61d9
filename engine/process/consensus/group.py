"""One real process's place in a group: what it brings by gloo, and why its waits end.

Promises
- A wait ends with the answer, at once with the death of a member or when the process is cancelled, and at its deadline;
  whatever gloo does meanwhile, in its thread.
- After a wait without an answer the group is of no use any more, and says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from engine.process.children import readable
from engine.process.consensus.agreement import GRACE_S, LOOK_S, Seat, agreed, frame
from engine.process.consensus.effects import Member, Op
from engine.process.consensus.gloo import Frames, GlooGroup
from engine.process.identity import is_alive, start_time

#: Waits for one of these descriptors to be readable, or so long. Raises when the process is cancelled.
Wait = Callable[[list[int], float], object]
#: gloo gives up a little later than whoever waits for it: its own word names nobody.
_LATER_S = 0.1


class ConsensusGroup:
    """`open_word(name)` maps a shared word; `now` is the clock of all deadlines."""

    def __init__(self, name: str, rank: int, members: Sequence[Member], where: str,
                 open_word: Callable[[str], Any], now: Callable[[], float]) -> None:
        self.name, self._now = name, now
        self._dead: dict[int, float] = {}
        self._sentinels: dict[int, int] = {}  # by the descriptor
        self._processes: dict[int, tuple[int, int]] = {}  # by id and start time, of those that have one
        self._watch(rank, members)
        self._seat = Seat(name, where, rank, [member.name for member in members],
                          [self._open(place, member, open_word) for place, member in enumerate(members)])
        self._gloo = GlooGroup(rank, len(members), where, f"{name} of {len(members)}, {members[0].process}")

    def meet(self, deadline: float, wait: Wait) -> None:
        """Raises CollectiveError."""
        self._turn("meeting", [], deadline, wait, self._gloo.meet)

    def reduce(self, op: Op, values: Sequence[int], deadline: float, wait: Wait) -> list[int]:
        """Raises CollectiveError."""
        return self._turn(op, values, deadline, wait, self._gloo.gather)

    def close(self) -> None:
        """Whoever still waits is told. Safe to call twice."""
        self._seat.close()
        self._gloo.close()
        for sentinel in self._sentinels:
            os.close(sentinel)
        self._sentinels.clear()

    def _turn(self, op: str, values: Sequence[int], deadline: float, wait: Wait,
              begin: Callable[[Sequence[int], float], None]) -> list[int]:
        seat, now = self._seat, self._now()
        seat.enter(op, now)
        try:
            begin(frame(seat.turn, op, values, seat.size), max(0.0, deadline - now) + _LATER_S)
            frames = self._await(deadline, wait)
        except BaseException as error:
            seat.give_up(error)
            raise
        seat.come_out()
        return agreed(seat.title, seat.names, frames)

    def _await(self, deadline: float, wait: Wait) -> Frames:
        broke: Exception | None = None
        broke_at = 0.0
        while True:
            now = self._now()
            if broke is None:
                try:
                    frames = self._gloo.outcome()
                    if frames is not None:
                        return frames
                except Exception as error:
                    broke, broke_at = error, now
            self._see_deaths()  # before what the others say: who gave up because of one has seen it, too
            trouble = self._seat.trouble(now, deadline, self._dead, broke is not None)
            if trouble is not None:
                raise trouble from broke
            if broke is not None and now >= broke_at + GRACE_S:  # its connection went, and nobody else did
                raise self._seat.broke(broke) from broke
            self._seat.waits(now)
            wait([self._gloo.done, *self._alive()], max(0.0, min(LOOK_S, deadline - now)))

    def _alive(self) -> list[int]:
        return [descriptor for descriptor, rank in self._sentinels.items() if rank not in self._dead]

    def _see_deaths(self) -> None:
        for rank, process in self._processes.items():
            if rank not in self._dead and not is_alive(process):
                self._dead[rank] = self._now()

    def _open(self, place: int, member: Member, open_word: Callable[[str], Any]) -> Any:
        """The word of a member; None of one that is on another host, or gone with all that it had."""
        try:
            return open_word(member.word) if member.word else None
        except FileNotFoundError:
            self._dead.setdefault(place, self._now())
            return None

    def _watch(self, me: int, members: Sequence[Member]) -> None:
        for rank, member in enumerate(members):
            process = member.process
            if rank == me or process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                sentinel = os.pidfd_open(process.pid)
                if start_time(process.pid) == process.start_time or readable([sentinel], 0):
                    self._sentinels[sentinel] = rank
                    self._processes[rank] = process.pid, process.start_time
                    continue
                os.close(sentinel)  # another process has its number
            self._dead[rank] = self._now()

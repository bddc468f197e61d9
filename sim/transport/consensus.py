"""What the members of a group bring to its turns, and when all of it has reached all of them: gloo, as they feel it.

Promises
- A turn has its answer some time after the last member brought its part; where one stands still then that waits in it,
  when that goes on: what its neighbours have for each other passes through it.
- What a member brought that died before the last one came is lost; where it died after that, while the answer was on
  its way, either of both is an allowed outcome.
- Nothing here ends a wait but the answer: why there is none the members find out by themselves.
"""

from __future__ import annotations

from sim.kernel.kernel import Kernel, Sleeper

Frames = list[list[int]]


class Gathering:
    """Of `size` members, by their places."""

    def __init__(self, kernel: Kernel, name: str, size: int) -> None:
        self._kernel, self._name, self._size = kernel, name, size
        self._brought: dict[int, dict[int, list[int]]] = {}  # by turn
        self._answers: dict[int, Frames] = {}  # of this turn and the one before: who is stopped has not taken it yet
        self._lost: set[int] = set()
        self._held: set[int] = set()  # for the sake of one that stands still
        self._who: dict[str, int] = {}
        self._waiting: dict[int, Sleeper] = {}

    def bring(self, name: str, place: int, turn: int, frame: list[int], thread: Sleeper) -> None:
        """That member's thread is woken when there is an answer."""
        self._who[name] = place
        self._waiting[place] = thread
        brought = self._brought.setdefault(turn, {})
        brought[place] = frame
        if len(brought) == self._size:
            self._kernel.after(self._kernel.costs.collective_s, self._answer, turn)

    def answer(self, turn: int) -> Frames | None:
        if turn in self._held:
            self._answer(turn)
        return self._answers.get(turn)

    def died(self, name: str) -> None:
        place = self._who.pop(name, None)
        if place is None:
            return
        self._waiting.pop(place, None)
        for turn, brought in self._brought.items():
            if place in brought and (len(brought) < self._size or turn in self._held or self._kernel.choose(
                    2, f"what {name} brought to turn {turn} of {self._name} is lost") == 0):
                self._lost.add(turn)

    def _answer(self, turn: int) -> None:
        if any(thread.stands_still for thread in self._waiting.values()):
            self._held.add(turn)
            return
        self._held.discard(turn)
        brought = self._brought.pop(turn)
        if turn in self._lost:
            return
        self._answers[turn] = [brought[place] for place in range(self._size)]
        self._answers.pop(turn - 2, None)
        for thread in list(self._waiting.values()):  # who is woken may die of it
            thread.wake()

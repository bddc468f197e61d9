"""What has reached a subscriber of each life of its publisher, and what it has told of it."""

from __future__ import annotations

from scenarios.history.history import FOREVER


class Came:
    """What has reached a subscriber of one life of its publisher."""

    def __init__(self, takes_late: bool) -> None:
        self.takes_late = takes_late  # a live batch whose successor came before it
        self.live: dict[int, float] = {}  # number -> when it came live first
        self.first: dict[int, tuple[float, str]] = {}  # number -> when it came at all, and how
        self.wire = 0  # one more than the highest live number
        self.passed: dict[int, float] = {}  # number -> when a later one came live before it
        self.live_at = -FOREVER  # the last live one
        self.end_at = 0.0  # of the last answer
        self.oldest = 0  # what its publisher still had, as it said
        self.never: set[int] = set()  # what an answer lacked that came whole
        self.clears: set[int] = set()
        self.kept: set[int] = set()  # what nobody waits for says nothing, where it does not tell whose it is

    def live_batch(self, number: int, at: float, clears: bool) -> None:
        self.live.setdefault(number, at)
        if self.takes_late or number >= self.wire:
            self.batch(number, at, "live", clears)
        self.live_at = at
        for passed in range(self.wire, number):
            self.passed[passed] = at
        self.wire = max(self.wire, number + 1)

    def batch(self, number: int, at: float, source: str, clears: bool, *, asked: bool = True) -> None:
        self.first.setdefault(number, (at, source))
        if asked:
            self.kept.add(number)
        if clears:
            self.clears.add(number)


class Told:
    """What a subscriber has told of one life of its publisher."""

    def __init__(self, came: Came) -> None:
        self.came = came
        self.next = 0
        self.settled_at = 0.0  # when that number became the next one
        self.gaps: list[tuple[int, int]] = []
        self.missing: dict[int, float] = {}  # number -> when it was told as missing
        self.applied: set[int] = set()
        self.healed: set[tuple[int, int]] = set()
        self.asked: dict[int, int] = {}  # number -> questions before it was told as missing
        self.progress = 0  # questions before something was applied or given up last
        self.unknown_since: int | None = None


def runs(first: int, last: int, told: Told) -> list[tuple[int, int]]:
    """Numbers of a gap in a row that were applied, where the run is over: a number was given up, or the gap ends."""
    found, begin = [], first
    for number in range(first, last + 2):
        if number <= last and number in told.applied:
            continue
        if number > begin and (number > last or number < told.next):
            found.append((begin, number - 1))
        begin = number + 1
    return found

"""What each rank of cores that step together did in turn, as spans and moments of its own journal (pure).

    wave          START that made it run, or its first forward -------------------> all agree that nothing is left
    forwards        |real|real|dummy|    |dummy|dummy|     from their beginning to their answer
    all-reduces                     |[1]|            |[0]|
    pause                                                  paused ------> resumed

Times are seconds from the first record of the play. What no record ends lasts as long as the rank is known to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from engine.topology import Mark
from faults.journal import Record
from reports.charts.steps import end_of, in_flight
from scenarios.guarantees.readers.group.lockstep import FORWARD, Rank, groups
from scenarios.history.history import History

_DUMMY_CALL = "execute_dummy_batch"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`is_over`: a record says that it ended."""

    began: float
    ended: float
    is_over: bool


class Wave(Span, frozen=True, kw_only=True):
    number: int


class Forward(Span, frozen=True, kw_only=True):
    """`place`: of those in flight at once. `wave` and `step` as all ranks know them, None where nothing says."""

    dummy: bool
    place: int
    wave: int | None
    step: int | None

    @property
    def words(self) -> str:
        which = f" {self.step} of wave {self.wave}" if self.step is not None else ""
        return f"{'dummy' if self.dummy else 'real'} forward{which}"


class AllReduce(Span, frozen=True, kw_only=True):
    """`answer`: how many have something left to do, how many want to pause; empty where there was none."""

    votes: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def words(self) -> str:
        told = dict(zip(("at work", "pausing"), self.answer, strict=False))
        return "all-reduce: " + (", ".join(f"{number} {what}" for what, number in told.items()) or "no answer")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A START that was heard. `runs`: it made this rank run."""

    at: float
    wave: int
    runs: bool


class RankLane(msgspec.Struct, frozen=True, kw_only=True):
    """One core of a group, in one life."""

    node: str
    waves: list[Wave]
    forwards: list[Forward]
    all_reduces: list[AllReduce]
    pauses: list[Span]
    starts: list[Start]
    ended: float

    @property
    def spans(self) -> Iterator[Span]:
        yield from (*self.waves, *self.forwards, *self.all_reduces, *self.pauses)


def ranks_of(history: History) -> list[list[RankLane]]:
    """By group. None of a play whose cores do not step together, nor of a rank that wrote nothing; none of engines
    that are not ours, which do not tell what they do in turn.
    """
    if not history.play.is_ours:
        return []
    found = [[_lane(history, rank) for rank in group.ranks if history.records(rank.core)] for group in groups(history)]
    return [lanes for lanes in found if lanes]


def _lane(history: History, rank: Rank) -> RankLane:
    origin, end = history.began_at, end_of(history, rank.core) - history.began_at
    forwards = _forwards(history, rank, end)
    starts = [Start(at=record.at - origin, wave=record.data["wave"], runs=record.data["runs"])
              for record in history.by_node("start-heard").get(rank.core, ())]
    return RankLane(
        node=rank.core, forwards=forwards, starts=starts, ended=end,
        waves=_waves(forwards, starts, [(record.at - origin, record.data["wave"])
                                        for record in rank.passed(Mark.WAVE_DONE)], end),
        all_reduces=_all_reduces(rank, origin, end), pauses=_pauses(rank, origin, end))


def _forwards(history: History, rank: Rank, end: float) -> list[Forward]:
    origin = history.began_at
    flights = {work.step: work for work in in_flight(history, rank.core)}
    dummies, entered = _dummy_ends(history, rank), rank.forwards()
    found: list[Forward] = []
    busy: list[float] = []  # until when, by place
    for number, turn in enumerate(turn for turn in rank.turns if turn.kind == FORWARD):
        began = turn.record.at - origin
        over = dummies.get(turn.record.number) if turn.dummy else _flown(flights.get(turn.record.data.get("step")))
        ended = end if over is None else over - (origin if turn.dummy else 0.0)
        place = next((place for place, until in enumerate(busy) if until <= began), len(busy))
        busy[place:place + 1] = [ended]
        known = entered[number].data if number < len(entered) else turn.record.data if turn.dummy else {}
        found.append(Forward(began=began, ended=ended, is_over=over is not None, dummy=turn.dummy, place=place,
                             wave=known.get("wave"), step=known.get("step")))
    return found


def _flown(work: Any) -> float | None:
    return work.ended if work is not None and work.is_over else None


def _dummy_ends(history: History, rank: Rank) -> dict[int, float]:
    """When the last worker had answered, by the number of the record that begins a dummy forward."""
    calls = [record for record in history.by_node("rpc-call").get(rank.core, ())
             if record.data.get("method") == _DUMMY_CALL]
    replies = {record.data["call"]: record.at for record in history.by_node("rpc-reply").get(rank.core, ())}
    found = {}
    for begun, call in zip(rank.passed(Mark.DUMMY), calls, strict=False):
        if (replied := replies.get(call.data["call"])) is not None:
            found[begun.number] = replied
    return found


def _all_reduces(rank: Rank, origin: float, end: float) -> list[AllReduce]:
    """Each with what came of it before the next one: an all-reduce that fails ends its rank."""
    sums: Sequence[Record] = rank.sums
    found = []
    for entered, told in zip(rank.all_reduces, [*sums, *[None] * len(rank.all_reduces)], strict=False):
        found.append(AllReduce(
            began=entered.at - origin, ended=end if told is None else told.at - origin, is_over=told is not None,
            votes=() if told is None else tuple(told.data["votes"]),
            answer=() if told is None else tuple(told.data["answer"])))
    return found


def _pauses(rank: Rank, origin: float, end: float) -> list[Span]:
    """Until it goes on with all others: a number of steps out of a pause is no more than that, and has no mark."""
    paused = rank.passed(Mark.PAUSED)
    over = [*rank.passed(Mark.RESUMED), *paused, *(record for record in rank.sums if record.data["running"]),
            *(turn.record for turn in rank.turns if turn.kind == FORWARD)]
    found = []
    for record in paused:
        ends = [other.at for other in over if other.number > record.number]
        found.append(Span(began=record.at - origin, ended=min(ends) - origin if ends else end, is_over=bool(ends)))
    return found


def _waves(forwards: Sequence[Forward], starts: Sequence[Start], done: Sequence[tuple[float, int]], end: float,
           ) -> list[Wave]:
    """From the START that made it run, or the first forward, to the agreement that it is over."""
    began: dict[int, float] = {}
    for at, wave in (*((start.at, start.wave) for start in starts if start.runs),
                     *((forward.began, forward.wave) for forward in forwards)):
        if wave is not None:
            began[wave] = min(at, began.get(wave, at))
    over = {wave: at for at, wave in reversed(done)}
    numbers = sorted(began, key=lambda wave: began[wave])
    found = []
    for number, last in zip(numbers, [*(began[wave] for wave in numbers[1:]), end], strict=False):
        found.append(Wave(number=number, began=began[number], ended=min(over.get(number, last), last),
                          is_over=number in over))
    return found

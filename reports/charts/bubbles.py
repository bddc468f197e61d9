"""How long each stage of an engine stood idle between its first and its last step, and for whom it waited.

A stage computes while any rank of it is in a step and does not wait in `pipe:receive`; all other time is a bubble. A
call that never ended counts as far as there are records of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from reports.charts.steps import PHASES, Work
from reports.formats import duration, listed
from scenarios.history.history import History
from scenarios.history.names import base, life_of

Interval = tuple[float, float]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one engine, by the first life of its ranks. `before`: the stage that it takes from."""

    engine: int
    number: int
    before: int
    ranks: tuple[str, ...]
    only: bool  # its engine has no other

    @property
    def name(self) -> str:
        return f"stage {self.number}"


class Bubble(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `waited` is the part of `idle` in which a rank of it stood in `pipe:receive`."""

    stage: Stage
    life: int
    total: float
    idle: float
    waited: float

    @property
    def sentence(self) -> str:
        stage = self.stage
        who, whose = (listed(stage.ranks), "its" if len(stage.ranks) == 1 else "their") if stage.only else (
            f"{stage.name} ({listed(stage.ranks)})", "its")
        again = f" in life {self.life}" if self.life else ""
        if not self.idle:
            verb = "were" if stage.only and len(stage.ranks) > 1 else "was"
            return f"{who} {verb} never idle in {whose} {duration(self.total)} of steps{again}"
        words = f"{who} stood idle for {share(self.idle, self.total)} of {whose} {duration(self.total)} of steps{again}"
        if not self.waited:
            return words
        return f"{words}, {share(self.waited, self.idle)} of that waiting for stage {stage.before}"


def share(part: float, whole: float) -> str:
    """38 %, and never 0 % or 100 % of what was something, but not all."""
    percent = 100.0 * part / whole if whole else 0.0
    if 0.0 < percent < 0.5:
        return "less than 1 %"
    if 99.5 <= percent < 100.0 and whole - part > 1e-9:
        return "more than 99 %"
    return f"{percent:.0f} %"


def stages_of(history: History) -> list[Stage]:
    """Of all engines of the play; an engine of one rank is its core."""
    found = []
    for engine in history.play.topology.engines:
        grid, names = engine.grid, [str(node) for node in engine.workers] or [str(engine.core)]
        found += [Stage(engine=engine.index, number=number, before=(number - 1) % engine.pp, only=engine.pp == 1,
                        ranks=tuple(names[number * grid.tp:(number + 1) * grid.tp])) for number in range(engine.pp)]
    return found


def bubbles_of(history: History, works: Sequence[Work]) -> list[Bubble]:
    """One for each stage and life that executed a step."""
    found = []
    for stage in stages_of(history):
        mine = [work for work in works if work.what in PHASES and base(work.node) in stage.ranks]
        for life in sorted({life_of(work.node) for work in mine}):
            found.append(_bubble(stage, life, [work for work in mine if life_of(work.node) == life]))
    return found


def _bubble(stage: Stage, life: int, works: Sequence[Work]) -> Bubble:
    total = max(work.seen for work in works) - min(work.began for work in works)
    waits = [(wait.began, min(wait.until, work.seen)) for work in works for wait in work.waits]
    computing = [part for work in works for part in _without_waits(work)]
    busy = length(computing)
    return Bubble(stage=stage, life=life, total=total, idle=_rest(total, busy),
                  waited=_rest(length([*computing, *waits]), busy))


def _rest(whole: float, part: float) -> float:
    """Less than a nanosecond is what sums of moments do not tell."""
    return whole - part if whole - part > 1e-9 else 0.0


def _without_waits(work: Work) -> Iterable[Interval]:
    began = work.began
    for wait in work.waits:
        yield began, wait.began
        began = wait.until
    yield began, work.seen


def length(intervals: Iterable[Interval]) -> float:
    """Of all that any of them covers."""
    covered, reached = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        if ended > max(began, reached):
            covered += ended - max(began, reached)
            reached = ended
    return covered

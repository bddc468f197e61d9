"""Plays several at once: each lane is a process with worlds of its own, which plays what it is given next.

Promises
- What a lane played is the same as if this process had; results come as they are done, each with its number.
- A lane that ends unasked is a failure of the harness for what it was playing, named, and the others go on.
- At the end there is no lane: who plays is broken off as by Ctrl-C, and clears up behind itself. A lane whose parent
  was killed is killed, too, and the next start finds what both have left.
- Ctrl-C is the parent's alone: a terminal sends it to lanes, too, and they leave it.
- While real processes wait, the processors are used, and nobody is crowded for it: lanes aside play what keeps its own
  time, and get only time that nobody else wants; spare lanes begin a play where much of it is left.
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import msgspec

from scenarios.command.playing.forked import ends_with
from scenarios.command.playing.rest import LOOK_S, Rest
from scenarios.history.run import Run, known_run
from scenarios.lab import home
from scenarios.lab.catalogue import Scenario
from scenarios.lab.player import ScenarioResult, Settings, Worlds, failed, play
from scenarios.worlds.registry import known

#: A lane that was told to end, and has processes of a play to end before, is gone within this.
CLOSE_S = 20.0
#: A spare lane begins where this share of the processors' time was left just now.
MUCH = 0.25
#: So many are begun in the order of how long they last.
LAST = 100
#: What a lane has played: its result, the word for it, and why (`conclusion.verdict_of`).
Told = tuple[ScenarioResult, str, list[str]]


class Task(NamedTuple):
    scenario: Scenario
    world: str


class Part(Enum):
    """What a lane plays, and when."""

    STEADY = auto()  # as soon as it can: of real processes what there is, then the rest
    ASIDE = auto()  # what keeps its own time, while nobody else wants the processor
    SPARE = auto()  # as a steady one, where much of the processors' time is left


class Lanes:
    """A context manager. `steady` lanes, and so many more of the other parts: no more than there are tasks for them."""

    def __init__(self, tasks: Sequence[Task], settings: Settings, steady: int,
                 verdict_of: Callable[[ScenarioResult], tuple[str, list[str]]], aside: int = 0, spare: int = 0) -> None:
        self._tasks, self._settings = tasks, settings
        self._real = deque(number for number, task in enumerate(tasks) if not known(task.world).virtual_time)
        self._timeless = deque(sorted({*range(len(tasks))} - {*self._real}))
        steady = min(steady, len(tasks))
        parts = [*[Part.STEADY] * steady, *[Part.ASIDE] * (min(aside, len(self._timeless)) if self._real else 0),
                 *[Part.SPARE] * min(spare, len(tasks) - steady)]
        self._lanes: list[_Lane] = []
        for part in parts:
            self._lanes.append(_Lane(tasks, settings, verdict_of, [lane.connection for lane in self._lanes], part))
        self._rest = Rest()
        self._lasted: dict[str, float] = {}  # by scenario: in a world that knows before its time

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *error: Any) -> None:
        for lane in self._lanes:
            lane.leave(at_once=any(error))
        for lane in self._lanes:
            lane.join()

    def played(self, began: Callable[[Task], None]) -> Iterator[tuple[int, Told]]:
        """-> the number of each task, and what came of it, in the order in which they are done"""
        for lane in self._lanes:
            if lane.part is not Part.SPARE:
                self._give(lane, began)
        while busy := [lane for lane in self._lanes if lane.task is not None] or self._give_spare(began):
            ready = wait([lane.connection for lane in busy], LOOK_S if len(busy) < len(self._lanes) else None)
            for lane in busy:
                if lane.connection in ready:
                    number = lane.task
                    assert number is not None
                    told = lane.told() or self._failed(number, lane.why())
                    if lane.lasted is not None:
                        self._lasted[self._tasks[number].scenario.name] = lane.lasted
                    yield number, told
                    lane.task = None
                    if lane.part is not Part.SPARE:
                        self._give(lane, began)
            if self._rest.share() >= MUCH:
                self._give_spare(began)
        for number in sorted((*self._real, *self._timeless)):
            yield number, self._failed(number, "no process was left to play it")

    def _give(self, lane: _Lane, began: Callable[[Task], None]) -> bool:
        queue = self._timeless if lane.part is Part.ASIDE or not self._real else self._real
        if not queue or not lane.give(number := self._next(queue)):
            return False
        queue.remove(number)
        began(self._tasks[number])
        return True

    def _next(self, queue: deque[int]) -> int:
        """The first, and of the last ones that which lasts longest, or all would wait for it in the end."""
        if len(queue) > LAST:
            return queue[0]
        return max(queue, key=lambda number: self._lasted.get(self._tasks[number].scenario.name, math.inf))

    def _give_spare(self, began: Callable[[Task], None]) -> list[_Lane]:
        """To one of them that has nothing to play, if there is one. -> it"""
        free = (lane for lane in self._lanes if lane.part is Part.SPARE and lane.task is None)
        return next(([lane] for lane in free if self._give(lane, began)), [])

    def _failed(self, number: int, why: str) -> Told:
        scenario, name = self._tasks[number]
        worlds = Worlds(self._settings)
        runs = failed([], why, worlds.open(name, scenario))
        return ScenarioResult(scenario=scenario.name, world=name, runs=runs, failure=why), "harness failed", [why]


class _Lane:
    """The parent's end of one."""

    def __init__(self, tasks: Sequence[Task], settings: Settings,
                 verdict_of: Callable[[ScenarioResult], tuple[str, list[str]]], others: list[Connection],
                 part: Part) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.task: int | None = None
        self.lasted: float | None = None  # what it played last, in virtual seconds, where it played it so
        self.part = part
        self._process = context.Process(target=_main, args=(theirs, [self.connection, *others], os.getpid(), part,
                                                            tasks, settings, verdict_of))
        self._process.start()
        theirs.close()

    def give(self, number: int) -> bool:
        """-> whether it is there to play it"""
        try:
            self.connection.send(number)
        except OSError:
            return False
        self.task = number
        return True

    def told(self) -> Told | None:
        """None: it has ended."""
        try:
            result, paths, self.lasted, word, why = self.connection.recv()
        except (EOFError, OSError):
            return None
        runs = [one if isinstance(one, Run) else known_run(one) for one in paths]
        return msgspec.structs.replace(result, runs=runs), word, why

    def why(self) -> str:
        self._process.join(CLOSE_S)
        return f"the process that played it ended with {self._process.exitcode}"

    def leave(self, *, at_once: bool) -> None:
        if at_once and self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGTERM)  # before it may leave by itself: that is not to be interrupted
        self.connection.close()

    def join(self) -> None:
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            home.sweep_labs()


def _main(connection: Connection, others: list[Connection], parent: int, part: Part, tasks: Sequence[Task],
          settings: Settings, verdict_of: Callable[[ScenarioResult], tuple[str, list[str]]]) -> None:
    if not ends_with(parent):
        return
    if part is Part.ASIDE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for one in others:
        one.close()
    gc.freeze()  # the program itself, which is shared: to look through it for garbage would copy it
    gc.disable()  # a run that is read and judged has objects by the thousand: nobody looks in the midst
    worlds = Worlds(settings)
    with contextlib.suppress(BaseException):  # whatever ends it: it has cleared up, and its parent sees it gone
        try:
            while (number := _asked(connection)) is not None:
                task = tasks[number]
                world = worlds.open(task.world, task.scenario)
                gc.collect(0)  # nobody has what was played before any more
                result = play(task.scenario, world)
                connection.send((msgspec.structs.replace(result, runs=[]), list(map(_sent, result.runs)),
                                 _lasted(result) if world.virtual_time else None, *verdict_of(result)))
                del result
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            worlds.close()
            home.end()


def _asked(connection: Connection) -> int | None:
    try:
        return int(connection.recv())
    except (EOFError, OSError):
        return None


def _lasted(result: ScenarioResult) -> float | None:
    return max((run.lab.ended_at - run.lab.began_at for run in result.runs), default=None)


def _sent(run: Run) -> Any:
    """Where it lies, if it can be read there: journals are long."""
    return run.path if run.judgement is not None else run

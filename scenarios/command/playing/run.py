"""`ringtwin run`: plays what was chosen, one after the other or several at once, and concludes.

Interrupted, it keeps what was played whole: a report of that, which says what is missing.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from scenarios.command import conclusion
from scenarios.command.playing.lanes import Lanes, Task, Told
from scenarios.command.screen import Screen
from scenarios.lab.catalogue import Scenario
from scenarios.lab.player import ScenarioResult, Settings, Worlds, play
from scenarios.worlds.base import World
from scenarios.worlds.forking import fork_server
from scenarios.worlds.registry import known

#: The number of each task that is done, and what came of it.
Played = Generator[tuple[int, Told], None, None]
#: Of real processes more than that at once are in each other's way, on whatever machine.
JOBS_MOST = 8
VLLM_JOBS_MOST = 2
#: Numbers that are this share of all apart fall evenly, however many they are.
GOLDEN = 0.618


def run_all(chosen: Sequence[Scenario], names: Sequence[str], settings: Settings, model: Path | None,
            json_file: Path | None, jobs: int | None) -> int:
    """-> exit code. `jobs`: how many at once, None for as many as is usual here."""
    tasks = [Task(scenario, name) for scenario in chosen for name in names]
    found: dict[int, ScenarioResult] = {}
    more = usual_more(names, settings.device) if model is None and jobs is None else 0
    jobs = 1 if model is not None else jobs or usual_jobs(names, settings.device)
    try:
        with Screen(len(tasks), quiet=json_file == Path("-")) as screen:
            played = _at_once(tasks, settings, jobs, more, screen) if min(jobs, len(tasks)) > 1 else \
                _in_turn(tasks, settings, model, screen)
            with closing(played):
                for number, (result, word, why) in played:
                    found[number] = result
                    screen.played(result, word, why)
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C and its like
            conclusion.conclude_early(_in_order(found), len(tasks), settings.out)
        raise
    return conclusion.conclude(_in_order(found), settings.out, json_file)


def usual_jobs(names: Sequence[str], device: str) -> int:
    """One a core, and three more where there are real processes, which wait more than they compute.

    But the memory of a GPU is for one play at a time, and of vLLM two are as much as one can start.
    """
    cores = len(os.sched_getaffinity(0))
    if "vllm" in names:
        return min(VLLM_JOBS_MOST, cores)
    if "engine" not in names:
        return cores
    return 1 if fork_server.has_gpu(device) else min(JOBS_MOST, cores + 3)


def usual_more(names: Sequence[str], device: str) -> int:
    """So many more, aside and to spare, that use what real processes leave of the processors: for two cores one."""
    both = {known(name).virtual_time for name in names} == {True, False} and "vllm" not in names
    return (len(os.sched_getaffinity(0)) + 1) // 2 if both and not fork_server.has_gpu(device) else 0


def _in_turn(tasks: Sequence[Task], settings: Settings, model: Path | None, screen: Screen) -> Played:
    stage: Callable[[World], Any] = lambda opened: opened  # noqa: E731
    if model is not None:
        from scenarios.command.playing.model import on_model

        stage = on_model(model, settings.out, screen)
    with closing(Worlds(settings)) as worlds:
        for number, (scenario, name) in enumerate(tasks):
            screen.playing(scenario.name, name)
            result = play(scenario, stage(worlds.open(name, scenario)))
            yield number, (result, *conclusion.verdict_of(result))


def _at_once(tasks: Sequence[Task], settings: Settings, jobs: int, more: int, screen: Screen) -> Played:
    order, spare = spread(len(tasks)), max(0, min(more, JOBS_MOST - jobs))
    with Lanes([tasks[number] for number in order], settings, jobs, conclusion.verdict_of, more, spare) as lanes:
        for place, told in lanes.played(lambda task: screen.playing(task.scenario.name, task.world)):
            gc.freeze()  # verdicts by the thousand stay: looking for garbage there takes longer than reading them
            yield order[place], told


def spread(count: int) -> list[int]:
    """Every number below `count` once, neighbours far from each other: plays of one kind wait, or compute, alike."""
    step = next((step for step in range(round(count * GOLDEN), 0, -1) if math.gcd(step, count) == 1), 1)
    return [place * step % count for place in range(count)]


def _in_order(found: dict[int, ScenarioResult]) -> list[ScenarioResult]:
    return [found[number] for number in sorted(found)]

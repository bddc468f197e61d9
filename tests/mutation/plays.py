"""What a mutant is played with: every scenario as the play that it asks for, and which lines each runs."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import Scenario, catalogue
from scenarios.lab.sweep import crossings, drawn, phases
from scenarios.worlds.base import World
from scenarios.worlds.sim import CHOICES, play_once
from sim.kernel.choices import enumerate_choices
from tests.mutation.operators import Mutant
from tests.mutation.probes import Probes

ROOT = Path(__file__).parents[2]
#: The scenario in which nothing goes wrong.
CALM = "test_nothing_goes_wrong"


class Scene(msgspec.Struct, kw_only=True):
    """A scenario's play. `seconds`: what it takes; `lines`: which lines of which of the files it runs."""

    name: str
    play: Play
    seconds: float = 0.0
    lines: dict[str, set[int]] = {}


class _Asked:
    """Stands for a played run: hears what is promised of it."""

    def __init__(self, hear: Callable[[tuple[str, ...], dict[str, Verdict]], None]) -> None:
        self._hear = hear

    def holds(self, *guarantees: Any, **expected: Verdict) -> None:
        self._hear(tuple(one.id for one in guarantees), {name.replace("_", "-"): v for name, v in expected.items()})


class _Listener(World):
    """Plays nothing, and keeps what it was asked for."""

    name = "sim"
    virtual_time = True

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.asked: list[Play] = []

    def replay(self, play: Play, *, other_topology: bool = False) -> Any:
        place = len(self.asked)
        self.asked.append(msgspec.structs.replace(play, world=self.name, virtual_time=True))

        def hear(promises: tuple[str, ...], expected: dict[str, Verdict]) -> None:
            self.asked[place] = msgspec.structs.replace(self.asked[place], promises=promises, expected=expected)

        return _Asked(hear)

    def _play(self, play: Play) -> list[Path]:
        raise NotImplementedError


def asked_for(scenario: Scenario) -> list[Play]:
    """What a scenario asks a world to play, which is not played."""
    world = _Listener()
    world.scenario = scenario.name
    scenario.function(world, **scenario.parameters)
    return world.asked


def scenes() -> list[Scene]:
    """Of all scenarios that the twin plays."""
    return [Scene(name=scenario.name, play=play) for scenario in catalogue() if scenario.not_played_in("sim") is None
            for play in asked_for(scenario)]


#: Plays what it is told in the twin, and says what is loaded then: of this process others may have loaded more.
_PLAYED = """
import sys
import msgspec
from scenarios.history.play import Play
from scenarios.worlds.sim import play_once
play_once(msgspec.json.decode(sys.stdin.buffer.read(), type=Play))
print(*sys.modules)
"""


@cache
def modules_of_the_twin() -> frozenset[str]:
    """What a process has loaded that has done nothing but play in the twin. What is not among it no play can run."""
    calm = next(scene.play for scene in scenes() if scene.name == CALM)
    said = subprocess.run([sys.executable, "-c", _PLAYED], input=msgspec.json.encode(calm), cwd=ROOT, check=True,
                          stdout=subprocess.PIPE)
    return frozenset(said.stdout.decode().split())


def red(play: Play) -> str | None:
    """The first guarantee that breaks undeclared in one of the allowed outcomes, or None."""
    for _, (simulation, lab) in enumerate_choices(lambda choices: play_once(play, choices), CHOICES):
        broken = judge(play, lab, simulation.journal_files()).red
        if broken is not None:
            return broken.guarantee
    return None


def with_lines(found: list[Scene], mutants: list[Mutant], tell: Callable[[str], None]) -> list[Scene]:
    """The same, with what each takes and which lines it runs of the functions that these are in."""
    probes = Probes()
    with probes.within(mutants, ROOT):
        for number, scene in enumerate(found):
            tell(f"covering {number + 1}/{len(found)}: {scene.name}")
            began = time.perf_counter()
            play_once(scene.play)
            scene.seconds = time.perf_counter() - began
            scene.lines = probes.ran()
    return found


def phase_scenes() -> list[Scene]:
    """The phases of the sweep, without a fault."""
    return [Scene(name=phase.scenario, play=phase.play()) for phase in phases()]


def counts_of_phases() -> dict[str, dict[str, int]]:
    """How often each phase crosses each site, by the name of its scene."""
    return {phase.scenario: crossings(phase, play_once) for phase in phases()}


def random_plays(names: list[str], counts: dict[str, dict[str, int]], seed: int) -> Iterator[Play]:
    """One fault by chance in one of these phases, again and again."""
    dice, by_name = random.Random(seed), {phase.scenario: phase for phase in phases()}
    while names:
        name = dice.choice(names)
        yield drawn(by_name[name], counts[name], dice)

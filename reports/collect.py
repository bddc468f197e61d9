"""Runs, sorted for a reader: scenarios in the order they were given, guarantees by chapter, worlds side by side.

It reads runs that are in memory and judges nothing itself; what several runs say together is the rule of
`scenarios/history/sides.py`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from scenarios.history.run import Run
from scenarios.history.sides import Side, dispute, sides_of
from scenarios.worlds.registry import in_order


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A guarantee in words: its id, the sentence, who documents it, and the chapter it belongs to.

    `blind_in`: worlds that cannot judge it, each with the reason.
    """

    id: str
    sentence: str
    source: str = ""
    chapter: str = ""
    blind_in: dict[str, str] = {}


class PlayedScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One test function in every world that played it."""

    number: int  # from 1, the order of the report
    name: str
    title: str
    runs: list[Run]
    sides: dict[str, dict[str, Side]]  # guarantee -> world, in the order of the registry -> side

    @property
    def worlds(self) -> list[str]:
        return in_order({run.play.world for run in self.runs})

    @property
    def canary(self) -> bool:
        return any(side.canary for worlds in self.sides.values() for side in worlds.values())

    def of(self, world: str) -> list[Run]:
        return [run for run in self.runs if run.play.world == world]

    def of_guarantee(self, guarantee: str) -> list[Side]:
        """One side a world, in the order of the registry."""
        return list(self.sides.get(guarantee, {}).values())

    def all_sides(self) -> list[Side]:
        return [side for worlds in self.sides.values() for side in worlds.values()]


def collect(runs: Sequence[Run]) -> list[PlayedScenario]:
    """Scenarios in the order in which they first appear."""
    return list(_collected(tuple(runs)))


@functools.lru_cache(maxsize=1)
def _collected(runs: tuple[Run, ...]) -> list[PlayedScenario]:
    """All that is made of runs begins with this, and of the same ones a dozen times."""
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run.play.scenario].append(run)
    return [_scenario(number, name, group) for number, (name, group) in enumerate(by_name.items(), 1)]


def _scenario(number: int, name: str, runs: list[Run]) -> PlayedScenario:
    worlds = in_order(run.play.world for run in runs)
    runs = sorted(runs, key=lambda run: (worlds.index(run.play.world), run.play.choice))
    sides = {guarantee: {world: found[world] for world in worlds if world in found}
             for guarantee, found in sides_of(runs).items()}
    return PlayedScenario(number=number, name=name, title=runs[0].play.title, runs=runs, sides=sides)


def disagreements(scenarios: Sequence[PlayedScenario]) -> list[tuple[PlayedScenario, Side, Side]]:
    """(scenario, the side that allows, the side that did something else), one per cell in dispute."""
    return [(scenario, *found) for scenario in scenarios for guarantee in scenario.sides
            if (found := dispute(scenario.of_guarantee(guarantee)))]


def guarantees_of(scenarios: Sequence[PlayedScenario], promises: Mapping[str, Promise]) -> list[Promise]:
    """Every guarantee that a run judged, in the order of `promises`; unknown ones last, named by their id."""
    used = {guarantee for scenario in scenarios for guarantee in scenario.sides}
    known = [promise for guarantee, promise in promises.items() if guarantee in used]
    strange = sorted(used - set(promises))
    return known + [Promise(id=guarantee, sentence=guarantee) for guarantee in strange]

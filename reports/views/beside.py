"""Engines that are not ours beside ours, for the scenarios that both have played: where verdicts differ, in words.

Another verdict is no disagreement of worlds: the other engine is another program. What it does not promise is not
judged there, and only counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reports.collect import PlayedScenario, collect
from reports.formats import listed
from scenarios.history.play import OTHERS
from scenarios.history.run import Run
from scenarios.history.sides import Side, ours
from scenarios.history.verdicts import Verdict
from scenarios.worlds.registry import in_order, known


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee of one scenario on which it came to another verdict."""

    scenario: str
    number: int  # of the scenario in the report
    guarantee: str
    words: str  # "the twin and the engine keep it, vLLM breaks it"
    why: str  # the first evidence


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    world: str
    word: str
    scenarios: int  # that it and a world of ours have played
    compared: int  # cells on which it and a world of ours came to HELD or BROKEN
    same: int
    unpromised: int  # cells that ours decided, and that it does not promise
    apart: list[Apart]


def besides(runs: Sequence[Run]) -> list[Beside]:
    """One for each engine that is not ours and has played a scenario that ours has played, too."""
    scenarios = [one for one in collect(runs) if not OTHERS.issuperset(one.worlds)]
    worlds = in_order({world for one in scenarios for world in one.worlds if world in OTHERS})
    return [_beside(world, [one for one in scenarios if world in one.worlds]) for world in worlds]


def _beside(world: str, scenarios: Sequence[PlayedScenario]) -> Beside:
    compared, unpromised, apart = 0, 0, []
    for scenario in scenarios:
        for guarantee in scenario.sides:
            mine = [side for side in ours(scenario.of_guarantee(guarantee)) if side.decided]
            its = scenario.sides[guarantee].get(world)
            unpromised += bool(mine) and its is None
            if not mine or its is None or not its.decided:
                continue
            compared += 1
            if its.verdict not in {verdict for side in mine for verdict in side.verdicts}:
                apart.append(_apart(scenario, guarantee, mine, its))
    return Beside(world=world, word=known(world).word, scenarios=len(scenarios), compared=compared,
                  same=compared - len(apart), unpromised=unpromised, apart=apart)


def _apart(scenario: PlayedScenario, guarantee: str, mine: Sequence[Side], its: Side) -> Apart:
    telling = its if its.verdict is Verdict.BROKEN else next(
        (side for side in mine if side.verdict is Verdict.BROKEN), its)
    _, cell = telling.telling
    said = listed(f"the {known(side.world).word} {_does(side)}" for side in mine)
    return Apart(scenario=scenario.name, number=scenario.number, guarantee=guarantee,
                 words=f"{said}, {known(its.world).word} {_does(its)}",
                 why=cell.evidence[0].text if cell.evidence else "")


def _does(side: Side) -> str:
    return "breaks it" if side.verdict is Verdict.BROKEN else "keeps it"

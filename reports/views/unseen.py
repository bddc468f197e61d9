"""What these plays, and the lab itself, cannot see: places that no fault struck, guarantees that nothing tested."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from reports.collect import PlayedScenario, Promise
from scenarios.history.run import Run
from scenarios.history.verdicts import DECISIVE
from scenarios.worlds.registry import in_order, known

_NUMBER = re.compile(r"\.\d+|@\d+")


class Blind(msgspec.Struct, frozen=True, kw_only=True):
    """A guarantee that says nothing in a world, and why."""

    promise: Promise
    world: str
    reason: str


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of places that one run crossed, and those that a fault struck there."""

    world: str
    crossed: frozenset[str]
    struck: frozenset[str]


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of places that the plays of a world crossed, and which of them no fault struck. A kind: any node's."""

    world: str
    crossed: int
    untouched: list[str]

    @property
    def struck(self) -> int:
        return self.crossed - len(self.untouched)


def kind_of_place(site: str) -> str:
    return _NUMBER.sub("", site)


def touched_by(run: Run) -> Touched:
    return Touched(world=run.play.world, crossed=frozenset(map(kind_of_place, run.history.crossings)),
                   struck=frozenset(kind_of_place(receipt.site) for receipt in run.history.faults.receipts))


def places_of(every: Iterable[Touched]) -> list[Places]:
    """Of every run. One entry a world."""
    crossed: dict[str, set[str]] = defaultdict(set)
    struck: dict[str, set[str]] = defaultdict(set)
    for touched in every:
        crossed[touched.world] |= touched.crossed
        struck[touched.world] |= touched.struck
    return [Places(world=world, crossed=len(crossed[world] | struck[world]),
                   untouched=sorted(crossed[world] - struck[world])) for world in in_order(crossed)]


def blind_of(scenarios: Sequence[PlayedScenario], promises: Sequence[Promise]) -> list[Blind]:
    """Guarantees that a world cannot judge, by their own words; then those that no play of it could have broken."""
    found = []
    for promise in promises:
        sides = [side for scenario in scenarios for side in scenario.of_guarantee(promise.id)]
        for world in in_order({side.world for side in sides}):
            if world in promise.blind_in:
                found.append(Blind(promise=promise, world=world, reason=promise.blind_in[world]))
            elif not any(side.verdict in DECISIVE for side in sides if side.world == world):
                found.append(Blind(promise=promise, world=world,
                                   reason=f"no play {known(world).within} could have broken it"))
    return found

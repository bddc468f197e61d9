"""Thousands of plays in one process: when one is over, nothing of it stays."""

from __future__ import annotations

import gc
from collections import Counter

from scenarios.lab.sweep import crossings, phases, red, sampled, singles
from scenarios.worlds.sim import play_once

PLAYS = 12


def _there() -> Counter[str]:
    """Objects of the engine and the twin by class, once what nobody can reach is gone."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return Counter({f"{kind.__module__}.{kind.__name__}": count for kind, count in kinds.items()
                    if str(kind.__module__).partition(".")[0] in ("engine", "sim")})


def test_nothing_of_a_play_stays_when_it_is_over() -> None:
    phase = next(phase for phase in phases() if phase.name == "four ranks")
    plays = sampled(list(singles(phase, crossings(phase, play_once))), 3 * PLAYS, 0)
    for play in plays[:PLAYS]:  # the last history is kept, and so are what is looked up often
        red(play, play_once)
    before = _there()
    for play in plays[PLAYS:]:
        red(play, play_once)
    grown = {name: count for name, count in (_there() - before).items() if count >= PLAYS}
    assert not grown

"""Every scenario of the twin as real processes may play it: its threads lose their processor between any two effects.

Judged as a play in real time. What turns red is a judge that takes what two processes write down for simultaneous, or
an engine that hangs on who is faster. PREEMPTED=3000 plays more of them, PREEMPTED_FIRST=1000 others.
"""

from __future__ import annotations

import os
from functools import cache
from random import Random

import msgspec
import pytest

from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.worlds.sim import play_once
from sim.process.preemption import Preemption
from tests.mutation.plays import scenes

PLAYS, FIRST = int(os.environ.get("PREEMPTED", "60")), int(os.environ.get("PREEMPTED_FIRST", "0"))


@cache
def plays() -> tuple[Play, ...]:
    """Of engines: what the ends of a queue count beside is of real ones only."""
    return tuple(msgspec.structs.replace(scene.play, virtual_time=False) for scene in scenes()
                 if not scene.play.options.queue)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PLAYS))
def test_nothing_breaks_that_holds_without(seed: int) -> None:
    play = Random(seed).choice(plays())
    simulation, lab = play_once(play, scheduler=Preemption(seed))
    red = judge(play, lab, simulation.journal_files()).red
    assert red is None, f"{play.scenario}: {red}"

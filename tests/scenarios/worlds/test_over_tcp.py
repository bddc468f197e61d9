"""Scenarios that were written for ipc hold over tcp, too: what is promised does not hang on what carries it.

    PRODUCTS=all pytest tests/scenarios/worlds/test_over_tcp.py        all of them; else as many as are sampled
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from scenarios.lab.catalogue import Scenario, catalogue
from scenarios.lab.settings import lab_config
from scenarios.worlds.base import PlayedRun, World
from scenarios.worlds.registry import WORLDS, can_play

#: The files whose plays have sockets between an engine's parts, and mean nothing by what these speak.
FILES = ("calm", "data_parallel", "death", "lockstep", "lockstep_old", "several_clients", "stall", "start", "transport")
SAMPLED = {"sim": 40, "engine": 6}


class OverTcp:
    """A world whose plays speak tcp."""

    def __init__(self, world: World) -> None:
        self.world = world

    def play(self, **asked: Any) -> PlayedRun:
        config = asked.pop("config", None) or lab_config()
        sockets = msgspec.structs.replace(config.sockets, transport="tcp")
        return self.world.play(**asked, config=msgspec.structs.replace(config, sockets=sockets))


def chosen(world: str) -> list[Scenario]:
    every_one = [scenario for scenario in catalogue() if scenario.not_played_in(world) is None
                 and scenario.function.__module__.removeprefix("scenarios.test_") in FILES]
    whole = os.environ.get("PRODUCTS") == "all"
    return every_one if whole else Random(5).sample(every_one, SAMPLED[world])


def _plays() -> list[Any]:
    return [pytest.param(world, scenario, id=f"{scenario.name}-{world}", marks=[
        pytest.mark.skipif(can_play(world) is not None, reason=str(can_play(world)))])
        for world in SAMPLED for scenario in chosen(world)]


@pytest.mark.parametrize(("name", "scenario"), _plays())
def test_what_is_promised_is_kept_over_tcp(name: str, scenario: Scenario, tmp_path: Path) -> None:
    world = WORLDS[name].make(tmp_path)
    try:
        scenario.function(OverTcp(world), **scenario.parameters)
    finally:
        world.close()
    assert all(run.play.config.sockets.transport == "tcp" for played in world.played for run in played.runs)

"""What is played of vLLM where nothing is named: enough, and no more than is said. Nothing is played here."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from scenarios.history.play import Play
from scenarios.lab.catalogue import Scenario, catalogue
from scenarios.worlds.base import NotHereError
from scenarios.worlds.vllm.selection import _MORE, MOST, is_usual
from scenarios.worlds.vllm.world import OF_ITS_OWN, VllmWorld


class Reached(Exception):  # noqa: N818
    """The play would begin now."""


class Refusing(VllmWorld):
    def _play(self, play: Play) -> list[Path]:
        raise Reached


def can_be_played(scenario: Scenario, world: VllmWorld) -> bool:
    if scenario.not_played_in("vllm") is not None:
        return False
    world.scenario, world.title = scenario.name, scenario.title
    try:
        scenario.function(world, **scenario.parameters)
    except Reached:
        return True
    except NotHereError:
        return False
    raise AssertionError(f"{scenario.name} plays nothing")


def test_the_usual_ones_are_as_many_as_is_said_and_cover_both_kinds(tmp_path: Path) -> None:
    world = Refusing(tmp_path)
    playable = [scenario.name for scenario in catalogue() if can_be_played(scenario, world)]
    usual = [name for name in playable if is_usual(name)]
    assert len(usual) <= MOST
    assert sum(name.startswith(OF_ITS_OWN) for name in usual) >= 60
    assert sum(not name.startswith(OF_ITS_OWN) for name in usual) >= 30
    assert [one for one in _MORE if not any(fnmatchcase(name, one) for name in playable)] == []

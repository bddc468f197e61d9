"""Runs that an earlier version recorded are judged as they were then.

The folders are whole: plays in the twin, journals, what the lab saw, and the verdicts that were given at that time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from scenarios.guarantees.judge import judge
from scenarios.history.run import load_run

FOLDERS = sorted((Path(__file__).parent / "recorded_before").iterdir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_run_recorded_before_gets_the_same_verdicts(folder: Path) -> None:
    run = load_run(folder)
    before = {cell.guarantee: cell for cell in run.judgement.cells}
    again = judge(run.play, run.lab, run.journals)
    assert {cell.guarantee: cell for cell in again.cells} == before
    assert (again.faults, again.ended) == (run.judgement.faults, run.judgement.ended)


@pytest.mark.parametrize(("world", "virtual_time", "simulated"), [
    ("sim", None, True), ("engine", None, False),  # as they were recorded once
    ("sim", True, True), ("engine", False, False), ("another", True, True), ("another", False, False),
])
def test_a_play_says_whether_its_time_was_virtual_or_is_known_by_its_world(
        world: str, virtual_time: bool | None, simulated: bool) -> None:
    play = load_run(FOLDERS[0]).play
    assert msgspec.structs.replace(play, world=world, virtual_time=virtual_time).simulated is simulated

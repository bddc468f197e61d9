"""Runs that an earlier version recorded are judged as they were then.

The folders are whole: plays in the twin, journals, what the lab saw, and the verdicts that were given at that time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from engine.topology import tensor_parallel
from scenarios.guarantees.judge import judge
from scenarios.history.run import RunError, load_run

FOLDERS = sorted((Path(__file__).parent / "recorded_before").iterdir())


#: The verdict is the same, and not each witness, or what counts as one: waits were once paired with another message of
#: the same moment, and a start that is refused said nothing.
PAIRED_ANEW = {"ring-no-lost-wakeup", "start-ends"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_run_recorded_before_gets_the_same_verdicts(folder: Path) -> None:
    run = load_run(folder)
    before = {cell.guarantee: cell for cell in run.judgement.cells}
    judged = judge(run.play, run.lab, run.journals)
    again = {cell.guarantee: cell for cell in judged.cells if cell.guarantee in before}
    assert run.play.schema == 1
    assert {name: cell.verdict for name, cell in again.items()} == {n: cell.verdict for n, cell in before.items()}
    assert {n: cell for n, cell in again.items() if n not in PAIRED_ANEW} == {
        n: cell for n, cell in before.items() if n not in PAIRED_ANEW}
    assert (judged.faults, judged.ended) == (run.judgement.faults, run.judgement.ended)


def _rewritten(folder: Path, topology: dict[str, int], options: dict[str, object]) -> Path:
    """A run as it was recorded before engines were values, with another topology and other options."""
    shutil.copytree(FOLDERS[0], folder)
    play = msgspec.json.decode((folder / "play.json").read_bytes())
    (folder / "play.json").write_bytes(msgspec.json.encode({**play, "topology": topology, "options": options}))
    return folder


@pytest.mark.parametrize(("tp", "subscribers"), [(2, 1), (1, 0), (4, 3)])
def test_a_topology_that_was_told_by_its_size_is_one_engine(tmp_path: Path, tp: int, subscribers: int) -> None:
    run = load_run(_rewritten(tmp_path / "run", {"tp": tp, "subscribers": subscribers}, {}))
    assert run.play.topology == tensor_parallel(tp, subscribers=subscribers)


def test_a_run_with_an_engine_beside_the_first_that_was_no_part_of_its_play_is_refused_in_one_line(
        tmp_path: Path) -> None:
    folder = _rewritten(tmp_path / "run", {"tp": 2, "subscribers": 0}, {"neighbour": True})
    with pytest.raises(RunError) as refused:
        load_run(folder)
    text = str(refused.value)
    assert text.startswith(str(folder / "play.json")) and text.endswith("play it again") and "\n" not in text


def test_options_that_nobody_knows_are_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"play\.json: .*late_subscribers"):
        load_run(_rewritten(tmp_path / "run", {"tp": 2, "subscribers": 0}, {"late_subscribers": True}))


@pytest.mark.parametrize(("world", "virtual_time", "simulated"), [
    ("sim", None, True), ("engine", None, False),  # as they were recorded once
    ("sim", True, True), ("engine", False, False), ("another", True, True), ("another", False, False),
])
def test_a_play_says_whether_its_time_was_virtual_or_is_known_by_its_world(
        world: str, virtual_time: bool | None, simulated: bool) -> None:
    play = load_run(FOLDERS[0]).play
    assert msgspec.structs.replace(play, world=world, virtual_time=virtual_time).simulated is simulated

"""A mutant is planted into a child, and what becomes of it is told; the sample that CI plays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.core.drain import Drain
from tests.mutation.command import chosen, main, pure_files, shell_files, some, typed_files, vocabulary
from tests.mutation.equivalent import EQUIVALENT, why_equivalent
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.plays import CALM, ROOT, Scene, modules_of_the_twin, red, scenes, with_lines
from tests.mutation.score import Fate, Outcome, judged

SCHEDULER = "engine/core/scheduler.py"
#: How many mutants are played.
MUTANTS = int(os.environ.get("MUTANTS", "40"))
#: Of the sample so much at least is seen today. It only ever grows.
SHARE = 0.8


@pytest.fixture(scope="module")
def calm() -> list[Scene]:
    mutants = list(mutants_of(SCHEDULER, ROOT))
    return with_lines([scene for scene in scenes() if scene.name == CALM], mutants, lambda word: None)


def _judged(mutant: Mutant, calm: list[Scene], plans: int = 0) -> Outcome:
    return judged(mutant, calm, {}, ROOT, plans=plans, seed=1)


def _mutant(old: str, operator: str) -> Mutant:
    return next(m for m in mutants_of(SCHEDULER, ROOT) if m.operator == operator and m.old.startswith(old))


def test_every_scenario_of_the_twin_is_a_play_with_its_promises() -> None:
    found = scenes()
    assert len(found) > 90
    assert all(scene.play.promises or scene.play.expected for scene in found)


def test_the_calm_play_is_not_red(calm: list[Scene]) -> None:
    assert red(calm[0].play) is None


def test_a_bug_that_acts_in_the_calm_play_is_trivial(calm: list[Scene]) -> None:
    outcome = _judged(_mutant("self._finished.append(request.request_id)", "statement-gone"), calm)
    assert (outcome.fate, outcome.by) == (Fate.TRIVIAL, CALM), outcome


def test_a_bug_in_a_line_that_no_play_runs_is_unplayed(calm: list[Scene]) -> None:
    outcome = _judged(_mutant("self._failed[request_id] = request", "statement-gone"), calm)
    assert outcome.fate is Fate.UNPLAYED, outcome


def test_what_was_planted_into_a_child_is_not_here(calm: list[Scene]) -> None:
    before = Drain.begin.__code__
    _judged(_mutant("self._failed[request_id] = request", "statement-gone"), calm)
    assert Drain.begin.__code__ is before and red(calm[0].play) is None


def test_every_pure_file_has_mutants_that_can_be_planted() -> None:
    assert len(pure_files()) > 40
    assert sum(bool(mutants_of(file, ROOT)) for file in pure_files()) > 40


def test_every_file_with_something_to_change_is_planted_in_one_world() -> None:
    """What the twin never loads no play of it can run: the real engine plays its mutants, however pure it is."""
    lists = pure_files(), shell_files(), vocabulary()
    found = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "engine").rglob("*.py"))]
    assert [file for file in found if mutants_of(file, ROOT) and sum(file in one for one in lists) != 1] == []
    unloaded = [file for file in typed_files() if file.startswith("engine/")
                and file.removesuffix(".py").replace("/", ".") not in modules_of_the_twin()]
    assert "engine/frontend/arguments.py" in unloaded and set(unloaded) <= {*shell_files()}
    assert "scenarios.lab.catalogue" not in modules_of_the_twin()  # what scenarios load beside it counts for nothing


def test_equivalents_are_mutants_that_there_are_and_few_of_them() -> None:
    of_both = [[m for file in files for m in mutants_of(file, ROOT)] for files in (pure_files(), shell_files())]
    places = {(m.file, m.function, m.operator, m.old, new)
              for mutants in of_both for m in mutants for new in (m.new, None)}
    assert [one for one in EQUIVALENT if tuple(one[:4]) + (one.new,) not in places] == []
    for mutants in of_both:
        assert sum(why_equivalent(mutant) is not None for mutant in mutants) <= 0.05 * len(mutants)


def test_a_sample_has_mutants_of_every_room_and_the_calm_play_is_among_few_scenarios() -> None:
    rooms = {str(Path(file).parent) for file in pure_files() if mutants_of(file, ROOT)}
    sample = chosen(pure_files(), 16, seed=1)
    assert len(sample) == len({mutant.id for mutant in sample}) == 16 >= len(rooms)
    assert {str(Path(mutant.file).parent) for mutant in sample} == rooms
    few = some(scenes(), 60)
    assert len({id(scene) for scene in few}) == 60 and CALM in {scene.name for scene in few}


@pytest.mark.long
def test_a_sample_is_seen(tmp_path: Path) -> None:
    """Mutants of all rooms, in the twin, each with every scenario that runs its line and twenty random plans. The file
    is whole after every one of them, and can be gone on with.
    """
    file = tmp_path / "mutation.json"
    asked = ["--sample", str(MUTANTS), "--seed", "1", "--plans", "20", "--json", str(file)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert found["chosen"] == found["mutants"] == len(found["outcomes"]) == MUTANTS
    assert found["killed"] + found["equivalent"] + found["apart"] + len(found["survivors"]) == MUTANTS
    assert all(set(survivor) >= {"file", "line", "operator", "reason"} for survivor in found["survivors"])
    assert found["score"]["share"] >= SHARE, found["survivors"]
    again = CliRunner().invoke(main, [*asked, "--resume"])
    assert again.exit_code == 0 and json.loads(file.read_text())["mutants"] == MUTANTS

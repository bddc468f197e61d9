"""Planted bugs turn their scenarios red, in every world that can have them; without them the same plays are green.

The twin plays all that it can have. The engine plays those that it alone can have, and an eighth of the others:

    PLANTED=all pytest tests/mutants        all of them in both worlds, as `make soak` does
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path

import pytest

from scenarios.guarantees.registry import GUARANTEES
from scenarios.lab.catalogue import catalogue
from scenarios.worlds.registry import can_play
from tests.mutants.catalogue import MUTANTS, seen_red
from tests.mutants.plant import PACKAGES, PROJECT, Edit, Played, apply, planted, play
from tests.mutants.table import WORLDS, Mutant

#: Judges every play, and may see in front of it what any bug does.
LAW = "nothing-without-cause"
EVERY_ONE = [(mutant, world) for mutant in MUTANTS for world in mutant.worlds]


def _chapters(mutant: Mutant) -> set[str]:
    return {GUARANTEES[name].chapter for name in mutant.broken_guarantees}


def _sample() -> set[str]:
    """By their ids: what is added to the table changes little for the others. Of each chapter there is one at least."""
    mine = [mutant for mutant in MUTANTS if "engine" in mutant.worlds]
    found = [mutant for mutant in mine if "sim" not in mutant.worlds or zlib.crc32(mutant.id.encode()) % 8 == 1]
    seen = set().union(*map(_chapters, found))
    for mutant in mine:
        if not _chapters(mutant) <= seen:
            found.append(mutant)
            seen |= _chapters(mutant)
    return {mutant.id for mutant in found}


SAMPLE = _sample()
PLAYS = [(mutant, world) for mutant, world in EVERY_ONE
         if os.environ.get("PLANTED") == "all" or world == "sim" or mutant.id in SAMPLE]


def _mark(world: str) -> list[pytest.MarkDecorator]:
    reason = can_play(world)
    return [] if reason is None else [pytest.mark.skip(reason=reason)]


def _parameters(pairs: list[tuple], name) -> list:
    return [pytest.param(*pair, id=f"{name(pair[0])}-{pair[1]}", marks=_mark(pair[1])) for pair in pairs]


@pytest.mark.parametrize(("mutant", "world"), _parameters(PLAYS, lambda mutant: mutant.id))
def test_a_planted_bug_turns_its_scenario_red(mutant: Mutant, world: str) -> None:
    """The guarantees concerned are BROKEN, not unknown; in the twin, no other than they and their consequences."""
    with planted(mutant.edits) as tree:
        played = play(tree, [mutant.scenario], world)
    assert {edit.file for edit in mutant.edits} & played.imported, "what was changed was never imported"
    assert not played.failures, played.said
    broken = played.broken(mutant.scenario, world)
    assert mutant.broken_guarantees <= broken, played.said
    assert played.code == 1
    if world == "sim":
        assert broken <= mutant.broken_guarantees | mutant.along | {LAW}, played.said


SCENARIOS = sorted({(mutant.scenario, world) for mutant, world in PLAYS})


@pytest.fixture(scope="module")
def unharmed(request: pytest.FixtureRequest) -> dict[str, Played]:
    """A copy without any bug, playing all scenarios that are asked for; one process for each world."""
    wanted = {(item.callspec.params["scenario"], item.callspec.params["world"]) for item in request.session.items
              if getattr(item, "originalname", "") == test_the_same_play_without_the_bug_is_green.__name__}
    found = {}
    for world in WORLDS:
        names = [scenario for scenario, where in SCENARIOS if where == world and (scenario, where) in wanted]
        if names and can_play(world) is None:
            with planted(()) as tree:
                found[world] = play(tree, names, world)
    return found


@pytest.mark.parametrize(("scenario", "world"), _parameters(SCENARIOS, lambda scenario: scenario))
def test_the_same_play_without_the_bug_is_green(unharmed: dict[str, Played], scenario: str, world: str) -> None:
    """Whatever turns red above does so because of the bug."""
    played = unharmed[world]
    assert played.imported and all(name.startswith(PACKAGES) for name in played.imported)
    cells = {cell[2]: verdict for cell, verdict in played.cells.items() if cell[:2] == (scenario, world)}
    assert cells, played.said
    assert "BROKEN" not in cells.values(), played.said
    here = [mutant for mutant in MUTANTS if mutant.scenario == scenario and world in mutant.worlds]
    promised = frozenset().union(*(mutant.broken_guarantees for mutant in here))
    assert {name: cells[name] for name in promised if cells[name] not in ("HELD", "UNTESTED")} == {}


def test_what_is_changed_in_one_copy_is_changed_in_no_other() -> None:
    """They share the files that nobody changed."""
    edit = MUTANTS[0].edits[0]
    before = (PROJECT / edit.file).read_text()
    with planted((edit,)) as one, planted(()) as other:
        assert edit.new in (one / edit.file).read_text()
        assert (other / edit.file).read_text() == (PROJECT / edit.file).read_text() == before
    with planted(()) as later:
        assert (later / edit.file).read_text() == before


# -- the table itself


def test_the_sample_of_the_engine_is_an_eighth_of_what_the_twin_shows_and_all_that_it_does_not() -> None:
    both = [mutant for mutant in MUTANTS if mutant.worlds == WORLDS]
    assert 0.08 <= sum(mutant.id in SAMPLE for mutant in both) / len(both) <= 0.3
    assert {mutant.id for mutant in MUTANTS if mutant.worlds == ("engine",)} <= SAMPLE
    mine = [mutant for mutant in MUTANTS if "engine" in mutant.worlds]
    assert set().union(*map(_chapters, mine)) == set().union(*(_chapters(m) for m in mine if m.id in SAMPLE))
    assert {mutant.id for mutant, _ in PLAYS} == {mutant.id for mutant in MUTANTS}


def test_every_mutant_names_a_scenario_and_guarantees_that_exist() -> None:
    names = {scenario.name for scenario in catalogue()}
    for mutant in MUTANTS:
        assert mutant.scenario in names
        assert mutant.worlds and mutant.breaks
        assert mutant.broken_guarantees | mutant.along <= set(GUARANTEES)
        assert mutant.breaks <= {part for guarantee in GUARANTEES.values() for part in guarantee.parts}


def test_every_promise_has_its_wrong_engine_in_each_world() -> None:
    """Each half of each promise was seen broken by an engine that breaks it, or the promise says why a world cannot."""
    assert [f"{part} in {world}" for part, worlds in seen_red().items() for world, seen in worlds.items()
            if not seen] == []


def test_nobody_is_blind_for_what_it_sees() -> None:
    for guarantee in GUARANTEES.values():
        places = {f"{half} in {world}" if half else world for part in guarantee.parts for world in WORLDS
                  for half in (part.partition("/")[2],)}
        assert guarantee.blind_in.keys() <= places
        for part in guarantee.parts:
            for world in WORLDS:
                if guarantee.blindness(part, world) is not None:
                    assert not any(part in mutant.breaks and world in mutant.worlds for mutant in MUTANTS)


def test_no_two_mutants_share_an_id() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def test_every_edit_fits_what_it_changes(tmp_path: Path) -> None:
    """Whoever changes such a line hears of it at once, and not only when that bug is played."""
    for mutant in MUTANTS:
        for edit in mutant.edits:
            (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / edit.file, tmp_path / edit.file)
        for edit in mutant.edits:
            apply(edit, tmp_path)


def test_an_edit_that_no_longer_fits_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a = 1\na = 1\n")
    for old in ("a = 1", "b = 1"):
        with pytest.raises(ValueError, match="stands there"):
            apply(Edit("file.py", old, "a = 2"), tmp_path)

"""What the page says that it cannot see: counted from the runs, and from what was measured of the lab."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reports import measured, page
from reports.collect import Promise, collect
from reports.measured import Measured, MutationFigures, PhaseFigures, Score, SweepFigures, publish
from reports.views.unseen import blind_of, kind_of_place, places_of, touched_by
from scenarios.history.verdicts import Verdict
from tests.reports.example import BROKEN, HELD, PROMISES, UNTESTED, bare_run, cell, replay_command, write_examples
from tests.reports.test_page import Page

SCORE = Score(share=0.9, low=0.85, high=0.94)
MUTATION = MutationFigures(
    command="python -m tests.mutation", commit="abc1234", date="2026-01-02", of=1000, mutants=100, killed=81,
    trivial=30, equivalent=10, unplayed=3, score=SCORE, score_without_trivial=SCORE, parts={"engine/core": SCORE})
SWEEP = SweepFigures(command="python -m tests.sweep", commit="abc1234", date="2026-01-02", plays=70000, pairs=11, red=0,
                     phases=[PhaseFigures(name="calm", places=40, crossings=1234, plays=5000)])


def test_a_kind_of_place_is_any_nodes() -> None:
    assert kind_of_place("core.0->worker.1.3@2/rpc:receive") == "core->worker/rpc:receive"


def test_places_that_no_fault_struck_are_named_by_world(tmp_path: Path) -> None:
    runs = write_examples(tmp_path)
    for place in places_of(map(touched_by, runs)):
        mine = [run for run in runs if run.play.world == place.world]
        crossed = {kind_of_place(site) for run in mine for site in run.history.crossings}
        struck = {kind_of_place(receipt.site) for run in mine for receipt in run.history.faults.receipts}
        assert crossed >= set(place.untouched) and not struck & set(place.untouched)
        assert place.struck == len(struck) > 0


@pytest.mark.parametrize(("verdicts", "worlds"), [
    ((HELD, HELD), []), ((UNTESTED, HELD), ["sim"]), ((HELD, UNTESTED), ["engine"]), ((BROKEN, BROKEN), [])])
def test_what_no_play_of_a_world_decided_is_said(verdicts: tuple[Verdict, Verdict], worlds: list[str]) -> None:
    runs = [bare_run("test_calm", world, cell("ends-once", verdict))
            for world, verdict in zip(("sim", "engine"), verdicts, strict=True)]
    assert [entry.world for entry in blind_of(collect(runs), [PROMISES["ends-once"]])] == worlds


def test_what_one_play_decided_is_not_blind_by_another() -> None:
    runs = [bare_run(name, "sim", cell("ends-once", verdict)) for name, verdict in (("a", UNTESTED), ("b", HELD))]
    assert blind_of(collect(runs), [PROMISES["ends-once"]]) == []


def test_a_world_that_cannot_judge_says_why_whatever_was_decided_there() -> None:
    promise = Promise(id="ends-once", sentence="s", blind_in={"sim": "it has no clock"})
    runs = [bare_run("test_calm", world, cell("ends-once", HELD)) for world in ("sim", "engine")]
    (found,) = blind_of(collect(runs), [promise])
    assert (found.world, found.reason) == ("sim", "it has no clock")


def test_figures_take_the_place_of_the_former_ones_and_leave_the_others(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    assert measured.measured(file) == Measured()
    publish(MUTATION, file)
    publish(SWEEP, file)
    publish(msgspec.structs.replace(MUTATION, mutants=200), file)
    assert measured.measured(file) == Measured(mutation=msgspec.structs.replace(MUTATION, mutants=200), sweep=SWEEP)


def test_the_page_says_what_was_measured_and_what_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = write_examples(tmp_path)
    monkeypatch.setattr(page, "measured", lambda: Measured(mutation=MUTATION))
    text = Page(page.render(runs, PROMISES, replay_command)).text(id="unseen")
    assert "90.0 % (85.0 to 94.0)" in text and "abc1234" in text and "100 small bugs (of 1,000)" in text
    assert "Faults at every crossing Was not measured." in text
    monkeypatch.setattr(page, "measured", lambda: Measured(sweep=SWEEP))
    text = Page(page.render(runs, PROMISES, replay_command)).text(id="unseen")
    assert "70,000 plays of one fault" in text and "1,234" in text
    assert "Bugs that were planted Was not measured." in text

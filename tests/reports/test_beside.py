"""Another engine beside ours: where it differs is told in words, and is no disagreement of worlds."""

from __future__ import annotations

from reports.page import render
from reports.results import agreement, exit_code, results
from reports.views.beside import besides
from tests.reports.example import BROKEN, HELD, PROMISES, UNTESTED, bare_run, cell, replay_command
from tests.reports.test_page import Page

SAME, OTHER = "ends-once", "death-is-told"


def played(*, theirs: tuple[object, ...] = (HELD, HELD), twin: object = HELD) -> list[object]:
    return [bare_run("test_x", "sim", cell(SAME, HELD, HELD), cell(OTHER, twin, HELD), cell("rpc-matched", HELD)),
            bare_run("test_x", "engine", cell(SAME, HELD, HELD), cell(OTHER, HELD, HELD), cell("rpc-matched", HELD)),
            bare_run("test_x", "vllm", cell(SAME, theirs[0], theirs[0]), cell(OTHER, theirs[1], theirs[1]))]


def test_what_it_breaks_and_ours_keep_is_told_and_is_no_disagreement() -> None:
    runs = played(theirs=(HELD, BROKEN))
    (beside,) = besides(runs)
    assert (beside.scenarios, beside.compared, beside.same, beside.unpromised) == (1, 2, 1, 1)
    assert [(one.guarantee, one.words) for one in beside.apart] == [
        (OTHER, "the twin keeps it and the engine keeps it, vLLM breaks it")]
    assert agreement(runs)["disagreed"] == 0 and agreement(runs)["agreed"] == 3
    assert exit_code(runs) == 0


def test_twin_and_engine_are_counted_as_without_it() -> None:
    runs = played(twin=BROKEN)
    assert agreement(runs) == agreement(runs[:2]) and agreement(runs)["disagreed"] == 1
    assert exit_code(runs) == 1 and besides(runs[:2]) == []


def test_what_it_has_not_decided_is_not_compared() -> None:
    (beside,) = besides(played(theirs=(HELD, UNTESTED)))
    assert (beside.compared, beside.same, beside.apart) == (1, 1, [])


def test_a_scenario_that_it_alone_has_played_is_beside_nothing() -> None:
    runs = [bare_run("test_y", "vllm", cell(SAME, BROKEN, BROKEN)), bare_run("test_z", "sim", cell(SAME, HELD))]
    assert besides(runs) == [] and "beside" not in results(runs)


def test_the_page_and_the_results_say_it() -> None:
    runs = played(theirs=(HELD, BROKEN))
    page = render(runs, PROMISES, replay_command)
    assert 'id="beside"' in page and not Page(page).wrong
    assert "vLLM breaks it" in page and "it promises nothing" in page
    assert results(runs)["beside"][0]["world"] == "vllm"
    assert 'id="beside"' not in render(runs[:2], PROMISES, replay_command)

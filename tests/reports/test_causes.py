"""What needs a person is told by cause: what is near-equal once, and nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.plan import Fate, Fault
from reports.answer import troubles
from reports.collect import collect
from reports.page import MOST_CAUSES, MOST_OPEN, render
from reports.summary import summary
from reports.views.causes import causes, shape
from scenarios.history.run import Run
from scenarios.history.verdicts import Evidence, Verdict
from tests.reports.example import BROKEN, HELD, PROMISES, UNKNOWN, bare_run, cell, replay_command, write_examples
from tests.reports.test_page import Page


def broken(number: int, text: str, guarantee: str = "ends-once", world: str = "sim", verdict: Verdict = BROKEN) -> Run:
    return bare_run(f"test_{number}", world, cell(guarantee, verdict, HELD, Evidence(text=text, at=0.5 + number)))


def grouped(*runs: Run) -> list[tuple[str, int]]:
    return [(cause.head, len(cause.rows)) for cause in causes(troubles(collect(runs)))]


@pytest.mark.parametrize(("one", "other"), [
    ("request 'r0': no output for 3.01 s (bound 3 s)", "request 'once more': no output for 60.5 s (bound 60 s)"),
    ("worker.1 read 3 of core.0->worker.1/rpc", "worker.0.1@2 read 17 of core.1->worker.0.1/rpc"),
    ("frame ca08ea5bca49cc18 came late", "frame 022eea54838c47ec came late"),
    ("took ['a', 'b'] and freed []", "took [] and freed ['c']"),
    ("planned and never fired: f1 (kill at core.0/mark:step, nth=3)",
     "planned and never fired: f1 (kill at core.0/mark:step, nth=3), f2 (stall at worker.1/mark:step, nth=1)"),
    ("batches 3, 4 and 9 are missing", "batches 3 are missing")])
def test_what_differs_in_numbers_names_and_quotes_is_one_cause(one: str, other: str) -> None:
    assert shape(one) == shape(other)


@pytest.mark.parametrize(("one", "other"), [
    ("core.0 died", "worker.0 died"), ("told after 3 s", "never told"),
    ("of core.0->worker.1/rpc", "of core.0->worker.1/kv"), ("ended: IndexError", "ended: KeyError")])
def test_what_differs_in_words_is_two_causes(one: str, other: str) -> None:
    assert shape(one) != shape(other)


def test_a_broken_promise_is_grouped_by_its_guarantee_and_its_cause_the_most_frequent_first() -> None:
    runs = [broken(1, "worker.0 died"), *(broken(n, f"request 'r{n}' ended {n} times") for n in (2, 3, 4)),
            broken(5, "request 'r1' ended 2 times", "edge-fifo")]
    assert grouped(*runs) == [("ends-once is BROKEN", 3), ("ends-once is BROKEN in the twin", 1),
                              ("edge-fifo is BROKEN in the twin", 1)]


def test_worlds_share_a_cause_and_its_sentence_counts_them() -> None:
    runs = [broken(n, f"request 'r{n}' ended twice", world=world) for n in (1, 2) for world in ("sim", "engine")]
    (cause,) = causes(troubles(collect(runs)))
    assert cause.sentence == "4 plays of 2 scenarios: twin 2, engine 2"


def test_a_fault_that_did_not_fire_is_one_cause_for_all_that_it_leaves_without_an_answer() -> None:
    planned = (Fault(id="f1", site="core.0/mark:step", fate=Fate.KILL),)
    why = Evidence(text="planned and never fired: f1 (kill at core.0/mark:step, nth=1)")
    runs = [bare_run(f"test_{n}", "sim", *(cell(name, UNKNOWN, HELD, why) for name in ("ends-once", "edge-fifo")),
                     faults=planned, fired=False) for n in range(3)]
    assert grouped(*runs) == [("6 promises of ends-once and edge-fifo: UNKNOWN", 6),
                              ("A planned fault did not fire", 3)]


def test_nothing_is_left_out_and_the_worst_comes_first(tmp_path: Path) -> None:
    runs = [*write_examples(tmp_path), bare_run("test_y", failure="no fork server"), broken(1, "late")]
    every = troubles(collect(runs))
    found = causes(every)
    assert sorted(map(id, every)) == sorted(id(row) for cause in found for row in cause.rows)
    assert [cause.first.rank for cause in found] == sorted(cause.first.rank for cause in found)
    assert found[0].kind == "harness"


def many(plays: int = 60, kinds: int = 1) -> list[Run]:
    words = ("twice", "never", "late", "early", "elsewhere", "otherwise", "unasked", "unheard", "half", "empty", "torn",
             "unseen")
    return [broken(n, f"request 'r{n}' ended {words[n % kinds]}") for n in range(plays)]


def test_the_page_tells_a_cause_once_and_its_plays_with_one_time_a_row() -> None:
    page = Page(render(many(), PROMISES, replay_command))
    (entry,) = page.all("ol", "troubles")
    text = page.text(id="attention")
    assert text.count("ends-once is BROKEN") == 1 and text.count("ringtwin replay") == 1
    assert "60 plays of 60 scenarios: twin 60" in text
    assert "test_7 twin, 7.500 s" in text and "test_8 twin, 8.500 s" in text and entry
    assert [e["data-to"] for e in page.elements if "data-to" in e][1:] == [f"c{n}-ends-once" for n in range(1, 61)]


def test_what_is_rare_lies_behind_what_is_frequent() -> None:
    page = Page(render(many(kinds=12), PROMISES, replay_command))
    assert "2 more causes" in page.text(id="attention") and MOST_CAUSES == 10
    assert page.text(id="attention").count("5 plays of 5 scenarios") == 12


@pytest.mark.parametrize(("plays", "opened"), [(MOST_OPEN, MOST_OPEN), (MOST_OPEN + 1, 0)])
def test_few_scenarios_that_need_a_person_are_open_and_many_are_not(plays: int, opened: int) -> None:
    page = Page(render(many(plays), PROMISES, replay_command))
    assert sum("open" in e for e in page.all("details", "scenario")) == opened


def test_the_job_summary_tells_a_cause_once() -> None:
    text = summary(many(), replay_command)
    assert text.count("ringtwin replay") == 1 and "60 plays of 60 scenarios" in text

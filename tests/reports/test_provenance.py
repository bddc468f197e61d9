"""What a report says of where its runs come from: every value once, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from reports.page import render
from reports.provenance import line_of, origin_of, rows_of
from reports.results import SCHEMA, write_results
from scenarios.history.play import Options, Provenance
from scenarios.history.run import Run
from tests.reports.example import HELD, PROMISES, bare_run, cell, replay_command
from tests.reports.test_page import Page

HERE = Provenance(began_at="2026-01-02T03:04:05Z", system="Linux 6.1", machine="x86_64", python="CPython 3.11.2",
                  cores=2, commit="0123456789abcdef" * 2, changed=False, command="ringtwin run --world both")


def run(world: str, provenance: Provenance | None = HERE, **more: object) -> Run:
    made = bare_run("test_x", world, cell("ends-once", HELD, HELD))
    made.play = msgspec.structs.replace(
        made.play, provenance=provenance, versions={"simpy": "4.1", "torch": "2.6"}, **more)
    return made


LATER = msgspec.structs.replace(HERE, began_at="2026-01-02T03:09:00Z", changed=True, cores=4,
                                command="ringtwin replay x")


def test_what_is_the_same_is_told_once_and_what_differs_is_told_both() -> None:
    origin = origin_of([run("sim"), run("sim"), run("engine", LATER, seed=3)])
    assert (origin.first, origin.last) == (HERE.began_at, LATER.began_at)
    assert origin.hosts == ["Linux 6.1, x86_64"] and origin.cores == [2, 4] and origin.seeds == [0, 3]
    assert origin.commits == ["0123456789ab", "0123456789ab, with changes"]
    assert origin.commands == ["ringtwin replay x", "ringtwin run --world both"]
    assert origin.versions == {"simpy": ["4.1"], "torch": ["2.6"]} and (origin.known, origin.runs) == (3, 3)


@pytest.mark.parametrize(("commit", "changed", "told"), [
    ("f" * 40, False, "f" * 12), ("f" * 40, True, "f" * 12 + ", with changes"),
    ("f" * 40, None, "f" * 12 + ", perhaps with changes"), (None, None, "no git checkout")])
def test_a_commit_is_told_with_the_doubts_about_it(commit: str | None, changed: bool | None, told: str) -> None:
    assert origin_of([run("sim", msgspec.structs.replace(HERE, commit=commit, changed=changed))]).commits == [told]


def test_results_have_it_and_a_schema(tmp_path: Path) -> None:
    write_results([run("sim"), run("engine", None)], tmp_path / "results.json")
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["schema"] == SCHEMA == 1
    assert told["provenance"] | {"commits": None} == {
        "runs": 2, "known": 1, "first": HERE.began_at, "last": HERE.began_at, "hosts": ["Linux 6.1, x86_64"],
        "pythons": ["CPython 3.11.2"], "cores": [2], "commits": None, "commands": [HERE.command], "seeds": [0],
        "versions": {"simpy": ["4.1"], "torch": ["2.6"]}, "edits": [], "record_schemas": [2]}


def test_the_page_says_it_in_a_line_at_the_top_and_whole_further_down() -> None:
    page = Page(render([run("sim"), run("engine", LATER)], PROMISES, replay_command))
    assert page.text(**{"class": "origin"}) == (
        "Played 2026-01-02 03:04:05 UTC on Linux 6.1, x86_64, 2 or 4 cores; "
        "commit 0123456789ab and 0123456789ab, with changes. All of it")
    text = page.text(id="provenance")
    assert "2026-01-02 03:04:05 UTC to 2026-01-02 03:09:00 UTC" in text and "CPython 3.11.2" in text
    assert "simpy 4.1, torch 2.6" in text and "ringtwin run --world both" in text
    assert "schema records 2, results 1" in text and "not known" not in text


def test_of_runs_that_do_not_say_it_is_said_that_it_is_not_known() -> None:
    page = Page(render([run("sim", None)], PROMISES, replay_command))
    assert "this was played is not known" in page.text(**{"class": "origin"})
    text = page.text(id="provenance")
    for what in ("played", "host", "Python", "cores", "commit of Ringtwin", "command"):
        assert f"{what} not known" in text
    assert "seed 0" in text and "simpy 4.1" in text


def test_of_some_that_do_not_say_it_is_said_how_many() -> None:
    origin = origin_of([run("sim"), run("engine", None)])
    assert rows_of(origin, SCHEMA)[-1] == ("not known of", ["1 of 2 runs"])
    assert line_of(origin).startswith("Played 2026-01-02")


def test_no_run_says_nothing_of_where_it_comes_from() -> None:
    assert line_of(origin_of([])) == "" and rows_of(origin_of([]), SCHEMA) == []


def test_functions_that_were_changed_are_told() -> None:
    edited = run("vllm", options=Options(edits=("always-healthy",)))
    assert ("edited", ["always-healthy"]) in rows_of(origin_of([run("sim"), edited]), SCHEMA)
    assert "edited" not in dict(rows_of(origin_of([run("sim")]), SCHEMA))

"""A bug report says what the records say, who promised otherwise, how to see it again; of some it says less."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from faults.plan import kill, plan
from reports.views.issue import PRIVATE, About, Again, issue
from scenarios.history.play import Options
from scenarios.history.run import Run, load_run
from tests.reports.example import calm, canary, killed

ABOUT = About(title="Callers wait", sources={"death-is-told": "docs: it is told"}, mechanism="Nobody looks.",
              control="Somebody looks.", program="print(1)", command="python program.py", replay="ringtwin replay x",
              alike=[("vllm#1", "something of that kind")])


@pytest.fixture
def red(tmp_path: Path) -> Run:
    run = load_run(canary(tmp_path, "engine"))
    run.play = msgspec.structs.replace(run.play, plan=plan(kill("core.0", at="core.0/mark:idle", nth=99)))
    return run


def test_it_has_all_its_parts_in_their_order(red: Run) -> None:
    text = issue(red, ABOUT, [Again(times=5, broken=4), Again(times=2, broken=0, edits=("a-mend",))])
    parts = [line for line in text.splitlines() if line.startswith("#")]
    assert parts == ["# Callers wait", "## Versions", "## What was expected", "## What was seen",
                     "## Where it comes from", "## How to see it again", "## How often", "## Whether it is known"]
    assert "broken 4 of 5" in text and "with a-mend changed: broken 0 of 2" in text
    assert "vllm#1: something of that kind" in text and "Somebody looks." in text and PRIVATE not in text
    assert "print(1)" in text and "ringtwin replay x" in text and red.play.plan.faults[0].site in text


def test_what_was_seen_is_what_is_on_record(red: Run) -> None:
    text = issue(red, ABOUT)
    assert red.judgement is not None
    broken = [cell for cell in red.judgement.cells if cell.verdict.value == "BROKEN"]
    assert broken and all(f"- {cell.guarantee}: " in text for cell in broken)
    assert all(evidence.text.replace("<", "&lt;") in text for cell in broken for evidence in cell.evidence)
    told = text.partition("What its callers were told: ")[2]
    assert told.startswith(f"{len(red.history.operations)} of ") or " of " in told.splitlines()[0]
    assert "## How often" not in text


def test_what_may_be_a_matter_of_security_is_told_in_private_and_has_no_recipe(red: Run) -> None:
    text = issue(red, msgspec.structs.replace(ABOUT, private=True), [Again(times=1, broken=1)])
    assert PRIVATE in text and "security policy" in text
    for ready in ("print(1)", "python program.py", "ringtwin replay", "## How to see it again",
                  red.play.plan.faults[0].site + '"'):
        assert ready not in text
    assert "## What was seen" in text


def test_of_a_run_without_a_finding_its_own_words_are_the_title(red: Run) -> None:
    text = issue(red, About(replay="ringtwin replay x"))
    assert red.play.title in text.splitlines()[0]
    assert "It looks like none of those that the lab knows of." in text
    assert "## Where it comes from" not in text and "Without the lab" not in text


def test_functions_that_were_changed_are_told(red: Run) -> None:
    red.play = msgspec.structs.replace(red.play, options=Options(edits=("always-healthy",)))
    assert "- functions changed for this play: always-healthy" in issue(red, ABOUT)


def test_where_nothing_is_broken_there_is_no_issue(tmp_path: Path) -> None:
    for path in (calm(tmp_path, "engine"), killed(tmp_path, "engine")):
        with pytest.raises(ValueError, match="nothing is broken"):
            issue(load_run(path), ABOUT)

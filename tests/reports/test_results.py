"""Counting: agreement, exit codes and the results file follow one rule, case by case."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import msgspec
import pytest

from faults.plan import Fate, Fault
from reports.collect import collect
from reports.junit import junit
from reports.results import agreement, exit_code, results, write_results
from reports.summary import summary, write_summary
from tests.reports.example import (
    BROKEN,
    HELD,
    OUTSIDE,
    UNKNOWN,
    UNTESTED,
    bare_run,
    cell,
    replay_command,
    write_examples,
)

PLANNED = (Fault(id="f1", site="core.0/mark:step", fate=Fate.KILL),)


def both(sim: list, engine: list, expected=None) -> list:
    """One guarantee; the twin played one choice per verdict in `sim`."""
    runs = [bare_run("test_x", "sim", cell("g", verdict, expected), choice=n) for n, verdict in enumerate(sim)]
    return runs + [bare_run("test_x", "engine", cell("g", verdict, expected)) for verdict in engine]


@pytest.mark.parametrize(("sim", "engine", "agreed", "disagreed", "differ"), [
    ([HELD], [HELD], 1, 0, 0),
    ([BROKEN], [BROKEN], 1, 0, 0),
    ([HELD], [BROKEN], 0, 1, 0),
    ([BROKEN], [HELD], 0, 1, 0),
    ([HELD, BROKEN], [BROKEN], 1, 0, 0),  # the twin allows both outcomes
    ([HELD, BROKEN], [HELD], 1, 0, 0),
    ([UNTESTED, HELD], [BROKEN], 0, 1, 0),
    ([UNTESTED], [HELD], 0, 0, 1),
    ([OUTSIDE], [BROKEN], 0, 0, 1),
    ([HELD], [UNKNOWN], 0, 0, 1),
    ([UNTESTED], [UNTESTED], 0, 0, 0),
    ([HELD], [HELD, BROKEN], 0, 1, 0),  # one of two repeats on the engine
])
def test_worlds_disagree_only_where_held_meets_broken_and_the_twin_does_not_allow_it(
        sim, engine, agreed, disagreed, differ):
    found = agreement(both(sim, engine))
    assert (found["agreed"], found["disagreed"], len(found["differences"])) == (agreed, disagreed, differ)


def test_a_disagreement_names_the_scenario_the_guarantee_and_what_each_world_said():
    found = agreement(both([HELD], [BROKEN]))
    assert found["disagreements"] == [
        {"scenario": "test_x", "guarantee": "g", "sim": ["HELD"], "engine": ["BROKEN"]}]


def test_a_scenario_of_one_world_is_shown_and_compared_with_nothing():
    found = agreement([bare_run("test_x", "engine", cell("g", BROKEN, HELD))])
    assert found["disagreed"] == 0
    assert found["played_in_one_world"] == [{"scenario": "test_x", "worlds": ["engine"]}]


def test_agreement_is_told_over_any_number_of_worlds():
    runs = [*both([HELD], [HELD]), bare_run("test_x", "third", cell("g", BROKEN, None))]
    assert agreement(runs)["disagreements"] == [
        {"scenario": "test_x", "guarantee": "g", "sim": ["HELD"], "engine": ["HELD"], "third": ["BROKEN"]}]
    assert exit_code(runs) == 1


@pytest.mark.parametrize(("verdict", "expected", "code"), [
    (HELD, HELD, 0), (BROKEN, HELD, 1), (UNTESTED, HELD, 2), (UNKNOWN, HELD, 2), (OUTSIDE, HELD, 2),
    (BROKEN, BROKEN, 0), (HELD, BROKEN, 1), (UNTESTED, BROKEN, 2), (UNKNOWN, BROKEN, 2),
    (HELD, None, 0), (UNTESTED, None, 0), (OUTSIDE, None, 0), (UNKNOWN, None, 0), (BROKEN, None, 1),
    (OUTSIDE, OUTSIDE, 0), (UNKNOWN, UNKNOWN, 0),
])
def test_the_exit_code_of_one_cell(verdict, expected, code):
    assert exit_code([bare_run("test_x", "engine", cell("g", verdict, expected))]) == code


@pytest.mark.parametrize(("first", "second", "expected", "code"), [
    (HELD, UNTESTED, HELD, 0),  # witnessed in one allowed outcome
    (HELD, BROKEN, HELD, 1),
    (HELD, UNKNOWN, HELD, 2),
    (UNTESTED, UNTESTED, HELD, 2),
    (BROKEN, HELD, BROKEN, 0),  # a canary caught in one allowed outcome is caught
    (HELD, HELD, BROKEN, 1),
])
def test_the_exit_code_over_two_outcomes_of_the_twin(first, second, expected, code):
    assert exit_code(both([first, second], [], expected)) == code


@pytest.mark.parametrize(("first", "second", "expected", "code"), [
    (HELD, UNTESTED, HELD, 2), (HELD, BROKEN, HELD, 1), (BROKEN, HELD, BROKEN, 1), (HELD, HELD, HELD, 0),
])
def test_every_repeat_on_the_engine_must_be_as_declared(first, second, expected, code):
    assert exit_code(both([], [first, second], expected)) == code


def test_a_failed_harness_outranks_a_broken_promise():
    runs = [bare_run("test_x", "engine", cell("g", BROKEN, HELD)), bare_run("test_y", failure="no fork server")]
    assert exit_code(runs) == 3


def test_a_broken_promise_outranks_an_unknown_one():
    runs = [bare_run("test_x", "engine", cell("g", BROKEN, HELD), cell("h", UNKNOWN, HELD))]
    assert exit_code(runs) == 1


def test_a_disagreement_about_an_unpromised_cell_is_not_success():
    runs = [bare_run("test_x", "sim", cell("g", BROKEN, BROKEN)), bare_run("test_x", "engine", cell("g", HELD))]
    assert exit_code(runs) == 1


def test_no_run_at_all_is_no_success():
    assert exit_code([]) == 3


def test_a_run_that_nobody_judged_is_a_harness_error():
    assert exit_code([bare_run(judged=False)]) == 3


def test_a_promise_without_a_cell_is_unknown():
    run = bare_run("test_x", "engine", promises=("g",))
    assert exit_code([run]) == 2
    assert collect([run])[0].sides["g"]["engine"].verdict is UNKNOWN


def test_a_planned_fault_that_did_not_fire_is_not_success():
    assert exit_code([bare_run("test_x", "engine", cell("g", HELD, HELD), faults=PLANNED, fired=False)]) == 2


def test_results_have_the_promised_shape_and_survive_json(tmp_path):
    runs = write_examples(tmp_path / "runs")
    write_results(runs, tmp_path / "results.json", base=tmp_path)
    read = json.loads((tmp_path / "results.json").read_text())
    assert set(read) == {"schema", "provenance", "scenarios", "agreement", "counts"}
    entry = next(e for e in read["scenarios"] if e["name"].startswith("test_worker_dies") and e["world"] == "engine")
    assert {"name", "world", "verdicts", "faults", "seconds", "run"} <= set(entry)
    assert entry["faults"] == [{"id": "f1", "fired": True}]
    assert (tmp_path / entry["run"]).is_dir()
    told = next(v for v in entry["verdicts"] if v["guarantee"] == "death-is-told")
    assert set(told) == {"guarantee", "verdict", "expected", "witnesses", "evidence"}
    assert (told["verdict"], told["expected"], told["witnesses"]) == ("HELD", "HELD", 8)


def test_counts_add_up(tmp_path):
    runs = write_examples(tmp_path / "runs")
    numbers = results(runs)["counts"]
    promised = numbers["promised"]
    assert promised["cells"] == sum(promised[v] for v in ("HELD", "BROKEN", "UNTESTED", "OUTSIDE", "UNKNOWN"))
    assert (promised["BROKEN"], promised["UNKNOWN"], promised["UNTESTED"]) == (1, 1, 2)
    assert numbers["canaries"] == {"declared": 2, "as_declared": 2}
    assert numbers["faults"]["not_fired"] == 1
    assert numbers["exit_code"] == 1


def test_junit_has_a_case_per_scenario_and_world_and_failures_end_in_the_replay_command(tmp_path):
    runs = write_examples(tmp_path / "runs")
    root = ElementTree.fromstring(junit(runs, replay_command))
    cases = root.findall(".//testcase")
    assert len(cases) == 14
    failed = {case.get("name"): case.find("failure") for case in root.find("testsuite[@name='engine']")
              if case.find("failure") is not None}
    assert set(failed) == {"test_lost_output_frame", "test_malformed_frame"}
    last = failed["test_lost_output_frame"].text.splitlines()[-1]
    assert last == "ringtwin replay out/runs/test_lost_output_frame-engine-0"
    assert "tokens-in-order: BROKEN" in failed["test_lost_output_frame"].text


def test_junit_tells_the_time_that_a_play_took_not_the_twins_own(tmp_path):
    run = bare_run()
    run.lab = msgspec.structs.replace(run.lab, began_at=0.0, ended_at=80.0, took_s=0.25)
    before = bare_run("test_before")
    before.lab = msgspec.structs.replace(before.lab, began_at=0.0, ended_at=3.0)
    before.judgement = None
    root = ElementTree.fromstring(junit([run, before], replay_command))
    assert [case.get("time") for case in root.iter("testcase")] == ["0.250", "3.000"]


def test_junit_survives_text_that_xml_cannot_hold():
    run = bare_run("test_x", "engine", cell("g", BROKEN, HELD), title="a\x00b\x1b[31m<&>\udc80")
    root = ElementTree.fromstring(junit([run], replay_command))
    assert "<&>" in root.find(".//failure").text


def test_junit_calls_a_failed_harness_an_error():
    root = ElementTree.fromstring(junit([bare_run("test_x", failure="no fork server")], replay_command))
    assert root.find(".//error").text.splitlines() == ["no fork server", "ringtwin replay out/runs/test_x-engine-0"]


def test_the_job_summary_says_the_answer_and_how_to_repeat_it(tmp_path):
    runs = write_examples(tmp_path / "runs")
    out = tmp_path / "summary.md"
    out.write_text("before\n")
    write_summary(runs, out, replay_command)
    text = out.read_text()
    assert text.startswith("before\n## ")
    assert "1 promise broken" in text
    assert "ringtwin replay out/runs/test_lost_output_frame-engine-0" in text
    assert "disagree on 1" in text


def test_the_job_summary_shows_hostile_text_as_text():
    run = bare_run("test_x|y", "engine", cell("g", BROKEN, HELD), title="t")
    hostile = bare_run("<img src=x>`a`", "engine", cell("g", BROKEN, HELD))
    text = summary([run, hostile], replay_command)
    assert "<img" not in text.replace("ringtwin replay out/runs/<img", "")
    assert "test\\_x\\|y" in text

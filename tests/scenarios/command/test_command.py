"""The command line when all goes well, and its exit codes when it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from faults.journal import Kind, journal_path, read_journal
from faults.plan import drop, kill, plan, plan_to_json
from faults.real.unsteady import Unsteady
from scenarios.command import cli as command
from scenarios.history.run import load_run
from scenarios.lab.catalogue import scenarios_of
from scenarios.lab.settings import MODEL
from scenarios.workloads.workload import recorded
from scenarios.worlds.registry import can_play
from tests.scenarios import examples
from tests.scenarios.command.console import ROOT, bench, ringtwin

real = pytest.mark.skipif(can_play("engine") is not None, reason=f"needs the real engine: {can_play('engine')}")


@pytest.fixture
def scenarios(monkeypatch):
    """The catalogue holds these functions alone."""

    def are(*functions):
        found = [scenario for function in functions for scenario in scenarios_of(function)]
        monkeypatch.setattr(command, "catalogue", lambda: found)

    return are


@pytest.mark.parametrize(("functions", "code"), [
    ([examples.test_holds], 0),
    ([examples.test_holds, examples.test_breaks], 1),
    ([examples.test_holds, examples.test_unknown], 2),
    ([examples.test_breaks, examples.test_unknown], 1),
    ([examples.test_breaks, examples.test_raises], 3),
    ([examples.test_holds, examples.test_plays_nothing], 3),
    ([examples.test_holds, examples.test_unjudged], 3),
    ([examples.test_holds, examples.test_elsewhere], 0),
    ([examples.test_elsewhere], 3),
], ids=lambda value: "+".join(f.__name__[5:] for f in value) if isinstance(value, list) else str(value))
def test_the_exit_code_is_the_worst_that_was_seen(capsys, tmp_path, scenarios, functions, code):
    scenarios(*functions)
    assert ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path).code == code


def test_a_failure_of_the_harness_is_in_the_report(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds, examples.test_raises)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    [_, entry] = json.loads((tmp_path / "results.json").read_text())["scenarios"]
    assert entry["name"] == "test_raises"
    assert "ZeroDivisionError: planted" in entry["failure"]
    assert "ZeroDivisionError: planted" in (tmp_path / "report" / "index.html").read_text()


def test_ranks_that_a_scenario_cannot_have_leave_it_out_with_a_reason(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds, examples.test_needs_two)
    answer = ringtwin(capsys, "run", "--world", "sim", "--tp", 1, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "not played" in answer.err
    assert "worker.1->core.0/response:send" in answer.err


@pytest.mark.parametrize(("options", "cores", "clients", "hubs"), [
    (["--dp", 2], 2, 1, []), (["--dp", 2, "--coordinator"], 2, 1, [False]), (["--dp", 3, "--lockstep"], 3, 1, [True]),
    (["--clients", 2], 1, 2, []), (["--dp", 2, "--lockstep", "--clients", 2], 2, 2, [True])],
    ids=["dp", "coordinator", "lockstep", "clients", "all"])
def test_a_scenario_of_one_engine_is_played_by_several(capsys, tmp_path, scenarios, options, cores, clients, hubs):
    scenarios(examples.test_holds)
    answer = ringtwin(capsys, "run", "--world", "sim", *options, "--out", tmp_path)
    assert answer.code == 0, answer.err
    play = load_run(next((tmp_path / "runs").iterdir())).play
    assert len(play.topology.engines) == play.config.data_parallel_size == cores
    assert len(play.topology.clients) == clients and bool(play.topology.launchers) == (clients > 1)
    assert [hub.lockstep for hub in play.topology.coordinators] == hubs
    assert play.config.is_lockstep == (True in hubs) and play.config.has_coordinator == bool(hubs)
    assert not play.config.is_lockstep or play.config.bounds.collective_s < play.config.bounds.step_s


@pytest.mark.parametrize("options", [["--clients", 2], ["--dp", 2, "--lockstep"]], ids=["clients", "lockstep"])
def test_a_scenario_that_counts_steps_is_left_out_where_it_does_not_count_alone(capsys, tmp_path, scenarios, options):
    scenarios(examples.test_holds, examples.test_counts_steps)
    answer = ringtwin(capsys, "run", "--world", "sim", *options, "--out", tmp_path)
    assert answer.code == 0, answer.err
    assert "its workload counts steps, and they are not those of one client alone" in answer.err


def test_a_scenario_over_tcp_is_played_for_several_clients(capsys, tmp_path, scenarios):
    scenarios(examples.test_over_tcp)
    answer = ringtwin(capsys, "run", "--world", "sim", "--clients", 2, "--out", tmp_path)
    assert answer.code == 0, answer.err
    play = load_run(next((tmp_path / "runs").iterdir())).play
    assert len(play.topology.clients) == 2 and play.config.sockets.transport == "tcp"


def test_a_run_leaves_page_results_junit_and_job_summary(capsys, tmp_path, scenarios, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    scenarios(examples.test_holds)
    answer = ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path, "--json", tmp_path / "again.json")
    assert str(tmp_path / "report" / "index.html") in answer.out
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == json.loads((tmp_path / "again.json").read_text())
    assert set(results) == {"schema", "provenance", "scenarios", "agreement", "counts"}
    assert results["provenance"]["known"] == results["provenance"]["runs"] == 1
    assert results["provenance"]["seeds"] == [0] and results["provenance"]["cores"][0] >= 1
    [entry] = results["scenarios"]
    assert {"name", "world", "verdicts", "faults", "seconds", "run"} <= set(entry)
    assert {"guarantee", "verdict", "expected", "witnesses", "evidence"} <= set(entry["verdicts"][0])
    assert ElementTree.parse(tmp_path / "junit.xml").find("testsuite/testcase").get("name") == "test_holds"
    assert "Ringtwin" in (tmp_path / "summary.md").read_text()


def test_runs_from_before_they_told_where_they_come_from_are_reported_and_say_so(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    [file] = (tmp_path / "runs").glob("*/play.json")
    play = json.loads(file.read_text())
    assert play.pop("provenance")["began_at"].endswith("Z")
    file.write_text(json.dumps(play))
    answer = ringtwin(capsys, "report", tmp_path / "runs", "-o", tmp_path / "page.html", "--json", tmp_path / "a.json")
    assert answer.code == 0, answer.err
    assert "from which commit this was played is not known" in (tmp_path / "page.html").read_text()
    told = json.loads((tmp_path / "a.json").read_text())["provenance"]
    assert (told["known"], told["runs"], told["first"], told["commits"]) == (0, 1, None, [])


def test_json_on_stdout_is_nothing_but_json(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds)
    answer = ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path, "--json", "-")
    assert json.loads(answer.out)["counts"]["exit_code"] == 0


def test_a_replay_says_how_often_it_was_the_same_and_keeps_the_run_it_came_from(capsys, tmp_path, scenarios):
    scenarios(examples.test_breaks)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    run = tmp_path / "runs" / "test_breaks-sim"
    before = (run / "verdicts.json").read_bytes()
    answer = ringtwin(capsys, "replay", run, "--times", 3, "--out", tmp_path)
    assert answer.code == 1
    assert "sim: 3 of 3 with the same verdicts" in answer.err
    assert (run / "verdicts.json").read_bytes() == before
    assert [(tmp_path / n / "runs/test_breaks-sim/verdicts.json").read_bytes() for n in "123"] == [before] * 3


def test_a_plan_alone_is_played_with_a_calm_workload(capsys, tmp_path):
    path = tmp_path / "kill.json"
    path.write_bytes(plan_to_json(plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=8))))
    answer = ringtwin(capsys, "replay", path, "--world", "sim", "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    [entry] = json.loads((tmp_path / "out" / "results.json").read_text())["scenarios"]
    assert entry["faults"] == [{"id": "f1", "fired": True}]
    assert "HELD" in {cell["verdict"] for cell in entry["verdicts"] if cell["guarantee"] == "death-is-told"}


def test_a_plan_alone_promises_what_the_command_says_and_no_more(capsys, tmp_path):
    path = tmp_path / "drop.json"
    path.write_bytes(plan_to_json(plan(drop("core.0->frontend.0/outputs", nth=3))))
    asked = "replay", path, "--world", "sim"
    silent = ringtwin(capsys, *asked, "--out", tmp_path / "silent")
    assert silent.code == 0, silent.err
    assert "Nothing was promised, and nothing that was judged broke" in silent.out
    assert "promises held" not in (tmp_path / "silent" / "report" / "index.html").read_text()
    held = ringtwin(capsys, *asked, "--out", tmp_path / "held", "--promise", "ends-once, tokens-in-order")
    assert held.code == 0 and "Every promise held" in held.out and "of 2 promises made" in held.out
    broken = ringtwin(capsys, *asked, "--out", tmp_path / "broken", "--promise", "ends-once", "--promise", "drain")
    assert broken.code == 2 and "1 promise without an answer" in broken.out


def test_a_report_judges_again_from_the_records_alone(capsys, tmp_path, scenarios):
    scenarios(examples.test_breaks)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    (tmp_path / "runs" / "test_breaks-sim" / "verdicts.json").unlink()
    answer = ringtwin(capsys, "report", tmp_path / "runs", "-o", tmp_path / "page" / "page.html",
                      "--json", tmp_path / "again.json")
    assert answer.code == 1
    again, first = (json.loads((tmp_path / name).read_text()) for name in ("again.json", "results.json"))
    assert again["scenarios"][0]["verdicts"] == first["scenarios"][0]["verdicts"]
    assert "test_breaks" in (tmp_path / "page" / "page.html").read_text()


@pytest.mark.parametrize(("what", "word"), [
    ("scenarios", "test_nothing_goes_wrong"), ("guarantees", "death-is-told"),
    ("sites", "worker.1->core.0/response:send"), ("faults", "truncate")])
def test_list_names_what_there_is(capsys, what, word):
    answer = ringtwin(capsys, "list", what)
    assert answer.code == 0
    assert any(line.split()[0] == word for line in answer.out.splitlines())


def test_doctor_says_what_can_be_played(capsys):
    answer = ringtwin(capsys, "doctor")
    assert answer.code == 0
    assert "ok  sim world      can be played" in answer.out.splitlines()


def test_doctor_says_why_real_processes_cannot_be_played(capsys, monkeypatch):
    for name in ("torch", "zmq"):
        monkeypatch.setitem(sys.modules, name, None)
    answer = ringtwin(capsys, "doctor")
    [line] = [line for line in answer.out.splitlines() if "engine world" in line]
    assert line.startswith("no ")
    assert "torch and zmq not installed; pip install 'ringtwin[engine]'" in line


@real
def test_the_same_scenario_is_played_in_both_worlds_and_they_agree(tmp_path):
    with bench() as place:
        answer = place.run("run", "--scenario", "worker_dies_while_the_others_answer", "--out", tmp_path)
        assert answer.code == 0, answer.err
        results = json.loads((tmp_path / "results.json").read_text())
        assert [entry["world"] for entry in results["scenarios"]] == ["sim", "engine"]
        assert results["agreement"]["disagreed"] == 0
        assert results["agreement"]["agreed"] > 0
        assert place.left() == []


@real
def test_processes_that_stand_still_now_and_then_keep_the_same_promises(tmp_path):
    with bench() as place:
        answer = place.run("run", "--world", "engine", "--scenario", "test_nothing_goes_wrong", "--unsteady", 0.1,
                           "--seed", 3, "--out", tmp_path)
        assert answer.code == 0, answer.out
        [path] = (tmp_path / "runs").iterdir()
        assert load_run(path).play.unsteady == 0.1
        crossings = [record.at for record in read_journal(journal_path(path / "journals", "worker.1", 0)).records
                     if record.kind is Kind.CROSSING]
        stood_still: list[float] = []
        unsteady = Unsteady(0.1, 3, "worker.1", stood_still.append)
        unsteady.pause()
        before_the_first = len(stood_still)
        for _ in range(2 * len(crossings) - 2):
            unsteady.pause()
        assert crossings[-1] - crossings[0] >= sum(stood_still[before_the_first:]) > 0.1


@real
def test_generate_says_what_the_model_says(tmp_path):
    from engine.frontend.text.tokenizer import load_tokenizer

    request = recorded("pair").requests[0]
    tokenizer = load_tokenizer(str(MODEL))
    text = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=True)
    with bench() as place:
        answer = place.run("generate", "--model", MODEL, "--prompt", text, "--tp", 2, "--max-tokens", 12)
        assert answer.code == 0, answer.err
        again = place.run("generate", "--model", MODEL, "--prompt", text, "--max-tokens", 12)
        assert again.out == answer.out
        in_step = place.run("generate", "--model", MODEL, "--prompt", text, "--dp", 2, "--lockstep", "--max-tokens", 12)
        assert (in_step.code, in_step.out, in_step.err) == (0, answer.out, "")
        assert len(answer.out.split()) > 3
        assert answer.err == ""
        assert place.left() == []


def test_a_reader_that_leaves_early_is_no_failure_of_the_lab():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "scenarios.command", "list", "sites"], stdout=write,
                          stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_two_results_are_compared(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path / "before")
    same = ringtwin(capsys, "compare", tmp_path / "before", tmp_path / "before" / "results.json", "-o", tmp_path / "p")
    assert (same.code, "Nothing turned" in same.out) == (0, True)
    results = json.loads((tmp_path / "before" / "results.json").read_text())
    promised = next(cell for cell in results["scenarios"][0]["verdicts"] if cell["expected"] == "HELD")
    promised["verdict"] = "BROKEN"
    (tmp_path / "after.json").write_text(json.dumps(results))
    worse = ringtwin(capsys, "compare", tmp_path / "before", tmp_path / "after.json", "-o", tmp_path / "page.html",
                     "--json", tmp_path / "turns.json")
    assert worse.code == 1
    assert f"worse     test_holds (sim) {promised['guarantee']}: HELD, promised -> BROKEN, promised" in worse.out
    assert "1 cell turned worse" in (tmp_path / "page.html").read_text()
    assert [turn["way"] for turn in json.loads((tmp_path / "turns.json").read_text())["turns"]] == ["worse"]


def test_what_is_no_results_cannot_be_compared(capsys, tmp_path):
    answer = ringtwin(capsys, "compare", tmp_path, tmp_path)
    assert answer.code == 3
    assert "results.json" in answer.line


def test_a_run_is_exported_as_a_trace(capsys, tmp_path, scenarios):
    scenarios(examples.test_holds)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    answer = ringtwin(capsys, "export", folder, "--format", "perfetto", "-o", tmp_path / "deep" / "trace.json")
    assert (answer.code, "ui.perfetto.dev" in answer.out) == (0, True)
    assert json.loads((tmp_path / "deep" / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("where", ["runs", "nowhere"])
def test_what_is_no_run_cannot_be_exported(capsys, tmp_path, scenarios, where):
    scenarios(examples.test_holds)
    ringtwin(capsys, "run", "--world", "sim", "--out", tmp_path)
    answer = ringtwin(capsys, "export", tmp_path / where, "-o", tmp_path / "trace.json")
    assert answer.code == 3 and str(tmp_path / where) in answer.line
    assert not (tmp_path / "trace.json").exists()


def test_an_old_plan_is_converted(capsys, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(plan_to_json(plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=8))))
    answer = ringtwin(capsys, "convert", path)
    assert (answer.code, json.loads(answer.out)["faults"][0]["nth"]) == (0, 13)


def test_what_is_no_plan_is_not_converted(capsys, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("{}}")
    answer = ringtwin(capsys, "convert", path)
    assert (answer.code, answer.out) == (3, "") and str(path) in answer.line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell):
    done = subprocess.run([sys.executable, "-m", "scenarios.command"], capture_output=True, text=True, check=False,
                          cwd=ROOT, env={**os.environ, "_RINGTWIN_COMPLETE": f"{shell}_source"})
    assert (done.returncode, "_ringtwin_completion" in done.stdout) == (0, True)
    asked = {**os.environ, "_RINGTWIN_COMPLETE": f"{shell}_complete", "COMP_WORDS": "ringtwin rep",
             "COMP_CWORD": "rep" if shell == "fish" else "1"}
    done = subprocess.run([sys.executable, "-m", "scenarios.command"], capture_output=True, text=True, check=False,
                          cwd=ROOT, env=asked)
    assert done.returncode == 0 and "replay" in done.stdout and "report" in done.stdout

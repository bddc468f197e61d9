"""Bad orders: each ends in one line that names what and where, with exit code 3, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from scenarios.command import checks as command_checks
from scenarios.command.claim import claimed
from scenarios.history.run import load_run
from scenarios.lab.settings import MODEL
from scenarios.worlds.registry import can_play
from tests.scenarios.command.console import ROOT, bench, ringtwin

real = pytest.mark.skipif(can_play("engine") is not None, reason=f"needs the real engine: {can_play('engine')}")


def refused(answer, *words: str) -> None:
    assert answer.code == 3, answer.err
    for word in words:
        assert word in answer.line, answer.line
    assert "Traceback" not in answer.err


# -- plans


def plan_file(folder: Path, **changes) -> Path:
    fault = {"id": "f1", "site": "worker.1->core.0/response:send", "fate": "kill", "nth": 3, **changes}
    path = folder / "plan.json"
    path.write_text(json.dumps({"faults": [fault]}))
    return path


@pytest.mark.parametrize(("changes", "words"), [
    ({"site": "worker.9->core.0/response:send"}, ["f1", "worker.9->core.0/response:send", "ringtwin list sites"]),
    ({"fate": "explode"}, ["plan.json", "explode"]),
    ({"fate": "drop"}, ["f1", "drop", "send"]),
    ({"nth": 0}, ["f1", "nth=0"]),
    ({"nht": 1}, ["plan.json", "nht"]),
    ({"after": "f9"}, ["f1", "f9"]),
], ids=["unknown site", "unknown fate", "fate that cannot befall this site", "nth 0", "unknown field", "unknown fault"])
def test_a_plan_that_cannot_be_played_is_refused(capsys, tmp_path, changes, words):
    refused(ringtwin(capsys, "replay", plan_file(tmp_path, **changes), "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


def test_a_promise_that_nobody_knows_is_refused(capsys, tmp_path):
    given = "replay", plan_file(tmp_path), "--promise", "ends-once,death-is-tolt", "--out", tmp_path / "out"
    refused(ringtwin(capsys, *given), "--promise death-is-tolt", "is it death-is-told?", "ringtwin list guarantees")
    assert not (tmp_path / "out").exists()


def test_a_plan_that_is_not_json_is_refused(capsys, tmp_path):
    (tmp_path / "plan.json").write_text("faults: []")
    refused(ringtwin(capsys, "replay", tmp_path / "plan.json", "--out", tmp_path / "out"), "plan.json", "JSON")


def test_a_plan_that_does_not_exist_is_refused(capsys, tmp_path):
    refused(ringtwin(capsys, "replay", tmp_path / "plan.json"), "plan.json", "no such")


# -- models


def model_directory(folder: Path, **changes) -> Path:
    shutil.copytree(MODEL, folder / "model")
    config = folder / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return folder / "model"


def without_weights(folder: Path) -> Path:
    model = model_directory(folder)
    (model / "model.safetensors").unlink()
    return model


@pytest.mark.parametrize("command", [
    pytest.param(["generate", "--prompt", "Once"], marks=real), ["run", "--world", "sim"]], ids=["generate", "run"])
@pytest.mark.parametrize(("make", "words"), [
    (without_weights, ["no weights", "*.safetensors"]),
    (lambda folder: model_directory(folder, model_type="gpt2", architectures=["GPT2LMHeadModel"]),
     ["config.json", "GPT2LMHeadModel"]),
    (lambda folder: folder / "nowhere", ["nowhere", "no such model directory"]),
], ids=["without weights", "other architecture", "missing"])
def test_a_model_that_cannot_be_served_is_refused(capsys, tmp_path, command, make, words):
    refused(ringtwin(capsys, *command, "--model", make(tmp_path)), *words)


@pytest.mark.parametrize("command", [
    pytest.param(["generate", "--model", MODEL, "--prompt", "Once"], marks=real), ["run", "--world", "sim"]],
    ids=["generate", "run"])
def test_ranks_that_do_not_divide_the_heads_are_refused(capsys, command):
    refused(ringtwin(capsys, *command, "--tp", 3), "3", "8 attention heads")


@pytest.mark.parametrize("command", [
    pytest.param(["generate", "--model", MODEL, "--prompt", "Once"], marks=real), ["run"]], ids=["generate", "run"])
def test_more_ranks_than_gpus_are_refused_where_gpus_are_asked_for(capsys, monkeypatch, command):
    monkeypatch.setattr(command_checks, "gpus", lambda: 1)
    refused(ringtwin(capsys, *command, "--tp", 2, "--device", "cuda"), "--tp", "2 ranks", "1 GPU", "--device")


@pytest.mark.parametrize("command", [
    pytest.param(["generate", "--model", MODEL, "--prompt", "Once"], marks=real), ["run", "--world", "sim"]],
    ids=["generate", "run"])
def test_more_stages_than_layers_are_refused(capsys, command):
    refused(ringtwin(capsys, *command, "--pp", 3), "pipeline_parallel_size", "2 layers", "got 3")


@pytest.mark.parametrize("command", [["run"], ["generate", "--model", MODEL, "--prompt", "Once"]],
                         ids=["run", "generate"])
def test_fewer_engines_than_one_are_refused(capsys, command):
    refused(ringtwin(capsys, *command, "--dp", 0), "--dp", "0")


COMMANDS = pytest.mark.parametrize("command", [["run"], ["generate", "--model", MODEL, "--prompt", "Once"]],
                                   ids=["run", "generate"])


@COMMANDS
@pytest.mark.parametrize("option", ["--lockstep", "--coordinator"])
@pytest.mark.parametrize("dp", [[], ["--dp", 1]], ids=["no dp", "dp 1"])
def test_one_engine_belongs_together_with_nobody(capsys, command, option, dp):
    refused(ringtwin(capsys, *command, *dp, option), f"{option} is for several engines", "--dp 2")


@COMMANDS
def test_engines_in_step_are_given_their_coordinator_once(capsys, command):
    refused(ringtwin(capsys, *command, "--dp", 2, "--lockstep", "--coordinator"), "leave --coordinator out")


def test_fewer_clients_than_one_are_refused(capsys):
    refused(ringtwin(capsys, "run", "--clients", 0), "--clients", "0")


def test_the_twin_has_nobody_who_stands_still(capsys):
    refused(ringtwin(capsys, "run", "--world", "sim", "--unsteady", 0.1), "--unsteady", "add --world engine")


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(capsys, share):
    refused(ringtwin(capsys, "run", "--unsteady", share), "--unsteady", str(share))


# -- requests


@real
def test_a_prompt_over_the_model_s_length_is_refused_before_anything_is_started(capsys):
    refused(ringtwin(capsys, "generate", "--model", MODEL, "--prompt", "the core " * 2000), "1024", "tokens")


@real
@pytest.mark.parametrize(("option", "value", "word"), [
    ("--max-tokens", 0, "max_tokens"), ("--temperature", -1, "temperature"), ("--top-p", 1.5, "top_p"),
    ("--top-k", -2, "top_k")])
def test_sampling_out_of_range_is_refused(capsys, option, value, word):
    refused(ringtwin(capsys, "generate", "--model", MODEL, "--prompt", "Once", option, value), word, str(value))


# -- places


@pytest.mark.parametrize("command", [["run", "--world", "sim"], ["replay", "--world", "sim"]], ids=["run", "replay"])
def test_a_folder_into_which_another_run_writes_is_refused(capsys, tmp_path, command):
    out = tmp_path / "out"
    out.mkdir()
    given = [plan_file(tmp_path)] if command[0] == "replay" else ["--scenario", "nothing_goes_wrong_on_one_rank"]
    with claimed(out):
        refused(ringtwin(capsys, *command, *given, "--out", out), str(out), f"process {os.getpid()}", "another --out")
    assert list(out.iterdir()) == []
    assert ringtwin(capsys, *command, *given, "--out", out).code in (0, 1, 2)


@pytest.mark.parametrize("command", [["run", "--world", "sim"], ["replay"]], ids=["run", "replay"])
def test_an_output_folder_that_cannot_be_written_is_refused(capsys, tmp_path, command):
    (tmp_path / "file").write_text("in the way")
    given = [plan_file(tmp_path)] if command == ["replay"] else []
    refused(ringtwin(capsys, *command, *given, "--out", tmp_path / "file" / "out"), "file/out", "--out")


@real
@pytest.mark.parametrize("command", [
    ["generate", "--model", str(MODEL), "--prompt", "Once", "--tp", "2"],
    ["run", "--world", "engine", "--out", "{out}"]], ids=["generate", "run"])
def test_too_little_shared_memory_is_refused(command, tmp_path):
    """In a mount namespace of its own, where /dev/shm has 64 KiB."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives nobody a mount namespace of their own (unshare -rm)")
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\""
    with bench() as place:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-m", "scenarios.command",
             *(word.format(out=tmp_path) for word in command)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 3, done.stderr
        [line] = done.stderr.strip().splitlines()
        assert "/dev/shm" in line
        assert "needed" in line
        assert place.left() == []


# -- runs


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    order = ["run", "--world", "sim", "--scenario", "nothing_goes_wrong_on_one_rank", "--out", out]
    subprocess.run([sys.executable, "-m", "scenarios.command", *order], cwd=ROOT, check=True, capture_output=True,
                   timeout=60)
    [path] = (out / "runs").iterdir()
    return path


def cut(name: str):
    def cut_file(run: Path) -> None:
        data = (run / name).read_bytes()
        (run / name).write_bytes(data[:len(data) // 2])

    return cut_file


def journal(change):
    def change_it(run: Path) -> None:
        [file] = (run / "journals").glob("core.0@0.journal")
        file.write_bytes(change(file.read_bytes()))

    return change_it


#: Of a whole journal, what no death of its process leaves.
RANDOM = Random(3).randbytes(4000)


@pytest.mark.parametrize("command", ["report", "replay"])
@pytest.mark.parametrize("change", [
    lambda data: RANDOM, lambda data: data[:-7], lambda data: data[:100] + b"?" + data[101:], lambda data: data[3:],
    lambda data: data + RANDOM[:40],
], ids=["random bytes", "its end is missing", "one byte is another", "its beginning is missing", "more behind it"])
def test_a_damaged_journal_is_called_so(capsys, tmp_path, whole_run, command, change):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    journal(change)(run)
    options = ["-o", tmp_path / "page.html"] if command == "report" else ["--out", tmp_path / "out"]
    refused(ringtwin(capsys, command, run, *options), "core.0@0.journal: damaged journal (", "play it again")


def test_the_journal_of_a_killed_process_may_end_in_the_midst_of_a_record(capsys, tmp_path):
    order = ["run", "--world", "sim", "--scenario", "test_core_dies_in_mid_step", "--out", tmp_path]
    assert ringtwin(capsys, *order).code == 0
    [run] = (tmp_path / "runs").iterdir()
    journal(lambda data: data[:-7])(run)
    assert load_run(run).history.ends.deaths[0].node == "core.0"


@pytest.mark.parametrize("command", ["report", "replay"])
@pytest.mark.parametrize(("damage", "word"), [
    (cut("play.json"), "play.json"), (cut("lab.json"), "lab.json"), (cut("verdicts.json"), "verdicts.json"),
    (lambda run: (run / "play.json").unlink(), "play.json"), (lambda run: (run / "lab.json").unlink(), "lab.json"),
    (lambda run: shutil.rmtree(run / "journals"), "journals"),
], ids=["half a play", "half a lab", "half the verdicts", "no play", "no lab", "no journals"])
def test_a_run_that_is_not_whole_is_refused(capsys, tmp_path, whole_run, command, damage, word):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    damage(run)
    options = ["-o", tmp_path / "page.html"] if command == "report" else ["--out", tmp_path / "out"]
    refused(ringtwin(capsys, command, run, *options), word, "play it again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_half_a_run_among_whole_ones_is_named_and_left_out(capsys, tmp_path, whole_run):
    shutil.copytree(whole_run, tmp_path / "runs" / "whole")
    shutil.copytree(whole_run, tmp_path / "runs" / "half")
    (tmp_path / "runs" / "half" / "lab.json").unlink()
    answer = ringtwin(capsys, "report", tmp_path / "runs", "-o", tmp_path / "page.html", "--json", tmp_path / "r.json")
    assert answer.code == 2
    assert answer.line.startswith(f"ringtwin: left out: {tmp_path / 'runs' / 'half' / 'lab.json'}: missing")
    assert "Interrupted: 1 play did not come about. Of the others: every promise held" in answer.out
    assert json.loads((tmp_path / "r.json").read_text())["unplayed"] == 1
    assert re.search(r"<b>2\s*</b> <span>exit code", (tmp_path / "page.html").read_text())
    shutil.rmtree(tmp_path / "runs" / "whole")
    refused(ringtwin(capsys, "report", tmp_path / "runs", "-o", tmp_path / "page.html"), "lab.json", "play it again")


def test_a_folder_without_a_run_is_refused(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(ringtwin(capsys, "report", tmp_path / "empty"), "empty", "no run")


def test_a_run_that_asks_for_an_unknown_site_is_refused(capsys, tmp_path, whole_run):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    play = msgspec.json.decode((run / "play.json").read_bytes())
    play["plan"] = {"faults": [{"id": "f1", "site": "core.7/mark:step", "fate": "kill"}]}
    (run / "play.json").write_bytes(msgspec.json.encode(play))
    refused(ringtwin(capsys, "replay", run, "--out", tmp_path / "out"), "f1", "core.7/mark:step")


def test_a_play_of_the_queue_alone_is_refused_where_processes_are_real(capsys, tmp_path, whole_run):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    play = msgspec.json.decode((run / "play.json").read_bytes())
    play["world"], play["options"] = "engine", {"queue": "few"}
    (run / "play.json").write_bytes(msgspec.json.encode(play))
    refused(ringtwin(capsys, "replay", run, "--out", tmp_path / "out"), "the queue by itself", "the twin only")


# -- words


@pytest.mark.parametrize(("order", "word"), [
    (["run", "--scenario", "nope"], "'nope'"), (["run", "--bogus"], "--bogus"), (["run", "--tp", "two"], "--tp"),
    (["bogus"], "bogus"), (["list", "bogus"], "bogus"), (["generate", "--prompt", "Once"], "--model"),
    (["run", "--world", "moon"], "moon"), (["replay"], "RUN_OR_PLAN")])
def test_an_order_that_is_not_understood_ends_in_3_not_in_the_code_for_unknown(capsys, order, word):
    refused(ringtwin(capsys, *order), word)

"""`ringtwin issue`: what it knows of a run, and what it refuses. Runs are read from disk; nothing is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.topology import Topology, tensor_parallel
from faults.plan import kill, plan
from scenarios.command.playing.replaying import again
from scenarios.guarantees.judge import judge
from scenarios.history.run import load_run
from scenarios.history.verdicts import Evidence, Verdict
from scenarios.workloads.workload import recorded
from scenarios.worlds.sim import SimWorld
from scenarios.worlds.vllm.findings import table
from tests.reports.example import Stage, calm, canary, cell
from tests.scenarios.command.console import ringtwin

ROW = "test_vllm_frontend_is_killed[frontend.0 in decode]"
FAULT = plan(kill("frontend.0", at="core.0/mark:scheduled", nth=6))


def of_vllm(folder: Path, topology: Topology = tensor_parallel(2)) -> Path:  # noqa: B008
    """As a play leaves it in which the caller is killed."""
    stage = Stage(folder, ROW, "vllm", "The caller's process is killed.", faults=FAULT.faults)
    stage.start_up()
    stage.step(1)
    stage.fire(FAULT.faults[0], "core.0")
    stage.leave()
    return stage.finish(cell("no-orphans", Verdict.BROKEN, Verdict.BROKEN, Evidence(text="core.0 outlived frontend.0")))


def test_a_finding_is_told_with_its_source_its_program_and_what_is_known(capsys: Any, tmp_path: Path) -> None:
    answer = ringtwin(capsys, "issue", of_vllm(tmp_path))
    finding = next(one for one in table.FINDINGS if one.id == "core-outlives-its-caller")
    assert answer.code == 0 and answer.out.startswith(f"# {finding.title}")
    for said in (finding.source, finding.mechanism, "core.0 outlived frontend.0", "vllm#55510", "by_hand.caller_killed",
                 "What its callers were told"):
        assert said in answer.out


def test_one_that_an_http_client_can_bring_about_is_for_private_ears(
        capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FINDINGS", tuple(msgspec.structs.replace(one, by_http=True) for one in table.FINDINGS))
    out = ringtwin(capsys, "issue", of_vllm(tmp_path)).out
    assert "matter of security" in out and "caller_killed" not in out and "ringtwin replay" not in out


def test_a_run_of_our_engine_has_an_issue_too_and_goes_where_it_is_told(capsys: Any, tmp_path: Path) -> None:
    run = canary(tmp_path, "engine")
    answer = ringtwin(capsys, "issue", run, "--out", tmp_path / "issues" / "one.md")
    assert answer.code == 0 and "sent by you" in answer.out
    text = (tmp_path / "issues" / "one.md").read_text()
    assert "hwm0-no-loss" in text.splitlines()[0] and "Without the lab" not in text


def test_a_run_is_played_again_in_folders_of_its_own(tmp_path: Path) -> None:
    world = SimWorld(tmp_path)
    play = world.play(topology=tensor_parallel(2), workload=recorded("pair")).runs[0].play
    results = again(play, 2, tmp_path / "new" / "issue")
    assert [result.failure for result in results] == [None, None]
    assert sorted(path.name for path in (tmp_path / "new" / "issue").iterdir()) == ["1", "2"]


@pytest.mark.parametrize(("arguments", "why"), [
    ((), "nothing is broken"), (("--control",), "no finding of the lab's"), (("--times", "-1"), "not in the range")])
def test_what_has_no_issue_is_refused_in_a_line(capsys: Any, tmp_path: Path, arguments: tuple[str, ...], why: str,
                                                ) -> None:
    answer = ringtwin(capsys, "issue", calm(tmp_path, "engine"), *arguments)
    assert answer.code == 3 and why in answer.line


def test_a_run_that_was_not_judged_is_judged_first(capsys: Any, tmp_path: Path) -> None:
    path = canary(tmp_path, "engine")
    (path / "verdicts.json").unlink()
    answer = ringtwin(capsys, "issue", path)
    run = load_run(path)
    broken = [one.guarantee for one in judge(run.play, run.lab, run.journals).cells if one.verdict is Verdict.BROKEN]
    assert broken and answer.code == 0
    assert answer.out.startswith(f"# {', '.join(broken)} broken: ")

"""A mutant of a shell is planted into a copy and played on the real engine; which lines a play runs is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.worlds.registry import can_play
from tests.mutation.command import pure_files, shell_files
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.plays import CALM, ROOT
from tests.mutation.score import Fate
from tests.mutation.shell.plays import HERE, EngineScene, engine_scenes
from tests.mutation.shell.score import MOST_PLAYS, PROGRAMS, _telling, bed, judged_on_engine

needs_engine = pytest.mark.skipif(can_play("engine") is not None, reason=str(can_play("engine")))


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with bed() as copy:
        yield copy


def _mutant(file: str, function: str, operator: str, old: str) -> Mutant:
    return next(m for m in mutants_of(file, ROOT)
                if m.function == function and m.operator == operator and m.old == old)


@needs_engine
@pytest.mark.parametrize(("mutant", "fate"), [
    (_mutant("engine/worker/sampler.py", "sample", "statement-gone", "return tokens"), Fate.TRIVIAL),
    (_mutant("engine/process/children.py", "set_process_title", "off-by-one", "15"), Fate.SURVIVED)])
def test_a_bug_of_a_shell_is_seen_by_a_promise_and_what_changes_nothing_is_not(
        tree: Path, mutant: Mutant, fate: Fate) -> None:
    calm = EngineScene(name=CALM, lines={mutant.file: {mutant.line}})
    outcome = judged_on_engine(mutant, [calm], tree)
    assert outcome.fate is fate, outcome
    assert (tree / mutant.file).read_bytes() == (ROOT / mutant.file).read_bytes()
    assert os.listdir(tree / "shm") == [] and not (tree / "t").exists()


def test_what_no_play_runs_is_played_by_none(tree: Path) -> None:
    mutant = _mutant("engine/process/children.py", "set_process_title", "off-by-one", "15")
    assert judged_on_engine(mutant, [EngineScene(name=CALM)], tree).fate is Fate.UNPLAYED


def test_the_programs_that_run_its_line_are_played_however_long_they_take() -> None:
    scenes = [EngineScene(name=f"test_{number}", seconds=number, lines={"f.py": {1}}) for number in range(50)]
    scenes.append(EngineScene(name=f"{PROGRAMS}asks", seconds=90.0, lines={"f.py": {1}}))
    chosen = [scene.name for scene in _telling("f.py", scenes)]
    assert chosen[0] == f"{PROGRAMS}asks" and len(set(chosen)) == len(chosen) == MOST_PLAYS


def test_pure_files_and_shells_are_all_of_the_engine_that_can_be_changed() -> None:
    assert not {*pure_files()} & {*shell_files()}
    assert {"engine/wire/sockets.py", "engine/process/shell.py", "engine/ipc/wait.py"} <= {*shell_files()}


def test_lines_are_recorded_in_every_thread_and_every_child(tmp_path: Path) -> None:
    """Each once for each process, and nothing that runs at import."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()
    (tmp_path / "lines").mkdir()
    (tmp_path / "playing").write_text("3")
    (tmp_path / "engine" / "some.py").write_text(
        "class C:\n    x = 1\n\n\n"
        "def f(n):\n    for _ in range(n):\n        n += 1\n    return n\n\n\ndef g():\n    return 2\n\n\nh = g\n")
    program = ("import os, sys, threading\n"
               f"__file__ = {str(tmp_path / 'sitecustomize.py')!r}\n"
               f"exec(compile(open({str(HERE / 'recorder.py')!r}).read(), 'recorder', 'exec'))\n"
               f"sys.path.insert(0, {str(tmp_path)!r})\n"
               "from engine.some import f, g\n"
               "f(0)\n"
               "threading.Thread(target=f, args=(2,)).start()\n"
               "if os.fork() == 0:\n    g(), g(), os._exit(0)\n"
               "os.wait()\n")
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "RECORD_LINES": "1"})
    said = sorted((tmp_path / "lines" / "3").read_text().split())
    assert said == [f"engine/some.py:{line}" for line in (12, 6, 7, 8)]


def test_what_was_recorded_is_kept_while_the_engine_stays_as_it_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def recorded(names: list[str], tell: object) -> list[EngineScene]:
        asked.append(names)
        return [EngineScene(name=name, lines={"engine/process/shell.py": {1}}) for name in names]

    monkeypatch.setattr("tests.mutation.shell.plays.recorded", recorded)
    kept = tmp_path / "out" / "lines.json"
    for wanted in ((CALM,), (CALM,), (CALM, "test_answering_worker_dies")):
        found = engine_scenes(kept, print, wanted.__contains__)
        assert {scene.name for scene in found} == {*wanted}
    assert asked == [[CALM], ["test_answering_worker_dies"]]
    monkeypatch.setattr("tests.mutation.shell.plays.engine_digest", lambda: "another")
    engine_scenes(kept, print, (CALM,).__contains__)
    assert asked[2:] == [[CALM]]

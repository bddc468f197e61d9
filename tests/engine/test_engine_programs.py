"""However a program that uses the engine ends, nothing of the engine stays behind it."""

from __future__ import annotations

import os
import signal

import pytest

from engine.process.runtime_dir import sweep
from tests.engine.engine_lab import BOUNDS, Owned, gone_within, until
from tests.engine.programs import Program

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]

def said_engine(program: Program) -> tuple[Owned, list[tuple[int, int]]]:
    words = program.hear()
    return Owned(words["engine"], words["path"]), [tuple(p) for p in words["processes"]]


@pytest.mark.parametrize("name", ["interrupted", "interrupted_in_with"])
@pytest.mark.parametrize("group", [True, False], ids=["Ctrl-C", "SIGINT to the program alone"])
def test_an_interrupt_in_the_middle_of_generate_leaves_nothing(name: str, group: bool, tmp_path) -> None:
    with Program(name, 2, tmp_path) as program:
        owned, processes = said_engine(program)
        (program.signal_group if group else program.signal)(signal.SIGINT)
        code, errors = program.wait(BOUNDS.cleanup_s + BOUNDS.terminate_s)
        assert code != 0 and "KeyboardInterrupt" in errors
        assert gone_within(processes, BOUNDS.orphan_s) == []
        assert owned.left() == []


@pytest.mark.parametrize("name", ["never_shut_down", "never_shut_down_by_a_worker", "raises"])
def test_a_program_that_never_shuts_down_ends_and_leaves_nothing(name: str, tmp_path) -> None:
    with Program(name, 2, tmp_path) as program:
        owned, processes = said_engine(program)
        if name != "raises":
            assert program.hear() == {"done": True}
        code, _ = program.wait(BOUNDS.cleanup_s)
        assert code == (0 if name != "raises" else 1)
        assert gone_within(processes, 0.0) == []
        assert owned.left() == []


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("start_method", METHODS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_frontend_killed_takes_everybody_and_everything_with_it(tp, start_method, number, tmp_path) -> None:
    with Program("interrupted", tp, tmp_path, start_method) as program:
        owned, processes = said_engine(program)
        assert len(processes) >= (1 if tp == 1 else 3)
        program.signal(number)
        assert gone_within(processes, BOUNDS.orphan_s) == []
        until(lambda: not owned.left(), BOUNDS.cleanup_s)


def test_a_fork_of_the_program_that_keeps_the_pipes_open_keeps_no_engine_alive(tmp_path) -> None:
    with Program("forks_a_child_of_its_own", 2, tmp_path) as program:
        owned, processes = said_engine(program)
        child = program.hear()["child"]
        try:
            program.signal(signal.SIGKILL)
            assert gone_within(processes, BOUNDS.orphan_s) == []
            until(lambda: not [left for left in owned.left() if not left.endswith(".lock")], BOUNDS.cleanup_s)
        finally:
            os.kill(child, signal.SIGKILL)
        sweep()
        assert owned.left() == []


def test_a_fork_of_the_program_that_ends_does_not_end_its_parents_engine(tmp_path) -> None:
    with Program("forks_a_child_that_ends", 1, tmp_path) as program:
        owned, _ = said_engine(program)
        assert program.hear() == {"tokens": 16}
        assert program.wait(BOUNDS.cleanup_s)[0] == 0
        assert owned.left() == []


def test_the_frontend_killed_while_it_starts_leaves_what_the_next_start_removes(tmp_path) -> None:
    with Program("killed_while_starting", 2, tmp_path) as program:
        words = program.hear()
        owned = Owned(words["engine"], words["path"])
        processes = [tuple(p) for p in program.hear()["processes"]]
        assert gone_within(processes, BOUNDS.orphan_s) == []
        sweep()
        assert owned.left() == []


@pytest.mark.parametrize("start_method", METHODS)
def test_all_killed_at_once_leaves_what_a_sweep_removes_and_a_neighbour_is_not_touched(start_method, tmp_path) -> None:
    with Program("interrupted", 2, tmp_path, start_method) as doomed, \
            Program("interrupted", 2, tmp_path, start_method) as neighbour:
        owned, processes = said_engine(doomed)
        neighbours, _ = said_engine(neighbour)
        before = neighbours.left()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another one's end
            for pid in (doomed.pid, *(pid for pid, _ in processes)):
                os.kill(pid, number)
        doomed.wait(5.0)
        assert gone_within(processes, BOUNDS.orphan_s) == []
        removed = sweep()
        assert owned.left() == []
        assert neighbours.left() == before and not set(before) & set(removed)
        neighbour.signal(signal.SIGINT)
        neighbour.wait(BOUNDS.cleanup_s + BOUNDS.terminate_s)
        assert neighbours.left() == []


HOOK = '''
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "faults":
            open(os.path.join(os.environ["WATCH"], f"faults.{os.getpid()}"), "a").write(name + "\\n")
sys.meta_path.insert(0, Watch())
open(os.path.join(os.environ["WATCH"], f"born.{os.getpid()}"), "w").close()
'''


@pytest.mark.slow
def test_no_process_of_a_plain_engine_ever_imports_fault_code(tmp_path) -> None:
    """Each spawned process begins with a hook that writes down an import of `faults`, at any time of its life."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    with Program("never_shut_down", 2, tmp_path, "spawn", {"PYTHONPATH": path, "WATCH": str(tmp_path)}) as program:
        _, processes = said_engine(program)
        assert program.wait(BOUNDS.cleanup_s)[0] == 0
        watched = {int(p.name.partition(".")[2]) for p in tmp_path.glob("born.*")}
        engine_processes = {program.pid, *(pid for pid, _ in processes)}
        assert len(watched & engine_processes) >= 4, "frontend, core and two workers were watched"
    assert [p.name for p in tmp_path.glob("faults.*")] == []


def test_the_hook_of_that_test_sees_an_import(tmp_path) -> None:
    import subprocess
    import sys

    (tmp_path / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    subprocess.run([sys.executable, "-c", "import faults.plan"], check=True,
                   env={**os.environ, "PYTHONPATH": path, "WATCH": str(tmp_path)})
    assert len(list(tmp_path.glob("faults.*"))) == 1

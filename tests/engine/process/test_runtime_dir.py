"""An engine's names in the file system: its own, findable after its death, and never a neighbour's."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.process import runtime_dir
from engine.process.runtime_dir import SHM, RuntimeDir, dead_engines, sweep
from tests.engine.engine_lab import until


@pytest.fixture
def runtime(tmp_path):
    made = RuntimeDir.create(str(tmp_path))
    yield made
    made.remove()


def files_of(engine_id: str) -> list[str]:
    return sorted(path.name for path in SHM.glob(f"*{engine_id}*"))


def segment(runtime: RuntimeDir, name: str) -> Path:
    path = SHM / runtime.segment(name)
    path.write_bytes(b"x")
    return path


def test_two_engines_share_no_name(tmp_path, runtime) -> None:
    other = RuntimeDir.create(str(tmp_path))
    try:
        names = {(f.engine_id, f.path, f.segment("rpc"), f.socket("a"), f.file("b"))
                 for f in (runtime.files, other.files)}
        assert all(len({name[k] for name in names}) == 2 for k in range(5))
    finally:
        other.remove()


def test_remove_takes_all_of_its_own_and_nothing_else(tmp_path, runtime) -> None:
    other = RuntimeDir.create(str(tmp_path))
    mine, theirs = segment(runtime, "rpc"), segment(other, "rpc")
    (runtime.path / "handshake.ipc").write_text("")
    removed = runtime.remove()
    assert {str(mine), str(runtime.path)} <= set(removed)
    assert files_of(runtime.engine_id) == [] and not runtime.path.exists()
    assert theirs.exists() and other.path.exists()
    assert runtime.remove() == [], "again is harmless"
    other.remove()


def owner(base: str, pipe, held_by_child: bool) -> None:
    """A process that owns an engine's names; its child holds them as a spawned or a forked one does."""
    made = RuntimeDir.create(base)
    (SHM / made.segment("rpc")).write_bytes(b"x")
    child = os.fork()
    if child == 0:
        if held_by_child:
            runtime_dir.RuntimeDir.of(made.files).hold()
        os.close(made._lock_fd) if held_by_child else None
        signal.pause()
    if held_by_child:
        until((SHM / f"ringtwin-{made.engine_id}.{child}.lock").exists)
    pipe.send((made.engine_id, str(made.path), child))
    signal.pause()


@pytest.mark.parametrize("held_by_child", [False, True], ids=["forked child", "spawned child"])
def test_a_sweep_waits_for_the_last_descendant_and_then_takes_everything(held_by_child: bool, tmp_path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=owner, args=(str(tmp_path), theirs, held_by_child))
    process.start()
    engine_id, path, child = ours.recv()
    names = files_of(engine_id)
    try:
        sweep()
        assert files_of(engine_id) == names and Path(path).exists()
        process.kill()
        process.join()
        sweep()
        assert files_of(engine_id) == names, "its child lives"
    finally:
        os.kill(child, signal.SIGKILL)
    until(lambda: engine_id in dead_engines())
    removed = sweep()
    assert files_of(engine_id) == [] and not Path(path).exists()
    assert path in removed
    ours.close()
    theirs.close()


def test_a_segment_made_after_its_engines_files_were_removed_is_swept(runtime) -> None:
    runtime.remove()
    late = segment(runtime, "response.1")
    assert str(late) in sweep()
    assert not late.exists()


def test_a_segment_of_a_living_engine_is_not_swept(runtime) -> None:
    kept = segment(runtime, "rpc")
    sweep()
    assert kept.exists()


def test_other_files_in_shared_memory_are_nobodys_business() -> None:
    me = os.getpid()
    others = [SHM / name for name in (f"ringtwin-notes-{me}", f"psm_{me}", f"ringtwin-{me}x")]
    for path in others:
        path.write_bytes(b"x")
    try:
        sweep()
        assert all(path.exists() for path in others)
    finally:
        for path in others:
            path.unlink()


def test_a_lock_file_that_names_a_foreign_directory_takes_only_itself(tmp_path) -> None:
    """Whatever stands in a dead lock file: only a directory with the engine's own name is removed."""
    lock = SHM / "ringtwin-0badc0de.lock"
    precious = tmp_path / "precious"
    precious.mkdir()
    for content in (str(precious), "", "/", "\xff\x00"):
        lock.write_bytes(content.encode("latin-1"))
        sweep()
        assert not lock.exists() and precious.exists()


def test_engines_are_born_while_brooms_sweep_and_none_loses_its_lock(tmp_path) -> None:
    stop = threading.Event()

    def broom() -> None:
        while not stop.is_set():
            sweep()

    brooms = [threading.Thread(target=broom) for _ in range(2)]
    for thread in brooms:
        thread.start()
    try:
        for _ in range(300):
            made = RuntimeDir.create(str(tmp_path))
            kept = segment(made, "rpc")
            assert (SHM / f"ringtwin-{made.engine_id}.lock").exists() and made.path.exists()
            assert made.engine_id not in dead_engines() and kept.exists()
            made.remove()
    finally:
        stop.set()
        for thread in brooms:
            thread.join()


def test_a_path_that_is_too_long_for_a_socket_is_replaced(tmp_path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    made = RuntimeDir.create(str(deep))
    try:
        assert len(made.socket("handshake.ipc")) - len("ipc://") <= 107
        assert not str(made.path).startswith(str(tmp_path))
    finally:
        made.remove()


def test_a_directory_that_cannot_be_made_leaves_no_lock(tmp_path) -> None:
    (tmp_path / "f").write_text("")
    locks = set(SHM.glob("ringtwin-*.lock"))
    base = "/proc/self/nowhere"
    with pytest.raises(ConfigError, match="set runtime_dir"):
        RuntimeDir.create(base)
    new = {p for p in set(SHM.glob("ringtwin-*.lock")) - locks if re.search("nowhere", p.read_text(errors="ignore"))}
    assert new == set()


def test_a_ctrl_c_as_the_directory_is_made_leaves_nothing(tmp_path, monkeypatch) -> None:
    mkdir = Path.mkdir

    def interrupted(path: Path, *args, **kwargs) -> None:
        mkdir(path, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", interrupted)
        with pytest.raises(KeyboardInterrupt):
            RuntimeDir.create(str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert not [lock for lock in SHM.glob("ringtwin-*.lock") if str(tmp_path) in lock.read_text(errors="ignore")]

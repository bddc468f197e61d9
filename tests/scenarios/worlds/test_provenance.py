"""Where a play comes from: told as it is, and nothing where it cannot be found out."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from scenarios.worlds import provenance
from scenarios.worlds.sim import SimWorld
from tests.scenarios import examples


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=root, check=True,
                   capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init")
    (root / "file").write_text("one")
    git(root, "add", "file")
    git(root, "commit", "-m", "one")
    return root


def test_the_moment_is_told_in_utc_whatever_the_clock_on_the_wall_says() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=timezone(timedelta(hours=3)))
    assert provenance.provenance(at).began_at == "2026-01-02T00:04:05Z"


def test_all_but_the_moment_is_the_same_for_every_play_of_a_process() -> None:
    first, second = (provenance.provenance(datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2))
    assert first != second
    assert {name for name in first.__struct_fields__ if getattr(first, name) != getattr(second, name)} == {"began_at"}
    assert first.cores >= 1 and first.system and first.machine and first.python


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(checkout: Path) -> None:
    commit, changed = provenance.checkout.__wrapped__(checkout)
    assert len(commit) == 40 and changed is False
    (checkout / "file").write_text("two")
    assert provenance.checkout.__wrapped__(checkout) == (commit, True)


def test_a_file_that_git_does_not_know_is_no_change(checkout: Path) -> None:
    (checkout / "out").write_text("a report")
    assert provenance.checkout.__wrapped__(checkout)[1] is False


def test_a_hook_of_another_repository_changes_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert provenance.checkout.__wrapped__(checkout)[0] is not None


def test_what_was_installed_inside_of_a_checkout_is_none(checkout: Path) -> None:
    inside = checkout / "site-packages"
    inside.mkdir()
    assert provenance.checkout.__wrapped__(inside) == (None, None)


def test_without_git_the_commit_is_not_known_and_nothing_fails(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.checkout.__wrapped__(checkout) == (None, None)


@pytest.mark.parametrize(("spec", "argv", "told"), [
    (None, ["/usr/bin/ringtwin", "run", "--scenario", "*dies*"], "ringtwin run --scenario '*dies*'"),
    ("scenarios.command.__main__", ["/x/__main__.py", "run"], "python -m scenarios.command run"),
    ("pytest.__main__", ["/x/__main__.py", "scenarios/"], "python -m pytest scenarios/")])
def test_the_command_is_told_so_that_a_shell_understands_it(spec: str | None, argv: list[str], told: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if spec is None else SimpleNamespace(name=spec)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", argv)
    assert provenance.command() == told


def test_a_twin_does_not_look_for_the_library_of_sockets() -> None:
    pytest.importorskip("zmq")
    twin, real = (provenance.versions(real=real) for real in (False, True))
    assert {"python", "simpy", "ringtwin"} <= set(twin)
    assert set(real) - set(twin) == {"libzmq"} and real["libzmq"].count(".") == 2


def test_a_play_says_where_it_comes_from_and_a_replay_says_where_it_was_replayed(tmp_path: Path) -> None:
    world = SimWorld(tmp_path)
    (run,) = examples.calm(world).runs
    assert run.play.provenance is not None and run.play.versions["simpy"]
    assert run.play.provenance.command == provenance.command()
    elsewhere = provenance.provenance(datetime(2001, 1, 1, tzinfo=UTC))
    old = type(run.play)(**{name: getattr(run.play, name) for name in run.play.__struct_fields__}
                         | {"provenance": elsewhere, "versions": {"simpy": "1"}})
    (again,) = world.replay(old).runs
    assert again.play.provenance != elsewhere and again.play.versions == run.play.versions

"""Plants a bug in a copy of the project and plays a scenario there.

Promises
- The copy is what is played: every process that is started imports our packages from the copy or not at all, and the
  log of its imports is handed back, so a test can see that the changed file was used.
- An edit whose old text does not stand in its file exactly once is an error: a table that lags behind the code does not
  turn into mutants that change nothing.
- The project itself is never written to. Two plants never share a path, and a copy has a /dev/shm of its own: no engine
  that starts on this host meanwhile sweeps up what a bug leaves, and no bug does harm to it.

    with planted(mutant.edits) as tree:            engine/ faults/ sim/ scenarios/ reports/ sitecustomize.py
        played = play(tree, ["test_x"], "sim")     python -m scenarios.command run ... with cwd and PYTHONPATH = tree
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

PROJECT = Path(__file__).parents[2]
PACKAGES = ("engine", "faults", "sim", "scenarios", "reports")
#: A hang on the engine lasts until the lab's guard ends it; twice that on a busy machine.
PLAY_S = 180.0

#: Python runs this at the start of every process that has the copy in its PYTHONPATH: the lab, its fork server, and
#: all that is spawned. Whoever is forked has imported already.
GUARD = f'''
import importlib.machinery, os, sys

TREE = os.path.dirname(os.path.abspath(__file__))

class OnlyHere:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in {PACKAGES!r}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [TREE] if path is None else path)
        if spec is None or not str(spec.origin).startswith(TREE + os.sep):
            raise ModuleNotFoundError(f"{{name}} is not in {{TREE}}", name=name)
        with open(os.path.join(TREE, "imported"), "a") as log:
            log.write(f"{{os.path.relpath(spec.origin, TREE)}}\\n")
        return spec

sys.meta_path.insert(0, OnlyHere)
'''


class Edit(msgspec.Struct, frozen=True):
    """One textual change. `old` must stand in the file exactly once."""

    file: str
    old: str
    new: str


class Played(msgspec.Struct, frozen=True):
    """What the command said. `cells`: verdicts by (scenario, world, guarantee), the worst of the allowed outcomes."""

    code: int
    cells: dict[tuple[str, str, str], str]
    evidence: dict[tuple[str, str, str], list[str]]
    failures: list[str]
    imported: frozenset[str]
    said: str

    def broken(self, scenario: str, world: str) -> set[str]:
        return {cell[2] for cell, verdict in self.cells.items() if cell[:2] == (scenario, world) and
                verdict == "BROKEN"}


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[Path]:
    """A copy of the project with these changes. Raises ValueError for an edit that does not fit."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder).resolve()
        for package in PACKAGES:
            shutil.copytree(first_copy() / package, tree / package, copy_function=os.link)
        shutil.copy(PROJECT / "pyproject.toml", tree)
        (tree / "sitecustomize.py").write_text(GUARD)
        (tree / "shm").mkdir()
        for edit in (*own_memory(tree), *edits):
            apply(edit, tree)
        yield tree


@cache
def first_copy() -> Path:
    """What all others of this process are linked to: to copy its files for each of them takes as long as a play."""
    folder = tempfile.TemporaryDirectory(prefix="mutant-")
    atexit.register(folder.cleanup)
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, Path(folder.name, package),
                        ignore=shutil.ignore_patterns("*-pytest-*.pyc"))
    return Path(folder.name)


def own_memory(tree: Path) -> tuple[Edit, ...]:
    """Segments and lock files lie in the copy instead of in /dev/shm."""
    return (Edit("engine/process/runtime_dir.py", 'SHM = Path("/dev/shm")', f'SHM = Path("{tree}/shm")'),
            Edit("engine/ipc/segment.py", 'FOLDER = "/dev/shm"', f'FOLDER = "{tree}/shm"'))


def apply(edit: Edit, tree: Path) -> None:
    path = tree / edit.file
    text = path.read_text()
    if (count := text.count(edit.old)) != 1:
        raise ValueError(f"{edit.file}: the text to change stands there {count} times, not once:\n{edit.old}")
    rewrite(path, text.replace(edit.old, edit.new).encode())


def rewrite(path: Path, source: bytes) -> None:
    """A file of a copy, which other copies have, too, until then; and what was compiled of it is gone: two versions
    may differ by no byte of size.
    """
    path.unlink()
    path.write_bytes(source)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def play(tree: Path, scenarios: Sequence[str], world: str) -> Played:
    """Play these scenarios as a user would, in a process of its own."""
    file, output = tree / "out" / "mutant.json", tree / "said"
    named = [word for scenario in scenarios for word in ("--scenario", scenario)]
    arguments = ["run", "--world", world, *named, "--out", "out", "--device", "cpu", "--json", str(file)]
    code = (_forked if world == "sim" else _started)(tree, arguments, output)
    said = output.read_text()
    if not file.exists():
        return Played(code, {}, {}, [said], _imported(tree), said)
    cells: dict[tuple[str, str, str], str] = {}
    evidence: dict[tuple[str, str, str], list[str]] = {}
    runs: list[dict[str, Any]] = msgspec.json.decode(file.read_bytes())["scenarios"]
    for run in runs:
        for cell in run["verdicts"]:
            key = (run["name"], run["world"], cell["guarantee"])
            if cells.get(key) != "BROKEN":
                cells[key] = cell["verdict"]
                evidence[key] = [entry["text"] for entry in cell["evidence"]]
    return Played(code, cells, evidence, [run["failure"] for run in runs if "failure" in run],
                  _imported(tree), said)


def _started(tree: Path, arguments: list[str], said: Path) -> int:
    with said.open("w") as output:
        return subprocess.run([sys.executable, "-m", "scenarios.command", *arguments], cwd=tree, stdout=output,
                              stderr=output, env=_environment() | {"PYTHONPATH": str(tree)}, timeout=PLAY_S,
                              check=False).returncode


def _forked(tree: Path, arguments: list[str], said: Path) -> int:
    """The same, by a process that has imported already what is not ours."""
    server = _fork_server()
    asked = {"tree": str(tree), "arguments": arguments, "said": str(said), "seconds": int(PLAY_S)}
    server.stdin.write(json.dumps(asked) + "\n")
    return int(server.stdout.readline())


@cache
def _fork_server() -> Any:
    """Ends with its stdin, that is with this process."""
    return subprocess.Popen([sys.executable, str(Path(__file__).with_name("fork_server.py"))], bufsize=1, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}


def _imported(tree: Path) -> frozenset[str]:
    return frozenset((tree / "imported").read_text().split())

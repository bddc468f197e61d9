"""The command line as its tests call it: in this process where that is enough, as a process where signals matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.process.runtime_dir import PREFIX, SHM
from scenarios.command.cli import outcome_of
from scenarios.lab import home

ROOT = Path(__file__).parents[3]


class Answer:
    """What a command answered. `line` is its one line on stderr."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def line(self) -> str:
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert len(lines) == 1, f"expected one line, got:\n{self.err}"
        return lines[0]


def ringtwin(capsys, *arguments: object) -> Answer:
    """Call the command line in this process."""
    capsys.readouterr()
    code = outcome_of([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Answer(code, captured.out, captured.err)


class Bench:
    """A place where labs run as processes and nobody else's leftovers are seen: a temporary directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "scenarios.command", *map(str, arguments)], cwd=ROOT, text=True,
            env={**os.environ, "TMPDIR": str(self.folder)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)

    def run(self, *arguments: object, timeout_s: float = 60.0) -> Answer:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout_s)
        return Answer(process.returncode, out, err)

    def processes(self) -> dict[str, int]:
        """name -> pid of the processes that labs of this place started and that still run."""
        found = {}
        for pid, place in home._marked_processes():
            if place.parent == self.folder:
                try:
                    found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
                except OSError:
                    continue
        return found

    def left(self) -> list[str]:
        """Processes, homes, runtime directories and segments that are there."""
        found = [f"process {name} ({pid})" for name, pid in self.processes().items()]
        found += [str(path) for path in self.folder.glob("*") if path.name.startswith((home.PREFIX, PREFIX))]
        for lock in SHM.glob(f"{PREFIX}*.lock"):
            try:
                if self.folder in Path(os.fsdecode(lock.read_bytes())).parents:
                    found += [str(lock), *map(str, SHM.glob(f"{lock.name.removesuffix('.lock')}-*"))]
            except OSError:
                continue
        return found


@contextmanager
def bench() -> Iterator[Bench]:
    # Short: a home below a long temporary directory would be put elsewhere, for the sake of socket paths.
    with TemporaryDirectory(prefix="b", dir="/tmp") as folder:
        yield Bench(Path(folder))

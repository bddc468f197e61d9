"""A real process, what it holds and has printed, and what engines have on this host beside it: seen from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path

from engine.process.children import readable
from engine.process.files import PREFIX
from engine.process.identity import is_alive, start_time
from engine.process.runtime_dir import SHM
from scenarios.history.play import Holdings
from scenarios.history.run import ProcessEnd

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Who looks whether another process lives has its file open for a moment. One that is never closed is counted.
_LOOKS, _MOMENT_S = 20, 0.001
#: What `multiprocessing` writes where a process ends by an exception.
_CRASHED = re.compile(r"^Process (\S+):$", re.MULTILINE)
#: How a line begins that a process of the engine logs.
_LOGGED = re.compile(r"\[\S+\] [A-Z]+ ")
_TRACEBACK, _GOES_ON = "Traceback (most recent call last)", ("During handling of the above", "The above exception was")


class Watched:
    """One process of the play, seen from outside."""

    def __init__(self, node: str, life: int, pid: int, clock: Callable[[], float]) -> None:
        self.node, self.life, self.pid, self.started_at = node, life, pid, clock()
        self.ended_at: float | None = None
        self.killed_by_lab = False
        self.ticks = start_time(pid)
        try:
            self.fd = os.pidfd_open(pid) if self.ticks is not None else -1
        except ProcessLookupError:
            self.fd = -1
        if self.fd < 0:
            self.ended_at = clock()  # as below: it was gone before anybody looked

    def is_gone(self) -> bool:
        """Whether it holds no lock and no file any more, either."""
        return self.fd < 0 or bool(readable([self.fd], 0))

    def look(self, clock: Callable[[], float]) -> None:
        if self.ended_at is None and not is_alive((self.pid, self.ticks or 0)):
            self.ended_at = clock()  # read behind the end: a process has written all that it wrote before it

    def kill(self) -> None:
        self.killed_by_lab = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self, patience_s: float = 0.0) -> None:
        if self.fd >= 0:
            readable([self.fd], patience_s)  # or the broom finds it alive
            os.close(self.fd)
            self.fd = -1

    def end(self, exitcode: int | None = None) -> ProcessEnd:
        return ProcessEnd(node=self.node, life=self.life, pid=self.pid, started_at=self.started_at,
                          ended_at=self.ended_at, exitcode=exitcode, killed_by_lab=self.killed_by_lab)


def holdings_of(pid: int, *, with_memory: bool) -> Holdings | None:
    """None where it is gone. Source: proc(5)."""
    try:
        # The name may hold blanks: the fields begin behind its bracket, with the third of them.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = _descriptors_of(f"/proc/{pid}/fd")
    except OSError:
        return None
    user, system, threads, pages = (int(fields[place - 3]) for place in (14, 15, 20, 24))
    return Holdings(
        threads=threads, descriptors=descriptors, memory_bytes=pages * _PAGE_BYTES if with_memory else None,
        processor_s=(user + system) / _TICKS_PER_S)


def _descriptors_of(folder: str) -> int:
    """How many are open there, when its process reads nothing about others just then."""
    for _ in range(_LOOKS):
        found = [target for name in os.listdir(folder) if (target := _target(f"{folder}/{name}"))]
        if not any(target.startswith("/proc/") for target in found):
            break
        time.sleep(_MOMENT_S)
    return len(found)


def _target(descriptor: str) -> str:
    """What it is; "" where it was closed in between."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def engine_files(folder: Path) -> list[str]:
    """Segments, locks and socket files of engines whose runtime directory lies in `folder`.

    One that is removed while it is looked at is not there: `Path.glob` would raise.
    """
    found = [f"{folder}/{name}" for pattern in (f"{PREFIX}*", f"{PREFIX}*/*")
             for name in glob(pattern, root_dir=folder, include_hidden=True)]
    for lock in SHM.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(OSError):
            if Path(os.fsdecode(lock.read_bytes())).parent == folder:
                found += [str(lock), *map(str, SHM.glob(f"{lock.name[:-len('.lock')]}-*"))]
    return sorted(set(found))


def log_of(file: str) -> str:
    """What the processes of a play have printed."""
    return Path(file).read_text(errors="replace") if os.path.exists(file) else ""


def crashed_in(log: str) -> list[str]:
    """The names of processes that an exception has ended."""
    return _CRASHED.findall(log)


def errors_in(log: str) -> list[str]:
    """What each traceback says that was printed: the last line of its last exception."""
    found: list[str] = []
    inside = False
    for line in log.splitlines():
        if line.startswith(_TRACEBACK):
            inside = True
        elif line.startswith(_GOES_ON):
            found, inside = found[:-1], False
        elif inside and line and not line.startswith(" ") and not _LOGGED.match(line):
            found.append(line)
            inside = False
    return found

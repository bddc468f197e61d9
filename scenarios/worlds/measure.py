"""What a real process holds and has printed, and what engines have on this host beside processes: read from outside."""

from __future__ import annotations

import contextlib
import os
import re
import time
from glob import glob
from pathlib import Path

from engine.process.files import PREFIX
from engine.process.runtime_dir import SHM
from scenarios.history.play import Holdings

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Who looks whether another process lives has its file open for a moment. One that is never closed is counted.
_LOOKS, _MOMENT_S = 20, 0.001
#: What `multiprocessing` writes where a process ends by an exception.
_CRASHED = re.compile(r"^Process (\S+):$", re.MULTILINE)
#: How a line begins that a process of the engine logs.
_LOGGED = re.compile(r"\[\S+\] [A-Z]+ ")
_TRACEBACK, _GOES_ON = "Traceback (most recent call last)", ("During handling of the above", "The above exception was")


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

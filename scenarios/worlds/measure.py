"""What a real process holds, and what engines have on this host beside processes: read from outside."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from engine.process.files import PREFIX
from engine.process.runtime_dir import SHM
from scenarios.history.play import Holdings

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Who looks whether another process lives has its file open for a moment. One that is never closed is counted.
_LOOKS, _MOMENT_S = 20, 0.001


def holdings_of(pid: int, *, with_memory: bool) -> Holdings | None:
    """None where it is gone. Source: proc(5)."""
    process = Path("/proc") / str(pid)
    try:
        # The name may hold blanks: the fields begin behind its bracket, with the third of them.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        descriptors = _descriptors_of(process)
    except OSError:
        return None
    user, system, threads, pages = (int(fields[place - 3]) for place in (14, 15, 20, 24))
    return Holdings(
        threads=threads, descriptors=descriptors, memory_bytes=pages * _PAGE_BYTES if with_memory else None,
        processor_s=(user + system) / _TICKS_PER_S)


def _descriptors_of(process: Path) -> int:
    """How many it has open, when it reads nothing about others just then."""
    for _ in range(_LOOKS):
        found = [target for name in os.listdir(process / "fd") if (target := _target(process / "fd" / name))]
        if not any(target.startswith("/proc/") for target in found):
            break
        time.sleep(_MOMENT_S)
    return len(found)


def _target(descriptor: Path) -> str:
    """What it is; "" where it was closed in between."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def engine_files(folder: Path) -> list[str]:
    """Segments, locks and socket files of engines whose runtime directory lies in `folder`."""
    found = [str(path) for path in folder.glob(f"{PREFIX}*")] + [
        str(path) for path in folder.glob(f"{PREFIX}*/*")]
    for lock in SHM.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(OSError):
            if Path(os.fsdecode(lock.read_bytes())).parent == folder:
                found += [str(lock), *map(str, SHM.glob(f"{lock.name[:-len('.lock')]}-*"))]
    return sorted(set(found))

"""What a real process holds, read from outside: threads, descriptors, memory, processor time."""

from __future__ import annotations

import os
from pathlib import Path

from scenarios.history.play import Holdings

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def holdings_of(pid: int, *, with_memory: bool) -> Holdings | None:
    """None where it is gone. Source: proc(5)."""
    process = Path("/proc") / str(pid)
    try:
        # The name may hold blanks: the fields begin behind its bracket, with the third of them.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(process / "fd"))
    except OSError:
        return None
    user, system, threads, pages = (int(fields[place - 3]) for place in (14, 15, 20, 24))
    return Holdings(
        threads=threads, descriptors=descriptors, memory_bytes=pages * _PAGE_BYTES if with_memory else None,
        processor_s=(user + system) / _TICKS_PER_S)

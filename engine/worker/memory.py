"""How much memory of the machine, or of the container, nobody uses."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """What the kernel calls available, and no more than the container's limit leaves."""
    free = [_available(meminfo)]
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:  # no container, or one that tells nothing
        limit, used = "max", "0"
    if limit != "max":
        free.append(max(0, int(limit) - int(used)))
    return min(free)


def _available(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

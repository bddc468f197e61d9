"""What tells a process from every other one, now and later: its id and when it started.

A process id alone is used again; with its start time it names one process for good, and tells nothing of another host
or another pid namespace.
"""

from __future__ import annotations

import os

from engine.effects import Identity


def start_time(pid: int) -> int | None:
    """In clock ticks after boot, None for a process that is dead or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(process: tuple[int, int]) -> bool:
    """Whether exactly this process, by id and start time, still runs."""
    return start_time(process[0]) == process[1]


def own_identity() -> Identity:
    pid = os.getpid()
    return Identity(pid, start_time(pid) or 0, os.getppid())

"""What tells a process from every other one, now and later: its id and when it started.

A process id alone is used again; with its start time it names one process for good, and tells nothing of another host
or another pid namespace.

A process that is killed does nothing more, but it is not gone before the system has taken from it what it had: its
connections, its memory, and what it had of a GPU, which takes some tenths of a second. Its pidfd tells of the end of
that; here is what tells of its beginning.
"""

from __future__ import annotations

import os

from engine.effects import Identity

# Fields of /proc/PID/stat behind the name of the program (proc_pid_stat(5)).
_STATE, _FLAGS, _START_TIME, _EXIT_CODE = 0, 6, 19, 49
_PF_EXITING = 0x4
#: 52 numbers of 20 digits and a name of 64 bytes at most: the system gives it in one piece.
_LONGEST_BYTES = 4096


def start_time(pid: int) -> int | None:
    """In clock ticks after boot, None for a process that is dead or only waits to be reaped."""
    fields = _stat(f"/proc/{pid}")
    return None if fields is None or _is_dead(fields) else int(fields[_START_TIME])


def is_alive(process: tuple[int, int]) -> bool:
    """Whether exactly this process, by id and start time, may still do something: one of its threads is not ending."""
    pid, started = process
    fields = _stat(f"/proc/{pid}")
    if fields is None or int(fields[_START_TIME]) != started:
        return False
    if not _is_ending(fields):
        return not _is_dead(fields)
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return False
    found = (_stat(f"/proc/{pid}/task/{thread}") for thread in threads)
    return any(one is not None and not _is_dead(one) and not _is_ending(one) for one in found)


def exit_code(pid: int) -> int | None:
    """Of one that is ending and not yet reaped, as `multiprocessing` has it; None of one that is reaped."""
    fields = _stat(f"/proc/{pid}")
    return None if fields is None else os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))


def _stat(folder: str) -> list[bytes] | None:
    try:
        file = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return os.read(file, _LONGEST_BYTES).rpartition(b")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(file)


def _is_dead(fields: list[bytes]) -> bool:
    return fields[_STATE] in (b"Z", b"X")


def _is_ending(fields: list[bytes]) -> bool:
    return bool(int(fields[_FLAGS]) & _PF_EXITING)


def own_identity() -> Identity:
    pid = os.getpid()
    return Identity(pid, start_time(pid) or 0, os.getppid())

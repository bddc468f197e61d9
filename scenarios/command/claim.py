"""A folder that one run writes at a time: two at once would play into each other's runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.errors import RingtwinError

_LOCK = ".lock"


class TakenError(RingtwinError):
    """Somebody else writes into this folder. One line that says who, and what to do."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Nobody else writes here meanwhile; the end of the process ends that, too. Raises TakenError."""
    path = folder / _LOCK
    with _locked(path) as lock:
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> IO[str]:
    while True:
        lock = path.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                lock.seek(0)
                who = lock.read()
            raise TakenError(f"{path.parent}: another run{f' (process {who})' if who else ''} writes into it; wait for "
                             "its end, or choose another --out") from None
        if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
            return lock
        lock.close()  # whoever had it has removed it meanwhile

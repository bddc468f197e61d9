"""One lab and its place on disk, and the broom for labs that died in mid-play.

Promises
- `scratch()` is a fresh directory below this lab's home, short enough for socket paths.
- The home is found from nothing but the temporary directory (`rt-*/lab.lock`), and its lock is free exactly when
  the lab is dead, however it died.
- Every process that a lab starts carries its home in its environment, and its descendants inherit that. So
  `sweep_labs()` finds what a killed lab left, also a process that was stopped by a fault and cannot see that
  its parent is gone. It touches nothing that belongs to a living lab, and nobody else's processes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PREFIX = "rt-"
LOCK = "lab.lock"
VARIABLE = "RINGTWIN_LAB"
#: A process that SIGKILL does not end within this sits in the kernel, and nobody can end it.
KILL_S = 5.0
LOOK_S = 0.005
#: Socket paths have 107 bytes; a home in a deeper temporary directory would leave too few of them.
_LONGEST_FOLDER_BYTES = 30

_home: tuple[int, Path] | None = None


def _folder() -> Path:
    folder = Path(tempfile.gettempdir())
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER_BYTES else Path("/tmp")


def home() -> Path:
    """This process's own; made when it is first asked for, removed when the process ends."""
    global _home
    if _home is None or _home[0] != os.getpid():
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_folder()))
        unseen = path / ".lock"
        fd = os.open(unseen, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        unseen.rename(path / LOCK)  # no broom ever sees a lock that is not held yet
        _home = (os.getpid(), path)  # the descriptor stays open, and with it the lock, until the process ends
        atexit.register(_remove_own, os.getpid(), path)
    return _home[1]


def _remove_own(pid: int, path: Path) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="p-", dir=home()))


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Processes started inside carry the home of this lab, and Ctrl-C is not for them: the lab ends them."""
    from multiprocessing import resource_tracker

    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(home())
    resource_tracker.ensure_running()  # before the mask: starting it unblocks SIGINT, whatever was blocked
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited, also through exec
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def end() -> list[str]:
    """The end of this lab: whatever it started is gone when this returns. -> what had to be ended, as text.

    Signals wait until it is done. Where one gets through, by another thread, this can be called again.
    """
    global _home
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        if _home is None or _home[0] != os.getpid():
            return []
        path = _home[1]
        found = _kill(lambda: [pid for pid, lab in _marked_processes() if lab == path]) + _sweep_engines([path])
        shutil.rmtree(path, ignore_errors=True)
        _home = None
        return found
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def orphans() -> list[int]:
    """Pids of living processes whose lab is dead."""
    return [pid for pid, lab in _marked_processes() if not _alive(lab)]


def dead_homes() -> list[Path]:
    """Homes of dead labs."""
    return [path.parent for path in sorted(_folder().glob(f"{PREFIX}*/{LOCK}")) if not _alive(path.parent)]


def sweep_labs() -> list[str]:
    """End and remove what dead labs left. -> what it was, as text."""
    homes = dead_homes()
    found = _kill(orphans) + _sweep_engines(homes)
    for path in homes:
        shutil.rmtree(path, ignore_errors=True)
        found.append(str(path))
    return found


def _kill(guilty: Callable[[], list[int]]) -> list[str]:
    """SIGKILL all of them and wait until they are gone; then again, because one may just have started another."""
    found = []
    deadline = time.monotonic() + KILL_S
    while (pids := guilty()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                gone = os.pidfd_open(pid)
                try:
                    if pid in guilty():  # the pid is still that process, now that it cannot be given away
                        signal.pidfd_send_signal(gone, signal.SIGKILL)
                        # A killed process still holds its locks for a moment, and the broom must not find it alive.
                        select.select([gone], [], [], KILL_S)
                        found.append(f"process {pid}")
                finally:
                    os.close(gone)
    return found


def _sweep_engines(homes: Sequence[Path]) -> list[str]:
    """Remove what dead engines left, those below these homes for certain.

    A process that is just leaving has no environment any more and still holds its lock: it cannot be found, only
    waited for.
    """
    from engine.process.files import PREFIX as ENGINE_PREFIX
    from engine.process.runtime_dir import SHM, sweep

    def held() -> bool:
        for lock in SHM.glob(f"{ENGINE_PREFIX}*.lock"):
            with contextlib.suppress(OSError):
                if set(homes) & set(Path(os.fsdecode(lock.read_bytes())).parents):
                    return True
        return False

    found = sweep()
    deadline = time.monotonic() + KILL_S
    while held() and time.monotonic() < deadline:
        select.select([], [], [], LOOK_S)
        found += sweep()
    return found


def _marked_processes() -> Iterator[tuple[int, Path]]:
    mark = f"{VARIABLE}=".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or another user's
                for variable in (entry / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(mark):
                        yield int(entry.name), Path(os.fsdecode(variable[len(mark):]))


def _alive(lab: Path) -> bool:
    """Whether somebody holds the lock of this home."""
    try:
        fd = os.open(lab / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not ours to look at
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)

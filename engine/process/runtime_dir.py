"""Where an engine keeps its sockets and how its segments are called, and the broom for what the dead left.

Promises
- Two engines on a host never share a path or a segment name: each has a random id, taken with O_EXCL.
- Everything an engine leaves in the file system is found from its lock file, `/dev/shm/ringtwin-<id>.lock`,
  which holds the path of its directory. The owner and all its descendants hold that file's flock, so it is
  free exactly when the last of them is dead, however they died.
- `sweep()` removes what belongs to no living owner and nothing else.
- An ipc path always fits into a socket address (107 bytes); a longer directory is replaced by a short one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from engine.errors import ConfigError
from engine.process.files import PREFIX, EngineFiles

SHM = Path("/dev/shm")
#: Room that `<dir>/<socket name>` needs beyond the directory: the longest name is `handshake.ipc`, plus a
#: fault layer's suffix and some air.
_SOCKET_NAME_BYTES = 32
_SUN_PATH_BYTES = 107
_SEGMENT = re.compile(rf"^{PREFIX}([0-9a-f]{{8}})-")


class RuntimeDir:
    """One engine's directory and names. Picklable by its fields; only the creator holds the descriptor."""

    def __init__(self, engine_id: str, path: Path, lock_fd: int | None = None) -> None:
        self.engine_id = engine_id
        self.path = path
        self._lock_fd = lock_fd

    @staticmethod
    def create(base: str | None = None) -> RuntimeDir:
        """Raises ConfigError where no directory can be made."""
        folder = _short_enough(Path(base) if base else Path(tempfile.gettempdir()))
        while True:
            engine_id = secrets.token_hex(4)
            try:
                fd = os.open(_lock_path(engine_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"cannot create a lock file in {SHM}: {error.strerror}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(_lock_path(engine_id)).st_ino == os.fstat(fd).st_ino:
                    break
            except (BlockingIOError, FileNotFoundError):
                pass
            os.close(fd)  # a broom came between; it removes the file
        path = folder / f"{PREFIX}{engine_id}"
        try:
            os.write(fd, os.fsencode(path))
            path.mkdir(mode=0o700, parents=True)
            return RuntimeDir(engine_id, path, fd)
        except BaseException as error:  # a Ctrl-C, too: nobody knows yet what there would be to remove
            if not isinstance(error, OSError):
                with contextlib.suppress(FileNotFoundError):
                    path.rmdir()
            os.unlink(_lock_path(engine_id))
            os.close(fd)
            if not isinstance(error, OSError):
                raise
            raise ConfigError(f"cannot create the runtime directory {path}: {error.strerror}; "
                              "set runtime_dir to a writable directory") from None

    @staticmethod
    def of(files: EngineFiles) -> RuntimeDir:
        """The same directory as seen by a child."""
        return RuntimeDir(files.engine_id, Path(files.path))

    def hold(self) -> None:
        """Keep the engine's names taken while this process lives too (a spawned child inherits no lock).

        The lock is shared by taking it through the same open file only under fork; a spawned child marks
        itself with a lock file of its own beside it.
        """
        if self._lock_fd is None:
            with contextlib.suppress(OSError):
                fd = os.open(_lock_path(f"{self.engine_id}.{os.getpid()}"),
                             os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(fd, fcntl.LOCK_EX)  # a broom may hold it, for a moment
                self._lock_fd = fd

    @property
    def files(self) -> EngineFiles:
        return EngineFiles(self.engine_id, str(self.path))

    def segment(self, name: str) -> str:
        return self.files.segment(name)

    def socket(self, name: str) -> str:
        return self.files.socket(name)

    def remove(self) -> list[str]:
        """Remove everything of this engine. -> what was removed. Safe to call from several processes."""
        removed = _remove(self.engine_id, self.path)
        if self._lock_fd is not None:  # after the files: until then the broom shall see a living owner
            os.close(self._lock_fd)
            self._lock_fd = None
        return removed


def sweep() -> list[str]:
    """Remove what engines left whose processes are all dead. -> the removed paths, for the log."""
    removed: list[str] = []
    for engine_id in dead_engines():
        lock = _take(_lock_path(engine_id))  # held to the end: one that is just being born begins anew elsewhere
        if lock is None:
            continue
        try:
            removed += _remove(engine_id, Path(os.fsdecode(os.read(lock, 4096)) or "/nonexistent"))
        except OSError:  # another user's
            pass
        finally:
            os.close(lock)
    for segment in SHM.glob(f"{PREFIX}*-*"):
        # Made by a process that was on its way out when its engine's files were removed: a lock comes before all else.
        named = _SEGMENT.match(segment.name)
        if named and not _lock_path(named[1]).exists():
            with contextlib.suppress(OSError):
                segment.unlink()
                removed.append(str(segment))
    return removed


def dead_engines() -> list[str]:
    """Ids of engines that have files here and no living process."""
    ids = []
    for lock in sorted(SHM.glob(f"{PREFIX}*.lock")):
        engine_id = lock.name[len(PREFIX):-len(".lock")]
        if "." in engine_id:
            continue  # a child's lock: looked at with its engine's
        if all(_free(path) for path in [lock, *SHM.glob(f"{PREFIX}{engine_id}.*.lock")]):
            ids.append(engine_id)
    return ids


def _free(lock: Path) -> bool:
    """Whether nobody holds this lock. Takes it only for a moment. Another user's is not free."""
    fd = _take(lock)
    if fd is not None:
        os.close(fd)
    return fd is not None or not lock.exists()


def _take(lock: Path) -> int | None:
    """-> its descriptor, locked until it is closed; None where somebody holds it, or it is not there or not ours."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _remove(engine_id: str, path: Path) -> list[str]:
    removed = []
    for segment in SHM.glob(f"{PREFIX}{engine_id}-*"):
        with contextlib.suppress(FileNotFoundError):
            segment.unlink()
            removed.append(str(segment))
    if path.name == f"{PREFIX}{engine_id}" and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        removed.append(str(path))
    for lock in [*SHM.glob(f"{PREFIX}{engine_id}.*.lock"), _lock_path(engine_id)]:
        with contextlib.suppress(FileNotFoundError):
            lock.unlink()
            removed.append(str(lock))
    return removed


def _lock_path(engine_id: str) -> Path:
    return SHM / f"{PREFIX}{engine_id}.lock"


def _short_enough(folder: Path) -> Path:
    longest = len(os.fsencode(folder)) + 1 + len(PREFIX) + 8 + 1 + _SOCKET_NAME_BYTES
    return folder if longest <= _SUN_PATH_BYTES else Path("/tmp")

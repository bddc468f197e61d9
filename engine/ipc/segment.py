"""POSIX shared memory by name, without a resource tracker that unlinks what others still use; and its fence.

Promises
- A segment's pages are reserved when it is created: too little space is a `SpaceError` that says how much is needed
  and how to get it, never a SIGBUS at some later store.
- A name is taken with O_EXCL and can be opened by its owner alone (mode 0600).
- Attaching never unlinks; unlinking is safe to repeat. Mappings stay valid after the name is gone.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

from engine.errors import QueueError, SpaceError

FOLDER = "/dev/shm"


class Segment:
    """An opened segment. `memory` is a flat, writable memoryview of all its bytes."""

    def __init__(self, name: str, mapping: mmap.mmap) -> None:
        self.name = name
        self.memory = memoryview(mapping)
        self._mapping = mapping

    def close(self) -> None:
        """Unmap. Where somebody still holds a view, the mapping goes with the last of them."""
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._mapping.close()

    def unlink(self) -> None:
        unlink_segment(self.name)


def create_segment(name: str, size: int) -> Segment:
    """A new segment of `size` zero bytes. Raises SpaceError, FileExistsError, or OSError where there is no /dev/shm."""
    path = _path(name)
    if size < 1:
        raise ValueError(f"a segment needs at least one byte, got {size}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _reserve(fd, size, name)
        mapping = mmap.mmap(fd, size)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return Segment(name, mapping)


def attach_segment(name: str) -> Segment:
    """An existing segment, as large as it is. Raises QueueError when there is none."""
    try:
        fd = os.open(_path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise QueueError(f"there is no shared-memory segment {name!r}: its owner is gone, or on another host") from None
    try:
        return Segment(name, mmap.mmap(fd, os.fstat(fd).st_size))
    finally:
        os.close(fd)


def unlink_segment(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(name))


def _path(name: str) -> str:
    if not name or "/" in name or name in (".", "..") or len(os.fsencode(name)) > 255:
        raise ValueError(f"{name!r} is not the name of a segment")
    return f"{FOLDER}/{name}"


def _reserve(fd: int, size: int, name: str) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
            raise
        space = os.statvfs(FOLDER)
        free = space.f_bavail * space.f_frsize
        raise SpaceError(
            errno.ENOSPC,
            f"segment {name!r} needs {_amount(size)} of shared memory, {FOLDER} has {_amount(free)} free of "
            f"{_amount(space.f_blocks * space.f_frsize)}. Make it larger (docker run --shm-size=1g or --ipc=host; "
            f"in Kubernetes an emptyDir with medium: Memory at {FOLDER}; mount -o remount,size=1g {FOLDER}), or make "
            "the rings smaller (max_chunk_bytes, max_chunks)",
        ) from None


def _amount(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count} bytes"


#: x86 keeps stores in order and loads in order, which is all the ring needs (glibc's memcpy ends its non-temporal
#: stores with a fence of its own): the cheapest call that does nothing.
_no_fence = bool


def _make_fence() -> Callable[[], Any]:
    if os.uname().machine in ("x86_64", "i686", "AMD64"):
        return _no_fence
    lock = threading.Lock()  # elsewhere: an uncontended lock is the one barrier that Python has

    def locked_fence() -> None:
        with lock:
            pass

    return locked_fence


#: Of all rings of this process: it keeps their stores and loads in order.
fence = _make_fence()

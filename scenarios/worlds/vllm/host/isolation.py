"""A process and all that it starts get a /dev/shm and temporary files of their own: nothing of a play touches what is
others'.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import tempfile
from collections.abc import Mapping

from scenarios.worlds.vllm.family import children_of

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 16384, 1 << 18
_PR_SET_CHILD_SUBREAPER = 36
SHM = "/dev/shm"


def own_shared_memory(size_bytes: int = 1 << 30) -> str | None:
    """-> why this machine does not permit it, in a line, or None. To be called before any thread is started."""
    libc = ctypes.CDLL(None, use_errno=True)
    for what, call in (
            ("a mount namespace", lambda: libc.unshare(_CLONE_NEWNS)),
            ("private mounts", lambda: libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)),
            (f"a file system at {SHM}", lambda: libc.mount(
                b"tmpfs", SHM.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes}".encode()))):
        if call():
            return f"{what} is not permitted here ({os.strerror(ctypes.get_errno())})"
    return None


def settle(environment: Mapping[str, str]) -> None:
    """Goes on in that environment, TMPDIR included: Python remembers the folder of whoever it was forked from."""
    os.environ.update(environment)
    tempfile.tempdir = None


def adopt_orphans() -> None:
    """Descendants whose parents are gone become children of this process, which can wait for them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """SIGKILL all that descend from this process, which has adopted their orphans, and wait until they are gone."""
    while children := list(children_of(os.getpid())):
        for pid in children:  # nobody else waits for them: each is still that process
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

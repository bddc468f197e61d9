"""Where the processes of real plays come from: a fork server that has already imported what takes seconds.

The server is `multiprocessing`'s own, started once per lab process. It has imported torch and the engine, so a forked
frontend, core or worker starts in milliseconds. It has no ZMQ context, no CUDA context and one thread. On GPUs nothing
is forked: processes are spawned.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

_context: Any = None


def context() -> Any:
    """The forkserver context, preloaded."""
    global _context
    if _context is None:
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(["scenarios.worlds.forking.preload"])
    return _context


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes started inside do not import this program's main module again, as `multiprocessing` has it.

    Nothing of a play lives there, and importing the command line takes longer than the whole play.
    """
    kept = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = kept


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """Around the start of a process. Of programs that start their first one at once, as lanes do, one server imports
    at a time: what it has to compile the others would compile, too, each for itself.
    """
    if forkserver._forkserver._forkserver_pid is not None:
        yield
        return
    with Path(__file__).with_name("preload.py").open() as imported:
        fcntl.flock(imported, fcntl.LOCK_EX)
        yield  # a start is over when the server has imported, and forked


def stop() -> None:
    """End the fork server of this process and its resource tracker, if they were started."""
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def spawn_context() -> Any:
    """For plays that ask for it. A GPU asks for none: before a fork nobody has used CUDA."""
    return multiprocessing.get_context("spawn")


def has_gpu(device: str) -> bool:
    """Whether plays on this device use CUDA. Asks the driver's files, so that no CUDA context is made here."""
    return device != "cpu" and os.path.exists("/dev/nvidia0")

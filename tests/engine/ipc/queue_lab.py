"""Child processes for tests of queues."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

processes = multiprocessing.get_context("fork")


def child(opened: Callable[..., Any], body: Callable[..., None], *args: Any) -> tuple[Any, Any]:
    """-> a pipe to a child process that runs body(pipe, *args), and the process. `opened`: the fixture."""
    ours, theirs = processes.Pipe()
    started = opened(lambda: processes.Process(target=body, args=(theirs, *args), daemon=True))
    started.start()
    theirs.close()
    return ours, started

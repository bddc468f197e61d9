"""Who is at the other end of a ring, and whether it still lives.

Each end writes its process id and start time into the segment when it opens it; the other ends look it up. An
end that says nothing (vLLM's) is unknown: neither dead nor alive. A process id that was used again is told
by its start time. Valid among processes that see each other's ids (one host, one pid namespace).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

from engine.ipc.ring import RingLayout
from engine.process.identity import start_time

_ENTRY = struct.Struct("<IIQ")
_LEFT = 1


def announce(layout: RingLayout, memory: Any, reader: int | None) -> None:
    """Say that this process is the writer (None) or that reader."""
    memory[layout.presence_of(reader)] = _ENTRY.pack(os.getpid(), 0, start_time(os.getpid()) or 0)


def withdraw(layout: RingLayout, memory: Any, reader: int | None) -> None:
    """This end left on its own feet."""
    memory[layout.presence_of(reader)] = _ENTRY.pack(0, _LEFT, 0)


def state(layout: RingLayout, memory: Any, reader: int | None) -> str:
    """-> one of "unknown" (said nothing yet, or never will), "alive", "dead", "left" """
    pid, left, started = _ENTRY.unpack(bytes(memory[layout.presence_of(reader)]))
    if not pid:
        return "left" if left else "unknown"
    return "alive" if start_time(pid) == started else "dead"


def all_known(layout: RingLayout, memory: Any) -> Callable[[], bool]:
    """-> whether each reader has said who it is"""
    return lambda: all(any(memory[layout.presence_of(reader)]) for reader in range(layout.n_reader))

"""Processes of a play of vLLM, found from outside: nobody tells of them, and what is orphaned still belongs to it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterator

from engine.process.identity import start_time
from engine.topology import Node, NodeKind

#: What vLLM calls its processes, and who they are in a play. Workers tell themselves.
_TITLES = ((re.compile(rb"^VLLM::EngineCore(?:_DP(\d+))?"), NodeKind.CORE),
           (re.compile(rb"^VLLM::DPCoordinator"), NodeKind.COORDINATOR))
#: How often to look for new ones.
SCAN_S = 0.01
#: A process that SIGKILL does not end within this sits in the kernel.
KILL_S = 5.0


class Family:
    """All that descend from some processes, as long as somebody looks often enough; those in their own mount namespace
    are found whenever they are looked for."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}  # by pid
        self._named: dict[int, Node] = {}
        self._spaces: set[str] = set()
        self._common = _space(os.getpid())
        self._looked_at = 0.0

    def adopt(self, pid: int) -> None:
        self._ticks[pid] = start_time(pid) or 0
        space = _space(pid)
        if space and space != self._common:
            self._spaces.add(space)

    def look(self, *, thoroughly: bool = False) -> dict[Node, int]:
        """-> those whose title has told who they are, by node"""
        now = time.monotonic()
        if thoroughly or now - self._looked_at >= SCAN_S:
            self._looked_at = now
            for pid in list(self._ticks):
                for child in children_of(pid):
                    self._ticks.setdefault(child, start_time(child) or 0)
            if thoroughly:
                self._find_by_space()
            for pid in self._ticks.keys() - self._named.keys():
                if (node := _node_of(pid)) is not None:
                    self._named[pid] = node
        return {node: pid for pid, node in self._named.items()}

    def living(self) -> list[int]:
        self.look(thoroughly=True)
        return [pid for pid, ticks in self._ticks.items() if ticks and start_time(pid) == ticks and not _is_zombie(pid)]

    def end(self) -> list[int]:
        """SIGKILL of all that live, until none does. -> who they were"""
        ended, deadline = [], time.monotonic() + KILL_S
        while (pids := self.living()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(OSError):
                    fd = os.pidfd_open(pid)
                    try:
                        if start_time(pid) == self._ticks[pid]:
                            signal.pidfd_send_signal(fd, signal.SIGKILL)
                            select.select([fd], [], [], KILL_S)
                            ended.append(pid)
                    finally:
                        os.close(fd)
        return ended

    def _find_by_space(self) -> None:
        if self._spaces:
            for entry in os.listdir("/proc"):
                if entry.isdigit() and int(entry) not in self._ticks and _space(int(entry)) in self._spaces:
                    self._ticks[int(entry)] = start_time(int(entry)) or 0


def name_of(pid: int) -> str:
    """How a process calls itself."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:60] or "a process without a name"
    except OSError:
        return "a process that has gone"


def _node_of(pid: int) -> Node | None:
    title = name_of(pid).encode()
    for pattern, kind in _TITLES:
        if (found := pattern.match(title)) is not None:
            return Node(kind, int(found[1]) if found.re.groups and found[1] else 0)
    return None


def _space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def children_of(pid: int) -> Iterator[int]:
    """Pids, of all of its threads."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True

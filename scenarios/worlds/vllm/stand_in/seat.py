"""Where a process of vLLM's sits in a play: its journal, its part of the plan, and the board of all.

What it writes is the lab's own format, so `History` reads it as it reads our engine's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from engine.topology import Mark, Node, mark_site
from faults.journal import open_journal
from faults.real.board import open_board
from faults.real.crossings import Crossings
from faults.real.processes import start_ticks

#: The key of vLLM's `additional_config` under which processes find the play.
KEY = "ringtwin"


class _Clock:
    monotonic = staticmethod(time.monotonic)


class Seat:
    """Of `node`, in the play of `folder`. Raises OSError, BoardError where there is no such play."""

    def __init__(self, folder: str, node: Node) -> None:
        board = open_board(Path(folder))
        self.node = node
        self.crossings = Crossings(board.plan, node, board, open_journal(
            Path(folder) / "journals", str(node.first_life), node.life, time.monotonic), _Clock)
        self.crossings.seat.enter(os.getpid(), start_ticks(os.getpid()))
        self._is_born = False

    def born(self) -> None:
        """Said once: a core that is its own rank says so as either."""
        if self._is_born:
            return
        self._is_born = True
        self.mark(Mark.BORN)
        self.observe("born", pid=os.getpid(), ppid=os.getppid(), start_time=start_ticks(os.getpid()), segments=[],
                     paths=[])

    def mark(self, mark: Mark, **data: Any) -> None:
        """Meets what the plan has for it: may not come back, may raise."""
        self.crossings.cross(mark_site(self.node, mark), data=data or None)

    def observe(self, name: str, **data: Any) -> None:
        self.crossings.observe(name, data)


def seat_in(additional_config: Any, node: Node) -> Seat | None:
    """None where no play is on. A process that asks again for the same node has one seat there."""
    given = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    if given is None:
        return None
    place = os.getpid(), given["folder"], node
    if place not in _TAKEN:
        _TAKEN[place] = Seat(given["folder"], node)
    return _TAKEN[place]


_TAKEN: dict[tuple[int, str, Node], Seat] = {}

"""What a process of the twin knows of its children and its parent: what pipes and sentinels have told so far."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from engine.topology import Node


class Kin:
    def __init__(self) -> None:
        self.children: dict[Node, Any] = {}  # SimProcess
        self.heard: defaultdict[Node, deque[Any]] = defaultdict(deque)  # by child: what it said and nobody has heard
        self.ended: dict[Node, int | None] = {}  # exit codes of the children that are known to be gone
        self.sleeps = False  # until its parent tells it what it is
        self.parent_watched = False
        self.parent_lost = False

    def untie(self) -> None:
        self.children.clear()

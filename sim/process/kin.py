"""What a process of the twin knows of its children and its parent: what pipes and sentinels have told so far."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from engine.topology import Node
from faults.arrivals import Inbox


class Kin:
    def __init__(self) -> None:
        self.children: dict[Node, Any] = {}  # SimProcess
        #: By child, or whoever started it: what came of it by pipe and nobody has taken.
        self.heard: defaultdict[Node, deque[bytes]] = defaultdict(deque)
        self.inboxes: dict[Node, Inbox] = {}  # what faults do to it
        self.cut = False  # the pipe to whoever started it was
        self.ended: dict[Node, int | None] = {}  # exit codes of the children that are known to be gone
        self.sleeps = False  # until its parent tells it what it is
        self.parent_watched = False
        self.parent_lost = False

    def untie(self) -> None:
        self.children.clear()
        self.inboxes.clear()

"""A shared file by which the processes of a play learn of each other's faults.

Promises: every slot has one writer, so there is no lock; whatever a process wrote is there for the others even
after its SIGKILL; reading costs a few loads and never waits. The same layout lies in a file that every
process maps, or in a `bytearray` of the twin.

    0        "RINGTWIN" | bytes of the description | words per slot | 0      words of 8 bytes, as all below
    32       the description: JSON of `Contents`, padded with blanks
    slots    one for the lab, then one for each node and life

    slot     pid | start ticks | fired at [F] | released at [F] | crossings [W]

F: faults, in the plan's order; seconds of the host's monotonic clock (of virtual time in the twin), of the last
time, 0 for never. W: sites that some fault's `until` waits for, in the order of their first mention. A fault is
fired by the process that crosses its site; what a stopped process cannot release itself is released by the lab.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import msgspec

from engine.topology import Topology
from faults.plan import Plan
from faults.sites import bare, home_of

_MAGIC = int.from_bytes(b"RINGTWIN", "little")
_HEAD_WORDS = 4
_PID, _START, _FIRST = 0, 1, 2
#: How many lives of each node a board has room for.
LIVES = 4
LAB = "lab"


class Contents(msgspec.Struct, frozen=True):
    """What the board is about."""

    plan: Plan
    topology: Topology
    lives: int


class BoardError(ValueError):
    """The file is not a board, or the process is not on it."""


class Board:
    """A view of a board's memory. Raises BoardError where it is none."""

    def __init__(self, memory: Any) -> None:
        self._words = words = memoryview(memory).cast("B").cast("Q")
        self._times = words.cast("B").cast("d")
        if len(words) < _HEAD_WORDS or words[0] != _MAGIC:
            raise BoardError("not a board of a play")
        text = bytes(words.cast("B")[_HEAD_WORDS * 8: _HEAD_WORDS * 8 + words[1]])
        self.contents = msgspec.json.decode(text, type=Contents)
        self.plan = plan = self.contents.plan
        self.topology = self.contents.topology
        self.nodes = tuple(map(str, self.topology.nodes))
        self._slot_words = words[2]
        self._first_slot = _HEAD_WORDS + words[1] // 8
        self._fault = {fault.id: index for index, fault in enumerate(plan.faults)}
        self._watch = {site: index for index, site in enumerate(watched_sites(plan))}
        self._slots = {(LAB, 0): self._first_slot}
        for index, node in enumerate(self.nodes):
            for life in range(self.contents.lives):
                number = 1 + index * self.contents.lives + life
                self._slots[node, life] = self._first_slot + number * self._slot_words

    # -- reading

    def fired_at(self, fault_id: str) -> float | None:
        """When the fault last fired anywhere, or None."""
        return self._latest(_FIRST + self._fault[fault_id])

    def released_at(self, fault_id: str) -> float | None:
        """When what the fault held was last let go, or None."""
        return self._latest(_FIRST + len(self._fault) + self._fault[fault_id])

    def healed_since(self, fault_id: str, since: float) -> bool:
        """Whether the lab has released the fault by hand after `since`."""
        word = _FIRST + len(self._fault) + self._fault[fault_id]
        return self._times[self._slots[LAB, 0] + word] > since

    def fired(self) -> tuple[str, ...]:
        """The faults that have fired so far, in the plan's order."""
        return tuple(fault_id for fault_id in self._fault if self.fired_at(fault_id) is not None)

    def count(self, site: str) -> int:
        """How often a site that an `until` names was crossed. Raises KeyError for any other site."""
        key = home_of(site)
        slot = self._slots.get(key)
        return 0 if slot is None else self._words[slot + self._count_word(site)]

    def process(self, node: str, life: int | None = None) -> tuple[int, int] | None:
        """(pid, start ticks) of a node's given or latest life, None while it was not born. `node`: without life."""
        lives = range(self.contents.lives - 1, -1, -1) if life is None else (life,)
        for candidate in lives:
            slot = self._slots.get((node, candidate))
            if slot is not None and self._words[slot + _PID]:
                return self._words[slot + _PID], self._words[slot + _START]
        return None

    def seat(self, node: str, life: int = 0) -> Seat:
        """The slot of one process, to write to. Raises BoardError for a process that the play does not have."""
        slot = self._slots.get((bare(node), life))
        if slot is None:
            raise BoardError(f"{node} in life {life} is not on the board; it has {', '.join(self.nodes)} "
                             f"with {self.contents.lives} lives")
        return Seat(self, slot)

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self._times.release()
        self._words.release()

    def _latest(self, word: int) -> float | None:
        times = self._times
        latest = max(times[slot + word] for slot in self._slots.values())
        return latest or None

    def _count_word(self, site: str) -> int:
        return _FIRST + 2 * len(self._fault) + self._watch[site]


class Seat:
    """One process's slot. Several threads may write to it, but each word has one writing thread at a time."""

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot

    def enter(self, pid: int, start_ticks: int = 0) -> None:
        """The process is born."""
        self._board._words[self._slot + _START] = start_ticks
        self._board._words[self._slot + _PID] = pid

    def fired(self, fault_id: str, at: float) -> None:
        self._board._times[self._slot + _FIRST + self._board._fault[fault_id]] = at

    def released(self, fault_id: str, at: float) -> None:
        board = self._board
        board._times[self._slot + _FIRST + len(board._fault) + board._fault[fault_id]] = at

    def crossed(self, site: str, count: int) -> None:
        """`site` as an `until` of the plan spells it."""
        self._board._words[self._slot + self._board._count_word(site)] = count


def watched_sites(plan: Plan) -> tuple[str, ...]:
    """The sites whose crossings some fault waits for, as the plan spells them."""
    return tuple(dict.fromkeys(
        fault.until.site for fault in plan.faults if fault.until is not None and fault.until.site is not None
    ))


def new_board(plan: Plan, topology: Topology, lives: int = LIVES) -> bytearray:
    """The bytes of a fresh board: nothing fired, nobody born."""
    text = msgspec.json.encode(Contents(plan, topology, lives))
    text += b" " * (-len(text) % 8)
    slot_words = _FIRST + 2 * len(plan.faults) + len(watched_sites(plan))
    head = b"".join(word.to_bytes(8, "little") for word in (_MAGIC, len(text), slot_words, 0))
    return bytearray(head + text + bytes(8 * slot_words * (1 + len(topology.nodes) * lives)))


def board_path(run_dir: Path) -> Path:
    return run_dir / "board"


def create_board(run_dir: Path, plan: Plan, topology: Topology, lives: int = LIVES) -> Board:
    """Made by the lab before the first process of the play starts. """
    path = board_path(run_dir)
    path.write_bytes(new_board(plan, topology, lives))
    return open_board(run_dir)


def open_board(run_dir: Path) -> Board:
    """Raises BoardError or OSError where there is no board."""
    fd = os.open(board_path(run_dir), os.O_RDWR | os.O_CLOEXEC)
    try:
        return Board(mmap.mmap(fd, 0))
    finally:
        os.close(fd)

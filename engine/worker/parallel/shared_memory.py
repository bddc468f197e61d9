"""Collectives of ranks on one host, through one piece of shared memory.

Promises
- A collective ends on every rank when all have entered it; whoever waits sleeps on a bell, and is woken by the last.
- All ranks add up in the order of the ranks: the sum is bitwise the same on each.
- A wait is bounded: whoever has not entered by then is named, but for those that wait for others themselves, as long
  as twice the bound. The death of a rank ends it within `LOOK_S`.
- Ranks that enter different collectives, or with other shapes, are told so, each of them: no number is mixed up.
- Nothing of it has a name, so nothing is left behind, whoever dies when.

The memory, and who writes it

    bell            whoever enters rings it
    entered[r]      8 bytes, rank r: how many collectives (pieces of them) it has entered
    waits[r]        8 bytes, rank r: when it last said that it waits for another one, here or elsewhere; 0: it does not
    words[p][r]     16 bytes, rank r: what it does in its collective of parity p, and with how many bytes
    slots[p][r]     `SLOT_BYTES`, rank r: its part

There are two sets of words and slots, and they take turns: who has entered collective n has read all of n - 1, so
whoever is in n + 1, where everybody is in n at least, may overwrite what n - 1 used.

What is larger than a slot goes in pieces, each a collective of its own.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.errors import CollectiveError
from engine.ipc.segment import fence
from engine.ipc.wait import FutexDoorbell
from engine.process.identity import is_alive, start_time

#: What a rank brings to one piece of a collective at most.
SLOT_BYTES = 1 << 20
#: So often a sleeper looks whether somebody it waits for has died.
LOOK_S = 0.01
#: Who has not said for so long that it waits does not, even if it has not said that that is over.
_SILENT_NS = 100_000_000
_FOR_GOOD = 1 << 63

LINE = 64
_OPERATIONS = ("all_reduce", "all_gather", "broadcast", "barrier")
#: Gives numbers to all of a group, and those of each back.
Tell = Callable[[list[int]], list[list[int]]]
#: Views of the slots that are kept: one for each size that a model's steps use.
_KEPT_VIEWS = 256


def size_of(world_size: int) -> int:
    return LINE * (1 + 3 * world_size) + 2 * world_size * SLOT_BYTES


class Waits:
    """That a rank waits for others, as it tells in every memory that it shares."""

    def __init__(self) -> None:
        self._words: list[tuple[Any, int]] = []

    def told_in(self, words: Any, place: int) -> None:
        self._words.append((words, place))

    def goes_on(self) -> None:
        """It still waits; who is stopped does not say so."""
        self._tell(time.monotonic_ns())

    def over(self, failed: bool = False) -> None:
        """Who has failed says of itself that it waited, for good: nobody else waits for it because of what it did."""
        self._tell(_FOR_GOOD if failed else 0)

    def close(self) -> None:
        self._words.clear()

    def _tell(self, word: int) -> None:
        for words, place in self._words:
            words[place] = word


def is_waiting(word: int) -> bool:
    return word > time.monotonic_ns() - _SILENT_NS


class Peers:
    """Processes that somebody waits for, by place."""

    def __init__(self, pids: dict[int, int]) -> None:
        self._processes = {place: (pid, start_time(pid) or 0) for place, pid in pids.items()}

    def is_dead(self, place: int) -> bool:
        return not is_alive(self._processes[place])


class SharedMemoryCommunicator:
    """Rank `rank` of those whose processes are `pids`, by these names in errors, over memory that all of them map.

    `memory`: `size_of(len(pids))` bytes, all zero before the first rank enters.
    """

    def __init__(self, rank: int, pids: Sequence[int], names: Sequence[str], memory: mmap.mmap, timeout_s: float,
                 waits: Waits) -> None:
        self._called = names
        self.rank, self.world_size, self.timeout_s = rank, len(pids), timeout_s
        self._waits = waits
        world = self.world_size
        self._peers = Peers({other: pid for other, pid in enumerate(pids) if other != rank})
        self._bell = FutexDoorbell(memory, 0)
        self._view: Any = memoryview(memory)
        words, per_line = self._view[LINE:LINE * (1 + 3 * world)].cast("Q"), LINE // 8
        lines = [words[column * world * per_line:(column + 1) * world * per_line] for column in range(3)]
        self._entered, self._told = lines[0][::per_line], lines[0][1::per_line]
        waits.told_in(self._told, rank)
        #: By parity: what each rank does, as an index of `_OPERATIONS`, and with how many bytes.
        self._asked = [(line[::per_line], line[1::per_line]) for line in lines[1:]]
        whole = torch.frombuffer(memory, dtype=torch.uint8, offset=LINE * (1 + 3 * world))
        self._slots = whole.view(2, world, SLOT_BYTES)
        self._views: dict[tuple[int, torch.dtype, int], list[torch.Tensor]] = {}
        self._turn = 0

    # -- what a model asks for

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, as a new tensor."""
        flat = tensor.reshape(-1)
        count = SLOT_BYTES // tensor.element_size()
        if flat.numel() <= count:
            return self._add(flat).view(tensor.shape)
        return torch.cat([self._add(piece) for piece in flat.split(count)]).view(tensor.shape)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The ranks' tensors in the order of the ranks, valid until the collective after the next."""
        flat = tensor.reshape(-1)
        count = SLOT_BYTES // tensor.element_size()
        if flat.numel() <= count:
            return [part.view(tensor.shape) for part in self._gather("all_gather", flat)]
        pieces = [torch.stack(self._gather("all_gather", piece)) for piece in flat.split(count)]
        return list(torch.cat(pieces, dim=1).view(self.world_size, *tensor.shape).unbind(0))

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """`tensor` as it is on rank `source`, as a new tensor."""
        flat = tensor.reshape(-1)
        pieces = flat.split(SLOT_BYTES // tensor.element_size())
        return torch.cat([self._gather("broadcast", piece, source == self.rank)[source].clone()
                          for piece in pieces]).view(tensor.shape)

    def barrier(self) -> None:
        self._meet("barrier", 0)

    def close(self) -> None:
        """Let go of the memory and of the ranks; safe to call twice."""
        self._views.clear()
        self._bell.close()

    # -- one piece

    def _add(self, flat: torch.Tensor) -> torch.Tensor:
        first, second, *rest = self._gather("all_reduce", flat)
        total = first + second
        for part in rest:
            total += part
        return total

    def _gather(self, operation: str, flat: torch.Tensor, brings: bool = True) -> list[torch.Tensor]:
        """-> every rank's part, in the slots"""
        parts = self._parts((self._turn + 1) % 2, flat.dtype, flat.numel())
        if brings:
            parts[self.rank].copy_(flat)
        self._meet(operation, flat.numel() * flat.element_size())
        return parts

    def _parts(self, parity: int, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
        key = parity, dtype, count
        parts = self._views.get(key)
        if parts is None:
            if len(self._views) >= _KEPT_VIEWS:
                self._views.clear()
            slots = self._slots[parity, :, :count * dtype.itemsize]
            parts = self._views[key] = [slot.view(dtype) for slot in slots.unbind(0)]
        return parts

    def _meet(self, operation: str, size: int) -> None:
        """Enter, and wait until everybody has. Raises CollectiveError."""
        self._turn = turn = self._turn + 1
        operations, sizes = self._asked[turn % 2]
        operations[self.rank], sizes[self.rank] = _OPERATIONS.index(operation), size
        fence()
        self._entered[self.rank] = turn
        self._bell.ring()
        seen = self._bell.seen()
        if self._missing(turn):
            try:
                self._wait(operation, turn, seen)
            except CollectiveError:
                self._waits.over(failed=True)
                raise
            self._waits.over()
        fence()
        asked = list(zip(operations, sizes, strict=True))
        if len(set(asked)) > 1:
            raise CollectiveError(f"collective {turn}: the ranks do not agree: " + ", ".join(
                f"{name} enters {_OPERATIONS[what]} with {size} bytes"
                for name, (what, size) in zip(self._called, asked, strict=True)))

    def _missing(self, turn: int) -> list[int]:
        return [rank for rank, entered in enumerate(self._entered) if entered < turn]

    def _wait(self, operation: str, turn: int, seen: int) -> None:
        deadline = time.monotonic() + self.timeout_s
        while missing := self._missing(turn):
            late_s = time.monotonic() - deadline
            guilty = missing if late_s >= self.timeout_s else [
                rank for rank in missing if late_s >= 0 and not is_waiting(self._told[rank])]
            if guilty:
                raise CollectiveError(f"{operation}, collective {turn}: {self._names(guilty)} did not enter within "
                                      f"{self.timeout_s} s")
            self._waits.goes_on()
            if not self._bell.wait(seen, LOOK_S):
                dead = {rank for rank in missing if self._peers.is_dead(rank)}
                if dead := dead.intersection(self._missing(turn)):  # what it entered before it died counts
                    raise CollectiveError(f"{operation}, collective {turn}: {self._names(sorted(dead))} died before it "
                                          "entered")
            seen = self._bell.seen()

    def _names(self, ranks: list[int]) -> str:
        return " and ".join(self._called[rank] for rank in ranks)


def share_memory(place: int, size: int, tell: Tell) -> tuple[mmap.mmap, list[int]] | None:
    """Memory that all of a group map, and their process ids. All call it together.

    It is made by the first and opened by the others through its process. `tell` gives numbers to all of the group, and
    -> those of each, when all have told theirs. -> None for everybody, where one could not make the memory, or may not
    look into another one's descriptors.
    """
    fd, memory = -1, None
    try:
        if place == 0:
            fd = _make(size)
        told = tell([os.getpid(), fd])
        if place != 0:
            fd = _open(*told[0])
        if fd >= 0:
            memory = mmap.mmap(fd, size)
        all_have = all(have for [have] in tell([int(memory is not None)]))  # the first may close its descriptor now
    finally:
        if fd >= 0:
            os.close(fd)
    return None if memory is None or not all_have else (memory, [pid for pid, _ in told])


def _make(size: int) -> int:
    """-> a descriptor, -1 where there is no such memory"""
    try:
        fd = os.memfd_create("ringtwin-collectives", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return -1
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _open(pid: int, fd: int) -> int:
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1

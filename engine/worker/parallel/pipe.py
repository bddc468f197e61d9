"""What goes from stage to stage among ranks on one host, through one piece of shared memory.

Promises
- Whoever sends goes on at once while the next rank is less than `slots` pieces behind; what was sent stays as it is
  until it has been received.
- The k-th receive takes what the k-th send brought, or says whose step it found.
- A wait is bounded: whom it waited for is named, if that does not wait itself, or at twice the bound. The death of that
  rank ends it within `LOOK_S`.
- Nothing of it has a name, so nothing is left behind, whoever dies when.

A group of ranks stands in a ring: each sends to the next one, the last one to the first. The memory, and who writes it:

    bell               whoever sends or receives rings it
    sent[k], taken[k]  8 bytes each, rank k and the one behind it: how many pieces of lane k
    waits[k]           8 bytes, rank k: as in `shared_memory`
    words[k][slot]     16 bytes, rank k: step and bytes of the piece there
    slots[k][slot]     `PIECE_BYTES`, rank k
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.errors import CollectiveError
from engine.ipc.segment import fence
from engine.ipc.wait import FutexDoorbell
from engine.worker.parallel.shared_memory import LINE, LOOK_S, Peers, Waits, is_waiting

#: What one piece holds at most.
PIECE_BYTES = 256 << 10


def slots_of(stages: int) -> int:
    """Pieces of a lane: more than there are steps whose tokens the first stage has not taken yet."""
    return stages + 2


def pipe_bytes(stages: int) -> int:
    return LINE + stages * (2 * LINE + slots_of(stages) * (LINE + PIECE_BYTES))


class SharedMemoryPipe:
    """The end of place `place` in a ring of ranks, whose processes are `pids` and whose names are `names`.

    `memory`: `pipe_bytes(len(pids))` bytes, all zero before the first one sends.
    """

    def __init__(self, place: int, pids: Sequence[int], names: Sequence[str], memory: mmap.mmap, timeout_s: float,
                 waits: Waits) -> None:
        stages = len(pids)
        self.timeout_s = timeout_s
        self._slots = slots_of(stages)
        self._lane, self._before = place, (place - 1) % stages
        self._next = (place + 1) % stages
        self._names = names
        self._peers = Peers({self._next: pids[self._next], self._before: pids[self._before]})
        self._bell = FutexDoorbell(memory, 0)
        words = memoryview(memory)[LINE:].cast("B")
        lanes, per_line = stages * LINE, LINE // 8
        self._sent: Any = words[:lanes].cast("Q")[::per_line]
        self._told: Any = words[:lanes].cast("Q")[1::per_line]
        self._waits = waits
        waits.told_in(self._told, place)
        self._taken: Any = words[lanes:2 * lanes].cast("Q")[::per_line]
        headers = words[2 * lanes:2 * lanes + stages * self._slots * LINE].cast("Q")
        self._steps, self._sizes = headers[::per_line], headers[1::per_line]
        start = LINE + 2 * lanes + stages * self._slots * LINE
        self._pieces = torch.frombuffer(memory, dtype=torch.uint8, offset=start).view(-1, PIECE_BYTES)

    def send(self, step: int, tensor: torch.Tensor) -> None:
        """To the next rank. Raises CollectiveError where it does not take what was sent before."""
        lane, flat = self._lane, tensor.contiguous().reshape(-1).view(torch.uint8)
        for piece in flat.split(PIECE_BYTES):
            number = self._sent[lane]
            self._wait(self._next, lambda n=number: n - self._taken[lane] < self._slots,  # type: ignore[misc]
                       f"step {step} cannot be sent: {self._names[self._next]} did not take what came before")
            place = lane * self._slots + number % self._slots
            self._steps[place], self._sizes[place] = step, flat.numel()
            self._pieces[place, :piece.numel()].copy_(piece)
            fence()
            self._sent[lane] = number + 1
            self._bell.ring()

    def receive(self, step: int, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, filled by the rank before. Raises CollectiveError where that sends nothing, or something else."""
        lane, flat = self._before, tensor.view(-1).view(torch.uint8)
        for piece in flat.split(PIECE_BYTES):
            number = self._taken[lane]
            self._wait(self._before, lambda n=number: self._sent[lane] > n,  # type: ignore[misc]
                       f"{self._names[self._before]} did not send step {step}")
            fence()
            place = lane * self._slots + number % self._slots
            found = self._steps[place], self._sizes[place]
            if found != (step, flat.numel()):
                raise CollectiveError(f"the stages do not agree: {self._names[self._before]} sent step {found[0]} with "
                                      f"{found[1]} bytes, wanted are {flat.numel()} bytes of step {step}")
            piece.copy_(self._pieces[place, :piece.numel()])
            fence()
            self._taken[lane] = number + 1
            self._bell.ring()
        return tensor

    def close(self) -> None:
        """Let go of the memory and of the ranks; safe to call twice."""
        self._bell.close()

    def _wait(self, peer: int, is_over: Callable[[], bool], failure: str) -> None:
        deadline, seen = time.monotonic() + self.timeout_s, self._bell.seen()
        while not is_over():
            late_s = time.monotonic() - deadline
            if late_s >= self.timeout_s or (late_s >= 0 and not is_waiting(self._told[peer])):
                self._waits.over(failed=True)
                raise CollectiveError(f"{failure} within {self.timeout_s} s")
            self._waits.goes_on()
            if not self._bell.wait(seen, LOOK_S) and self._peers.is_dead(peer) and not is_over():
                self._waits.over(failed=True)
                raise CollectiveError(f"{failure}: it died")
            seen = self._bell.seen()
        self._waits.over()

"""Shared bytes of the twin, doorbells, and a process that stops between two stores of a ring operation.

Promises
- `Segment.memory` is one bytearray seen by every process; a process in which no fault names a store gets it
  bare, so the ring runs at the speed of plain Python.
- Where a fault may fire at a store, the process sees the segment through `SteppedMemory`. A kill there leaves
  exactly the stores before it. A stall leaves them too, and when the process goes on, the operation runs again:
  it is given the loads it had recorded and its stores that are done are skipped, so it arrives at the store where
  it stopped having done nothing twice. From there on it sees the memory as it is then.
- What a reader has freed is rewritten at once there, as by the fastest of writers: whoever still looks at it sees that.

    operation  ->  SteppedMemory   records loads, counts stores, repeats
               ->  FaultyMemory    names each store, asks what befalls it, corrupts
               ->  bytearray
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.memory import FaultyMemory
from faults.plan import Fault
from sim.kernel.kernel import Kernel, Sleeper


class Segment:
    """One named piece of shared memory. Outlives its processes until it is unlinked."""

    __slots__ = ("buffer", "memory", "name")

    def __init__(self, name: str, buffer: bytearray) -> None:
        self.name = name
        self.buffer = buffer
        self.memory = memoryview(buffer)


#: A full fence: the twin keeps stores in order anyway, so this is the cheapest call that does nothing.
fence: Callable[..., Any] = bool


class Bells:
    """All doorbells of a play, by the name that their processes share."""

    def __init__(self, kernel: Kernel) -> None:
        self.rings = 0  # of all of them so far
        self.wake_up_s = kernel.costs.bell_s
        self._by_key: dict[str, Bell] = {}

    def bell(self, key: str) -> Bell:
        bell = self._by_key.get(key)
        if bell is None:
            bell = self._by_key[key] = Bell(self)
        return bell

    def untie(self) -> None:
        """The play is over."""
        self._by_key.clear()


class Bell:
    """A doorbell between processes. Rings reach threads that sleep on it after the time of a wake-up."""

    __slots__ = ("_bells", "rung_at", "sleepers")

    def __init__(self, bells: Bells) -> None:
        self._bells = bells
        self.rung_at = 0  # count of rings of all bells: a thread compares it with what it was at its last look
        self.sleepers: list[Sleeper] = []

    def ring(self) -> None:
        bells = self._bells
        bells.rings += 1
        self.rung_at = bells.rings
        if self.sleepers:
            sleepers, self.sleepers = self.sleepers, []
            for thread in sleepers:
                thread.wake_after(bells.wake_up_s)


class StoppedInOperation(BaseException):
    """The thread stops before a store: it is dead, or goes on from here later (`resumes`)."""

    def __init__(self, resumes: bool) -> None:
        super().__init__(resumes)
        self.resumes = resumes


class SteppedMemory:
    """One process's view of a ring's segment in which it can stop before any store."""

    def __init__(self, memory: Any, layout: Any, on_store: Callable[[str], Fault | None]) -> None:
        self._faulty = FaultyMemory(memory, layout, self._ask)
        self._on_store = on_store
        self._loads: list[Any] = []
        self._next_load = 0
        self._stores = 0  # done in this operation
        self._skip = 0  # of them, still to be passed over in a repetition
        self._stopped_before = ""  # the store that was judged already when the operation stopped
        self._frees = self._freed = False  # the store that is being done, or was done, gives the chunk back

    def __len__(self) -> int:
        return len(self._faulty)

    def begin(self) -> None:
        """A new operation."""
        self._loads.clear()
        self._next_load = self._stores = self._skip = 0
        self._stopped_before = ""
        self._freed = False

    def repeat(self) -> None:
        """The same operation again, up to where it stopped."""
        self._next_load = 0
        self._skip = self._stores

    def __getitem__(self, where: Any) -> Any:
        if self._next_load < len(self._loads):
            loaded = self._loads[self._next_load]
        else:
            loaded = self._faulty[where]
            if not isinstance(loaded, int):
                loaded = memoryview(bytearray(loaded))
                if self._freed:
                    _rewrite(loaded)
            self._loads.append(loaded)
        self._next_load += 1
        return loaded

    def __setitem__(self, where: Any, value: Any) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._frees = False
        self._faulty[where] = value
        self._stores += 1
        if self._frees:
            self._freed = True
            for loaded in self._loads:
                if not isinstance(loaded, int):
                    _rewrite(loaded)

    def _ask(self, name: str) -> Fault | None:
        self._frees = name == "read"
        if self._stopped_before == name:
            self._stopped_before = ""
            return None
        try:
            return self._on_store(name)
        except StoppedInOperation:
            self._stopped_before = name
            raise


def _rewrite(chunk: memoryview) -> None:
    chunk[:] = bytes(byte ^ 0xFF for byte in chunk)

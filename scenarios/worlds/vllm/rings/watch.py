"""Who watches the rings of a play: a process of the lab's own, started for it and gone with the lab.

A ring is memory, so nobody else sees what goes through it. Two things are seen all the same:

- A store of its writer to the flags, by a watchpoint (`tripwire.py`): the writer stands still right behind it. The
  flag goes down (`store.reset`), the data is written, the readers' flags go down, the last of them at `store.data` and
  `store.readers`, the flag goes up (`store.written`). There what was stored is changed, before anybody may read it, or
  the writer is struck.
- A message that waits: it is written, and a reader does not come for it. There that reader is struck (`store.read`).

Crossings are counted from where a fault may begin to count, and stores from a ring's second round on, so plans name
something that comes before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from engine.topology import Node
from faults.plan import Fate, Fault
from faults.real.board import open_board
from scenarios.worlds.vllm.relay.passage import Ends, Struck
from scenarios.worlds.vllm.relay.precedence import run_before_others
from scenarios.worlds.vllm.rings.layout import Ring, Shape
from scenarios.worlds.vllm.rings.search import flags_in, ring_of, shapes_of
from scenarios.worlds.vllm.rings.tripwire import Tripwire

UP, ARM = b"up", b"arm"
#: So long a message is written and not read until it is one that waits.
WAITS_S = 0.02
SIGNALS = {Fate.STALL: signal.SIGSTOP, Fate.TERMINATE: signal.SIGTERM}
#: How often it looks for messages that wait.
LOOK_S = 0.001
#: What a store is that a writer's flags tell of: where it is crossed.
_CROSSED = {"reset": ("reset",), "readers": ("data", "readers"), "written": ("written",)}
_CHANGES: dict[str, Callable[[Ring, int, int], None]] = {
    "data": Ring.damage, "readers": Ring.hide}


class WatchRecipe(msgspec.Struct, frozen=True):
    folder: str  # of the run: its board, its journals


def main(data: bytes, lab: Connection) -> None:
    """Runs until the lab closes its end. Told to `ARM`, it says `UP` when it sees the stores that the plan names."""
    threading.current_thread().name = "watch"
    run_before_others()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # of a thread that stands still: it is waited for
    recipe = msgspec.msgpack.decode(data, type=WatchRecipe)
    board = open_board(Path(recipe.folder))
    watches = watches_of(Ends(board, Path(recipe.folder)))
    lab.send_bytes(UP)
    with contextlib.suppress(EOFError):
        while True:
            if lab.poll(0) and lab.recv_bytes() == ARM:
                for watch in watches:
                    watch.arm()
                lab.send_bytes(UP)
            for watch in watches:
                watch.look()
            signal.sigtimedwait([signal.SIGCHLD], LOOK_S)


def watches_of(ends: Ends) -> list[Watch]:
    """Of all rings that the plan names."""
    found = [Watch(ends, writer, name, shape, readers) for engine in ends.board.topology.engines
             for (writer, name), (shape, readers) in shapes_of(engine).items()]
    return [watch for watch in found if watch.is_named]


class Watch:
    """Of one ring."""

    def __init__(self, ends: Ends, writer: Node, name: str, shape: Shape, readers: tuple[Node, ...]) -> None:
        self._board, self._now = ends.board, ends.clock.monotonic
        self._writer, self._shape, self._readers = writer, shape, readers
        self._ring: Ring | None = None
        self._end = ends.of(writer)
        self._stores = {place: f"{writer}/{name}:store.{place}"
                        for places in _CROSSED.values() for place in places}
        of_reader = f"{name}.{writer.index}" if name == "response" else name
        self._reads = {reader: (ends.of(reader), f"{reader}/{of_reader}:store.read") for reader in readers}
        self._since: dict[int, float] = {}  # chunks that are written and not read by all, and since when
        self._seen: set[tuple[int, Node]] = set()  # which of them have been noticed to wait, and for whom
        self._struck = Struck()
        self._tripwire: Tripwire | None = None

    @property
    def is_named(self) -> bool:
        return self._names({*self._stores.values(), *(site for _, site in self._reads.values())})

    def arm(self) -> None:
        """All is up, and nothing is asked yet: from here on a writer's stores are seen, where the plan names one."""
        process = self._board.process(str(self._writer), 0)
        if process is not None and self._names(set(self._stores.values())):
            with contextlib.suppress(OSError):  # it is gone
                self._tripwire = Tripwire(process[0], flags_in(process[0], self._shape), self._shape.flags_size)

    def look(self) -> None:
        if self._ring is None:
            process = self._board.process(str(self._writer), 0)
            self._ring = None if process is None else ring_of(process[0], self._shape)
            return
        while self._tripwire is not None and self._tripwire.tripped():
            self._has_stored(self._tripwire, self._ring)
        self._look_for_what_waits(self._ring)
        self._struck.release()

    # -- what waits

    def _look_for_what_waits(self, ring: Ring) -> None:
        now = self._now()
        for chunk in range(self._shape.chunks):
            unread = ring.unread(chunk)
            if not unread:
                self._since.pop(chunk, None)
                self._seen -= {(chunk, reader) for reader in self._readers}
            elif now - self._since.setdefault(chunk, now) >= WAITS_S:
                for reader in unread:
                    self._is_waiting(chunk, self._readers[reader])

    def _is_waiting(self, chunk: int, reader: Node) -> None:
        end, site = self._reads[reader]
        if (chunk, reader) not in self._seen and self._counts(site):
            self._seen.add((chunk, reader))
            fault, nth = end.note(site, data={"chunk": chunk})
            if fault is not None:
                self._struck.strike(end, fault, site, nth)

    def _counts(self, site: str) -> bool:
        """Whether the plan names it, and all that is planned there may begin."""
        return self._names({site}) and all(
            fault.after is None or self._board.fired_at(fault.after) is not None
            for fault in self._board.plan.faults if fault.site == site)

    def _names(self, sites: set[str]) -> bool:
        """Whether the plan does."""
        plan = self._board.plan
        return any(fault.site in sites or (fault.until is not None and fault.until.site in sites)
                   for fault in plan.faults)

    # -- a writer at its stores

    def _has_stored(self, wire: Tripwire, ring: Ring) -> None:
        """It stands still behind that."""
        chunk, stored = ring.last_store()
        for place in _CROSSED.get(stored, ()):
            site = self._stores[place]
            fault, nth = self._end.note(site, data={"chunk": chunk}) if self._counts(site) else (None, 0)
            if fault is not None and fault.fate is Fate.CORRUPT:
                _CHANGES[place](ring, chunk, fault.byte)
            elif fault is not None:
                self._strike_at_store(wire, fault, site, nth)
                return
        wire.go_on()

    def _strike_at_store(self, wire: Tripwire, fault: Fault, site: str, nth: int) -> None:
        self._tripwire = None
        if fault.fate is Fate.KILL:
            self._end.strike(fault)
            wire.leave()
        else:  # it is met where it stands
            wire.leave(SIGNALS[fault.fate])
        if fault.fate is Fate.STALL:
            self._struck.strike(self._end, fault, site, nth)

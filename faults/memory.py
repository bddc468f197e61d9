"""Ring memory whose stores are sites: a process can die, stop or err before any store of the ring.

Promises: loads pass untouched; `on_store(name)` is called before the store is done, with a name of
`engine.topology.WRITER_STORES` or `READER_STORES`; a message counts as one `data` store, at the first of its
stores into its chunk, so the nth `data`, `readers` and `written` belong to the same message. Doorbell words
are no sites.

    reset      written := 0     the chunk is being taken
    data       the message's bytes
    readers    the flags of all readers := 0
    written    written := 1     published
    read       flag of one reader := 1

`layout` is an `engine.ipc.ring.RingLayout`: its `store_name(offset)` says what lies at an offset, and the value
stored tells `reset` from `written`, and a reader's `read` from the writer's `readers`. If `on_store` returns a
fault, its fate is `corrupt`: a flag is stored with all bits flipped; of a message one byte is flipped once it is
complete, before its `written` flag is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from faults.damage import corrupted_bytes
from faults.plan import Fault


class NamesStores(Protocol):
    """What of a ring's layout is needed here."""

    def store_name(self, offset: int) -> str: ...
    def starts_message(self, offset: int) -> bool: ...


class FaultyMemory:
    """`inner` seen through `on_store`. Indexes like the memory it wraps, which stays at `inner`."""

    __slots__ = ("_corrupts", "_from", "_kinds", "_layout", "_on_store", "_to", "inner")

    def __init__(self, inner: Any, layout: NamesStores, on_store: Callable[[str], Fault | None]) -> None:
        self.inner = inner
        self._layout = layout
        self._on_store = on_store
        self._kinds: dict[int, str] = {}  # of offsets seen: first, written, reader or bell
        self._from = self._to = 0  # the bytes of the message being written, if it is to be corrupted
        self._corrupts: Fault | None = None

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, where: Any) -> Any:
        return self.inner[where]

    def __setitem__(self, where: Any, value: Any) -> None:
        start = where if isinstance(where, int) else where.start or 0
        kind = self._kinds.get(start) or self._kind(start)
        if kind == "first":
            self._corrupts = self._on_store("data")
            self._from = start
        elif kind in ("written", "reader"):
            value = self._flag(kind == "written", value)
        if self._corrupts is not None and kind in ("first", "data"):
            self._to = start + (1 if isinstance(where, int) else memoryview(value).nbytes)
        self.inner[where] = value

    def _kind(self, start: int) -> str:
        kind = "first" if self._layout.starts_message(start) else self._layout.store_name(start).partition(":")[0]
        if kind != "data":  # offsets inside a message are without number
            self._kinds[start] = kind
        return kind

    def _flag(self, is_written: bool, value: Any) -> Any:
        is_set = bool(value) if isinstance(value, int) else any(value)
        if is_written:
            name = "written" if is_set else "reset"
            if is_set and self._corrupts is not None:
                chunk = slice(self._from, self._to)
                self.inner[chunk] = corrupted_bytes(self.inner[chunk], self._corrupts.byte)
            self._corrupts = None
        else:
            name = "read" if is_set else "readers"
        if self._on_store(name) is None:
            return value
        return value ^ 0xFF if isinstance(value, int) else bytes(byte ^ 0xFF for byte in value)

"""Buffers for what a reader keeps, taken again when nobody uses them any more.

Promises
- A buffer belongs to its object alone: it is taken again only when all references to it are gone, an array's
  base, a view and an export counted alike.
- At most `KEPT` unused buffers of at most `MAX_BYTES` are held.

Fresh memory of a few MiB costs a page fault every 4 KiB, as much time as the copy into it.
"""

from __future__ import annotations

import sys
from typing import Any

KEPT = 2
MAX_BYTES = 64 << 20


class ReceiveBuffers:
    """Used by one thread."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def own(self, view: Any) -> bytearray:
        """A writable copy of these bytes."""
        size = len(view)
        for buffer in self._buffers:
            if len(buffer) == size and sys.getrefcount(buffer) <= _UNUSED:
                memoryview(buffer)[:] = view
                return buffer
        buffer = bytearray(view)
        if size <= MAX_BYTES:
            self._buffers = [buffer, *self._buffers[:KEPT - 1]]
        return buffer


def _references_of_unused() -> int:
    """What `getrefcount` says in the loop above of a buffer that only the list holds; versions of Python differ."""
    counts = [sys.getrefcount(buffer) for buffer in [bytearray(1)]]
    return counts[0]


_UNUSED = _references_of_unused()

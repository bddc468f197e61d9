"""Memory that many processes will be forked from, in few large pieces.

A fork copies one entry of the page table for each piece, an exit drops it again, and the first look of a child at each
costs a fault. Of the pieces of 4 KiB that a fork server has after its imports there are tens of thousands.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

#: What one piece holds, in bytes, on x86-64 and on ARM with pages of 4 KiB.
HUGE = 2 << 20
#: `madvise`: make huge pages of this now, wherever the system allows them at all. Linux 6.1 and newer.
MADV_COLLAPSE = 25
_PRIVATE = re.compile(r"(?P<begin>[0-9a-f]+)-(?P<end>[0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?$")


def whole_pages(maps: str) -> Iterator[int]:
    """Where a huge page would fit, of writable memory that belongs to no file. Source: proc_pid_maps(5)."""
    for line in maps.splitlines():
        if found := _PRIVATE.match(line):
            begin = -(-int(found["begin"], 16) // HUGE) * HUGE
            yield from range(begin, int(found["end"], 16) - HUGE + 1, HUGE)


def collapse() -> int:
    """Make huge pages of this process' own memory. How many: none, and all is as before, where it cannot.

    Source: madvise(2).
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(libc.madvise(address, HUGE, MADV_COLLAPSE) == 0
               for address in whole_pages(Path("/proc/self/maps").read_text()))

"""The memory that plays are forked from becomes huge pages where the system has them, and stays what it is."""

import mmap
import re
import subprocess
import sys
from pathlib import Path

from scenarios.worlds.forking.huge_pages import HUGE, collapse, whole_pages

ROOT = Path(__file__).parents[3]
MAPS = """\
00200000-00600000 r-xp 00000000 08:01 1234       /usr/bin/python3
00700000-00c00000 rw-p 00000000 00:00 0          [heap]
00c00000-00d00000 rw-p 00000000 00:00 0
00d00000-01200000 r--p 00000000 00:00 0
01200000-01800000 rw-p 00000000 00:00 0
01800000-01c00000 rw-p 00200000 08:01 1234       /usr/lib/libtorch.so
01c00000-02000000 rw-s 00000000 00:01 77         /dev/shm/ring
7ff000000000-7ff000400000 rw-p 00000000 00:00 0  [stack]
"""


def test_what_belongs_to_no_file_and_holds_a_whole_piece_is_asked_for() -> None:
    assert [address // HUGE for address in whole_pages(MAPS)] == [4, 5, 9, 10, 11]


def kept(contents: bytes) -> int:
    """How many pieces this process' memory became, with contents that must be the same behind it."""
    with mmap.mmap(-1, len(contents), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(contents)
        pieces = collapse()
        assert memory[:] == contents
        rollup = Path("/proc/self/smaps_rollup").read_text()
        assert int(re.findall(r"AnonHugePages: +(\d+) kB", rollup)[0]) << 10 >= pieces * HUGE
    return pieces


def test_memory_is_the_same_in_huge_pieces() -> None:
    # In a process of its own: this one's memory is nothing to experiment with.
    subprocess.run(
        [sys.executable, "-c", f"from {__name__} import kept; kept(bytes(range(256)) * {4 * HUGE // 256})"],
        cwd=ROOT, check=True, timeout=60)

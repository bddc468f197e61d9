"""What an end of a queue counts about itself (pure)."""

from __future__ import annotations

import msgspec


class QueueStats(msgspec.Struct, kw_only=True):
    """One end of one queue, since it was opened. Plain data; `msgspec.to_builtins` makes a dict of it."""

    ring: str
    end: str  # "writer" or "reader"
    messages: int = 0
    bytes: int = 0  # of pickles and their buffers, without headers as far as the end sees them
    overflows: int = 0  # messages of at least a chunk, which went beside the ring
    waits: int = 0  # for room or for a message, however they ended; a glance is none
    wait_s: float = 0.0
    longest_wait_s: float = 0.0
    depth: int = 0  # published messages that this reader, or some reader of this writer, has not read yet

    def waited(self, seconds: float) -> None:
        self.waits += 1
        self.wait_s += seconds
        self.longest_wait_s = max(self.longest_wait_s, seconds)

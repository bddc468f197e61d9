"""A ring of vLLM's as it lies in memory (pure): what waits in it for whom, and how it is damaged.

    chunks x `chunk_bytes` of data, then for each chunk 1 + readers bytes: whether it is written, and who has read it

    data     0: by the ring, 1: elsewhere | number of buffers, 2 bytes | for each: 4 bytes of length, itself

Numbers are big-endian. The first buffer is a pickle, which nobody here reads. (vLLM 0.33,
`distributed/device_communicators/shm_broadcast.py`.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from faults.damage import corrupted_bytes

#: As vLLM has it where nobody says otherwise.
CHUNKS = 10
_HEAD_BYTES, _LENGTH_BYTES = 3, 4


class Shape(NamedTuple):
    readers: int
    chunk_bytes: int
    chunks: int = CHUNKS

    @property
    def size(self) -> int:
        """Of the whole segment."""
        return self.flags_at + self.flags_size

    @property
    def flags_at(self) -> int:
        return self.chunk_bytes * self.chunks

    @property
    def flags_size(self) -> int:
        return (1 + self.readers) * self.chunks


class Ring:
    """`memory`: of the whole segment."""

    def __init__(self, memory: Any, shape: Shape) -> None:
        self.shape = shape
        self._bytes = memoryview(memory).cast("B")
        self._flags = self._bytes[shape.flags_at:shape.size]
        self._written = -1  # the last chunk whose flag was seen down

    def is_written(self, chunk: int) -> bool:
        return self._flags[chunk * (1 + self.shape.readers)] == 1

    def unread(self, chunk: int) -> list[int]:
        """Of a chunk that is written, the readers that have not read it."""
        if not self.is_written(chunk):
            return []
        return [reader for reader in range(self.shape.readers) if not self._flags[self._flag(chunk, reader)]]

    def last_store(self) -> tuple[int, str]:
        """Of the writer, to the flags, by what they say now: to which chunk, and "reset", "readers" or "written".

        "": amid the readers', or in its first round, in which flags that go down were never up. -1: it is not known.
        """
        down = [chunk for chunk in range(self.shape.chunks) if not self.is_written(chunk)]
        if not down:
            return self._written, "written"
        self._written = down[0]
        flags = {self._flags[self._flag(down[0], reader)] for reader in range(self.shape.readers)}
        if len(down) > 1 or len(flags) > 1:
            return down[0], ""
        return down[0], "reset" if flags == {1} else "readers"

    def payload(self, chunk: int) -> memoryview | None:
        """Its first buffer. None where it is elsewhere, or there is none."""
        start = chunk * self.shape.chunk_bytes
        data = self._bytes[start:start + self.shape.chunk_bytes]
        if data[0] or not int.from_bytes(data[1:_HEAD_BYTES], "big"):
            return None
        begin = _HEAD_BYTES + _LENGTH_BYTES
        return data[begin:begin + int.from_bytes(data[_HEAD_BYTES:begin], "big")]

    def damage(self, chunk: int, byte: int) -> None:
        """Flip all bits of one byte of its payload; -1: of the middle one."""
        payload = self.payload(chunk)
        if payload is not None:
            payload[:] = corrupted_bytes(payload, byte)

    def hide(self, chunk: int, reader: int) -> None:
        """From that reader, -1: from all of them: it seems to have read it."""
        for one in range(self.shape.readers) if reader < 0 else (reader,):
            self._flags[self._flag(chunk, one)] = 1

    def _flag(self, chunk: int, reader: int) -> int:
        return chunk * (1 + self.shape.readers) + 1 + reader

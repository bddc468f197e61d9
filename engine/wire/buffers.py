"""Large buffers of a message as frames of their own, behind its body (pure).

    [body][buffer 0][buffer 1] ...      in the body, in a buffer's place: msgpack ext, code what it is,
                                        data: index u32 | bytes u32 | crc32 u32, little-endian

Promises
- What is put apart comes back equal to what the body alone would have brought; less than the threshold stays in the
  body, and so does what has no form of its own (texts, maps, numbers of more than 32 bits).
- A buffer is a fresh one, or bytes that nobody can write to: it may be sent without a copy, and lives as long as the
  socket holds it.
- A body that names a buffer that did not come, that another one stands in for, or that it has named before, and a
  buffer that no body names, are a BadFrameError: what a socket may lose or a peer mix up is never taken for whole.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import msgspec

from engine.errors import BadFrameError

#: What a buffer is: bytes, or signed integers of 32 bits, little-endian.
BYTES, INTEGERS = 1, 2
#: No message has more of them: what is beyond stays in the body.
MAX_BUFFERS = 64
_PLACE = struct.Struct("<III")
_INTEGER_BYTES = 4
#: As far down as values are looked through for large ones.
_DEPTH = 8


class Apart:
    """Puts large values of one message apart. `frames` are to be sent behind its body."""

    def __init__(self, threshold: int) -> None:
        """`threshold` in bytes, at least 1."""
        self._threshold = threshold
        self.frames: list[bytes] = []

    def integers(self, values: Sequence[int]) -> Any:
        """-> what stands in the body for them"""
        if len(values) * _INTEGER_BYTES < self._threshold or len(self.frames) == MAX_BUFFERS:
            return values
        try:
            packed = array("i", values)
        except (OverflowError, TypeError):
            return values
        if sys.byteorder == "big":
            packed.byteswap()
        return self._put(INTEGERS, packed.tobytes())

    def anything(self, value: Any, depth: int = 0) -> Any:
        """The same of a value of any kind, and of what is in it."""
        if isinstance(value, bytes | bytearray | memoryview):
            large = memoryview(value).nbytes >= self._threshold and len(self.frames) < MAX_BUFFERS
            return self._put(BYTES, bytes(value)) if large else value
        if depth < _DEPTH and type(value) in (list, tuple):
            if len(value) * _INTEGER_BYTES >= self._threshold and all(type(entry) is int for entry in value):
                return self.integers(value)
            return [self.anything(entry, depth + 1) for entry in value]
        if depth < _DEPTH and type(value) is dict:
            return {key: self.anything(entry, depth + 1) for key, entry in value.items()}
        return value

    def _put(self, kind: int, buffer: bytes) -> msgspec.msgpack.Ext:
        self.frames.append(buffer)
        return msgspec.msgpack.Ext(kind, _PLACE.pack(len(self.frames) - 1, len(buffer), crc32(buffer)))


def decode_with(body: Any, buffers: Sequence[Any]) -> Any:
    """The body as plain values, each buffer in its place. Raises BadFrameError, and what msgspec raises."""
    if len(buffers) > MAX_BUFFERS:
        raise BadFrameError(f"{len(buffers)} buffers are over the limit of {MAX_BUFFERS}")
    named: set[int] = set()
    found = msgspec.msgpack.decode(body, ext_hook=_finder(buffers, named))
    if len(named) < len(buffers):
        unnamed = min(set(range(len(buffers))) - named)
        raise BadFrameError(f"buffer {unnamed} of {len(buffers)} came, and the body does not name it")
    return found


def _finder(buffers: Sequence[Any], named: set[int]) -> Callable[[int, memoryview], Any]:
    def find(kind: int, place: memoryview) -> Any:
        if kind not in (BYTES, INTEGERS) or len(place) != _PLACE.size:
            raise BadFrameError(f"the body has an extension of type {kind} and {len(place)} bytes, which is no buffer")
        index, size, checksum = _PLACE.unpack(place)
        if index >= len(buffers):
            raise BadFrameError(f"the body names buffer {index}, and {len(buffers)} came")
        if index in named:
            raise BadFrameError(f"the body names buffer {index} twice")
        named.add(index)
        buffer = memoryview(buffers[index]).cast("B")
        if len(buffer) != size:
            raise BadFrameError(f"buffer {index} has {len(buffer)} bytes, the body says {size}")
        if crc32(buffer) != checksum:
            raise BadFrameError(f"buffer {index} is not the one that the body names")
        return bytes(buffer) if kind == BYTES else _integers(index, buffer)

    return find


def _integers(index: int, buffer: memoryview) -> list[int]:
    if len(buffer) % _INTEGER_BYTES:
        raise BadFrameError(f"buffer {index} of {len(buffer)} bytes does not hold whole numbers")
    packed = array("i")
    packed.frombytes(buffer)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()

"""How an object becomes the buffers of a message, and a message the bytes of a chunk (vLLM's format).

Promises
- `decode(encode(x))` equals `x`; buffers of at least 64 KiB travel beside the pickle, uncopied: those of objects that
  support it, `bytes` and `bytearray` that are the object, and `bytes` that lie in its tuples, lists and dicts. (A list
  or dict that holds such `bytes`, and that something deep inside of it holds too, arrives as two.)
- A message of at least the chunk's size (header included) overflows: its chunk holds the flag alone, and its
  buffers travel by ZMQ as `overflow_frames`.
- Bytes that are no message are a `QueueDecodeError`, never a crash and never a longer read than the chunk.
- What a reader keeps lies in a buffer that is its object's alone; one is taken again only when all references to it are
  gone, an array's base, a view and an export counted alike.
- An overflow payload tells which message it belongs to, so a late one is never taken for another. A payload without
  that mark (from vLLM) is accepted as "unknown".

    chunk     0 | count: 2, big-endian | length: 4, big-endian | bytes | length | bytes | ...
              1                                                     overflow: the rest of the chunk is undefined
    buffer 0  the pickle, which ends with its STOP, then, if buffers are lent: "RTlent" + one byte per further buffer
    frames    buffer 0 (the pickle) | buffer 1 | ... | "RTpos" + position: 8, big-endian

A lent buffer is one of which unpickling makes a copy of its own (`bytes` of it), so that it may be read where it lies.
Unpickling stops at STOP: who does not know of loans (vLLM) finds the same objects.

Only what one process of an engine wrote for another is unpickled here; no socket bound to a network gets this far.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from engine.errors import QueueDecodeError

#: Buffers from here on are not copied into the pickle. (vLLM's writer begins at 1 MiB; its reader takes any.)
OUT_OF_BAND_BYTES = 64 << 10
#: The buffer count has two bytes.
MAX_BUFFERS = (1 << 16) - 1

#: How deep, and in containers of at most how many items, `encode` looks for large `bytes`.
_LOOK_DEPTH, _LOOK_ITEMS = 3, 16
_LOOKED_INTO = frozenset({bytes, tuple, list, dict})
_LENT = b"RTlent"
_MAX_LENGTH = (1 << 32) - 1
_HEADER_BYTES = 3
_LENGTH_BYTES = 4
_HEAD = struct.Struct(">BHI")  # flag, buffer count, length of the first buffer
_pack_head, _unpack_head = _HEAD.pack, _HEAD.unpack_from
_dumps, _loads = pickle.dumps, pickle.loads
_MARK = b"RTpos"
_MARK_BYTES = len(_MARK) + 8

#: All there is in the chunk of a message that overflows.
OVERFLOW_CHUNK: Final = (b"\x01",)


#: So many unused buffers of at most so many bytes are held for what a reader keeps. (Fresh memory of a few MiB costs a
#: page fault every 4 KiB, as much time as the copy into it.)
KEPT_BUFFERS, MAX_KEPT_BYTES = 2, 64 << 20


class _Overflow:
    def __repr__(self) -> str:
        return "OVERFLOW"


#: What `unpack` says of a chunk whose message travels by ZMQ.
OVERFLOW: Final = _Overflow()


class _Lent:
    """Stands for a large `bytes` or `bytearray` in what is pickled, and unpickles as that."""

    __slots__ = ("buffer", "kind")

    def __init__(self, data: bytes | bytearray) -> None:
        self.kind, self.buffer = type(data), pickle.PickleBuffer(data)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return self.kind, (self.buffer,)


class _HoldsItselfError(Exception):
    """A container is met inside of itself: a copy of it would hold the original."""


def _lend(obj: Any, loans: dict[int, Any], depth: int = _LOOK_DEPTH) -> Any:
    """`obj` with each large `bytes` replaced, in copies of the containers around it. `loans`: what was met, by id.

    `bytes` only: of what can be changed, somebody out of sight may hold the same one. Raises _HoldsItselfError.
    """
    kind = type(obj)
    if kind is bytes:
        if len(obj) < OUT_OF_BAND_BYTES:
            return obj
        return loans.setdefault(id(obj), _Lent(obj))
    if not depth or len(obj) > _LOOK_ITEMS:
        return obj
    if id(obj) in loans:
        if loans[id(obj)] is None:
            raise _HoldsItselfError
        return loans[id(obj)]
    loans[id(obj)] = None
    new = [_lend(item, loans, depth - 1) if type(item) in _LOOKED_INTO else item for item in _items(obj)]
    if any(one is not other for one, other in zip(_items(obj), new, strict=True)):
        loans[id(obj)] = dict(zip(obj, new, strict=True)) if kind is dict else kind(new)
    else:
        loans[id(obj)] = obj
    return loans[id(obj)]


def _items(obj: Any) -> Any:
    return obj.values() if type(obj) is dict else obj


def _has_large(obj: Any, depth: int = _LOOK_DEPTH) -> bool:
    """Whether `_lend` would find something: nearly never, so this is what has to be fast."""
    kind = type(obj)
    if kind is bytes:
        return len(obj) >= OUT_OF_BAND_BYTES
    if depth and len(obj) <= _LOOK_ITEMS:
        for item in obj.values() if kind is dict else obj:
            if type(item) in _LOOKED_INTO and item and _has_large(item, depth - 1):
                return True
    return False


def encode(obj: Any) -> list[Any]:
    """-> buffers: the pickle, then its out-of-band buffers as flat memoryviews of the object's own memory.

    Raises what `pickle` raises for an object that it cannot take.
    """
    encoded = _encoded(obj)
    return [encoded] if isinstance(encoded, bytes) else encoded


def encode_chunk(obj: Any) -> bytes | list[Any]:
    """All that a chunk holds for this object, header included; where it has large buffers, what `encode` returns."""
    encoded = _encoded(obj)
    if not isinstance(encoded, bytes):
        return encoded
    return _pack_head(0, 1, len(encoded)) + encoded if len(encoded) <= _MAX_LENGTH else [encoded]


def _encoded(obj: Any) -> bytes | list[Any]:
    """The pickle alone, or with what `encode` returns where it has large buffers."""
    kind = type(obj)
    if kind is bytes or kind is bytearray:
        if len(obj) >= OUT_OF_BAND_BYTES:
            return [_WHOLE[kind], memoryview(obj)]
    elif kind in _LOOKED_INTO and _has_large(obj):
        loans: dict[int, Any] = {}
        try:
            return _encode_buffers(_lend(obj, loans), loans)
        except _HoldsItselfError:
            return _encode_buffers(obj, {})
    met: list[pickle.PickleBuffer] = []
    pickled = _dumps(obj, 5, buffer_callback=met.append)
    if met:
        raw = [buffer.raw() for buffer in met]
        large = len(raw) < MAX_BUFFERS and min(map(len, raw)) >= OUT_OF_BAND_BYTES
        return [pickled, *raw] if large else _encode_buffers(obj, {})
    return pickled


def parts_of(packed: Sequence[Any]) -> list[Any]:
    """What `encode` made of the object of which `pack`, or `encode_chunk` if it is one buffer, made these."""
    return [packed[0][_HEAD.size:]] if len(packed) == 1 else list(packed[1::2])


def _encode_buffers(obj: Any, loans: dict[int, Any]) -> list[Any]:
    """`encode` for an object with buffers: the small ones stay in the pickle."""
    buffers: list[Any] = [b""]
    lent = bytearray()
    lending = {id(loan.buffer) for loan in loans.values() if type(loan) is _Lent}

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND_BYTES or len(buffers) >= MAX_BUFFERS:
            return True
        buffers.append(raw)
        lent.append(id(buffer) in lending)
        return False

    buffers[0] = pickle.dumps(obj, protocol=5, buffer_callback=keep_in_band)
    if any(lent):
        buffers[0] += _LENT + lent
    return buffers


#: The pickle, with its loan, of a large `bytes` or `bytearray` that is the object: always the same.
_WHOLE: Final = {whole.kind: bytes(_encode_buffers(whole, {0: whole})[0])
                 for whole in (_Lent(bytes(OUT_OF_BAND_BYTES)), _Lent(bytearray(OUT_OF_BAND_BYTES)))}
_WHOLE_KINDS: Final = {pickled: kind for kind, pickled in _WHOLE.items()}
_WHOLE_BYTES: Final = max(map(len, _WHOLE_KINDS))


def loans_of(parts: Sequence[Any]) -> Sequence[int]:
    """For each buffer after the pickle: 1 where it may be lent to `decode`, 0 where objects will keep views of it."""
    count = len(parts) - 1
    end = bytes(parts[0][-count - len(_LENT):]) if count else b""
    return end[len(_LENT):] if end.startswith(_LENT) and len(end) == len(_LENT) + count else bytes(count)


def decode(parts: Sequence[Any]) -> Any:
    """The object of these buffers; it may keep views of all but the first. Raises QueueDecodeError."""
    try:
        return _loads(parts[0]) if len(parts) == 1 else _loads(parts[0], buffers=parts[1:])
    except Exception as error:  # a pickle may raise anything, its objects' own errors included
        raise QueueDecodeError(f"a message of {len(parts)} buffers cannot be decoded: "
                               f"{type(error).__name__}: {error}") from error


def bytes_of(made: Any) -> int:
    """Of what `unpack` or an `object_taker` has made of a chunk: its buffers, or (object, bytes)."""
    return int(made[1]) if type(made) is tuple else len(made[0]) if len(made) == 1 else sum(map(len, made))


def message_bytes(parts: Sequence[Any]) -> int:
    """What these buffers take in a chunk by vLLM's count, which leaves out the flag's byte."""
    return 2 + _LENGTH_BYTES * len(parts) + sum(map(len, parts))


def is_overflow(parts: Sequence[Any], max_chunk_bytes: int) -> bool:
    """Whether these buffers go by ZMQ: they reach the chunk's size."""
    return message_bytes(parts) >= max_chunk_bytes


def pack(parts: Sequence[Any]) -> list[Any]:
    """The buffers to put one after the other into a chunk."""
    first = parts[0]
    packed = [_pack_head(0, len(parts), len(first)), first]
    for part in parts[1:]:
        packed += (len(part).to_bytes(_LENGTH_BYTES, "big"), part)
    return packed


def _slices(view: Any) -> list[Any]:
    """The buffers in a chunk that does not say OVERFLOW, uncopied (as far as `view` slices without a copy).

    Raises QueueDecodeError where the bytes are no message.
    """
    if view[0] != 0:
        raise QueueDecodeError(f"a chunk begins with {view[0]}, neither a message (0) nor an overflow (1)")
    count = view[1] << 8 | view[2]
    if not count:
        raise QueueDecodeError("a chunk has no buffers")
    offset, end, parts = _HEADER_BYTES, len(view), []
    for _ in range(count):
        begin = offset + _LENGTH_BYTES
        offset = begin + int.from_bytes(view[offset:begin], "big")
        if offset > end:
            raise QueueDecodeError(f"a buffer ends at {offset}, beyond its chunk of {end} bytes")
        parts.append(view[begin:offset])
    return parts


def unpack(view: Any) -> list[bytes] | _Overflow:
    """The buffers in a chunk, copied, or OVERFLOW. For `RingReader.try_read`. Raises QueueDecodeError."""
    flag, count, length = _unpack_head(view)
    if flag == 0 and count == 1 and length <= len(view) - _HEAD.size:  # nearly all messages
        return [bytes(view[_HEAD.size:_HEAD.size + length])]
    return OVERFLOW if flag == 1 else [bytes(part) for part in _slices(view)]


def object_taker(own: Callable[[Any], Any] = bytearray) -> Callable[[Any], Any]:
    """-> `take` for `RingReader.try_read`: makes of a chunk (object, its bytes), decoded where it lies, or OVERFLOW.

    Out-of-band buffers that are not lent are copied first: objects keep views of them, and the chunk is reused.
    (By `own`, into bytearrays, not bytes: what was writable, such as an array, stays so.) It raises QueueDecodeError.
    """
    head, begin, loads = _HEAD.unpack_from, _HEAD.size, pickle.loads

    def take(view: Any) -> Any:
        flag, count, length = head(view)
        if flag == 0 and count == 1 and length <= len(view) - begin:  # nearly all messages
            try:
                return loads(view[begin:begin + length]), length
            except Exception:
                return decode((view[begin:begin + length],)), length
        if flag == 1:
            return OVERFLOW
        parts = _slices(view)
        if count == 2 and length <= _WHOLE_BYTES and (kind := _WHOLE_KINDS.get(bytes(parts[0]))) is not None:
            return kind(parts[1]), length + len(parts[1])
        kept = [part if lent else own(part) for part, lent in zip(parts[1:], loans_of(parts), strict=True)]
        return decode([parts[0], *kept]), sum(len(part) for part in parts)

    return take


def rehearsal(take: Callable[[Any], Any]) -> Callable[[], None]:
    """-> what makes taking a message, and encoding an answer, warm: after milliseconds idle both cost tens of us."""
    chunk = memoryview(b"".join(pack(encode(("rehearsal", b"")))))

    def rehearse() -> None:
        take(chunk)
        encode_chunk(None)

    return rehearse


class ReceiveBuffers:
    """Where the buffers lie that a reader keeps. Used by one thread."""

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
        if size <= MAX_KEPT_BYTES:
            self._buffers = [buffer, *self._buffers[:KEPT_BUFFERS - 1]]
        return buffer


def _references_of_unused() -> int:
    """What `getrefcount` says in the loop above of a buffer that only the list holds; versions of Python differ."""
    counts = [sys.getrefcount(buffer) for buffer in [bytearray(1)]]
    return counts[0]


_UNUSED = _references_of_unused()


#: The single frame by which a writer says that all its readers have subscribed. No payload, nor is what ends with it.
READY_FRAME: Final = b"READY"


def ends_with_ready(frames: list[Any]) -> bool:
    """Whether it is no payload: READY_FRAME, or what an interrupted writer had sent of one and then that."""
    return bytes(frames[-1][:len(READY_FRAME) + 1]) == READY_FRAME


def overflow_frames(parts: Sequence[Any], position: int) -> list[Any]:
    """What travels by ZMQ for message number `position`."""
    return [*parts, _MARK + position.to_bytes(8, "big")]


def from_overflow_frames(frames: Sequence[Any]) -> tuple[int | None, list[Any]]:
    """-> (position, buffers). The position is None when the sender does not say. Raises QueueDecodeError."""
    if not frames:
        raise QueueDecodeError("an overflow payload has no frames")
    last = frames[-1]
    # No buffer is mistaken for the mark: those after the first are never as small as this.
    if len(frames) > 1 and len(last) == _MARK_BYTES and bytes(last[:len(_MARK)]) == _MARK:
        return int.from_bytes(last[len(_MARK):], "big"), list(frames[:-1])
    return None, list(frames)

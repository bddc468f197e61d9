"""Overflow payloads through shared memory: the socket says where, a segment beside the ring holds the bytes.

Promises
- What leaves and what arrives are the frames of `framing.overflow_frames`, in the socket's order. A loss, a delay or a
  repetition on the wire is that of the payload.
- The payload is copied before `send` returns, and copied out before `try_receive` does.
- A segment is used again when every reader has copied its payload, or must have given it up: `max_chunks` messages
  later its next flag was read. A reader that comes too late gets an empty payload, never another message's bytes.
- Where shared memory is scarce, below `SPILL_BYTES`, and while some reader may not know of this (vLLM's), the payload
  goes by the socket as it is.
- The writer unlinks its segments when it closes; those of a killed writer bear the name of its ring, for the broom.

    segment     holds: 8 | reader 0 has: 8 | reader 1 has: 8 | ... | buffer 0 | buffer 1 | ...
                numbers of messages from 1, 0 is none; buffers aligned to 64 bytes
    frame       "RTspill" | sizes of the buffers: 8 each, big-endian | "/" | name's last part

Only real sockets of local readers are wrapped so; the loops of `queue` do not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import QueueError
from engine.ipc.framing import from_overflow_frames, loans_of, overflow_frames
from engine.ipc.segment import Segment, attach_segment, create_segment
from engine.ports import Socket

#: Below this a socket is as fast.
SPILL_BYTES = 1 << 20
#: Unused segments that a writer keeps, and mappings that a reader keeps.
KEPT_FREE, KEPT_OPEN = 2, 4

_REFERENCE = b"RTspill"
_WORD_BYTES = 8
_ALIGN = 64


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Slot:
    """An opened spill segment and its words."""

    def __init__(self, segment: Segment, n_reader: int) -> None:
        self.segment = segment
        self.data = segment.memory[_aligned(_WORD_BYTES * (1 + n_reader)):]
        self.words = segment.memory[:_WORD_BYTES * (1 + n_reader)].cast("Q")

    def close(self) -> None:
        self.data.release()
        self.words.release()
        self.segment.close()


class SpillWriter:
    """A writer's overflow socket. `prefix` begins its segments' names. See `ports.Socket`.

    `all_know` says whether each reader is one of ours.
    """

    def __init__(self, inner: Socket, prefix: str, n_reader: int, max_chunks: int,
                 all_know: Callable[[], bool] = lambda: True) -> None:
        self._all_know = all_know
        self._inner, self._prefix, self._n_reader, self._max_chunks = inner, prefix, n_reader, max_chunks
        self._slots: list[_Slot] = []
        self._made = 0
        self.address, self.try_receive, self.fileno = inner.address, inner.try_receive, inner.fileno

    def send(self, frames: Sequence[Any], peer: int = 0) -> None:
        if sum(map(len, frames)) >= SPILL_BYTES:
            position, parts = from_overflow_frames(frames)
            slot = self._slot(position, sum(_aligned(len(part)) for part in parts)) \
                if position is not None and self._all_know() else None
            if slot is not None:
                offset, sizes = 0, []
                for part in parts:
                    size = len(part)
                    slot.data[offset:offset + size] = part
                    sizes.append(size.to_bytes(_WORD_BYTES, "big"))
                    offset += _aligned(size)
                slot.words[0] = position + 1
                name = slot.segment.name[len(self._prefix):]
                frames = overflow_frames([b"".join((_REFERENCE, *sizes, b"/", name.encode()))], position)
        # The socket sends later what the caller may change now.
        frames = [frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]
        self._inner.send(frames, peer)

    def close(self, linger_s: float | None = None) -> None:
        self._inner.close(linger_s)
        for slot in self._slots:
            slot.segment.unlink()
            slot.close()
        self._slots.clear()

    def _slot(self, position: int, size: int) -> _Slot | None:
        free = [slot for slot in self._slots if self._is_free(slot, position)]
        fitting = [slot for slot in free if size <= len(slot.data) <= 4 * size]
        for slot in [slot for slot in free if slot not in fitting][KEPT_FREE:]:
            self._slots.remove(slot)
            slot.segment.unlink()
            slot.close()
        if fitting:
            return fitting[0]
        self._made += 1
        try:
            segment = create_segment(f"{self._prefix}{self._made}", _aligned(_WORD_BYTES * (1 + self._n_reader)) + size)
        except OSError:  # no room (SpaceError) or no /dev/shm: the socket needs neither
            return None
        self._slots.append(slot := _Slot(segment, self._n_reader))
        return slot

    def _is_free(self, slot: _Slot, position: int) -> bool:
        holds, *copied = slot.words
        return all(number == holds for number in copied) or holds - 1 < position - self._max_chunks


class SpillReader:
    """The overflow socket of reader number `reader`. `own` makes a writable copy of a view. See `ports.Socket`."""

    def __init__(self, inner: Socket, prefix: str, n_reader: int, reader: int, own: Callable[[Any], Any]) -> None:
        self._inner, self._prefix, self._n_reader, self._reader, self._own = inner, prefix, n_reader, reader, own
        self._open: dict[str, _Slot] = {}
        self.address, self.send, self.fileno = inner.address, inner.send, inner.fileno

    def try_receive(self) -> tuple[Any, list[Any]] | None:
        arrived = self._inner.try_receive()
        if arrived is None or len(arrived[1]) != 2 or bytes(arrived[1][0][:len(_REFERENCE)]) != _REFERENCE:
            return arrived
        peer, (reference, mark) = arrived
        position, _ = from_overflow_frames([reference, mark])
        parts = [b""]  # cannot be decoded: whose bytes are gone counts as damaged
        with contextlib.suppress(QueueError, ValueError, OSError):
            parts = self._copy(bytes(reference), position)
        return peer, [*parts, mark]

    def close(self, linger_s: float | None = None) -> None:
        self._inner.close(linger_s)
        for slot in self._open.values():
            slot.close()
        self._open.clear()

    def _copy(self, reference: bytes, position: int | None) -> list[Any]:
        table, _, name = reference[len(_REFERENCE):].rpartition(b"/")
        sizes = [int.from_bytes(table[k:k + _WORD_BYTES], "big") for k in range(0, len(table), _WORD_BYTES)]
        if position is None or len(table) % _WORD_BYTES or not name.isdigit():
            raise ValueError("no reference to a spilled payload")
        slot = self._slot(self._prefix + name.decode())
        if slot.words[0] != position + 1:
            raise ValueError("the payload has been replaced")
        views, offset = [], 0
        for size in sizes:
            if offset + size > len(slot.data):
                raise ValueError("the payload is longer than its segment")
            views.append(slot.data[offset:offset + size])
            offset += _aligned(size)
        pickled = bytes(views[0])
        lent = loans_of([pickled, *views[1:]])
        parts = [pickled, *(bytes(view) if lends else self._own(view)
                            for view, lends in zip(views[1:], lent, strict=True))]
        if slot.words[0] != position + 1:
            raise ValueError("the payload was replaced while it was copied")
        slot.words[1 + self._reader] = position + 1
        return parts

    def _slot(self, name: str) -> _Slot:
        if name not in self._open:
            while len(self._open) >= KEPT_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = _Slot(attach_segment(name), self._n_reader)
        return self._open[name]

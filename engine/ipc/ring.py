"""The shared-memory ring: one writer, every reader reads every message, no lock.

Promises
- Every reader sees an exact prefix of what was written: whole messages, in order, each once, wherever any
  process dies; also under store reordering (TSO, PSO), as far as `fence` is a full fence.
- No chunk is rewritten before every reader has read it.
- Nothing here waits. `try_write` and `try_read` answer at once, and an end that is refused stays on its slot:
  the slot *is* the queue position, so looking for another free one would reorder or lose messages.
- Nothing is remembered before the last store: who has whose place, and `position`. So either operation can be run
  again from recorded loads, stopped between any two stores, or abandoned by an exception (of the memory; out of a
  signal handler, which runs where a function is called), and it has published nothing that its last store does not.

Layout of a segment (vLLM's, then ours; offsets in bytes)

    0                  chunk 0 | chunk 1 | ...                     max_chunks x max_chunk_bytes
    metadata_offset    [written r0 r1 ...] [written r0 r1 ...]     max_chunks x (1 + n_reader), one byte each
    readers_bell       word, sleepers: readers sleep on it         4 + 4 bytes, 64-byte aligned
    writer_bell        word, sleepers: the writer sleeps on it     4 + 4 bytes, on its own cache line
    presence           [writer] [r0] [r1] ...                      pid, has left, start time: 4 + 4 + 8 bytes each
    epoch              a random number, also in the handle         8 bytes

States of a chunk (written, flags of the readers)

    0 ...      free: never written, or being written. No reader looks at its data.
    1 0..0     published: each reader may take it once and then sets its own flag.
    1 1..1     read by all: the writer may take it back.
    1 mixed    in use: the writer finds the ring full, readers with 0 may take it.

`written` also says where the message lies: 1 at the place of its own chunk, 2 + k at that of chunk k. A large message
takes the place of the last chunk that all have read, whose bytes are still in everybody's cache, and that chunk gets
its place in exchange. So each chunk has one place, and a place belongs to one chunk. vLLM's readers take every
`written` for 1: only a writer whose readers are all ours moves messages (`RingWriter.moves_from`).

Stores of a write, in order, by the names that plans use

    reset      written = 0
               fence      the reset of the reader flags must not overtake it: a reader that saw its flag
                          cleared beside a stale written = 1 would take the chunk's old message again
    data       the message, at the start of its place
    readers    all reader flags = 0
               fence      nothing above may be seen later than
    written    written = 1, or 2 + k
               fence      seen before any doorbell

Store of a read: `read` sets the reader's own flag, after the message was taken, between two fences. A reader
looks at its own flag first and at `written` second; in the other order it could combine a stale written = 1
with a flag that the next write has just cleared, before that write's data is visible.

Each of these stores is one slice assignment. Only a message above `GATHER_BYTES` puts its data down in several
(large buffers are not copied together first); the first of them, and no other, begins at the start of a chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from engine.errors import QueueDecodeError

CACHE_LINE_BYTES = 64
PRESENCE_BYTES = 16
EPOCH_BYTES = 8
#: Up to here the parts of a message are joined and stored at once.
GATHER_BYTES = 64 << 10
#: From here on a place that all have just read is better than the next one. (Smaller messages stay in the caches of
#: the single cores, which would only take such a place from one another.)
MOVE_BYTES = 1 << 20
#: Rings of more chunks do not move messages: `written` is one byte, and with its bits flipped it must name no chunk.
MAX_MOVING_CHUNKS = 125
#: Lengths within a chunk are four bytes.
MAX_CHUNK_BYTES = (1 << 32) - 1

_MOVED = 2  # plus the chunk at whose place a message lies


class _Empty:
    def __repr__(self) -> str:
        return "EMPTY"

    def __bool__(self) -> bool:
        return False


#: What `try_read` returns when no message is there.
EMPTY: Final = _Empty()


class RingLayout(msgspec.Struct, frozen=True):
    """Where everything is. Raises ValueError for sizes that make no ring."""

    n_reader: int
    max_chunk_bytes: int
    max_chunks: int

    def __post_init__(self) -> None:
        if self.n_reader < 1 or self.max_chunks < 1 or not 8 <= self.max_chunk_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(f"a ring needs at least 1 reader, 1 chunk and 8 to {MAX_CHUNK_BYTES} bytes per chunk, "
                             f"got {self.n_reader}, {self.max_chunks} and {self.max_chunk_bytes}")

    @property
    def metadata_bytes(self) -> int:
        """Of one chunk: its written flag and its readers' flags."""
        return 1 + self.n_reader

    @property
    def metadata_offset(self) -> int:
        return self.max_chunks * self.max_chunk_bytes

    @property
    def readers_bell_offset(self) -> int:
        """The word on which readers sleep; the writer rings it."""
        end = self.metadata_offset + self.max_chunks * self.metadata_bytes
        return -(-end // CACHE_LINE_BYTES) * CACHE_LINE_BYTES

    @property
    def writer_bell_offset(self) -> int:
        """The word on which the writer sleeps when the ring is full; readers ring it."""
        return self.readers_bell_offset + CACHE_LINE_BYTES

    @property
    def vllm_bytes(self) -> int:
        """The part of the segment that vLLM knows."""
        return self.metadata_offset + self.max_chunks * self.metadata_bytes

    def presence_of(self, reader: int | None) -> slice:
        """Where the writer (None) or a reader says who it is. The ring itself does not look there."""
        begin = self.writer_bell_offset + CACHE_LINE_BYTES + PRESENCE_BYTES * (0 if reader is None else 1 + reader)
        return slice(begin, begin + PRESENCE_BYTES)

    @property
    def epoch(self) -> slice:
        """Where the number is by which a segment and a handle know that they belong together."""
        begin = self.presence_of(self.n_reader).start
        return slice(begin, begin + EPOCH_BYTES)

    @property
    def total_bytes(self) -> int:
        return -(-int(self.epoch.stop) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES

    def data_offset(self, chunk: int) -> int:
        return chunk * self.max_chunk_bytes

    def written_offset(self, chunk: int) -> int:
        return self.metadata_offset + chunk * self.metadata_bytes

    def reader_offset(self, chunk: int, reader: int) -> int:
        return self.written_offset(chunk) + 1 + reader

    def store_name(self, offset: int) -> str:
        """What a store at `offset` changes: data, written:<chunk>, reader:<k>:<chunk>, bell:readers,
        bell:writer or presence.

        A write's `readers` store begins at reader 0's flag and covers all of them.
        """
        if not 0 <= offset < self.total_bytes:
            raise ValueError(f"offset {offset} is outside of the ring's {self.total_bytes} bytes")
        if offset < self.metadata_offset:
            return "data"
        if offset < self.vllm_bytes:
            chunk, flag = divmod(offset - self.metadata_offset, self.metadata_bytes)
            return f"reader:{flag - 1}:{chunk}" if flag else f"written:{chunk}"
        if offset >= self.writer_bell_offset + CACHE_LINE_BYTES:
            return "presence"
        return "bell:writer" if offset >= self.writer_bell_offset else "bell:readers"

    def starts_message(self, offset: int) -> bool:
        """Whether a data store at `offset` is the first one of its message."""
        return offset < self.metadata_offset and offset % self.max_chunk_bytes == 0

    def _flags_of(self, chunk: int) -> slice:
        return slice(self.written_offset(chunk), self.written_offset(chunk + 1))


@lru_cache(maxsize=64)
def _as_written(layout: RingLayout) -> tuple[tuple[slice, int, slice], ...]:
    ends = [(layout.written_offset(chunk), layout.written_offset(chunk + 1)) for chunk in range(layout.max_chunks)]
    return tuple((slice(begin, end), begin, slice(begin + 1, end)) for begin, end in ends)


@lru_cache(maxsize=64)
def _as_read(layout: RingLayout, reader: int) -> tuple[tuple[slice, int, int], ...]:
    return tuple((slice(layout.data_offset(chunk), layout.data_offset(chunk + 1)), layout.written_offset(chunk),
                  layout.reader_offset(chunk, reader)) for chunk in range(layout.max_chunks))


class RingWriter:
    """The one end that writes. `memory` is an `engine.ports.Memory` of at least `layout.total_bytes`."""

    def __init__(self, layout: RingLayout, memory: Any, fence: Callable[[], None]) -> None:
        self.layout = layout
        self._memory = memory
        self._fence = fence
        self._position = 0
        self._max_chunks = layout.max_chunks
        self._max_chunk_bytes = layout.max_chunk_bytes
        #: Of each chunk: all flags, its written flag, the readers' flags.
        self._chunks = _as_written(layout)
        #: Of each chunk: where its messages begin, and what `written` says of that.
        self._places = tuple((layout.data_offset(chunk), 1) for chunk in range(layout.max_chunks))
        self._unread = bytes(layout.n_reader)
        #: Messages of so many bytes or more may lie at another chunk's place. Every reader must know of that.
        self.moves_from = sys.maxsize
        self._room_until = 0  # messages before this one have room

    @property
    def position(self) -> int:
        """The number of the next message, from 0."""
        return self._position

    @property
    def has_room(self) -> bool:
        """Whether `free` would say so without a look: room that was seen stays."""
        return self._position < self._room_until

    def free(self) -> bool:
        """Whether `try_write` would write now."""
        if self._position < self._room_until:
            return True
        # Readers read in turn: where half of the ring further on all have read, they have so until there.
        for position in (self._position + self._max_chunks // 2, self._position):
            if self._takes(position):
                self._room_until = position + 1
                return True
        return False

    def _takes(self, position: int) -> bool:
        """Whether this message's chunk has nothing that somebody still has to read."""
        flags = bytes(self._memory[self._chunks[position % self._max_chunks][0]])
        return not flags[0] or 0 not in flags

    def try_write(self, parts: Sequence[Any], before: Callable[[Any], object] = bool) -> bool:
        """Publish the concatenation of `parts` (flat buffers of bytes) as the next message, or do nothing.

        `before` is given `parts` once there is room, before the first store. -> False when some reader still has to
        read the chunk. Raises ValueError if it cannot fit a chunk.
        """
        memory, position = self._memory, self._position
        chunk = position % self._max_chunks
        all_flags, written, readers = self._chunks[chunk]
        flags = bytes(memory[all_flags])
        if flags[0] and 0 in flags:
            return False
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > self._max_chunk_bytes:
            raise ValueError(f"{size} bytes do not fit into a chunk of {self._max_chunk_bytes}")
        before(parts)
        places = self._places if size < self.moves_from else self._exchanged(chunk)
        offset, place = places[chunk]
        self._fence()  # the readers' last loads of the old message are over
        memory[written] = 0
        self._fence()
        if size <= GATHER_BYTES:
            memory[offset:offset + size] = parts[0] if len(parts) == 1 else b"".join(parts)
        else:
            for part in parts:
                memory[offset:offset + len(part)] = part
                offset += len(part)
        memory[readers] = self._unread
        self._fence()
        memory[written] = place
        self._places = places
        self._position = position + 1
        self._fence()
        return True

    def _exchanged(self, chunk: int) -> tuple[tuple[int, int], ...]:
        """The places with that of this chunk, which comes next, and of the last one that all have read exchanged."""
        if self._max_chunks > MAX_MOVING_CHUNKS:
            return self._places
        for back in range(1, min(self._max_chunks, self._position + 1)):
            other = (self._position - back) % self._max_chunks
            flags = bytes(self._memory[self._chunks[other][0]])
            if 0 not in flags:
                places = list(self._places)
                places[chunk], places[other] = self._at(chunk, places[other][0]), self._at(other, places[chunk][0])
                return tuple(places)
        return self._places

    def _at(self, chunk: int, offset: int) -> tuple[int, int]:
        """What `_places` holds of a chunk whose messages begin at `offset`."""
        owner = offset // self._max_chunk_bytes
        return offset, 1 if owner == chunk else _MOVED + owner

    def depth(self) -> int:
        """How many messages wait for a reader."""
        flags = [bytes(self._memory[where]) for where, *_ in self._chunks]
        return sum(1 for chunk in flags if chunk[0] and 0 in chunk)

    def check_integrity(self) -> list[str]:
        """What only a bug or a stray write can have done to the flags. -> sentences, empty when all is well."""
        errors = _flag_errors(self.layout, self._memory)
        for chunk in range(self.layout.max_chunks):
            written = self._memory[self._chunks[chunk][1]]
            used, next_one = chunk < self._position, chunk == self._position % self._max_chunks
            if bool(written) != used and not next_one:  # a write may be abandoned there
                errors.append(f"chunk {chunk}: written is {written} after {self._position} messages")
        return errors


class RingReader:
    """One of the ends that read. `reader` is its number, from 0."""

    def __init__(self, layout: RingLayout, memory: Any, fence: Callable[[], None], reader: int) -> None:
        if not 0 <= reader < layout.n_reader:
            raise ValueError(f"reader {reader} is not one of this ring's {layout.n_reader}")
        self.layout = layout
        self.reader = reader
        self._memory = memory
        self._fence = fence
        self._position = 0
        self._max_chunks = layout.max_chunks
        #: Of each chunk: its data, its written flag, this reader's flag.
        self._chunks = _as_read(layout, reader)

    @property
    def position(self) -> int:
        """The number of the next message, from 0."""
        return self._position

    def try_read(self, take: Callable[[Any], Any]) -> Any:
        """Take the next message out of the ring, or nothing. -> what `take` returned, or EMPTY.

        `take` is given a view of the whole chunk and must copy or decode what it keeps: when it returns, the
        writer may reuse the bytes. If it raises, the chunk is freed and the message counts as read.
        """
        memory = self._memory
        data, written, own = self._chunks[self._position % self._max_chunks]
        if memory[own]:
            return EMPTY
        self._fence()  # our own flag first, `written` second
        place = memory[written]
        if not place:
            return EMPTY
        self._fence()  # `written` first, data second
        try:
            taken = take(memory[data if place == 1 else self._moved(place)])
        except Exception:
            # Not for BaseException: a process on its way out must not mark as read what it did not take.
            self._free(own)
            raise
        self._free(own)
        return taken

    def _free(self, own: int) -> None:
        self._fence()  # all loads of the data are over
        self._memory[own] = 1
        self._position += 1
        self._fence()  # seen before any doorbell

    def _moved(self, place: int) -> slice:
        owner = place - _MOVED
        if owner >= min(self._max_chunks, MAX_MOVING_CHUNKS):
            raise QueueDecodeError(f"the flag of message {self._position} is {place}: no chunk of this ring has it")
        return self._chunks[owner][0]

    def ready(self) -> bool:
        """Whether `try_read` would take a message now."""
        _, written, own = self._chunks[self._position % self._max_chunks]
        return bool(self._memory[own] == 0 and self._memory[written] != 0)

    def writer_may_wait(self) -> bool:
        """Whether the writer can be waiting for the message that was read last. After a full fence, see `ipc.wait`.

        It waits for that chunk once it has written the one before. Either it has, or it has not looked yet, and will
        find the chunk read: its own full fence is in the bell that it rings for each message.
        """
        memory, (_, written, own) = self._memory, self._chunks[(self._position - 2) % self._max_chunks]
        return self._max_chunks == 1 or (memory[written] != 0 and memory[own] == 0)

    def depth(self) -> int:
        """How many messages wait for this reader."""
        memory = self._memory
        return sum(1 for _, written, own in self._chunks if memory[written] and not memory[own])

    def check_integrity(self) -> list[str]:
        """What only a bug or a stray write can have done to the flags. -> sentences, empty when all is well."""
        errors = _flag_errors(self.layout, self._memory)
        chunk = self._position % self._max_chunks
        if self._position < self._max_chunks and self._memory[self._chunks[chunk][2]]:
            errors.append(f"chunk {chunk}: reader {self.reader} has read message {self._position} before reaching it")
        return errors


def _flag_errors(layout: RingLayout, memory: Any) -> list[str]:
    return [
        f"chunk {chunk}: flags are {list(flags)}, the first must be at most {_MOVED} + a chunk, the others 0 or 1"
        for chunk in range(layout.max_chunks)
        if (flags := bytes(memory[layout._flags_of(chunk)]))[0] >= _MOVED + layout.max_chunks or max(flags[1:]) > 1
    ]

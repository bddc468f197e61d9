"""What a program asks of the parts of a queue before there is one, and what it must be told (pure).

Places, sizes and offsets are those of docs/RING.md, and of a handle as `engine.ipc.handle` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from engine.config import RingConfig
from engine.effects import Close, Loop, Now, Observe, OpenSocket, Receive
from engine.errors import PeerDeadError, QueueError, QueueTimeoutError
from engine.ipc.framing import from_overflow_frames
from engine.ipc.handle import Handle, check_rank, remote_ranks, writer_bell_of
from engine.ipc.presence import ALIVE, LEFT, TAKEN, TOPIC
from engine.ipc.queue import QueueReader
from engine.ipc.readiness import look_at_remotes
from engine.ipc.remote import reader_socket
from engine.ipc.ring import MAX_CHUNK_BYTES, MAX_MOVING_CHUNKS, RingLayout, RingReader, RingWriter
from scenarios.lab.queue_loops import no_edge

SEGMENT = "queue"
KEYS = ("writer", "reader", "reader's")
REFUSED = "refused"
_LINE_BYTES = 64
FAR_ADDRESS = "ipc:///run/far.ipc"
#: The program's patience, longer than any of its parts may take; how long a guest stays.
PATIENCE_S, SHORT_VISIT_S = 60.0, 0.03
UNKNOWN_RANK = 99


class Asked(NamedTuple):
    """A question in words, what it is answered with, and what it should be."""

    words: str
    answer: Any
    wanted: Any


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (QueueError, ValueError) as error:
        return f"{REFUSED} without keys" if "CURVE" in str(error) else REFUSED


def questions(ring: RingConfig, local: list[int]) -> Iterator[Asked]:
    """Of a queue with these local readers."""
    for words, ask, wanted in (*_places(ring, local), *_sizes(), *_stores(), *_ends(), *_moved()):
        yield Asked(words, _answer(ask), wanted)


_Question = tuple[str, Callable[[], Any], Any]


def _places(ring: RingConfig, local: list[int]) -> Iterator[_Question]:
    """By a handle a rank is led to its own place; nobody by a network without keys."""
    far = [rank for rank in range(len(local) + 2) if rank not in local][:2]
    yield "the ranks of two on other hosts", lambda: remote_ranks(local, 2, None), far
    yield "a rank of its own choice", lambda: remote_ranks(local, 1, [9]), [9]
    buffer = (len(local), ring.max_chunk_bytes, ring.max_chunks, SEGMENT)
    whole: dict[str, Any] = {
        "local_reader_ranks": local, "buffer_handle": buffer, "remote_reader_ranks": far,
        "remote_subscribe_addr": "tcp://far:1", "remote_keys": KEYS}
    led, no_keys = None, f"{REFUSED} without keys"
    flags = ring.max_chunks * ring.max_chunk_bytes
    bell = (SEGMENT, -(-(flags + ring.max_chunks * (1 + len(local))) // _LINE_BYTES) * _LINE_BYTES + _LINE_BYTES)
    for lacks, here, there, its_bell in (("", led, led, bell), ("remote_keys", led, no_keys, bell),
                                         ("remote_subscribe_addr", led, REFUSED, bell),
                                         ("buffer_handle", REFUSED, led, REFUSED)):
        handle = Handle(**{name: value for name, value in whole.items() if name != lacks})
        for rank, wanted in ((local[0], here), (far[0], there), (99, REFUSED)):
            yield f"the place of rank {rank} by a handle without {lacks or 'nothing'}", _led(handle, rank), wanted
        yield f"the writer's bell by a handle without {lacks or 'nothing'}", _bell(handle), its_bell


def _led(handle: Handle, rank: int) -> Callable[[], Any]:
    return lambda: check_rank(handle, rank)


def _bell(handle: Handle) -> Callable[[], Any]:
    return lambda: writer_bell_of(handle)


def _sizes() -> Iterator[_Question]:
    """Which sizes make a ring."""
    for sizes, wanted in {(1, 8, 1): 3, (2, MAX_CHUNK_BYTES, 3): 3, (0, 8, 1): REFUSED, (1, 8, 0): REFUSED,
                          (1, 7, 1): REFUSED, (1, MAX_CHUNK_BYTES + 1, 1): REFUSED}.items():
        yield f"a ring of {sizes}", _ring(*sizes), wanted


def _ring(*sizes: int) -> Callable[[], Any]:
    return lambda: len((RingLayout(*sizes).n_reader, *sizes[1:]))


def _stores() -> Iterator[_Question]:
    """What a store changes, by its place in a ring of two readers, and three chunks of 64 bytes."""
    layout = RingLayout(2, 64, 3)
    names = {0: "data", 191: "data", 192: "written:0", 193: "reader:0:0", 194: "reader:1:0", 195: "written:1",
             200: "reader:1:2", 256: "bell:readers", 319: "bell:readers", 320: "bell:writer", 383: "bell:writer",
             384: "presence", 447: "presence", 448: REFUSED, -1: REFUSED}
    for offset, name in names.items():
        yield f"what lies at {offset}", _named(layout, offset), name
    for offset, first in {0: True, 1: False, 64: True, 128: True, 192: False, 256: False}.items():
        yield f"whether a message begins at {offset}", _begins(layout, offset), first


def _named(layout: RingLayout, offset: int) -> Callable[[], Any]:
    return lambda: layout.store_name(offset)


def _begins(layout: RingLayout, offset: int) -> Callable[[], Any]:
    return lambda: layout.starts_message(offset)


def _ends() -> Iterator[_Question]:
    """What an end refuses."""
    layout = RingLayout(2, 64, 3)
    memory: Any = memoryview(bytearray(layout.total_bytes))
    fence: Any = bool
    yield "a reader 2 of two", lambda: RingReader(layout, memory, fence, 2), REFUSED
    yield "a reader -1 of two", lambda: RingReader(layout, memory, fence, -1), REFUSED
    yield "the last reader of two", lambda: RingReader(layout, memory, fence, 1).reader, 1
    yield "a message of a chunk and a byte", lambda: RingWriter(layout, memory, fence).try_write([bytes(65)]), REFUSED
    yield "a message of a chunk", lambda: RingWriter(layout, memory, fence).try_write([bytes(64)]), True
    other: Any = memoryview(bytearray(layout.total_bytes))
    full, given = RingWriter(layout, other, fence), list[Any]()
    yield "four messages for three chunks", lambda: [full.try_write([b"%d" % n], given.append) for n in range(4)], [
        True, True, True, False]
    yield "how many of them wait for its readers", full.depth, 3
    yield "what was told before each", lambda: [list(map(bytes, parts)) for parts in given], [[b"0"], [b"1"], [b"2"]]
    yield "what stands there", lambda: [bytes(other[chunk * 64:chunk * 64 + 1]) for chunk in range(3)], [
        b"0", b"1", b"2"]
    yield "a payload without frames", lambda: from_overflow_frames([]), REFUSED


def _moved() -> Iterator[_Question]:
    """A message lies where its flag says, if that is a chunk of its ring. Rings of too many chunks move none."""
    layout = RingLayout(1, 8, 3)
    for flag, wanted in {1: b"0", 2: b"0", 4: b"2", 5: REFUSED}.items():
        yield f"what is read by a flag of {flag}", _read_by(layout, flag), wanted
    for chunks, moves in {MAX_MOVING_CHUNKS: True, MAX_MOVING_CHUNKS + 1: False}.items():
        yield f"two rounds of a ring of {chunks} chunks", _two_rounds(chunks, 0), [moves, True]
    yield "two rounds, and one reader is behind the other", _two_rounds(4, 0, 1), [True, True]


def _read_by(layout: RingLayout, flag: int) -> Callable[[], Any]:
    memory: Any = memoryview(bytearray(layout.total_bytes))
    for chunk in range(layout.max_chunks):
        memory[layout.data_offset(chunk)] = ord("0") + chunk
    memory[layout.written_offset(0)] = flag
    fence: Any = bool
    return lambda: RingReader(layout, memory, fence, 0).try_read(lambda view: bytes(view[:1]))


def _two_rounds(chunks: int, *behind: int) -> Callable[[], Any]:
    """-> whether some messages lay at the place of another chunk, and whether all were read as they were written

    `behind`: of each reader, how many messages it leaves to be read.
    """
    layout = RingLayout(len(behind), 8, chunks)
    memory: Any = memoryview(bytearray(layout.total_bytes))
    fence: Any = bool
    writer, readers = RingWriter(layout, memory, fence), [
        (RingReader(layout, memory, fence, reader), late) for reader, late in enumerate(behind)]
    writer.moves_from = 8

    def ask() -> list[bool]:
        wanted, moved = [b"%08d" % number for number in range(2 * chunks)], False
        read = [list[bytes]() for _ in readers]
        for number, message in enumerate(wanted):
            writer.try_write([message])
            moved = moved or memory[layout.written_offset((writer.position - 1) % chunks)] > 1
            for (reader, late), taken in zip(readers, read, strict=True):
                if number >= late:
                    taken.append(reader.try_read(bytes))
        return [moved, read == [wanted[:len(wanted) - late] for late in behind]]

    return ask


def finds_nothing(queue: QueueReader) -> Loop[None]:
    """An expired deadline looks once."""
    before, now = queue.stats.waits, (yield Now())
    try:
        answer = yield from queue.dequeue(now)
    except QueueTimeoutError as error:
        answer = [type(error).__name__, queue.stats.waits - before, (yield Now()) - now]
    yield Observe("queue-asked", {"words": "what is there by now", "answer": answer,
                                  "wanted": ["QueueTimeoutError", 0, 0.0]})


def damages(ring: RingConfig, memory: Any, readers: int, position: int, me: int | None) -> list[
        tuple[str, int, int, bool]]:
    """What may stand in a ring whose end `me` (None: its writer) has come to `position`. -> in words, the place, what
    stands there then, and whether that is damage"""
    flags = ring.max_chunks * ring.max_chunk_bytes
    next_one = flags + position % ring.max_chunks * (1 + readers)
    another = flags + (position + 1) % ring.max_chunks * (1 + readers)
    found = [("the flag of a chunk names no chunk", another, 2 + ring.max_chunks, True),
             ("the flag of a chunk names the last chunk", next_one, 1 + ring.max_chunks, False),
             ("the first reader's flag is neither 0 nor 1", next_one + 1, 2, True),
             ("the last reader's flag is neither 0 nor 1", another + readers, 2, True)]
    if me is None and another != next_one:
        found.append(("the flag of a chunk is turned", another, int(not memory[another]), True))
    if me is None:
        found.append(("a write is abandoned", next_one, int(not memory[next_one]), False))
    elif position < ring.max_chunks:
        found.append(("it has read what it has not come to", next_one + 1 + me, 1, True))
    return found


def sees_who_leaves(stage: Any, queue: Any) -> Loop[None]:
    """When all have read all, the last reader leaves; and one more object is refused, for which there is no socket."""
    presence, readers = queue.readers.presence, stage.play.readers
    yield from stage.until(lambda: len(stage.done) == readers)
    for rank in range(readers):
        wanted = LEFT if rank == readers - 1 else ALIVE
        answer = yield from presence.state(rank)
        yield Observe("queue-asked", {"words": f"the state of reader {rank}", "answer": answer, "wanted": wanted})
    try:
        yield from presence.check()
        why = ""
    except PeerDeadError as error:
        why = str(error)
    yield Observe("queue-asked", {"words": "who has left", "answer": why,
                                  "wanted": f"{queue.name}: the reader of rank {readers - 1} was shut down"})
    outbox, queue.overflow_outbox = queue.overflow_outbox, None
    before = queue.position
    try:
        yield from queue.enqueue([bytes(stage.play.ring.max_chunk_bytes)], (yield Now()) + stage.bounds.rpc_s)
        why = ""
    except QueueError as error:
        why = type(error).__name__
    yield Observe("queue-asked", {"words": "a large object without a socket for it", "answer": [why, queue.position],
                                  "wanted": ["QueueError", before]})
    queue.overflow_outbox = outbox


# -- guests, whom nobody has given a place ---------------------------------------------------------------------------


def guests(stage: Any, after_s: float) -> Loop[None]:
    """Come while the ends find each other, and while objects are put in, as ranks that there are not, and as one that
    is there already, who is told so. Whoever leaves again is missed by nobody. Each object comes once."""
    mine = stage.far_spec.readers[0].index
    yield from stage.until(lambda: stage.handle is not None)
    yield from _visit("early", UNKNOWN_RANK)
    yield from stage.until(lambda: False, SHORT_VISIT_S)
    yield Close()
    yield from stage.until(lambda: False, after_s)  # when all are there, and objects are put in
    yield from _visit("second", mine)
    yield from _visit("short", UNKNOWN_RANK)
    heard = yield from _hears("second", lambda: False, SHORT_VISIT_S)
    yield Close()
    yield Observe("queue-asked", {"words": "what the second of a rank is told",
                                  "answer": [one for one in heard if not one.isdigit()],
                                  "wanted": [(TAKEN + _topic("second", mine)).decode()]})
    yield from _visit("long", UNKNOWN_RANK)
    heard = yield from _hears("long", lambda: len(stage.done) > stage.play.readers, PATIENCE_S)
    yield Close()
    yield Observe("queue-asked", {"words": "what a guest hears more than once",
                                  "answer": sorted({one for one in heard if heard.count(one) > 1}), "wanted": []})
    yield Observe("queue-asked", {"words": "whether a guest hears objects", "answer": len(heard) > 3, "wanted": True})


def _topic(name: str, rank: int) -> bytes:
    return b"%s%d:%s" % (TOPIC, rank, name.encode())


def _visit(name: str, rank: int) -> Loop[None]:
    yield OpenSocket(no_edge(reader_socket(name, FAR_ADDRESS, _topic(name, rank), KEYS)))


def _hears(name: str, enough: Callable[[], bool], at_most_s: float) -> Loop[list[str]]:
    """Numbers of messages, and what else is told to everybody."""
    heard, until = list[str](), (yield Now()) + at_most_s
    while not enough() and (now := (yield Now())) < until:
        arrived = yield Receive((name,), min(until, now + SHORT_VISIT_S))
        if arrived is not None:
            frames = arrived[2]
            heard.append(str(from_overflow_frames(frames)[0]) if len(frames) > 1 else bytes(frames[0]).decode())
    return heard


def sees_who_left_from_afar(stage: Any, queue: Any) -> Loop[None]:
    """When all have read all, the one on another host leaves."""
    yield from stage.until(lambda: len(stage.done) == stage.play.readers)
    yield from stage.until(lambda: False, SHORT_VISIT_S)
    try:
        yield from look_at_remotes(queue.remotes, queue.remote_outbox)
        why = ""
    except PeerDeadError as error:
        why = str(error)
    rank = stage.far_spec.readers[0].index
    yield Observe("queue-asked", {"words": "who has left on another host", "answer": why,
                                  "wanted": f"{queue.name}: the remote reader of rank {rank} is gone"})

"""A program that has a `MessageQueue` without an engine, its ends in one process: how they are opened, refused, waited
at, broken off and ended.

What goes through a queue is the matter of the plays of `scenarios.programs.queue_user`.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from engine.errors import PeerDeadError, QueueCancelledError, QueueError, QueueTimeoutError, SpaceError
from engine.ipc.message_queue import MessageQueue
from engine.ipc.notify import NotifySocket
from engine.ipc.segment import FOLDER
from engine.ipc.spill import KEPT_FREE, KEPT_OPEN, SPILL_BYTES
from scenarios.programs.asking import (
    PATIENCE_S,
    Asking,
    held,
    interrupting,
    is_mapped,
    no_more,
    nobodys,
    until,
)
from scenarios.programs.queues.opening import (
    CHUNK_BYTES,
    CHUNKS,
    LARGE,
    LOOPBACK,
    SOON_S,
    WAIT_S,
    after,
    beside,
    ended,
    made,
    nothing,
    opened,
)
from scenarios.programs.queues.waits import ask_how_it_waits, ask_of_bells


def ask_queues(ask: Asking) -> None:
    with opened() as (writer, reader):  # what ZMQ keeps for a process, from its first large frame on
        writer.enqueue(b"x" * LARGE, PATIENCE_S)
        reader.dequeue(PATIENCE_S)
    before = held()
    ask_how_it_waits(ask)
    ask_of_bells(ask)
    _counts(ask)
    _is_broken_off(ask)
    _is_alone_with_its_end(ask)
    _has_gone(ask)
    _has_died(ask)
    _spills(ask)
    _is_refused(ask)
    _leaves_nothing(ask)
    gc.collect()
    ask("what is left of all queues", lambda: no_more(before), True)


def _counts(ask: Asking) -> None:
    """What either end says of itself is of then, and does not change with it."""
    with opened() as (writer, reader):
        before = [end.stats() for end in (writer, reader)]
        for number in range(2):
            writer.enqueue(number, PATIENCE_S)
            reader.dequeue(PATIENCE_S)
        after_it = [end.stats() for end in (writer, reader)]
        ask("what had been counted before", lambda: [[one.messages, one.bytes] for one in before], [[0, 0]] * 2)
        ask("what is counted behind two messages", lambda: [one.messages for one in after_it], [2, 2])
        ask("whether their bytes are", lambda: all(one.bytes for one in after_it), True)


# -- waits that are ended ---------------------------------------------------------------------------------------------


def _is_broken_off(ask: Asking) -> None:
    """By its caller's word, by a shutdown from another thread, by an exception out of a signal handler."""
    with opened() as (writer, reader):
        stop = threading.Event()
        with after(SOON_S, stop.set):
            ask("a wait that is cancelled", lambda: ended(lambda: reader.dequeue(cancel=stop)), "QueueCancelledError")
        ask("a wait that was cancelled before", lambda: reader.dequeue(cancel=stop), QueueCancelledError)
        writer.enqueue("behind it")
        ask("what comes behind it", lambda: reader.dequeue(PATIENCE_S, stop), "behind it")
        ask("whether an old word cancels a new wait", lambda: reader.dequeue(0.05), QueueTimeoutError)
        with interrupting(SOON_S):
            ask("a wait out of which a handler raises", lambda: ended(lambda: reader.dequeue(PATIENCE_S)),
                "InterruptedError")
        writer.enqueue("behind that")
        ask("what comes behind that", lambda: reader.dequeue(PATIENCE_S), "behind that")
        with interrupting(SOON_S, lambda: reader.dequeue(0.0)):
            ask("whether a handler may use the end that it interrupts", lambda: ended(lambda: reader.dequeue(2.0)),
                "QueueError")
        with after(SOON_S, reader.shutdown):
            ask("a wait at an end that is shut down", lambda: ended(reader.dequeue), "QueueCancelledError")
    with opened() as (writer, reader):
        for number in range(CHUNKS):
            writer.enqueue(number)
        with after(SOON_S, writer.shutdown):
            ask("a wait for room at an end that is shut down", lambda: ended(lambda: writer.enqueue(9)),
                "QueueCancelledError")


def _is_alone_with_its_end(ask: Asking) -> None:
    """One thread at a time, and no forked child."""
    with opened() as (writer, reader):
        with beside(lambda: nothing(reader, WAIT_S)):
            time.sleep(SOON_S)
            ask.raised("an end that another thread uses", lambda: reader.dequeue(0.0), QueueError, "another thread")
        ask("what a forked child may do with it", lambda: _in_a_child(lambda: reader.dequeue(0.0)),
            "QueueCancelledError")
        ask("what one may put in", lambda: _in_a_child(lambda: writer.enqueue(1)), "QueueCancelledError")
        writer.enqueue("after the child")
        ask("what is there after the child", lambda: reader.dequeue(PATIENCE_S), "after the child")


def _in_a_child(work: Callable[[], Any]) -> str:
    """-> the error there"""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            work()
            os.write(write, b"nothing")
        except BaseException as error:
            os.write(write, type(error).__name__.encode())
        finally:
            gc.collect()
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as said:
        return said.read().decode()


# -- who has gone -----------------------------------------------------------------------------------------------------


def _has_gone(ask: Asking) -> None:
    """What was put in before its writer left is there; then its reader knows. A writer knows of a reader."""
    with opened() as (writer, reader):
        writer.enqueue("last")
        with after(SOON_S, writer.shutdown):
            ask("what its writer has put in", reader.dequeue, "last")
            ask("a wait for a writer that leaves", reader.dequeue, PeerDeadError)
    forgotten = made()
    reader = forgotten.pop()
    forgotten[0].enqueue("last")
    forgotten.clear()
    gc.collect()
    ask("what a writer has put in that its program forgot", lambda: reader.dequeue(PATIENCE_S), "last")
    ask("a wait for a writer that its program forgot", lambda: reader.dequeue(PATIENCE_S), PeerDeadError)
    reader.shutdown()
    with opened(local=2) as (writer, _, second):
        for number in range(CHUNKS):
            writer.enqueue(number)
        with after(SOON_S, second.shutdown):
            ask("a wait for room by a reader that leaves", lambda: ended(lambda: writer.enqueue(9)), "PeerDeadError")
        ask.raised("a reader in the place of one that left",
                   lambda: MessageQueue.create_from_handle(writer.export_handle(), 1), QueueError, "1")


def _has_died(ask: Asking) -> None:
    """Who is killed has gone, whether its parent has asked for its end or not."""
    writer = MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS, connect_ip=LOOPBACK)
    pid = os.fork()
    if not pid:
        try:
            reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
            reader.wait_until_ready(PATIENCE_S)
            signal.pause()
        finally:
            os._exit(1)
    writer.wait_until_ready(PATIENCE_S)
    for number in range(CHUNKS):
        writer.enqueue(number)
    with after(SOON_S, lambda: os.kill(pid, signal.SIGKILL)):
        ask("a wait for room by a reader that is dead and not buried",
            lambda: ended(lambda: writer.enqueue(9, PATIENCE_S)), "PeerDeadError")
    os.waitpid(pid, 0)
    writer.shutdown()


# -- payloads in shared memory ----------------------------------------------------------------------------------------


def _spills(ask: Asking) -> None:
    """Each lies in a segment of its own until its readers have it; few that nobody uses are kept."""
    with opened(local=2) as (writer, *readers):
        prefix = f"{writer.export_handle().buffer_handle[3]}-spill"

        def count() -> list[int]:
            """Of segments, and of places where they lie in this process."""
            with open("/proc/self/maps") as maps:
                return [len(glob.glob(f"{FOLDER}/{prefix}*")), sum(prefix in line for line in maps)]

        def goes(number: int, size: int) -> None:
            payload = bytes([number]) * size
            writer.enqueue(payload, PATIENCE_S)
            ask(f"a payload of {size} bytes", lambda: [reader.dequeue(PATIENCE_S) == payload for reader in readers],
                [True, True])

        goes(0, SPILL_BYTES - 100)
        ask("how many segments there are for a smaller one", count, [0, 0])
        for number in range(3):
            goes(number, SPILL_BYTES)
        ask("how many there are for some of one size", count, [1, 3])
        for number in range(CHUNKS):
            writer.enqueue(bytes([number]) * SPILL_BYTES, PATIENCE_S)
        ask("how many there are while nobody has read", lambda: count()[0], CHUNKS)
        for reader in readers:
            ask("what is read then", lambda: [reader.dequeue(PATIENCE_S)[-1] for _ in range(CHUNKS)],
                list(range(CHUNKS)))
        for number in range(6):
            goes(number, SPILL_BYTES + number * (SPILL_BYTES // 4))
        ask("how many are kept of many sizes", count, [KEPT_FREE + 1, KEPT_FREE + 1 + 2 * KEPT_OPEN])
    ask("how many there are in the end", count, [0, 0])


# -- what is refused --------------------------------------------------------------------------------------------------


def _is_refused(ask: Asking) -> None:
    """At once, and nothing of it stays open."""
    with opened() as (writer, reader):
        handle, before = writer.export_handle(), held()
        buffer = handle.buffer_handle
        for name in ("", ".", "..", "../x", "a/b", "n" * 256):
            ask(f"a segment called {name[:9]!r}", lambda: _end_by(handle, buffer_handle=(*buffer[:3], name)),
                ValueError)
        ask.raised("a segment that is not there", lambda: _end_by(handle, buffer_handle=(*buffer[:3], "gone")),
                   QueueError, "gone")
        ask.raised("another queue's segment", lambda: _end_by(handle, epoch=handle.epoch + 1), QueueError, "another")
        ask("a larger ring than its segment", lambda: _end_by(handle, buffer_handle=(1, 1 << 20, 9, buffer[3])),
            QueueError)
        ask("a second reader of its rank", lambda: MessageQueue.create_from_handle(handle, 0), QueueError)
        ask.raised("notices of a writer that publishes none", lambda: MessageQueue.create_from_handle(
            handle, 0, wait=NotifySocket()), QueueError, "notices")
        ask("what is open of those that were refused", lambda: no_more(before), True)
        ask("what the first reader is told then", lambda: (writer.enqueue(7), reader.dequeue(PATIENCE_S))[1], 7)
        ask("whether it is ready again at once", lambda: (writer.wait_until_ready(0.0), reader.wait_until_ready(0.0)),
            repr((None, None)))
    _has_no_room(ask)
    for sizes in ((0, 0), (2, 3), (1, 2)):
        ask(f"a queue of {sizes} readers", lambda: MessageQueue(*sizes), QueueError)
    ask("two readers of one rank", lambda: MessageQueue(2, 2, [0, 0]), QueueError)
    ask("a rank here and elsewhere", lambda: MessageQueue(2, 1, [0], remote_reader_ranks=[0]), QueueError)
    early = MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS)
    ask("a large object before anybody is there", lambda: early.enqueue(b"x" * CHUNK_BYTES, 0.1), QueueError)
    ask("a small one", lambda: early.enqueue(1, 0.1), None)
    early.shutdown()


def _has_no_room(ask: Asking) -> None:
    """Too little shared memory is an error that says how to get more; a payload goes by the socket then."""
    before, there = held(), set(glob.glob(f"{FOLDER}/*"))
    with _no_file_beyond(1 << 20):
        ask.raised("a ring for which there is no room", lambda: MessageQueue(1, 1), SpaceError, "240.0 MiB",
                   "--shm-size", "free of", "max_chunk_bytes")
        ask.raised("one for which there is almost", lambda: MessageQueue(1, 1, None, (1 << 19) + 8, 2), SpaceError,
                   "1.0 MiB")
    ask("what is open of those", lambda: no_more(before), True)
    ask("whether nothing lies about of those",
        lambda: until(lambda: not nobodys({*glob.glob(f"{FOLDER}/*-ring")} - there)), True)
    with opened() as (writer, reader), _no_file_beyond(1 << 20):
        writer.enqueue(b"x" * (2 << 20), PATIENCE_S)
        ask("a payload for which there is no room", lambda: reader.dequeue(PATIENCE_S) == b"x" * (2 << 20), True)


@contextlib.contextmanager
def _no_file_beyond(size: int) -> Iterator[None]:
    """As where shared memory is scarce."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _end_by(handle: Any, **changes: Any) -> None:
    MessageQueue.create_from_handle(msgspec.structs.replace(handle, **changes), 0).shutdown()


def _leaves_nothing(ask: Asking) -> None:
    """Shut down, or dropped by its program: no segment, no mapping, no socket file."""
    for way in ("shut down", "dropped"):
        queues = made()
        name = queues[0].export_handle().buffer_handle[3]
        path = queues[0].export_handle().local_subscribe_addr.removeprefix("ipc://")
        ask(f"what is there before it is {way}",
            lambda: [is_mapped(name), os.path.exists(path), len(glob.glob(f"{FOLDER}/{name}*"))], [True, True, 1])
        if way == "dropped":
            queues.clear()
        for queue in queues:
            queue.shutdown()
        gc.collect()
        ask(f"what is there when it was {way}, of {len(queues)} that its program keeps",
            lambda: [is_mapped(name), os.path.exists(path), glob.glob(f"{FOLDER}/{name}*")], [False, False, []])

"""MessageQueue between real processes, through its public methods only."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from engine.errors import (
    PeerDeadError,
    QueueCancelledError,
    QueueDecodeError,
    QueueError,
    QueueTimeoutError,
    SpaceError,
)
from engine.ipc.message_queue import Handle, MessageQueue
from engine.ipc.notify import NotifySocket
from engine.ipc.ring import EMPTY
from engine.ipc.wait import Spin, SpinThenNap
from engine.process.real_ports import RealPorts
from engine.topology import core, worker
from tests.engine.ipc.queue_lab import rests

pytest.importorskip("zmq")

BOUND_S = 30.0
CHUNK_BYTES = 4096
processes = multiprocessing.get_context("fork")


def leftovers(handle: Handle) -> list[str]:
    """What is there of the engine or queue of this handle. (Other engines may run and be swept meanwhile.)"""
    engine = "-".join(handle.buffer_handle[3].split("-")[:2])
    return [name for name in os.listdir("/dev/shm") if name.startswith(engine)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Readers:
    """Child processes that read from a queue and report on a pipe what they saw."""

    def __init__(self, handle: Handle, body, ranks=None) -> None:
        self.pipes, self.children = [], []
        for rank in handle.local_reader_ranks if ranks is None else ranks:
            ours, theirs = processes.Pipe()
            child = processes.Process(target=_child, args=(handle, rank, body, theirs), daemon=True)
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.children.append(child)

    def report(self, index: int = 0):
        assert self.pipes[index].poll(BOUND_S), "a reader did not report"
        return self.pipes[index].recv()

    def end(self) -> None:
        for child in self.children:
            if child.is_alive():
                child.kill()
            child.join()


def _child(handle, rank, body, pipe):
    queue = MessageQueue.create_from_handle(handle, rank)
    body(queue, pipe)
    queue.shutdown()


@pytest.fixture
def opened():
    """Makes queues and readers, and looks that nothing of them remains."""
    things = []

    def make(kind, *args, **options):
        things.append(kind(*args, **options))
        return things[-1]

    yield make
    for thing in reversed(things):
        thing.end() if isinstance(thing, Readers) else thing.shutdown()
    writers = [thing for thing in things if isinstance(thing, MessageQueue) and thing._writes]
    assert [leftovers(writer.handle) for writer in writers] == [[]] * len(writers), "segments or lock files remain"


def queue_of(opened, n_reader=1, chunk_bytes=CHUNK_BYTES, chunks=3, **options) -> MessageQueue:
    return opened(MessageQueue, n_reader, n_reader, max_chunk_bytes=chunk_bytes, max_chunks=chunks, **options)


def pair(opened, **options) -> tuple[MessageQueue, MessageQueue]:
    """Both ends in this process, ready."""
    writer = queue_of(opened, **options)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)
    reader.wait_until_ready(BOUND_S)
    return writer, reader


def digests_until_none(queue, pipe):
    queue.wait_until_ready(BOUND_S)
    seen = []
    while (message := queue.dequeue(BOUND_S)) is not None:
        seen.append(hashlib.blake2b(pickle.dumps(message)).digest())
    pipe.send(seen)


@pytest.mark.parametrize("n_reader", [1, 2, 4])
def test_every_reader_gets_the_exact_sequence_of_all_sizes(opened, n_reader):
    queue = queue_of(opened, n_reader)
    readers = opened(Readers, queue.export_handle(), digests_until_none)
    queue.wait_until_ready(BOUND_S)
    sizes = [0, 1, 4000, 4070, 4080, 4090, 4096, 5000, 100_000, 3, 1 << 20, 70_000, 2]  # around and over the chunk
    messages = [os.urandom(size) for size in sizes * 6] + [{"n": n} for n in range(500)]
    for message in messages:
        queue.enqueue(message, BOUND_S)
    queue.enqueue(None, BOUND_S)
    expected = [hashlib.blake2b(pickle.dumps(message)).digest() for message in messages]
    for k in range(n_reader):
        assert readers.report(k) == expected
    assert queue.check_integrity() == []


@pytest.mark.parametrize("strategy", [Spin(), SpinThenNap(busy_s=0.0), NotifySocket()])
def test_vllms_ways_of_waiting_can_be_chosen(opened, strategy):
    writer = queue_of(opened, wait=strategy)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0, wait=strategy)
    thread = threading.Thread(target=lambda: [writer.enqueue(n, BOUND_S) for n in range(50)])
    thread.start()
    assert [reader.dequeue(BOUND_S) for _ in range(50)] == list(range(50))
    thread.join()


def test_large_buffers_arrive_whole_and_are_the_readers_own(opened):
    numpy = pytest.importorskip("numpy")
    writer, reader = pair(opened, chunk_bytes=4 << 20)
    arrays = [numpy.full(2 << 20, value, "u1") for value in (1, 2, 3, 4)]
    first = None
    for array in arrays:  # goes round the ring: an array that still lay in it would change
        writer.enqueue(array, BOUND_S)
        got = reader.dequeue(BOUND_S)
        first = got if first is None else first
        assert (got == array).all()
    first += 1
    assert (first == 2).all()


def test_what_the_caller_changes_after_enqueue_of_an_overflow_is_not_sent(opened):
    numpy = pytest.importorskip("numpy")
    writer, reader = pair(opened)
    array = numpy.zeros(8 << 20, "u1")
    writer.enqueue(array, BOUND_S)
    array += 1
    assert not reader.dequeue(BOUND_S).any()


def test_a_burst_of_overflows_with_a_stalled_reader_loses_none(opened):
    writer = queue_of(opened, chunks=8)
    readers = opened(Readers, writer.export_handle(), digests_until_none)
    writer.wait_until_ready(BOUND_S)
    os.kill(readers.children[0].pid, signal.SIGSTOP)
    messages = [bytes([n]) * 50_000 for n in range(8)]
    for message in messages:
        writer.enqueue(message, BOUND_S)
    with pytest.raises(QueueTimeoutError):
        writer.enqueue("full", 0.05)
    os.kill(readers.children[0].pid, signal.SIGCONT)
    writer.enqueue(None, BOUND_S)
    assert readers.report() == [hashlib.blake2b(pickle.dumps(m)).digest() for m in messages]


def test_timeouts_on_both_sides_lose_and_misplace_nothing(opened):
    writer, reader = pair(opened)
    got, sent = [], []
    for number in range(40):
        message = (number, b"x" * (10_000 if number % 3 == 0 else 10))
        try:
            writer.enqueue(message, 0)
            sent.append(message)
        except QueueTimeoutError:
            pass
        if number % 2:
            try:
                got.append(reader.dequeue(0))
            except QueueTimeoutError:
                pass
    while len(got) < len(sent):
        got.append(reader.dequeue(BOUND_S))
    assert got == sent and reader.try_dequeue() is EMPTY


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_wait_ends_at_its_timeout(opened, timeout):
    writer, reader = pair(opened)
    began = time.monotonic()
    with pytest.raises(QueueTimeoutError):
        reader.dequeue(timeout)
    for number in range(3):
        writer.enqueue(number)
    with pytest.raises(QueueTimeoutError):
        writer.enqueue("full", timeout)
    assert time.monotonic() - began < 5.0


class Poison:
    """Pickles well and cannot be loaded."""

    def __reduce__(self):
        return int, ("no number",)


def test_an_object_that_cannot_be_decoded_frees_its_chunk_and_the_queue_stays_aligned(opened):
    writer, reader = pair(opened, chunks=1)
    for number in range(5):
        writer.enqueue(Poison(), BOUND_S)
        with pytest.raises(QueueDecodeError, match="no number"):
            reader.dequeue(BOUND_S)
        writer.enqueue(number, BOUND_S)
        assert reader.dequeue(BOUND_S) == number


def test_an_object_that_cannot_be_pickled_is_not_sent_and_the_queue_stays_usable(opened):
    writer, reader = pair(opened)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        writer.enqueue(lambda: None)
    writer.enqueue("fine")
    assert reader.dequeue(BOUND_S) == "fine"


def reads_one_then_waits(queue, pipe):
    queue.wait_until_ready(BOUND_S)
    pipe.send(queue.dequeue(BOUND_S))
    threading.Event().wait()


def test_a_reader_that_is_killed_ends_the_writers_wait_by_name(opened):
    writer = queue_of(opened, 2, chunks=2)
    readers = opened(Readers, writer.export_handle(), reads_one_then_waits)
    writer.wait_until_ready(BOUND_S)
    writer.enqueue(0)
    assert [readers.report(0), readers.report(1)] == [0, 0]
    readers.children[1].kill()
    readers.children[1].join()
    began = time.monotonic()
    with pytest.raises(PeerDeadError, match="rank 1 has died"):
        for number in range(1, 5):
            writer.enqueue(number)
    assert time.monotonic() - began < 5.0


def writes_until_killed(handle_pipe):
    queue = MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=4)
    handle_pipe.send(queue.export_handle())
    queue.wait_until_ready(BOUND_S)
    for number in range(3):
        queue.enqueue(number)
    queue.enqueue(b"x" * (2 << 20))
    handle_pipe.send("written")
    threading.Event().wait()


def test_a_writer_that_is_killed_leaves_an_exact_prefix_then_an_error_and_its_remains_go_with_the_next_start(opened):
    ours, theirs = processes.Pipe()
    child = processes.Process(target=writes_until_killed, args=(theirs,), daemon=True)
    child.start()
    handle = ours.recv()
    reader = opened(MessageQueue.create_from_handle, handle, 0)
    reader.wait_until_ready(BOUND_S)
    assert ours.recv() == "written"
    child.kill()
    child.join()
    got = []
    with pytest.raises(PeerDeadError, match="the writer has died"):
        while True:
            got.append(reader.dequeue())
    # What went by the socket may have died with the thread that was to send it.
    assert got[:3] == [0, 1, 2] and got[3:] in ([], [b"x" * (2 << 20)])
    queue_of(opened)  # or somebody else's start on this host meanwhile
    assert leftovers(handle) == []


def test_the_next_start_takes_what_a_killed_writer_left_and_nothing_of_a_living_neighbour(opened):
    writer, reader = pair(opened)
    ours, theirs = processes.Pipe()
    child = processes.Process(target=writes_until_killed, args=(theirs,), daemon=True)
    child.start()
    killed = ours.recv()
    child.kill()
    child.join()
    queue_of(opened)
    assert leftovers(killed) == []
    assert leftovers(writer.export_handle()) != []
    writer.enqueue(b"x" * (2 << 20), BOUND_S)
    assert reader.dequeue(BOUND_S) == b"x" * (2 << 20)


def test_a_wait_is_ended_by_its_cancel_event(opened):
    writer, reader = pair(opened)
    cancel = threading.Event()
    timer = threading.Timer(0.05, cancel.set)
    timer.start()
    with pytest.raises(QueueCancelledError, match="cancelled"):
        reader.dequeue(cancel=cancel)
    timer.join()
    writer.enqueue("still works")
    assert reader.dequeue(BOUND_S) == "still works"


@pytest.mark.parametrize("end", ["reader", "writer"])
def test_shutdown_ends_the_wait_of_another_thread_at_once(opened, end):
    writer, reader = pair(opened)
    for number in range(3):
        writer.enqueue(number)
    if end == "reader":
        for _ in range(3):
            reader.dequeue()
    waiting, outcome = threading.Event(), []

    def wait():
        waiting.set()
        try:
            reader.dequeue() if end == "reader" else writer.enqueue("full")
        except QueueError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    began = time.monotonic()
    (reader if end == "reader" else writer).shutdown()
    thread.join(BOUND_S)
    assert isinstance(outcome[0], QueueCancelledError) and time.monotonic() - began < 2.0


def test_the_shutdown_of_one_end_is_told_to_the_other(opened):
    writer, reader = pair(opened)
    writer.enqueue("last")
    writer.shutdown()
    assert reader.dequeue() == "last"
    with pytest.raises(PeerDeadError, match="the writer was shut down"):
        reader.dequeue()


def test_an_idle_reader_wakes_for_nothing_but_looks_at_its_writer(opened):
    _, reader = pair(opened)
    rests(reader.dequeue)


def test_several_queues_ring_one_bell_of_their_reader(opened):
    rpc = queue_of(opened, 2)
    responses = [queue_of(opened, bell=rpc.bell_address) for _ in range(2)]
    ends = [opened(MessageQueue.create_from_handle, q.export_handle(), 0) for q in responses]
    for number, (queue, end) in enumerate(zip(responses, ends, strict=True)):
        thread = threading.Thread(target=lambda queue=queue, number=number: queue.enqueue(number, BOUND_S))
        thread.start()
        assert end.dequeue(BOUND_S) == number
        thread.join()


def test_broadcast_object_is_the_same_at_both_ends(opened):
    writer, reader = pair(opened)
    assert writer.broadcast_object([1, 2]) == [1, 2] == reader.broadcast_object()


class WatchedPorts:
    """Ports that record the crossings of the rings, as a fault layer does."""

    def __init__(self, inner: RealPorts, crossings: list) -> None:
        self._inner, self._crossings = inner, crossings

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def ring_crossing(self, spec, operation, position, parts, overflow):
        assert all(isinstance(part, bytes | memoryview) for part in parts)
        self._crossings.append((operation, position, b"".join(map(bytes, parts)), overflow))

    def ring_writer(self, spec, name, position, parts_of):
        return lambda packed: self.ring_crossing(spec, "send", position(), parts_of(packed), False), bool

    def ring_reader(self, spec, name, position, objects, buffers):
        return buffers, lambda parts: self.ring_crossing(spec, "receive", position() - 1, parts, False), bool


def test_with_ports_that_watch_every_message_crosses_with_the_same_bytes_at_both_ends(opened):
    sent, received = [], []
    ends = [RealPorts(core()), RealPorts(worker(0))]
    writer = queue_of(opened, ports=WatchedPorts(ends[0], sent))
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0, ports=WatchedPorts(ends[1], received))
    writer.wait_until_ready(BOUND_S)
    for message in ("a", b"b" * 10_000, {"c": 1}):
        writer.enqueue(message, BOUND_S)
        assert reader.dequeue(BOUND_S) == message
    assert [c[:2] + c[3:] for c in sent] == [("send", 0, False), ("send", 1, True), ("send", 2, False)]
    assert [c[1:] for c in received] == [c[1:] for c in sent] and {c[0] for c in received} == {"receive"}
    reader.shutdown(), writer.shutdown()
    for ports in ends:
        ports.close()


# -- counting


def test_both_ends_count_messages_bytes_overflows_waits_and_depth(opened):
    writer, reader = pair(opened)
    for message in (b"x" * 100, b"y" * 10_000, b"z" * 100):
        writer.enqueue(message)
    with pytest.raises(QueueTimeoutError):
        writer.enqueue("full", 0.05)
    sent = writer.stats()
    assert (sent.end, sent.messages, sent.depth, sent.overflows, sent.waits) == ("writer", 3, 3, 1, 1)
    assert 10_200 < sent.bytes < 10_500 and 0.05 <= sent.longest_wait_s <= sent.wait_s < BOUND_S
    assert reader.stats().depth == 3
    for _ in range(3):
        reader.dequeue(BOUND_S)
    with pytest.raises(QueueTimeoutError):
        reader.dequeue(0.05)
    got = reader.stats()
    assert (got.end, got.messages, got.depth, got.overflows) == ("reader", 3, 0, 1) and writer.stats().depth == 0
    assert 10_200 < got.bytes < 10_500 and got.waits >= 1 and 0 < got.longest_wait_s < BOUND_S


# -- large objects beside the ring


def test_large_bytes_keep_their_type_and_identity_wherever_they_lie(opened):
    writer, reader = pair(opened, chunk_bytes=4 << 20)
    big, changing = os.urandom(1 << 20), bytearray(os.urandom(1 << 20))
    for message in (big, changing, (1, [big, big], {"a": changing}), [[[[big]]]]):
        writer.enqueue(message, BOUND_S)
        got = reader.dequeue(BOUND_S)
        assert got == message and type(got) is type(message)
    writer.enqueue((big, big), BOUND_S)
    one, other = reader.dequeue(BOUND_S)
    assert one is other


def test_a_large_overflow_lies_in_shared_memory_until_the_queue_ends(opened):
    writer, reader = pair(opened)
    messages = [os.urandom(2 << 20) for _ in range(5)]
    for message in messages:
        writer.enqueue(message, BOUND_S)
        assert reader.dequeue(BOUND_S) == message
    segment = writer.export_handle().buffer_handle[3]
    assert [name for name in leftovers(writer.handle) if name.startswith(f"{segment}-spill")] == [f"{segment}-spill1"]
    writer.shutdown()
    assert leftovers(writer.handle) == []


def test_without_room_in_shared_memory_a_large_overflow_goes_by_the_socket(opened, monkeypatch):
    writer, reader = pair(opened)

    def no_room(*_):
        raise SpaceError("no room")

    monkeypatch.setattr("engine.ipc.spill.create_segment", no_room)
    fixed, changing = os.urandom(2 << 20), bytearray(3 << 20)
    writer.enqueue(fixed, BOUND_S)
    writer.enqueue(changing, BOUND_S)
    changing[:] = b"x" * len(changing)
    assert [reader.dequeue(BOUND_S) for _ in range(2)] == [fixed, bytearray(3 << 20)]


def test_a_large_overflow_of_a_reader_that_is_late_is_not_overwritten_by_the_next_ones(opened):
    writer, reader = pair(opened)
    messages = [os.urandom(2 << 20) for _ in range(9)]
    got = []
    for number, message in enumerate(messages):
        try:
            writer.enqueue(message, 0)
        except QueueTimeoutError:
            got.append(reader.dequeue(BOUND_S))
            writer.enqueue(message, BOUND_S)
        assert writer.position == number + 1
    got += [reader.dequeue(BOUND_S) for _ in range(len(messages) - len(got))]
    assert got == messages


# -- starting


def test_ready_counts_readers_that_exist(opened):
    writer = queue_of(opened, 2)
    opened(Readers, writer.export_handle(), digests_until_none, ranks=[0])
    with pytest.raises(QueueTimeoutError, match=r"1 of 2 readers did not come, ranks \[1\]"):
        writer.wait_until_ready(1.0)


def test_a_reader_waits_no_longer_than_asked_for_a_writer_that_is_not_ready(opened):
    writer = queue_of(opened, 2)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    with pytest.raises(QueueTimeoutError):
        reader.wait_until_ready(0.05)


def test_a_reader_that_joins_before_ready_misses_no_overflow(opened):
    writer, = (queue_of(opened),)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    with pytest.raises(QueueError, match="after wait_until_ready"):
        writer.enqueue(b"x" * 10_000)
    writer.wait_until_ready(BOUND_S)
    writer.enqueue(b"x" * 10_000)
    assert reader.dequeue(BOUND_S) == b"x" * 10_000  # without having waited for READY itself


def test_ranks_need_not_count_from_zero(opened):
    writer = opened(MessageQueue, 2, 2, [3, 5], max_chunk_bytes=CHUNK_BYTES)
    readers = [opened(MessageQueue.create_from_handle, writer.export_handle(), rank) for rank in (3, 5)]
    writer.enqueue("x")
    assert [reader.dequeue(BOUND_S) for reader in readers] == ["x", "x"]


def test_too_little_shared_memory_is_told_before_anything_is_there(opened):
    with pytest.raises(SpaceError, match="--shm-size"):
        opened(MessageQueue, 1, 1, max_chunk_bytes=1 << 31, max_chunks=1 << 16)


# -- bad use is an error at once


def test_a_rank_that_is_not_in_the_handle_is_refused(opened):
    writer = queue_of(opened)
    with pytest.raises(QueueError, match="rank 7"):
        MessageQueue.create_from_handle(writer.export_handle(), 7)


def test_a_second_reader_of_a_rank_is_refused_and_the_first_goes_on(opened):
    writer, reader = pair(opened)
    with pytest.raises(QueueError, match="there already"):
        MessageQueue.create_from_handle(writer.export_handle(), 0)
    writer.enqueue("x")
    assert reader.dequeue(BOUND_S) == "x"


def test_a_handle_whose_segment_is_gone_or_of_another_size_is_refused(opened):
    writer = queue_of(opened)
    handle = writer.export_handle()
    gone = Handle(local_reader_ranks=[0], buffer_handle=(1, CHUNK_BYTES, 3, "ringtwin-nowhere"))
    with pytest.raises(QueueError, match="no shared-memory segment"):
        MessageQueue.create_from_handle(gone, 0)
    other = Handle(local_reader_ranks=[0], buffer_handle=(1, CHUNK_BYTES * 99, 3, handle.buffer_handle[3]))
    with pytest.raises(QueueError, match="too few"):
        MessageQueue.create_from_handle(other, 0)


def test_a_handle_of_another_queue_is_refused_even_if_its_segment_has_the_same_shape(opened):
    one, other = queue_of(opened), queue_of(opened)
    mixed = msgspec.structs.replace(one.export_handle(), buffer_handle=other.export_handle().buffer_handle)
    with pytest.raises(QueueError, match="belongs to another queue"):
        MessageQueue.create_from_handle(mixed, 0)
    assert opened(MessageQueue.create_from_handle, other.export_handle(), 0).try_dequeue() is EMPTY


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 1, 2]])
def test_ranks_that_do_not_fit_the_number_of_readers_are_refused(ranks):
    with pytest.raises(QueueError, match="as many different ranks"):
        MessageQueue(2, 2, ranks)


def test_a_writer_that_was_shut_down_refuses_to_send(opened):
    writer, _ = pair(opened)
    writer.shutdown()
    with pytest.raises(QueueCancelledError, match="shut down"):
        writer.enqueue(1)


def test_the_wrong_end_a_negative_timeout_and_use_after_shutdown_are_errors(opened):
    writer, reader = pair(opened)
    for wrong in (writer.dequeue, writer.try_dequeue, lambda: reader.enqueue(1),
                  lambda: reader.dequeue(-1), lambda: writer.enqueue(1, -1)):
        with pytest.raises(QueueError):
            wrong()
    reader.shutdown(), reader.shutdown()
    with pytest.raises(QueueCancelledError, match="shut down"):
        reader.dequeue()


def test_a_handle_travels_as_data(opened):
    handle = queue_of(opened).export_handle()
    assert pickle.loads(pickle.dumps(handle)) == handle


def test_a_queue_gives_back_all_its_descriptors(opened):
    pair(opened)[1].shutdown()
    before = open_descriptors()
    for _ in range(3):
        writer, reader = pair(opened)
        reader.shutdown(), writer.shutdown()
        assert not Path("/dev/shm", writer.export_handle().buffer_handle[3]).exists()
    assert open_descriptors() <= before

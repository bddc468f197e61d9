"""MessageQueue where a process is killed at a store, forked, or interrupted; on the short way, which nobody records."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from engine.errors import PeerDeadError, QueueCancelledError, QueueError, QueueTimeoutError
from engine.ipc.message_queue import MessageQueue
from engine.ipc.ring import MOVE_BYTES, RingLayout
from engine.ports import RingMemory
from engine.process.real_ports import RealPorts
from engine.topology import WRITER_STORES, core, worker
from faults.memory import FaultyMemory
from tests.engine.ipc.queue_lab import child, rests

pytest.importorskip("zmq")

BOUND_S = 30.0
CHUNKS = 2
CHUNK_BYTES = MOVE_BYTES + 4096


class FatalPorts(RealPorts):
    """Their process is killed before the nth store of that name."""

    def __init__(self, node, store, nth) -> None:
        super().__init__(node)
        self._store, self._left = store, nth

    def _on_store(self, name):
        self._left -= name == self._store
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def create_ring(self, spec, name):
        return self._fatal(spec, super().create_ring(spec, name))

    def attach_ring(self, spec, name):
        return self._fatal(spec, super().attach_ring(spec, name))

    def _fatal(self, spec, opened):
        layout = RingLayout(len(spec.readers), spec.max_chunk_bytes, spec.max_chunks)
        return RingMemory(FaultyMemory(opened.memory, layout, self._on_store), opened.fence)

    def doorbell(self, name, memory, offset):
        return super().doorbell(name, memory.inner, offset)


def message(number):
    """Every other one is so large that it may lie at another chunk's place."""
    return number, bytes([number % 256]) * (MOVE_BYTES if number % 2 else 10)


def writes(pipe, n_reader, store, nth):
    queue = MessageQueue(n_reader, n_reader, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS,
                         ports=FatalPorts(core(), store, nth))
    pipe.send(queue.export_handle())
    queue.wait_until_ready(BOUND_S)
    for number in range(100):
        queue.enqueue(message(number))


@pytest.mark.parametrize("n_reader", [1, 2, 4])
@pytest.mark.parametrize("store", WRITER_STORES)
def test_a_writer_killed_at_a_store_leaves_an_exact_prefix_and_then_a_named_error(opened, store, n_reader):
    nth = 6
    pipe, _ = child(opened, writes, n_reader, store, nth)
    handle = pipe.recv()
    readers = [opened(MessageQueue.create_from_handle, handle, rank) for rank in range(n_reader)]
    got = [[] for _ in readers]
    for reader in readers:
        reader.wait_until_ready(BOUND_S)
    for _ in range(nth - 1):
        for seen, reader in zip(got, readers, strict=True):
            seen.append(reader.dequeue(BOUND_S))
    for reader in readers:
        with pytest.raises(PeerDeadError, match="the writer has died"):
            reader.dequeue(BOUND_S)
    assert got == [[message(number) for number in range(nth - 1)]] * n_reader


def reads(pipe, handle, rank, nth):
    queue = MessageQueue.create_from_handle(handle, rank, ports=FatalPorts(worker(rank), "read", nth))
    queue.wait_until_ready(BOUND_S)
    pipe.send("ready")
    while True:
        queue.dequeue(BOUND_S)


@pytest.mark.parametrize("n_reader", [1, 2, 4])
def test_a_reader_killed_before_it_says_that_it_has_read_ends_the_writers_wait_and_blocks_no_other(opened, n_reader):
    """It holds its chunk: the writer gets to the one before it, and the others have all that was written."""
    nth = 5
    writer = opened(MessageQueue, n_reader, n_reader, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS)
    child(opened, reads, writer.export_handle(), 0, nth)
    others = [opened(MessageQueue.create_from_handle, writer.export_handle(), rank) for rank in range(1, n_reader)]
    writer.wait_until_ready(BOUND_S)
    sent = 0
    with pytest.raises(PeerDeadError, match="the reader of rank 0 has died"):
        while True:
            writer.enqueue(message(sent), BOUND_S)
            sent += 1
            if sent < nth - 1 + CHUNKS:  # those behind it lie in the ring when it is dead
                for reader in others:
                    assert reader.dequeue(BOUND_S) == message(sent - 1)
    assert sent == nth - 1 + CHUNKS
    assert [reader.dequeue(BOUND_S) for reader in others] == [message(sent - 1)] * len(others)


def shuts_down_what_it_inherited(pipe, queue):
    try:
        queue.enqueue("from the child")
    except QueueCancelledError as error:
        pipe.send(str(error))
    queue.shutdown()
    pipe.send("done")


def test_a_forked_childs_copy_is_refused_and_its_shutdown_does_not_end_its_parents_queue(opened):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)
    pipe, forked = child(opened, shuts_down_what_it_inherited, writer)
    assert "belongs to the process that opened it" in pipe.recv()
    assert pipe.recv() == "done"
    forked.join(BOUND_S)
    writer.enqueue("still here")
    assert reader.dequeue(BOUND_S) == "still here"
    with pytest.raises(QueueTimeoutError):
        reader.dequeue(0.3)


@pytest.fixture
def alarm():
    """What SIGALRM does, and when."""
    def after(seconds, action):
        signal.signal(signal.SIGALRM, lambda *_: action())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.getsignal(signal.SIGALRM)
    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_shutdown_out_of_a_signal_handler_ends_the_wait_that_it_interrupts_at_once(opened, alarm):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    alarm(0.1, reader.shutdown)
    began = time.monotonic()
    with pytest.raises(QueueCancelledError):
        reader.dequeue(BOUND_S)
    assert time.monotonic() - began < 3.0
    with pytest.raises(QueueCancelledError):
        reader.dequeue(0)


def test_an_end_used_again_by_the_signal_handler_that_interrupts_it_is_an_error_and_the_wait_goes_on(opened, alarm):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    refused = []

    def use_it_again():
        try:
            reader.dequeue(0)
        except QueueError as error:
            refused.append(str(error))
        writer.enqueue("meanwhile")

    alarm(0.1, use_it_again)
    assert reader.dequeue(BOUND_S) == "meanwhile"
    assert len(refused) == 1 and "signal handler" in refused[0]


def test_after_an_interrupted_operation_the_same_thread_goes_on(opened, alarm):
    """As often as one likes: no lock stays taken, and nothing is lost or doubled."""
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=3)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)

    armed = [False]

    def interrupt():
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    interrupted = 0
    for turn in range(300):
        try:
            armed[0] = True
            alarm(2e-6 + turn % 50 * 1e-6, interrupt)
            with contextlib.suppress(QueueTimeoutError):
                while True:
                    writer.enqueue(writer.position, 0)
            armed[0] = False
        except KeyboardInterrupt:
            interrupted += 1
        got = []
        with contextlib.suppress(QueueTimeoutError):
            while True:
                got.append(reader.dequeue(0))
        assert reader.position == writer.position
        assert got == list(range(writer.position - len(got), writer.position))
    assert interrupted > 10


def test_a_cancellation_that_was_there_before_ends_a_wait_at_once(opened):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    cancel = threading.Event()
    cancel.set()
    writer.enqueue("there")
    assert reader.dequeue(cancel=cancel) == "there"
    for _ in range(20):  # each look takes some microseconds, the slice of a wait 100 ms
        with pytest.raises(QueueCancelledError, match="cancelled"):
            reader.dequeue(cancel=cancel)
    assert reader.stats().longest_wait_s < 0.1


def test_a_writer_that_waits_for_room_wakes_for_nothing_but_looks_at_its_readers(opened):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=1)
    opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.enqueue("fills the ring")
    rests(lambda wait_s: writer.enqueue("no room", wait_s))


def reads_from_afar(pipe, handle, rank):
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready(BOUND_S)
    pipe.send(queue.dequeue(BOUND_S))
    pipe.recv()


def test_a_remote_reader_that_is_killed_is_told_to_the_writer_by_name(opened):
    writer = opened(MessageQueue, 1, 0, connect_ip="127.0.0.1")
    pipe, reader = child(opened, reads_from_afar, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)
    writer.enqueue("hello")
    assert pipe.recv() == "hello"
    reader.kill()
    with pytest.raises(PeerDeadError, match="remote reader of rank 0"):
        end = time.monotonic() + BOUND_S
        while time.monotonic() < end:
            writer.enqueue("anybody?", 0.1)


def is_killed(pipe):
    queue = MessageQueue(1, 1, max_chunk_bytes=4096)
    pipe.send(queue.export_handle())
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_socket_directory_of_a_killed_writer_goes_with_the_next_start(opened):
    pipe, killed = child(opened, is_killed)
    handle = pipe.recv()
    killed.join(BOUND_S)
    folder = Path(handle.local_subscribe_addr.removeprefix("ipc://")).parent
    assert folder.exists()
    opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    assert not folder.exists() and not Path("/dev/shm", handle.buffer_handle[3]).exists()

"""MessageQueue at its edges: between two steps of an operation, with short time-outs, beside neighbours."""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import msgspec
import pytest

from engine.effects import CreateRing, OpenRing
from engine.errors import PeerDeadError, QueueCancelledError, QueueError, QueueTimeoutError
from engine.ipc.framing import decode, encode
from engine.ipc.handle import Handle, writer_bell_of
from engine.ipc.message_queue import MessageQueue
from engine.ipc.readiness import wait_for_readers, wait_for_writer
from engine.ports import RingSpec
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.process.runtime_dir import RuntimeDir
from engine.topology import Channel, core, worker
from tests.engine.ipc.queue_lab import child

pytest.importorskip("zmq")

BOUND_S = 20.0
LARGE = 2 << 20


def pair(opened, chunk_bytes=4096, chunks=3, **options) -> tuple[MessageQueue, MessageQueue]:
    """Both ends in this process, ready."""
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=chunk_bytes, max_chunks=chunks, **options)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)
    reader.wait_until_ready(BOUND_S)
    return writer, reader


def said(pipe):
    assert pipe.poll(BOUND_S), "a child did not report"
    return pipe.recv()


class DeadlyBell:
    """A bell at which its process is killed instead of ringing, once it is armed."""

    def __init__(self, inner, ports) -> None:
        self._inner, self._ports = inner, ports
        self.seen, self.wait, self.close = inner.seen, inner.wait, inner.close

    def ring(self) -> None:
        if self._ports.armed:
            os.kill(os.getpid(), signal.SIGKILL)
        self._inner.ring()


class DeadlyPorts(RealPorts):
    armed = False

    def doorbell(self, name, memory, offset):
        return DeadlyBell(super().doorbell(name, memory, offset), self)


# -- killed between the last store and the bell


def writes_and_dies_before_it_rings(pipe, size):
    ports = DeadlyPorts(core())
    queue = MessageQueue(1, 1, max_chunk_bytes=4 << 20, max_chunks=3, ports=ports)
    pipe.send(queue.export_handle())
    queue.wait_until_ready(BOUND_S)
    queue.enqueue("first")
    pipe.recv()
    ports.armed = True
    queue.enqueue(b"x" * size)


@pytest.mark.parametrize("size", [1, LARGE])
def test_what_was_published_before_a_death_is_handed_out_though_nobody_rang(opened, size):
    pipe, writer = child(opened, writes_and_dies_before_it_rings, size)
    reader = opened(MessageQueue.create_from_handle, said(pipe), 0)
    reader.wait_until_ready(BOUND_S)
    assert reader.dequeue(BOUND_S) == "first"
    timer = threading.Timer(0.25, pipe.send, ["go on"])
    timer.start()
    got = []
    with pytest.raises(PeerDeadError, match="the writer has died"):
        while True:
            got.append(reader.dequeue(BOUND_S))
    assert got == [b"x" * size]
    timer.join()


def reads_and_dies_before_it_rings(pipe, handle):
    ports = DeadlyPorts(worker(1))
    queue = MessageQueue.create_from_handle(handle, 1, ports=ports)
    queue.wait_until_ready(BOUND_S)
    pipe.send("ready")
    pipe.recv()
    ports.armed = True
    queue.dequeue(BOUND_S)


def test_a_writer_that_finds_room_and_a_dead_reader_at_once_says_what_it_has_done(opened):
    writer = opened(MessageQueue, 2, 2, max_chunk_bytes=4096, max_chunks=1)
    pipe, _ = child(opened, reads_and_dies_before_it_rings, writer.export_handle())
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    writer.wait_until_ready(BOUND_S)
    assert said(pipe) == "ready"
    writer.enqueue(0)
    assert reader.dequeue(BOUND_S) == 0
    timer = threading.Timer(0.25, pipe.send, ["go on"])
    timer.start()
    try:
        writer.enqueue(1, BOUND_S)
        sent = True
    except PeerDeadError:
        sent = False
    try:
        got = reader.dequeue(0.2) == 1
    except QueueTimeoutError:
        got = False
    assert got == sent and writer.position == 1 + sent
    timer.join()


# -- the peer's death, and a cancellation, however one waits


def stands_still(pipe, **options):
    queue = MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=2, **options)
    pipe.send(queue.export_handle())
    queue.wait_until_ready(BOUND_S)
    pipe.recv()


def until_dead(operation) -> None:
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        try:
            operation()
        except QueueTimeoutError:
            continue
        except PeerDeadError:
            return
    raise AssertionError("the death was not told within 3 s")


@pytest.mark.parametrize("timeout", [0.01, 0.06])
def test_a_reader_with_short_timeouts_learns_that_the_writer_has_died(opened, timeout):
    pipe, writer = child(opened, stands_still)
    reader = opened(MessageQueue.create_from_handle, said(pipe), 0)
    reader.wait_until_ready(BOUND_S)
    writer.kill()
    writer.join()
    until_dead(lambda: reader.dequeue(timeout))


def reads_nothing(pipe, handle):
    queue = MessageQueue.create_from_handle(handle, 0)
    queue.wait_until_ready(BOUND_S)
    pipe.recv()


@pytest.mark.parametrize("timeout", [0.01, 0.06])
def test_a_writer_with_short_timeouts_learns_that_a_reader_has_died(opened, timeout):
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=1)
    _, reader = child(opened, reads_nothing, writer.export_handle())
    writer.wait_until_ready(BOUND_S)
    reader.kill()
    reader.join()
    writer.enqueue(0)
    until_dead(lambda: writer.enqueue(1, timeout))


@pytest.fixture
def busy_bell(opened):
    """A bell that somebody else rings every few milliseconds. -> its address"""
    owner = opened(MessageQueue, 1, 1, max_chunk_bytes=4096)
    neighbour = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, bell=owner.bell_address)
    reader = opened(MessageQueue.create_from_handle, neighbour.export_handle(), 0)
    over = threading.Event()

    def ring():
        while not over.wait(0.005):
            neighbour.enqueue("not yours")
            reader.dequeue(BOUND_S)

    thread = threading.Thread(target=ring)
    thread.start()
    yield owner.bell_address
    over.set()
    thread.join()


def stands_still_beside(pipe, bell):
    stands_still(pipe, bell=bell)


def test_the_death_of_the_writer_is_noticed_though_a_neighbour_rings_the_same_bell(opened, busy_bell):
    pipe, writer = child(opened, stands_still_beside, busy_bell)
    reader = opened(MessageQueue.create_from_handle, said(pipe), 0)
    reader.wait_until_ready(BOUND_S)
    writer.kill()
    writer.join()
    with pytest.raises(PeerDeadError, match="the writer has died"):
        reader.dequeue(3.0)


def test_a_cancellation_is_noticed_though_a_neighbour_rings_the_same_bell(opened, busy_bell):
    _, reader = pair(opened, bell=busy_bell)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(QueueCancelledError, match="cancelled"):
        reader.dequeue(3.0, cancel=cancel)


# -- counting


def test_a_wait_for_an_overflow_is_counted_whole(opened):
    writer, reader = pair(opened)
    timer = threading.Timer(0.3, writer.enqueue, [b"x" * 10_000])
    timer.start()
    reader.dequeue(BOUND_S)
    timer.join()
    stats = reader.stats()  # it may have waited for the flag and then for the payload
    assert stats.waits in (1, 2) and 0.2 < stats.longest_wait_s < BOUND_S


def test_a_wait_that_was_cancelled_is_counted_once_and_whole(opened):
    _, reader = pair(opened)
    cancel = threading.Event()
    timer = threading.Timer(0.5, cancel.set)
    timer.start()
    with pytest.raises(QueueCancelledError):
        reader.dequeue(cancel=cancel)
    timer.join()
    assert reader.stats().waits == 1 and 0.4 < reader.stats().longest_wait_s < BOUND_S


# -- what the caller changes later


def reads_when_told(pipe, handle, count):
    queue = MessageQueue.create_from_handle(handle, 0)
    queue.wait_until_ready(BOUND_S)
    pipe.send([bytes(queue.dequeue(BOUND_S)).strip(b"\0") for _ in range(count)])
    pipe.recv()


@pytest.mark.parametrize("size", [300_000, (1 << 20) - 100])
def test_what_the_caller_changes_after_enqueue_of_an_overflow_below_a_mebibyte_is_not_sent(opened, size):
    count = 8  # more than a socket takes at once while its reader stands still
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=count)
    pipe, reader = child(opened, reads_when_told, writer.export_handle(), count)
    writer.wait_until_ready(BOUND_S)
    os.kill(reader.pid, signal.SIGSTOP)
    buffers = [bytearray(size) for _ in range(count)]
    for buffer in buffers:
        writer.enqueue(buffer, BOUND_S)
        memoryview(buffer)[:] = b"x" * size
    os.kill(reader.pid, signal.SIGCONT)
    assert said(pipe) == [b""] * count


# -- starting


def test_a_writer_whose_wait_for_its_readers_timed_out_may_wait_again(opened):
    writer = opened(MessageQueue, 2, 2, max_chunk_bytes=4096)
    first = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    with pytest.raises(QueueTimeoutError, match=r"1 of 2 readers did not come, ranks \[1\]"):
        writer.wait_until_ready(1.0)
    second = opened(MessageQueue.create_from_handle, writer.export_handle(), 1)
    writer.wait_until_ready(BOUND_S)
    writer.enqueue(b"x" * 10_000)
    assert [reader.dequeue(BOUND_S) for reader in (first, second)] == [b"x" * 10_000] * 2


class LatePorts(RealPorts):
    """Connects only when it is told to."""

    def __init__(self, node) -> None:
        super().__init__(node)
        self.opening, self.go_on = threading.Event(), threading.Event()

    def open_socket(self, spec):
        self.opening.set()
        assert self.go_on.wait(BOUND_S)
        return super().open_socket(spec)


def test_the_subscription_of_somebody_else_does_not_count_for_a_reader_that_does_not_hear_yet(opened):
    """Rank 1 says that it is there before its socket is connected; what is sent then would be lost for it."""
    import zmq

    writer = opened(MessageQueue, 2, 2, max_chunk_bytes=4096)
    handle, late, readers = writer.export_handle(), LatePorts(worker(1)), []
    opened(MessageQueue.create_from_handle, handle, 0)
    with zmq.Context() as context, context.socket(zmq.SUB) as stranger:
        stranger.connect(handle.local_subscribe_addr)
        stranger.subscribe(b"")
        thread = threading.Thread(
            target=lambda: readers.append(MessageQueue.create_from_handle(handle, 1, ports=late)))
        thread.start()
        assert late.opening.wait(BOUND_S)
        try:
            with pytest.raises(QueueTimeoutError, match=r"ranks \[1\]"):
                writer.wait_until_ready(1.0)
        finally:
            late.go_on.set()
            thread.join()
            readers[0].shutdown()
            late.close()


# -- bad use


def test_a_rank_whose_reader_left_is_not_taken_by_another_that_would_begin_in_the_middle(opened):
    writer, reader = pair(opened)
    writer.enqueue(0), writer.enqueue(1)
    assert reader.dequeue(BOUND_S) == 0
    reader.shutdown()
    with pytest.raises(QueueError):
        second = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
        writer.enqueue(2), writer.enqueue(3)
        assert [second.dequeue(1.0) for _ in range(3)] == [1, 2, 3], "out of order"


@pytest.mark.parametrize("end", ["writer", "reader"])
def test_what_one_may_ask_after_shutdown_is_a_named_error_too(opened, end):
    queue = dict(zip(("writer", "reader"), pair(opened), strict=True))[end]
    queue.shutdown()
    for ask in (lambda: queue.position, queue.check_integrity, queue.stats):
        with pytest.raises(QueueCancelledError, match="shut down"):
            ask()


@pytest.mark.parametrize("end", ["writer", "reader"])
def test_a_timeout_that_is_no_number_is_an_error_at_once(opened, end):
    writer, reader = pair(opened)
    for number in range(3 if end == "writer" else 0):
        writer.enqueue(number)
    outcome = []

    def wait():
        try:
            outcome.append(reader.dequeue(math.nan) if end == "reader" else writer.enqueue("full", math.nan))
        except QueueError as error:
            outcome.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(2.0)
    (writer if end == "writer" else reader).shutdown()
    thread.join(BOUND_S)
    assert outcome == [QueueError]


def test_a_queue_that_cannot_be_opened_leaves_nothing(opened, tmp_path):
    segment = f"ringtwin-test-{os.getpid()}-unopened"
    try:
        with pytest.raises(QueueError, match="no shared-memory segment"):
            MessageQueue(1, 1, max_chunk_bytes=4096, segment_name=segment, overflow_address=f"ipc://{tmp_path}/overflow",
                         bell=("ringtwin-nowhere", 0))
        assert not os.path.exists(f"/dev/shm/{segment}")
    finally:
        if os.path.exists(f"/dev/shm/{segment}"):
            os.unlink(f"/dev/shm/{segment}")


# -- a queue that a process drives


def test_a_process_that_asks_for_a_ring_gets_it_driven():
    """As a life asks for it, by effects: each end opened by the process's ports, ready by the loops, used by loops."""
    spec = RingSpec(channel=Channel.RPC, writer=core(), readers=(worker(0),), max_chunks=3, max_chunk_bytes=4096)
    runtime = RuntimeDir.create()
    processes = [EngineProcess(RealPorts(core())), EngineProcess(RealPorts(worker(0)))]
    writer, handle = processes[0].run(one(CreateRing(
        "rpc", spec, runtime.segment("rpc"), runtime.socket("rpc.ipc"), "core")))
    reader = processes[1].run(one(OpenRing("rpc", handle, 0, spec)))
    assert "core" in processes[0].bells
    deadline = time.monotonic() + BOUND_S
    processes[0].run(wait_for_readers(writer, deadline))
    processes[1].run(wait_for_writer(reader, deadline))
    for message in ("small", b"x" * 10_000):
        processes[0].run(writer.enqueue(encode(message), deadline))
        assert decode(processes[1].run(reader.dequeue(deadline))) == message
    answers, by = processes[1].run(one(CreateRing(
        "response.0", spec, runtime.segment("response.0"), runtime.socket("response.0.ipc"), rings="rpc")))
    assert msgspec.msgpack.decode(by, type=Handle).bell == writer_bell_of(msgspec.msgpack.decode(handle, type=Handle))
    for process in reversed(processes):
        process.close()
        process.ports.close()
    assert not any(os.path.exists(f"/dev/shm/{runtime.segment(name)}") for name in ("rpc", "response.0"))
    runtime.remove()


def one(effect):
    """A loop of one effect."""
    return (yield effect)

"""Readers that sleep on the notify socket instead of the futex: between real processes, through public methods."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from engine.errors import PeerDeadError, QueueCancelledError, QueueError, QueueTimeoutError  # noqa: E402
from engine.ipc import wait  # noqa: E402
from engine.ipc.message_queue import MessageQueue  # noqa: E402
from engine.ipc.notify import NotifySocket  # noqa: E402
from tests.engine.queue_lab import child  # noqa: E402

BOUND_S = 30.0
#: Longer than any spin: who waits so long for a message sleeps.
ASLEEP_S = 0.05


def _echo(pipe, handle, rank, count):
    """Reads so many objects, each after a sleep of its own; says what it read and what of the processor it used."""
    wait._futex = None  # a system without it: nothing else wakes
    queue = MessageQueue.create_from_handle(handle, rank, wait=NotifySocket())
    queue.wait_until_ready(BOUND_S)
    pipe.send("ready")
    read, delays = [], []
    for _ in range(count):
        number, sent = queue.dequeue(BOUND_S)
        read.append(number)
        delays.append(time.monotonic() - sent)
    began, used = time.monotonic(), time.process_time()
    with pytest.raises(QueueTimeoutError):
        queue.dequeue(1.0)
    share = (time.process_time() - used) / (time.monotonic() - began)
    pipe.send((read, delays, share))
    queue.shutdown()


def _writer(opened, n_reader=1, **more) -> MessageQueue:
    return opened(MessageQueue, n_reader, n_reader, max_chunk_bytes=4096, max_chunks=4, wait=NotifySocket(), **more)


def test_readers_without_a_futex_are_woken_and_cost_nothing_while_idle(opened) -> None:
    """The messages come too far apart for a spin: each is read soon after it, and not at the next look at the peers."""
    writer = _writer(opened, 2)
    pipes = [child(opened, _echo, writer.export_handle(), rank, 10)[0] for rank in range(2)]
    writer.wait_until_ready(BOUND_S)
    assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
    for number in range(10):
        time.sleep(ASLEEP_S)
        writer.enqueue((number, time.monotonic()), BOUND_S)
    for pipe in pipes:
        assert pipe.poll(BOUND_S)
        read, delays, share = pipe.recv()
        assert read == list(range(10))
        assert sorted(delays)[5] < ASLEEP_S / 2, delays  # a look at the peers comes every 0.1 s
        assert share < 0.01


def test_each_end_chooses_for_itself(opened) -> None:
    """The writer publishes: one reader sleeps on that, one on the futex, one spins."""
    writer = _writer(opened, 3)
    handle, found = writer.export_handle(), {}

    def read(rank: int, how: object) -> None:
        queue = opened(MessageQueue.create_from_handle, handle, rank, wait=how)
        queue.wait_until_ready(BOUND_S)
        found[rank] = [queue.dequeue(BOUND_S) for _ in range(50)]

    threads = [threading.Thread(target=read, args=(rank, how))
               for rank, how in enumerate((NotifySocket(), wait.SpinThenSleep(), wait.Spin()))]
    for thread in threads:
        thread.start()
    writer.wait_until_ready(BOUND_S)
    for number in range(50):
        writer.enqueue(number, BOUND_S)
    for thread in threads:
        thread.join(BOUND_S)
    assert found == {rank: list(range(50)) for rank in range(3)}


def test_a_reader_cannot_sleep_on_what_its_writer_does_not_publish(opened) -> None:
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=4)
    with pytest.raises(QueueError, match="NotifySocket"):
        MessageQueue.create_from_handle(writer.export_handle(), 0, wait=NotifySocket())
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)  # its place is still free
    writer.enqueue("hello")
    assert reader.dequeue(BOUND_S) == "hello"


def test_a_sleeper_is_ended_by_shutdown_and_by_cancel(opened) -> None:
    writer = _writer(opened)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0, wait=NotifySocket())
    cancel = threading.Event()
    threading.Timer(ASLEEP_S, cancel.set).start()
    with pytest.raises(QueueCancelledError, match="cancelled"):
        reader.dequeue(cancel=cancel)
    threading.Timer(ASLEEP_S, reader.shutdown).start()
    with pytest.raises(QueueCancelledError, match="shut down"):
        reader.dequeue()


def _publish_and_stay(pipe, _=None):
    queue = MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=4, wait=NotifySocket())
    queue.enqueue("before")
    pipe.send(queue.export_handle())
    pipe.recv()


def test_a_sleeper_learns_that_its_writer_was_killed(opened) -> None:
    pipe, process = child(opened, _publish_and_stay)
    reader = opened(MessageQueue.create_from_handle, pipe.recv(), 0, wait=NotifySocket())
    threading.Timer(ASLEEP_S, os.kill, (process.pid, signal.SIGKILL)).start()
    assert reader.dequeue(BOUND_S) == "before"
    with pytest.raises(PeerDeadError):
        reader.dequeue(BOUND_S)


def test_nothing_is_left_of_the_socket(opened) -> None:
    writer = _writer(opened)
    socket = Path(writer.export_handle().local_notify_addr.removeprefix("ipc://"))
    assert socket.is_socket()
    writer.shutdown()
    assert not socket.exists()

"""Readers that sleep on the notify socket instead of the futex: between real processes, through public methods."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from engine.errors import PeerDeadError, QueueCancelledError, QueueError  # noqa: E402
from engine.ipc import wait  # noqa: E402
from engine.ipc.message_queue import MessageQueue  # noqa: E402
from engine.ipc.notify import NotifySocket  # noqa: E402
from engine.process.real_ports import RealPorts  # noqa: E402
from engine.topology import core  # noqa: E402
from tests.engine.ipc.queue_lab import child, rests  # noqa: E402

BOUND_S = 30.0
#: Longer than any spin: who waits so long for a message sleeps.
ASLEEP_S = 0.05


def _echo(pipe, handle, rank, count):
    """Reads so many objects, each after a sleep of its own; says what it read, and that it then rested."""
    wait._futex = None  # a system without it: nothing else wakes
    queue = MessageQueue.create_from_handle(handle, rank, wait=NotifySocket())
    queue.wait_until_ready(BOUND_S)
    pipe.send("ready")
    read, delays = [], []
    for _ in range(count):
        number, sent = queue.dequeue(BOUND_S)
        read.append(number)
        delays.append(time.monotonic() - sent)
    rests(queue.dequeue)
    pipe.send((read, delays))
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
        read, delays = pipe.recv()
        assert read == list(range(10))
        assert sorted(delays)[5] < ASLEEP_S / 2, delays  # a look at the peers comes every 0.1 s


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


def _answer(pipe, handle, count):
    """Reads so many objects and answers each at once, by a queue of its own."""
    back = MessageQueue(1, 1, max_chunk_bytes=4096, max_chunks=4)
    pipe.send(back.export_handle())
    queue = MessageQueue.create_from_handle(handle, 0, wait=NotifySocket())
    queue.wait_until_ready(BOUND_S)
    for _ in range(count):
        back.enqueue(queue.dequeue(BOUND_S), BOUND_S)
    pipe.recv()


def test_a_notice_soon_after_another_is_no_less_prompt(opened) -> None:
    """The reader has taken the last byte and sleeps again; the writer's socket may not know yet that it was taken."""
    writer = _writer(opened)
    pipe, _ = child(opened, _answer, writer.export_handle(), 50)
    back = opened(MessageQueue.create_from_handle, pipe.recv(), 0)
    writer.wait_until_ready(BOUND_S)
    took = []
    for number in range(50):
        time.sleep(5 * wait.SPIN_S)  # meanwhile the reader falls asleep, if it has a core
        began = time.monotonic()
        writer.enqueue(number, BOUND_S)
        assert back.dequeue(BOUND_S) == number
        took.append(time.monotonic() - began)
    assert sorted(took)[-5] < ASLEEP_S, took  # a look at the peers comes every 0.1 s


class _OneAtATime(RealPorts):
    """Its PUB socket stands still in the first send until it may go on, and counts who else comes in meanwhile."""

    def __init__(self) -> None:
        super().__init__(core())
        self.inside, self.go_on, self.others = threading.Event(), threading.Event(), 0

    def open_socket(self, spec):
        socket = super().open_socket(spec)
        if spec.kind == "PUB":
            send, socket.send = socket.send, lambda frames: self._send(send, frames)
        return socket

    def _send(self, send, frames) -> None:
        if self.inside.is_set():
            self.others += not self.go_on.is_set()
            return
        self.inside.set()
        self.go_on.wait(BOUND_S)
        send(frames)


def test_a_shutdown_does_not_use_the_socket_that_another_thread_uses(closing, opened) -> None:
    """ZMQ's sockets are for one thread at a time."""
    ports = _OneAtATime()
    closing.callback(ports.close)
    writer = _writer(opened, ports=ports)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0)
    sender = threading.Thread(target=writer.enqueue, args=("sent",))
    sender.start()
    assert ports.inside.wait(BOUND_S)
    ending = threading.Thread(target=writer.shutdown)
    ending.start()
    while True:  # until it refuses: then it is being shut down
        try:
            writer.enqueue("refused")
        except QueueCancelledError:
            break
        except QueueError:
            time.sleep(0.001)
    ending.join(0.2)  # it waits for the sender
    assert ending.is_alive()
    ports.go_on.set()
    sender.join(BOUND_S)
    ending.join(BOUND_S)
    assert ports.others == 0
    assert reader.dequeue(BOUND_S) == "sent"
    with pytest.raises(PeerDeadError):
        reader.dequeue(BOUND_S)

"""An exception out of a signal handler (Ctrl-C) in the midst of an operation: both ends go on in step."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("zmq")

from engine.errors import QueueDecodeError, QueueTimeoutError  # noqa: E402
from engine.ipc.message_queue import MessageQueue  # noqa: E402
from engine.ports import RingMemory  # noqa: E402
from engine.process.real_ports import RealPorts  # noqa: E402
from engine.topology import core, worker  # noqa: E402

BOUND_S = 15.0


class InterruptedPorts(RealPorts):
    """Ctrl-C at the fence whose number, from 1, is in `at`: Python raises it where a function is called."""

    at = 0

    def _keep(self, segment):
        return RingMemory(super()._keep(segment).memory, self._fence)

    def _fence(self) -> None:
        self.at -= 1
        if not self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("end", ["writer", "reader"])
@pytest.mark.parametrize("fence", [1, 2, 3, 4])
def test_an_end_that_was_interrupted_inside_of_the_ring_goes_on_in_step_with_the_others(opened, end, fence):
    """The interrupted message is sent or not, handed out or not; those behind it all arrive, in order."""
    ports = InterruptedPorts(core() if end == "writer" else worker(0))
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=3, ports=ports if end == "writer" else None)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0,
                    ports=ports if end == "reader" else None)
    writer.enqueue("before")
    assert reader.dequeue(BOUND_S) == "before"
    ports.at = fence
    got = []
    for number in range(7):
        with contextlib.suppress(KeyboardInterrupt):
            writer.enqueue(number, 1.0)
        with contextlib.suppress(KeyboardInterrupt, QueueTimeoutError):
            got.append(reader.dequeue(0.05))
    with contextlib.suppress(QueueTimeoutError):
        got.append(reader.dequeue(0))
    assert got in (list(range(7)), list(range(1, 7)))
    writer.shutdown(), reader.shutdown()
    ports.close()


class InterruptedSocketPorts(RealPorts):
    """`error` just after ZMQ has taken or given the frame whose number, from 1, is in `at`, on that socket."""

    at, error, socket = 0, KeyboardInterrupt, "overflow"

    def open_socket(self, spec):
        socket = super().open_socket(spec)
        if spec.name.endswith(self.socket):
            socket._send, socket._receive = map(self._interrupted, (socket._send, socket._receive))
        return socket

    def _interrupted(self, operation):
        def call(*args):
            done = operation(*args)
            self.at -= 1
            if not self.at:
                raise self.error
            return done

        return call


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("end, frame, size", [
    ("writer", 1, "large"), ("writer", 2, "large"), ("writer", 4, "large"), ("writer", 2, "small"),
    ("reader", 2, "small")])
def test_an_end_that_was_interrupted_inside_of_the_socket_goes_on_in_step_with_the_others(
        closing, opened, end, frame, size, error):
    """The writer's payload goes again, whole; the reader's is lost, which it finds out."""
    ports = InterruptedSocketPorts(core() if end == "writer" else worker(0))
    closing.callback(ports.close)
    writer = opened(MessageQueue, 1, 1, max_chunk_bytes=4096, max_chunks=3, ports=ports if end == "writer" else None)
    reader = opened(MessageQueue.create_from_handle, writer.export_handle(), 0,
                    ports=ports if end == "reader" else None)
    writer.wait_until_ready(BOUND_S)
    reader.wait_until_ready(BOUND_S)
    objects = [[bytes([number]) * (64 << 10), bytes([number + 100]) * (64 << 10)] for number in range(3)]  # 4 frames
    behind = objects[1] if size == "large" else "small"
    ports.at, ports.error = frame, error
    with pytest.raises(error) if end == "writer" else contextlib.nullcontext():
        writer.enqueue(objects[0])
    with pytest.raises(error) if end == "reader" else contextlib.nullcontext():
        if end == "writer":
            writer.enqueue(behind)
        assert reader.dequeue(BOUND_S) == objects[0]
    if end == "reader":
        with pytest.raises(QueueDecodeError, match="lost"):
            reader.dequeue(BOUND_S)
        writer.enqueue(behind)
    assert reader.dequeue(BOUND_S) == behind
    for expected in objects[1:]:
        writer.enqueue(expected, BOUND_S)
        assert reader.dequeue(BOUND_S) == expected


@pytest.mark.parametrize("frame, size", [(1, 10), (2, 10), (1, 64 << 10), (2, 64 << 10), (3, 64 << 10)])
def test_readers_here_and_on_other_hosts_agree_on_what_an_interrupted_writer_sent(closing, opened, frame, size):
    """It is broken off between the two, within the message for the others or just behind it."""
    ports = InterruptedSocketPorts(core())
    ports.socket = "remote"
    closing.callback(ports.close)
    writer = opened(MessageQueue, 2, 1, max_chunk_bytes=4096, max_chunks=6, connect_ip="127.0.0.1", ports=ports)
    readers = [opened(MessageQueue.create_from_handle, writer.export_handle(), rank) for rank in range(2)]
    writer.wait_until_ready(BOUND_S)
    for reader in readers:
        reader.wait_until_ready(BOUND_S)
    objects = [bytes([number]) * size for number in range(4)]
    ports.at = frame
    with pytest.raises(KeyboardInterrupt):
        writer.enqueue(objects[0])
    for sent in objects[1:]:
        writer.enqueue(sent, BOUND_S)
    got = [[reader.dequeue(BOUND_S) for _ in objects] for reader in readers]
    assert got == [objects, objects]
    assert [reader.stats().messages for reader in readers] == [4, 4]

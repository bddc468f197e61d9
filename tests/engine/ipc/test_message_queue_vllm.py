"""Between our MessageQueue and vLLM's: the same segment, chunks and frames. Needs an importable vllm."""

from __future__ import annotations

import threading
import time

import pytest

from engine.errors import QueueError
from engine.ipc.framing import decode, encode, from_overflow_frames, object_taker, pack
from engine.ipc.handle import Handle
from engine.ipc.message_queue import MessageQueue
from engine.ipc.notify import NotifySocket

pytest.importorskip("zmq")
numpy = pytest.importorskip("numpy")
try:
    from vllm.distributed.device_communicators import shm_broadcast as vllm
except ImportError as error:
    pytest.skip(f"vLLM cannot be imported: {error}", allow_module_level=True)

BOUND_S = 20.0
CHUNK_BYTES = 8 << 20
OBJECTS = [
    ("small", {"k": [1, 2.5, None]}),
    bytes(range(256)) * 256,  # lent: beside the pickle for us
    (1, {"k": bytearray(2 << 20)}),
    numpy.arange(1 << 20, dtype="i4"),
    [numpy.arange(300, dtype="u1"), b"x" * (3 << 20)],
    b"last",
]
LARGE = [b"o" * CHUNK_BYTES, numpy.arange(CHUNK_BYTES, dtype="u1"), "x" * CHUNK_BYTES]


def same(one, other) -> bool:
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.fixture
def both():
    """Our writer, and vLLM's reader of all that it writes."""
    ours = MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=4, wait=NotifySocket())
    try:
        handle = ours.export_handle()
        theirs = vllm.MessageQueue.create_from_handle(vllm.Handle(
            local_reader_ranks=handle.local_reader_ranks, buffer_handle=handle.buffer_handle,
            local_subscribe_addr=handle.local_subscribe_addr, local_notify_addr=handle.local_notify_addr,
            remote_subscribe_addr=None, remote_addr_ipv6=False), 0)
        ready = threading.Thread(target=theirs.wait_until_ready)
        ready.start()
        ours.wait_until_ready(BOUND_S)
        ready.join(BOUND_S)
        yield ours, theirs
    finally:
        ours.shutdown()


def test_vllms_reader_takes_all_that_our_writer_sends(both):
    ours, theirs = both
    for sent in (*OBJECTS, *OBJECTS, *LARGE, "after"):  # the large ones by the socket, with our mark behind them
        ours.enqueue(sent, BOUND_S)
        assert same(sent, theirs.dequeue(timeout=BOUND_S))
    assert ours.stats().overflows == len(LARGE)


def test_vllms_reader_that_sleeps_is_woken_by_our_notice(both):
    """It spins for a second, then sleeps, and looks again of its own accord five seconds later."""
    ours, theirs = both
    ours.enqueue("first", BOUND_S)
    assert theirs.dequeue(timeout=BOUND_S) == "first"
    sender = threading.Timer(1.5, lambda: ours.enqueue(time.monotonic()))
    sender.start()
    sent = theirs.dequeue(timeout=BOUND_S)
    assert time.monotonic() - sent < 2.0
    sender.join()


class Buffer:
    """In place of a socket: what vLLM's writer hands to it."""

    def send_multipart(self, parts, copy=True):
        self.frames = [bytes(part) for part in parts]


@pytest.mark.parametrize("sent", [*OBJECTS, *LARGE], ids=lambda sent: f"{type(sent).__name__}")
def test_our_reader_decodes_what_vllms_writer_puts_down(sent):
    theirs = vllm.MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=2)
    wire = theirs.local_socket = Buffer()
    theirs.enqueue(sent)
    with theirs.buffer.get_data(0) as chunk:
        got = object_taker()(chunk)
        if any(sent is one for one in LARGE):
            position, parts = from_overflow_frames(wire.frames)
            assert position is None
            got = decode(parts), None
    assert same(sent, got[0])


def test_what_both_put_into_a_chunk_is_the_same_where_nothing_is_lent():
    theirs = vllm.MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=2)
    for number, sent in enumerate((OBJECTS[0], OBJECTS[3])):
        theirs.enqueue(sent)
        expected = b"".join(map(bytes, pack(encode(sent))))
        with theirs.buffer.get_data(number) as chunk:
            assert bytes(chunk[:len(expected)]) == expected


def test_a_segment_without_our_bells_is_refused_by_name():
    theirs = vllm.MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, max_chunks=2)
    made = theirs.export_handle()
    handle = Handle(local_reader_ranks=[0], buffer_handle=tuple(made.buffer_handle),
                    local_subscribe_addr=made.local_subscribe_addr)
    with pytest.raises(QueueError, match="its writer is of another kind|too few for its ring"):
        MessageQueue.create_from_handle(handle, 0)

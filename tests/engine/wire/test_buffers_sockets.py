"""Frames of their own through real sockets: a buffer lives until the socket has sent it, and arrives as it was."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

zmq = pytest.importorskip("zmq")

from engine.messages import EngineCoreRequest, SamplingParams  # noqa: E402
from engine.ports import SocketSpec  # noqa: E402
from engine.topology import NodeKind  # noqa: E402
from engine.wire.codec import Utility, decode_request, encode_add, encode_utility  # noqa: E402
from engine.wire.sockets import ZERO_COPY_BYTES, ZmqSocket  # noqa: E402

MESSAGES = 40
NUMBERS = 100_000  # 400 KB: the system's buffers hold few of them


@pytest.fixture(params=["ipc", "tcp"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ZmqSocket, ZmqSocket]]:
    """(sender, reader): what the reader has not read waits with the sender, but for a few messages."""
    context = zmq.Context()
    address = f"ipc://{tmp_path}/s" if request.param == "ipc" else "tcp://127.0.0.1:*"
    spec = SocketSpec(name="out", kind="PUSH", peer_kind=NodeKind.CORE, bind=True, address=address, linger_s=0.0)
    sender = ZmqSocket(context, spec)
    reader = ZmqSocket(context, SocketSpec(name="in", kind="PULL", peer_kind=NodeKind.CORE, bind=False,
                                           address=sender.address, linger_s=0.0, receive_hwm=2))
    assert sender._socket.poll(5000, zmq.POLLOUT)
    yield sender, reader
    for end in (sender, reader):
        end.close(0)
    context.term()


def prompt(number: int) -> list[int]:
    return list(range(number, number + NUMBERS))


def received(reader: ZmqSocket) -> list:
    assert reader.poll(10_000)
    found = reader.try_receive()
    assert found is not None
    return found[1]


def test_buffers_that_nobody_else_holds_live_until_they_are_sent(ends: tuple[ZmqSocket, ZmqSocket]) -> None:
    sender, reader = ends
    for number in range(MESSAGES):
        sender.send(encode_add(EngineCoreRequest(f"r-{number}", prompt(number), SamplingParams()), 64))
    gc.collect()
    junk = [bytes([value % 251]) * (4 * NUMBERS) for value in range(2 * MESSAGES)]  # takes what was freed too soon
    for number in range(MESSAGES):
        frames = received(reader)
        assert [len(frame) >= ZERO_COPY_BYTES for frame in frames] == [False, False, True]
        request = decode_request(frames)
        assert (request.request_id, request.prompt_token_ids) == (f"r-{number}", prompt(number))
    assert len(junk) == 2 * MESSAGES


class Watched(bytearray):
    """Tells of its end: plain bytes do not."""


def test_each_buffer_is_held_until_it_is_sent_and_no_longer(ends: tuple[ZmqSocket, ZmqSocket]) -> None:
    sender, reader = ends
    gone = threading.Semaphore(0)
    alive = []
    for number in range(MESSAGES):
        one, other = (Watched(bytes([value]) * (4 * NUMBERS)) for value in (number, number + 1))
        alive += [weakref.ref(buffer, lambda _: gone.release()) for buffer in (one, other)]
        sender.send([b"head", one, other])
        del one, other
    gc.collect()
    assert alive[-1]() is not None and alive[-2]() is not None  # both of the last one, which nobody has read
    for number in range(MESSAGES):
        head, one, other = received(reader)
        assert (head, one[0], other[-1]) == (b"head", number, number + 1)
    sender.send([b"next"])
    for _ in range(2 * MESSAGES):
        assert gone.acquire(timeout=10), "a buffer that was sent is still held"


def test_small_buffers_are_frames_too_and_are_copied(ends: tuple[ZmqSocket, ZmqSocket]) -> None:
    sender, reader = ends
    call = Utility(0, 1, "ping", [list(range(20)), list(range(20, 40))])
    sender.send(encode_utility(call, 64))
    frames = received(reader)
    assert len(frames) == 4
    assert decode_request(frames) == call

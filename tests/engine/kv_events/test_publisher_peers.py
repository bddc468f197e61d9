"""A publisher among many peers: long replays, a hundred at once, a subscriber that binds, clients of the original."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

zmq = pytest.importorskip("zmq")

from engine.kv_events.codec import request_frames  # noqa: E402
from engine.kv_events.publisher.replays import MAX_REPLAYS  # noqa: E402
from engine.kv_events.reports import Snapshot  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from tests.engine.kv_events.kv_lab import ANY_PORTS, BOUND_S, a_batch, open_publisher  # noqa: E402

#: What a live batch may take while replays are under way; alone it takes a millisecond.
LIVE_DELAY_S = 0.5


@pytest.fixture
def context(closing: ExitStack) -> zmq.Context:
    return closing.enter_context(zmq.Context())


def _socket(closing: ExitStack, context: zmq.Context, kind: int) -> zmq.Socket:
    socket = closing.enter_context(context.socket(kind))
    for option in (zmq.LINGER, zmq.RCVHWM):
        socket.setsockopt(option, 0)
    return socket


def _receive(socket: zmq.Socket) -> list[bytes]:
    assert socket.poll(BOUND_S * 1000), "nothing came"
    return socket.recv_multipart()


def _number(frame: bytes) -> int:
    return int.from_bytes(frame, "big", signed=True)


def _answer(socket: zmq.Socket) -> list[list[bytes]]:
    """Up to the end marker, which is the last of it."""
    answer = [_receive(socket)]
    while _number(answer[-1][2]) != -1:
        answer.append(_receive(socket))
    return answer


def test_long_replays_hold_no_live_batch_back(closing: ExitStack, context: zmq.Context) -> None:
    """Three readers ask for the whole window again and again; each live batch comes within a bound meanwhile."""
    publisher = open_publisher(closing, batches=10_000)
    over, replayed = threading.Event(), [0, 0, 0]

    def ask_again(which: int) -> None:
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.connect(publisher.replay_address)
            dealer.send_multipart(request_frames(0))
            while not over.is_set():
                if dealer.poll(100):
                    replayed[which] += 1
                    if _number(dealer.recv_multipart()[2]) == -1:
                        dealer.send_multipart(request_frames(0))

    live = _socket(closing, context, zmq.SUB)
    live.subscribe(b"")
    live.connect(publisher.address)
    while not live.poll(20):
        publisher.publish(a_batch(0))
    while live.poll(50):
        live.recv_multipart()
    threads = [threading.Thread(target=ask_again, args=(which,)) for which in range(3)]
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + BOUND_S
        while not all(replayed):
            assert time.monotonic() < end
            time.sleep(0.01)
        before, delays = sum(replayed), []
        for number in range(40):
            began = time.monotonic()
            publisher.publish(a_batch(number))
            _receive(live)
            delays.append(time.monotonic() - began)
        during = sum(replayed) - before
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert max(delays) < LIVE_DELAY_S, sorted(delays)[-5:]
    assert during > 40, "no replay was under way"


def test_a_hundred_replays_at_once_are_each_answered_whole(closing: ExitStack, context: zmq.Context) -> None:
    """More than are under way at once. Each peer gets every batch once, in order, and one end."""
    publisher = open_publisher(closing, batches=200)
    dealers = [_socket(closing, context, zmq.DEALER) for _ in range(MAX_REPLAYS + 36)]
    for dealer in dealers:
        dealer.connect(publisher.replay_address)
        dealer.send_multipart(request_frames(0))
    for dealer in dealers:
        assert [_number(frames[2]) for frames in _answer(dealer)] == [*range(200), -1]
        assert not dealer.poll(0)


def test_a_publisher_connects_to_a_subscriber_that_is_bound(closing: ExitStack, context: zmq.Context) -> None:
    """vLLM's rule: an address with a host is connected to. Live batches and replays are the same."""
    live = _socket(closing, context, zmq.SUB)
    live.subscribe(b"kv")
    port = live.bind_to_random_port("tcp://127.0.0.1")
    publisher = open_publisher(closing, (f"tcp://127.0.0.1:{port}", ANY_PORTS[1]), topic="kv")
    published = 0
    while not live.poll(20):
        publisher.publish(a_batch(published))
        published += 1
        assert published * 0.02 < BOUND_S, "nothing came"
    topic, number, payload = live.recv_multipart()
    assert (topic, publisher.address) == (b"kv", f"tcp://127.0.0.1:{port}")
    dealer = _socket(closing, context, zmq.DEALER)
    dealer.connect(publisher.replay_address)
    dealer.send_multipart([b"", number])
    assert _answer(dealer)[0] == [b"", topic, number, payload]


def test_clients_of_the_original_never_see_a_snapshot(closing: ExitStack, context: zmq.Context) -> None:
    """One listens, one asks, while a subscriber of ours fell out of the window and takes the state."""
    publisher = open_publisher(closing, batches=20, buffer_steps=2)
    live, dealer = _socket(closing, context, zmq.SUB), _socket(closing, context, zmq.DEALER)
    live.subscribe(b"")
    live.connect(publisher.address)
    dealer.connect(publisher.replay_address)
    ours = closing.enter_context(KVEventSubscriber(publisher.address, publisher.replay_address, poll_s=0.1))
    told, heard, answered = [], [], []
    end = time.monotonic() + BOUND_S
    while not any(isinstance(report, Snapshot) for report in told) or not heard:
        assert time.monotonic() < end
        dealer.send_multipart(request_frames(0))
        told += ours.poll(0.05)
        publisher.publish(a_batch(1))
        answered += _answer(dealer)
        while live.poll(0):
            heard.append(live.recv_multipart())
    assert {len(frames) for frames in heard} == {3}
    assert all(_number(frames[1]) >= 0 for frames in heard)
    assert {len(frames) for frames in answered} == {4}
    assert all(_number(frames[2]) >= -1 for frames in answered)

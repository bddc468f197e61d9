"""The publisher as those who run it meet it: what it logs, how it ends, the names that users of vLLM know."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

zmq = pytest.importorskip("zmq")

from engine.core import kv_publisher  # noqa: E402
from engine.core.kv_codec import request_frames  # noqa: E402
from engine.core.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher  # noqa: E402

BOUND_S = 20.0


def _batch(block_hash: int = 1) -> KVEventBatch:
    return KVEventBatch(1.0, [BlockStored([block_hash], None, [1, 2], 2, None)])


def _wait(true: Callable[[], object]) -> None:
    end = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _publisher(closing: ExitStack, **more: object) -> ZmqEventPublisher:
    publisher = ZmqEventPublisher(0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", **more)
    closing.callback(publisher.shutdown)
    return publisher


def _dealer(closing: ExitStack, address: str) -> zmq.Socket:
    context = closing.enter_context(zmq.Context())
    dealer = closing.enter_context(context.socket(zmq.DEALER))
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(address)
    return dealer


def test_losses_and_bad_requests_are_logged_once_and_then_counted(
        closing: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be encoded and three bad requests: a line each; later one line with the count of the rest."""
    caplog.set_level(logging.WARNING, kv_publisher.__name__)
    publisher = _publisher(closing)
    dealer = _dealer(closing, publisher.replay_address)
    publisher.publish(KVEventBatch(1.0, [object()]))
    for _ in range(3):
        dealer.send_multipart([b"", b"short"])
    dealer.send_multipart(request_frames(0))
    assert dealer.poll(BOUND_S * 1000)  # what was asked before is dealt with
    _wait(lambda: publisher.log.lost_unencodable)
    _wait(lambda: len(caplog.messages) == 2)
    assert sorted(message.split(":")[0] for message in caplog.messages) == ["bad-frame", "kv-lost"]
    assert any("cannot be encoded" in message for message in caplog.messages)
    monkeypatch.setattr(kv_publisher, "LOG_S", 0.0)
    dealer.send_multipart([b"", b"short"])
    _wait(lambda: len(caplog.messages) == 3)
    assert "2 more" in caplog.messages[-1]


def test_a_full_queue_is_logged_by_the_publishers_thread(closing: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread stands still while six batches come, with room for two: one line, from that thread."""
    caplog.set_level(logging.WARNING, kv_publisher.__name__)
    publisher = _publisher(closing, max_queue_size=2)
    go_on, frames = threading.Event(), publisher.log.frames

    def slow(number: int, batch: KVEventBatch) -> list[bytes]:
        go_on.wait(BOUND_S)
        return frames(number, batch)

    publisher.log.frames = slow
    for number in range(6):
        publisher.publish(_batch(number))
    go_on.set()
    _wait(lambda: any("2 wait already" in message for message in caplog.messages))
    assert {record.threadName for record in caplog.records} == {"zmq-publisher"}
    assert publisher.log.lost_at_full_queue == 4

"""The publisher as those who run it meet it: what it logs, how it ends, the names that users of vLLM know."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

import msgspec
import pytest

zmq = pytest.importorskip("zmq")

from engine.core.kv_events import (  # noqa: E402
    EventBatch,
    EventPublisher,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    NullEventPublisher,
    ZmqEventPublisher,
)
from engine.kv_events.codec import request_frames  # noqa: E402
from engine.kv_events.publisher.log import hand_over  # noqa: E402
from engine.process import operator_log, shell  # noqa: E402
from engine.process.real_ports import RealPorts  # noqa: E402
from engine.process.shell import Process  # noqa: E402
from engine.topology import core  # noqa: E402
from tests.engine.kv_events.kv_lab import BOUND_S, a_batch, open_publisher, until  # noqa: E402


def _dealer(closing: ExitStack, address: str) -> zmq.Socket:
    context = closing.enter_context(zmq.Context())
    dealer = closing.enter_context(context.socket(zmq.DEALER))
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(address)
    return dealer


def test_losses_and_bad_requests_are_logged_once_and_then_counted(
        closing: ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be encoded and three bad requests: a line each; later one line with the count of the rest."""
    caplog.set_level(logging.WARNING, shell.__name__)
    publisher = open_publisher(closing)
    dealer = _dealer(closing, publisher.replay_address)
    publisher.publish(KVEventBatch(1.0, [object()]))
    for _ in range(3):
        dealer.send_multipart([b"", b"short"])
    dealer.send_multipart(request_frames(0))
    assert dealer.poll(BOUND_S * 1000)  # what was asked before is dealt with
    until(lambda: publisher.log.lost_unencodable)
    until(lambda: len(caplog.messages) == 2)
    assert sorted(message.split(":")[0] for message in caplog.messages) == ["bad-frame", "kv-lost"]
    assert any("cannot be encoded" in message for message in caplog.messages)
    monkeypatch.setattr(operator_log, "LOG_S", 0.0)
    dealer.send_multipart([b"", b"short"])
    until(lambda: len(caplog.messages) == 3)
    assert "2 more" in caplog.messages[-1]


@pytest.mark.parametrize("in_a_core", [False, True])
def test_a_full_queue_is_logged_by_the_publishers_thread(
        closing: ExitStack, caplog: pytest.LogCaptureFixture, in_a_core: bool) -> None:
    """Its thread stands still while six batches come, with room for two: one line, from that thread."""
    caplog.set_level(logging.WARNING, shell.__name__)
    ports = RealPorts(core(0)) if in_a_core else None
    publisher = open_publisher(closing, max_queue_size=2, ports=ports)
    publish = publisher.publish
    if in_a_core:  # it hands over in its own loop, and nobody records
        process = Process(ports)
        closing.callback(ports.close)
        process.queues["kv"] = publisher.queue
        closing.callback(publisher.shutdown)

        def publish(batch: KVEventBatch) -> None:
            process.run(hand_over(publisher.log, batch))

    go_on, frames = threading.Event(), publisher.log.frames

    def slow(number: int, batch: KVEventBatch, payload: bytes | None) -> list[bytes]:
        go_on.wait(BOUND_S)
        return frames(number, batch, payload)

    publisher.log.frames = slow
    for number in range(6):
        publish(a_batch(number))
    go_on.set()
    until(lambda: any("2 wait already" in message for message in caplog.messages))
    assert {record.threadName for record in caplog.records} == {"zmq-publisher"}
    assert publisher.log.lost_at_full_queue == 4


def test_the_names_that_users_of_vllm_know_are_there(closing: ExitStack) -> None:
    publisher = open_publisher(closing, topic="kv", buffer_steps=7)
    config = publisher.get_publisher_config()
    assert (config.endpoint, config.replay_endpoint) == (publisher.address, publisher.replay_address)
    assert (config.enable_kv_cache_events, config.publisher, config.topic) == (True, "zmq", "kv")
    assert config.buffer_steps == 7
    assert NullEventPublisher().get_publisher_config() is None
    assert ZmqEventPublisher.END_SEQ == b"\xff" * 8
    offset = ZmqEventPublisher.offset_endpoint_port
    assert offset("tcp://*:5557", 3) == "tcp://*:5560" and offset("inproc://cache", 1) == "inproc://cache_dp1"
    assert offset("tcp://*:0", 3) == "tcp://*:0" and offset("tcp://[::]:*", 3) == "tcp://[::]:*"
    assert offset(None, 2) is None and offset("tcp://*:5557", 0) == "tcp://*:5557"
    assert msgspec.structs.replace(config, topic="other").topic == "other"


def test_an_unknown_publisher_is_refused_by_name() -> None:
    config = msgspec.structs.replace(KVEventsConfig(enable_kv_cache_events=True), publisher="pigeon")
    with pytest.raises(ValueError, match="pigeon"):
        EventPublisherFactory.create(config)
    with pytest.raises(KeyError):
        EventPublisherFactory.register_publisher("null", NullEventPublisher)


def test_a_publisher_written_for_vllm_is_called_by_its_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(EventPublisher):
        def __init__(self, data_parallel_rank, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic):
            super().__init__(data_parallel_rank)
            self.got = (data_parallel_rank, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic)

        def publish(self, events: EventBatch) -> None:
            raise NotImplementedError

        def shutdown(self) -> None:
            raise NotImplementedError

    monkeypatch.setattr(EventPublisherFactory, "_registry", dict(EventPublisherFactory._registry))
    EventPublisherFactory.register_publisher("theirs", Theirs)
    config = KVEventsConfig(enable_kv_cache_events=True, publisher="theirs", endpoint="e", replay_endpoint="r",
                            buffer_steps=1, hwm=2, max_queue_size=3, topic="t")
    assert EventPublisherFactory.create(config, 4).got == (4, "e", "r", 1, 2, 3, "t")


def test_a_second_shutdown_returns_when_the_first_is_done(closing: ExitStack) -> None:
    """Its thread is held up; both callers wait, and when either returns the address is free."""
    publisher = open_publisher(closing)
    go_on, frames = threading.Event(), publisher.log.frames
    entered = threading.Event()

    def slow(number: int, batch: KVEventBatch, payload: bytes | None) -> list[bytes]:
        entered.set()
        go_on.wait(BOUND_S)
        return frames(number, batch, payload)

    publisher.log.frames = slow
    publisher.publish(a_batch())
    assert entered.wait(BOUND_S)
    first = threading.Thread(target=publisher.shutdown)
    first.start()
    until(lambda: publisher._closed)
    threading.Timer(0.1, go_on.set).start()
    publisher.shutdown()
    assert go_on.is_set()
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        other.bind(publisher.address)
    first.join()


def test_a_queue_of_size_0_has_no_bound(closing: ExitStack) -> None:
    publisher = open_publisher(closing, max_queue_size=0)
    for number in range(1000):
        publisher.publish(a_batch(number))
    until(lambda: not publisher.log.waiting)
    assert publisher.log.numbered == 1000 and publisher.log.lost_at_full_queue == 0

"""Publisher and subscriber over real sockets: tcp on loopback, ipc, inproc."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

zmq = pytest.importorskip("zmq")

from engine.core.kv_events import (  # noqa: E402
    AllBlocksCleared,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    NullEventPublisher,
    ZmqEventPublisher,
)
from engine.kv_events.reports import Applied, Gap, Healed, Report, Restarted, Snapshot, Unrecoverable  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber, SubscriberRecipe  # noqa: E402
from engine.process.children import Bootstrap, start_child  # noqa: E402
from engine.process.real_ports import RealPorts  # noqa: E402
from engine.topology import Node, subscriber  # noqa: E402
from tests.engine.kv_events.kv_lab import (  # noqa: E402
    BOUND_S,
    a_batch,
    numbers_of,
    open_publisher,
    open_subscriber,
    read_until,
    until,
)


@pytest.fixture(params=["tcp", "ipc"])
def endpoints(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """(live, replay) to bind."""
    if request.param == "tcp":
        return "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"
    return f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"


def _connected(publisher: ZmqEventPublisher, subscriber: KVEventSubscriber) -> list[Report]:
    """Publish until a batch arrives live."""
    reports: list[Report] = []
    while not any(isinstance(report, Applied) and report.source == "live" for report in reports):
        publisher.publish(a_batch())
        reports += subscriber.poll(0.05)
    return reports


def test_a_late_subscriber_gets_everything_once_and_in_order(endpoints: tuple[str, str], closing: ExitStack) -> None:
    """A thousand batches were published before anybody listened."""
    publisher = open_publisher(closing, endpoints)
    for number in range(1000):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    subscriber = open_subscriber(closing, publisher)
    reports = read_until(subscriber, lambda seen: len(numbers_of(seen)) == 1000)
    assert numbers_of(reports) == list(range(1000))
    assert [report for report in reports if not isinstance(report, Applied)] == [Gap(0, 999), Healed(0, 999)]
    assert subscriber.mirror.hashes() == list(range(1000))


def test_a_replay_joins_the_live_batches_that_go_on(endpoints: tuple[str, str], closing: ExitStack) -> None:
    """While a late subscriber is served the past, the publisher publishes: one sequence comes out."""
    publisher = open_publisher(closing, endpoints, buffer_steps=50_000)
    for number in range(5000):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    subscriber = open_subscriber(closing, publisher)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(0.0005):
            publisher.publish(a_batch())

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        reports = read_until(subscriber, lambda seen: subscriber.follower.next > 5200)
    finally:
        stop.set()
        thread.join()
    reports += read_until(subscriber, lambda _: subscriber.follower.next == publisher.log.numbered)
    assert numbers_of(reports) == list(range(publisher.log.numbered))
    assert {report.source for report in reports if isinstance(report, Applied)} == {"live", "replay"}
    assert not any(isinstance(report, Unrecoverable) for report in reports)


def test_a_reader_slower_than_its_high_water_mark_loses_live_and_regains_by_replay(
        endpoints: tuple[str, str], closing: ExitStack) -> None:
    """With room for few messages and small buffers a burst is cut in the middle; the mirror is true in the end."""
    publisher = open_publisher(closing, endpoints, hwm=5, socket_buffer_bytes=4096)
    subscriber = open_subscriber(closing, publisher, hwm=5, socket_buffer_bytes=4096)
    _connected(publisher, subscriber)
    for number in range(3000):
        publisher.publish(a_batch(10_000 + number, tokens=64))
    until(lambda: publisher.log.waiting == 0)
    publisher.publish(KVEventBatch(time.time(), [AllBlocksCleared()]))
    publisher.publish(a_batch(7))
    reports = read_until(subscriber, lambda _: subscriber.follower.next == publisher.log.numbered)
    gaps = [report for report in reports if isinstance(report, Gap)]
    assert sum(gap.last - gap.first + 1 for gap in gaps) > 1000, "the burst was too small to be cut"
    assert not any(isinstance(report, Unrecoverable) for report in reports)
    assert subscriber.mirror.hashes() == [7]


def test_a_gap_beyond_the_window_is_told(endpoints: tuple[str, str], closing: ExitStack) -> None:
    """Fifty batches into a window of ten; what they amount to comes as a snapshot."""
    publisher = open_publisher(closing, endpoints, buffer_steps=10)
    for number in range(50):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    subscriber = open_subscriber(closing, publisher)
    reports = read_until(subscriber, lambda seen: any(isinstance(report, Snapshot) for report in seen))
    lost = [report for report in reports if isinstance(report, Unrecoverable)]
    assert [(report.first, report.last) for report in lost] == [(0, 39)]
    assert numbers_of(reports) == list(range(40, 50))
    assert subscriber.mirror.unknown_since is None
    assert subscriber.mirror.hashes() == list(range(50))


def test_a_restarted_publisher_is_told_apart_from_a_gap(tmp_path: Path, closing: ExitStack) -> None:
    """The second life binds the same addresses; its batches are numbered from 0 and all of them arrive."""
    endpoints = (f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay")
    first = open_publisher(closing, endpoints)
    subscriber = open_subscriber(closing, first)
    _connected(first, subscriber)
    first.shutdown()
    second = open_publisher(closing, endpoints)
    for number in range(5):
        second.publish(a_batch(number))
    reports = read_until(subscriber, lambda seen: seen and numbers_of(seen)[-5:] == list(range(5)))
    assert [report.epoch for report in reports if isinstance(report, Restarted)] == [second.log.epoch]
    assert subscriber.mirror.hashes() == list(range(5))


def test_two_readers_are_served_and_one_that_stands_still_delays_nobody(
        endpoints: tuple[str, str], closing: ExitStack) -> None:
    """The one never polls; the other gets all, and no call of publish waits for either."""
    publisher = open_publisher(closing, endpoints, hwm=10, socket_buffer_bytes=4096)
    open_subscriber(closing, publisher, hwm=10, socket_buffer_bytes=4096)
    reader = open_subscriber(closing, publisher)
    longest_s = 0.0
    for number in range(2000):
        began = time.perf_counter()
        publisher.publish(a_batch(number, tokens=64))
        longest_s = max(longest_s, time.perf_counter() - began)
    read_until(reader, lambda _: reader.follower.next == 2000)
    assert reader.mirror.hashes() == list(range(2000))
    assert longest_s < 1.0


def test_strangers_are_answered_in_the_originals_words(endpoints: tuple[str, str], closing: ExitStack) -> None:
    """A DEALER without an identity of ours gets four frames a batch and the plain end; garbage before hurts nobody."""
    publisher = open_publisher(closing, endpoints, topic="kv")
    for number in range(5):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    context = closing.enter_context(zmq.Context())
    dealer = closing.enter_context(context.socket(zmq.DEALER))
    dealer.connect(publisher.replay_address)
    for garbage in ([b"x"], [b"", b"short"], [b"", bytes(8), b"", b""], [b""] * 5):
        dealer.send_multipart(garbage)
    dealer.send_multipart([b"", (3).to_bytes(8, "big")])
    answer = []
    while not answer or answer[-1][2] != b"\xff" * 8:
        assert dealer.poll(BOUND_S * 1000)
        answer.append(dealer.recv_multipart())
    assert [frames[:3] for frames in answer] == [
        [b"", b"kv", (3).to_bytes(8, "big")], [b"", b"kv", (4).to_bytes(8, "big")], [b"", b"", b"\xff" * 8]]
    assert answer[-1][3:] == [b""]


def test_readers_in_the_same_process_may_use_inproc(closing: ExitStack) -> None:
    """An inproc endpoint lies in the global context, where its readers look for it."""
    publisher = open_publisher(closing, ("inproc://kv-of-a-test", "inproc://replay-of-a-test"))
    live = closing.enter_context(zmq.Context.instance().socket(zmq.SUB))
    live.subscribe(b"")
    live.connect("inproc://kv-of-a-test")
    while not live.poll(20):
        publisher.publish(a_batch())
    assert len(live.recv_multipart()) == 3


def test_after_shutdown_nothing_remains(closing: ExitStack) -> None:
    """With a full queue and a stalled reader: threads are gone, ports can be bound, publishing is refused."""
    publisher = open_publisher(closing, hwm=5, max_queue_size=100)
    open_subscriber(closing, publisher, hwm=5)
    for number in range(5000):
        publisher.publish(a_batch(number))
    publisher.shutdown()
    publisher.shutdown()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("zmq-")] == []
    for address in (publisher.address, publisher.replay_address):
        host, port = address.removeprefix("tcp://").split(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(a_batch())


def test_a_publisher_whose_replay_address_is_taken_leaves_nothing(closing: ExitStack) -> None:
    """The live socket was open already when the second bind failed; its port is free again."""
    first = open_publisher(closing)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(zmq.ZMQError):
        ZmqEventPublisher(0, f"tcp://*:{port}", first.replay_address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))


def test_what_is_queued_at_shutdown_is_published_first(closing: ExitStack) -> None:
    """Shutdown right after a burst: every batch that found room was taken from the queue."""
    publisher = open_publisher(closing)
    for number in range(2000):
        publisher.publish(a_batch(number))
    publisher.shutdown()
    assert publisher.log.waiting == 0


def test_the_factory_makes_what_the_config_asks_for(closing: ExitStack, tmp_path: Path) -> None:
    """Off or null is null; zmq takes the config's addresses, and no replay where it is switched off."""
    assert isinstance(EventPublisherFactory.create(None), NullEventPublisher)
    assert isinstance(EventPublisherFactory.create(KVEventsConfig()), NullEventPublisher)
    config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"ipc://{tmp_path}/a",
                            replay_endpoint=f"ipc://{tmp_path}/b", replay=False)
    publisher = EventPublisherFactory.create(config, 1)
    closing.callback(publisher.shutdown)
    assert (publisher.address, publisher.replay_address) == (f"ipc://{tmp_path}/a_dp1", None)


def test_a_subscriber_process_follows_until_it_is_told_to_leave(tmp_path: Path, closing: ExitStack) -> None:
    """Started like any child: it heals its late join, tells what it mirrors, and ends at SIGTERM."""
    publisher = open_publisher(closing, (f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"))
    for number in range(3):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    journal = tmp_path / "observed"
    child = start_child(subscriber(), "engine.kv_events.subscriber.process:subscriber_main", "spawn", lambda recipe:
                        msgspec.msgpack.encode(Bootstrap(f"{__name__}:writing_ports", str(journal).encode(), recipe)))
    closing.callback(child.close)
    closing.callback(child.kill)
    child.send_recipe(msgspec.msgpack.encode(SubscriberRecipe(
        endpoint=publisher.address, replay_endpoint=publisher.replay_address, poll_s=0.1)))
    until(lambda: journal.exists() and b"kv-mirror" in journal.read_bytes())
    child.terminate()
    assert child.join(BOUND_S) and child.exitcode() == 0
    # When its threads end is told by them, beside what the main thread tells.
    lines = [line for line in journal.read_text().splitlines() if not line.startswith("thread-ended")]
    names = [line.split(" ", 1)[0] for line in lines]
    assert names[:7] == ["born", "kv-gap", "kv-batch", "kv-batch", "kv-batch", "kv-healed", "kv-mirror"]
    assert names[-2:] == ["kv-mirror", "bye"]
    assert "[0, 1, 2]" in lines[-2]


def writing_ports(node: Node, argument: bytes, open_real: Callable[[Node], RealPorts]) -> RealPorts:
    """Real ports whose observations are lines of a file."""
    ports = open_real(node)

    def observe(name: str, **data: object) -> None:
        with open(argument.decode(), "a", encoding="utf-8") as file:
            file.write(f"{name} {data}\n")

    ports.observe = observe  # type: ignore[method-assign]
    ports.describe = lambda name, describe: observe(name, **describe())  # type: ignore[method-assign]
    return ports


def test_the_subscriber_iterates_and_closes(closing: ExitStack) -> None:
    """A for loop over the subscriber yields reports; after close there is no polling."""
    publisher = open_publisher(closing)
    publisher.publish(a_batch(3))
    with KVEventSubscriber(publisher.address, publisher.replay_address) as subscriber:
        for report in subscriber:
            if isinstance(report, Applied):
                assert report.batch.events[0].block_hashes == [3]
                break
    with pytest.raises(RuntimeError, match="closed"):
        subscriber.poll(0)


def test_the_subscriber_iterates_beside_an_event_loop(closing: ExitStack) -> None:
    """`async for` yields reports while other tasks run, and close ends it; no thread is left."""
    publisher = open_publisher(closing)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def follow(subscriber: KVEventSubscriber) -> list[int]:
        beside = asyncio.create_task(others())
        numbers = []
        async for report in subscriber:
            if isinstance(report, Applied):
                numbers.append(report.number)
                publisher.publish(a_batch(len(numbers)))
            if len(numbers) == 5:
                subscriber.close()
        beside.cancel()
        return numbers

    publisher.publish(a_batch())
    subscriber = closing.enter_context(KVEventSubscriber(publisher.address, publisher.replay_address, poll_s=0.1))
    assert asyncio.run(asyncio.wait_for(follow(subscriber), BOUND_S))[:5] == [0, 1, 2, 3, 4]
    assert turns > 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-subscriber")]


def test_who_leaves_an_asynchronous_iteration_finds_the_rest_by_polling(closing: ExitStack) -> None:
    """Five batches, of which the iteration takes one: poll brings the other four, in order."""
    publisher = open_publisher(closing)
    for number in range(5):
        publisher.publish(a_batch(number))
    subscriber = closing.enter_context(KVEventSubscriber(publisher.address, publisher.replay_address, poll_s=0.1))

    async def first() -> int:
        async for report in subscriber:
            if isinstance(report, Applied):
                return report.number
        raise AssertionError

    assert asyncio.run(first()) == 0
    assert numbers_of(read_until(subscriber, lambda seen: len(numbers_of(seen)) == 4)) == [1, 2, 3, 4]


def test_a_subscriber_that_died_begins_anew_under_its_old_name(closing: ExitStack) -> None:
    """The first life leaves in the middle of an answer; the second, with the same identity, misses nothing."""
    publisher = open_publisher(closing)
    for number in range(500):
        publisher.publish(a_batch(number))
    until(lambda: publisher.log.waiting == 0)
    first = KVEventSubscriber(publisher.address, publisher.replay_address, identity=b"me", poll_s=0.2)
    first.poll(BOUND_S)
    first.close()
    second = closing.enter_context(
        KVEventSubscriber(publisher.address, publisher.replay_address, identity=b"me", poll_s=0.2, answer_s=0.5))
    reports = read_until(second, lambda seen: len(numbers_of(seen)) >= 500)
    assert numbers_of(reports) == list(range(500))
    assert not [report for report in reports if isinstance(report, Unrecoverable)]

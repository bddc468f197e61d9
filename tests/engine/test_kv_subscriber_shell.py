"""The subscriber over sockets, its reading broken off at every place: nothing is told twice, nothing is forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

pytest.importorskip("zmq")

from engine.core.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher  # noqa: E402
from engine.kv_reports import Applied, Malformed, Report, Snapshot  # noqa: E402
from engine.kv_subscriber_shell import KVEventSubscriber  # noqa: E402

BOUND_S = 20.0


def _batch(block_hash: int) -> KVEventBatch:
    return KVEventBatch(time.time(), [BlockStored([block_hash], None, [1, 2], 2, None)])


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _publisher(closing: ExitStack, batches: int, **more: object) -> ZmqEventPublisher:
    """One that has published so many batches before anybody came."""
    publisher = ZmqEventPublisher(0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", **more)
    closing.callback(publisher.shutdown)
    for number in range(batches):
        publisher.publish(_batch(number))
    end = time.monotonic() + BOUND_S
    while publisher.log.waiting:
        assert time.monotonic() < end
        time.sleep(0.001)
    return publisher


def _subscriber(closing: ExitStack, publisher: ZmqEventPublisher, **more: object) -> KVEventSubscriber:
    more = {"poll_s": 0.2, "answer_s": 2.0} | more
    return closing.enter_context(KVEventSubscriber(publisher.address, publisher.replay_address, **more))


def _numbers(reports: list[Report]) -> list[int]:
    return [report.number for report in reports if isinstance(report, Applied)]


def test_iterations_in_a_row_and_a_poll_tell_each_batch_once(closing: ExitStack) -> None:
    """Two iterations are left early, one by `async for`, in the midst of one burst; a poll brings the rest."""
    publisher = _publisher(closing, 8)
    subscriber = _subscriber(closing, publisher)
    told: list[Report] = []
    for last in (0, 2):
        for report in subscriber:
            told.append(report)
            if isinstance(report, Applied) and report.number >= last:
                break

    async def one_more() -> None:
        async for report in subscriber:
            told.append(report)
            if isinstance(report, Applied):
                return

    asyncio.run(one_more())
    end = time.monotonic() + BOUND_S
    while len(_numbers(told)) < 8:
        assert time.monotonic() < end, told
        told += subscriber.poll(0.1)
    assert _numbers(told) == list(range(8))


def test_two_tasks_share_one_subscriber_and_each_batch_is_told_to_one_of_them(closing: ExitStack) -> None:
    publisher = _publisher(closing, 0)
    subscriber = _subscriber(closing, publisher)
    told: list[Report] = []

    async def read() -> None:
        async for report in subscriber:
            told.append(report)
            if len(_numbers(told)) == 20:
                subscriber.close()

    async def both() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.sleep(0)  # both wait for the same poll
        for number in range(20):
            publisher.publish(_batch(number))
        await asyncio.wait_for(asyncio.gather(*tasks), BOUND_S)

    asyncio.run(both())
    assert _numbers(told) == list(range(20))


@pytest.mark.parametrize("how", ["for", "async for"])
def test_the_mirror_of_an_iteration_is_as_far_as_what_was_told(closing: ExitStack, how: str) -> None:
    """Twenty batches come in one burst; after the n-th is told, the mirror knows n blocks."""
    publisher = _publisher(closing, 20)
    subscriber = _subscriber(closing, publisher)

    def check(report: Report) -> bool:
        if isinstance(report, Applied):
            assert subscriber.mirror.hashes() == list(range(report.number + 1))
        return isinstance(report, Applied) and report.number == 19

    async def beside() -> None:
        async for report in subscriber:
            if check(report):
                return

    if how == "for":
        for report in subscriber:
            if check(report):
                break
    else:
        asyncio.run(beside())
    assert subscriber.mirror.next_seq == 20


@pytest.mark.parametrize("wanted", ["kv@two", "kv@one@longer"])
def test_a_replay_of_another_topic_is_not_applied_and_neither_is_its_snapshot(closing: ExitStack, wanted: str) -> None:
    """The replay socket is another publisher's: that is told once, and the mirror knows that it knows nothing."""
    publisher = _publisher(closing, 5, topic="kv@one", buffer_steps=2)
    subscriber = _subscriber(closing, publisher, topic=wanted, tries=1, answer_s=0.2)
    told: list[Report] = []
    end = time.monotonic() + BOUND_S
    while subscriber.mirror.next_seq < 5 or subscriber.follower.fetching.wanted:
        assert time.monotonic() < end, told
        told += subscriber.poll(0.1)
    assert not any(isinstance(report, Applied | Snapshot) for report in told)
    assert [report.channel for report in told if isinstance(report, Malformed)] == ["replay"]
    assert subscriber.mirror.unknown_since == 0 and subscriber.mirror.hashes() == []


def test_a_replay_of_a_topic_that_begins_as_wanted_is_applied_with_its_snapshot(closing: ExitStack) -> None:
    publisher = _publisher(closing, 5, topic="kv@one", buffer_steps=2)
    subscriber = _subscriber(closing, publisher, topic="kv@")
    end = time.monotonic() + BOUND_S
    while subscriber.mirror.hashes() != list(range(5)) or subscriber.mirror.unknown_since is not None:
        assert time.monotonic() < end
        subscriber.poll(0.1)

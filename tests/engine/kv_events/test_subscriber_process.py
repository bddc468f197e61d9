"""The subscriber over sockets, its reading broken off at every place: nothing is told twice, nothing is forgotten."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest

pytest.importorskip("zmq")

from engine.kv_events.reports import Applied, Malformed, Report, Snapshot  # noqa: E402
from tests.engine.kv_events.kv_lab import (  # noqa: E402
    BOUND_S,
    a_batch,
    numbers_of,
    open_publisher,
    open_subscriber,
    read_until,
    until,
)


def test_iterations_in_a_row_and_a_poll_tell_each_batch_once(closing: ExitStack) -> None:
    """Two iterations are left early, one by `async for`, in the midst of one burst; a poll brings the rest."""
    publisher = open_publisher(closing, batches=8)
    subscriber = open_subscriber(closing, publisher)
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
    while len(numbers_of(told)) < 8:
        assert time.monotonic() < end, told
        told += subscriber.poll(0.1)
    assert numbers_of(told) == list(range(8))


def test_two_tasks_share_one_subscriber_and_each_batch_is_told_to_one_of_them(closing: ExitStack) -> None:
    publisher = open_publisher(closing)
    subscriber = open_subscriber(closing, publisher)
    told: list[Report] = []

    async def read() -> None:
        async for report in subscriber:
            told.append(report)
            if len(numbers_of(told)) == 20:
                subscriber.close()

    async def both() -> None:
        tasks = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.sleep(0)  # both wait for the same poll
        for number in range(20):
            publisher.publish(a_batch(number))
        await asyncio.wait_for(asyncio.gather(*tasks), BOUND_S)

    asyncio.run(both())
    assert numbers_of(told) == list(range(20))


@pytest.mark.parametrize("how", ["for", "async for"])
def test_the_mirror_of_an_iteration_is_as_far_as_what_was_told(closing: ExitStack, how: str) -> None:
    """Twenty batches come in one burst; after the n-th is told, the mirror knows n blocks."""
    publisher = open_publisher(closing, batches=20)
    subscriber = open_subscriber(closing, publisher)

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
    publisher = open_publisher(closing, batches=5, topic="kv@one", buffer_steps=2)
    subscriber = open_subscriber(closing, publisher, topic=wanted, tries=1, answer_s=0.2)
    told: list[Report] = []
    end = time.monotonic() + BOUND_S
    while subscriber.mirror.next_seq < 5 or subscriber.follower.fetching.wanted:
        assert time.monotonic() < end, told
        told += subscriber.poll(0.1)
    assert not any(isinstance(report, Applied | Snapshot) for report in told)
    assert [report.channel for report in told if isinstance(report, Malformed)] == ["replay"]
    assert subscriber.mirror.unknown_since == 0 and subscriber.mirror.hashes() == []


def test_a_replay_of_a_topic_that_begins_as_wanted_is_applied_with_its_snapshot(closing: ExitStack) -> None:
    publisher = open_publisher(closing, batches=5, topic="kv@one", buffer_steps=2)
    subscriber = open_subscriber(closing, publisher, topic="kv@")
    end = time.monotonic() + BOUND_S
    while subscriber.mirror.hashes() != list(range(5)) or subscriber.mirror.unknown_since is not None:
        assert time.monotonic() < end
        subscriber.poll(0.1)


def test_a_poll_that_does_not_wait_tells_all_that_is_there(closing: ExitStack) -> None:
    """Whoever polls once a step would fall behind by a poll for each message."""
    publisher = open_publisher(closing, batches=20)
    subscriber = open_subscriber(closing, publisher)
    assert numbers_of(read_until(subscriber, lambda told: len(numbers_of(told)) == 20)) == list(range(20))
    for number in range(20, 40):
        publisher.publish(a_batch(number))
    told: list[list[int]] = []
    until(lambda: told.append(numbers_of(subscriber.poll(0))) or sum(map(len, told)) == 20)
    assert len([some for some in told if some]) < 10, told

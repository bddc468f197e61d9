"""Publishers of several data-parallel ranks share one base endpoint: each has an address of its own beside it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

zmq = pytest.importorskip("zmq")

from engine.core.kv_events import (  # noqa: E402
    BlockStored,
    EventPublisher,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
)
from engine.kv_events.reports import Applied, Gap, Healed, Report  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from scenarios.worlds.addresses import reserved_ports  # noqa: E402

BOUND_S = 30.0
RANKS = (0, 1)


class Pair:
    """Two publishers of one configuration, and a subscriber to each. `where`: (live, replay) by rank."""

    def __init__(self, stack: ExitStack, base: tuple[str, str], where: list[tuple[str, str]]) -> None:
        config = KVEventsConfig(enable_kv_cache_events=True, endpoint=base[0], replay_endpoint=base[1], bind=True)
        self.publishers: list[EventPublisher] = []
        for rank in RANKS:
            self.publishers.append(EventPublisherFactory.create(config, rank))
            stack.callback(self.publishers[-1].shutdown)
        self._where = where
        self._stack = stack
        self._blocks = [0, 0]

    def publish(self, rank: int, batches: int = 1) -> None:
        """Blocks of rank 0 are even, those of rank 1 odd."""
        for _ in range(batches):
            block, self._blocks[rank] = 2 * self._blocks[rank] + rank, self._blocks[rank] + 1
            self.publishers[rank].publish(KVEventBatch(time.time(), [BlockStored([block], None, [1, 2], 2, None)]))

    def sent(self, rank: int) -> None:
        """Wait until nothing of a rank is in its queue."""
        end = time.monotonic() + BOUND_S
        while self.publishers[rank].log.waiting:
            assert time.monotonic() < end
            threading.Event().wait(0.001)

    def blocks(self, rank: int) -> list[int]:
        """All that a rank ever stored."""
        return [2 * number + rank for number in range(self._blocks[rank])]

    def subscriber(self, rank: int) -> KVEventSubscriber:
        return self._stack.enter_context(KVEventSubscriber(*self._where[rank], poll_s=0.2, core_index=rank))


@pytest.fixture(params=["tcp", "ipc"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        if request.param == "tcp":
            live, replay = reserved_ports(stack, 2, ranks=len(RANKS))
            yield Pair(stack, (f"tcp://127.0.0.1:{live}", f"tcp://127.0.0.1:{replay}"), [
                (f"tcp://127.0.0.1:{live + rank}", f"tcp://127.0.0.1:{replay + rank}") for rank in RANKS])
        else:
            base = f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/replay"
            yield Pair(stack, base, [base, (f"{base[0]}_dp1", f"{base[1]}_dp1")])


def test_what_was_said_before_is_replayed_by_ones_own_rank(pair: Pair) -> None:
    """Both ranks number from 0; three batches here, four there, and none of the neighbour's."""
    for rank in RANKS:
        pair.publish(rank, 3 + rank)
    for rank in RANKS:
        pair.sent(rank)
        subscriber = pair.subscriber(rank)
        reports = _until_at(subscriber, 3 + rank)
        assert subscriber.mirror.hashes() == pair.blocks(rank)
        assert _ranks(reports) == {rank}
        assert [report for report in reports if not isinstance(report, Applied)] == [
            Gap(0, 2 + rank), Healed(0, 2 + rank)]


def test_each_hears_live_its_own_rank_only(pair: Pair) -> None:
    """Both publish in turns, and say different numbers of batches: a neighbour's would be a gap or a wrong block."""
    subscribers = [pair.subscriber(rank) for rank in RANKS]
    heard: list[list[Report]] = [[], []]
    end = time.monotonic() + BOUND_S
    while not all(any(isinstance(r, Applied) and r.source == "live" for r in reports) for reports in heard):
        assert time.monotonic() < end
        for rank in RANKS:
            pair.publish(rank, 1 + 2 * rank)
            heard[rank] += subscribers[rank].poll(0.05)
    for rank in RANKS:
        heard[rank] += _until_at(subscribers[rank], len(pair.blocks(rank)))
        assert [r.number for r in heard[rank] if isinstance(r, Applied)] == list(range(len(pair.blocks(rank))))
        assert subscribers[rank].mirror.hashes() == pair.blocks(rank)
        assert _ranks(heard[rank]) == {rank}
    assert len({subscriber.follower.epoch for subscriber in subscribers}) == 2


def test_a_rank_whose_port_is_anothers_replay_port_does_not_start_and_harms_nobody() -> None:
    """Live and replay sockets on neighbouring base ports: rank 1 would publish where rank 0 answers."""
    with ExitStack() as stack:
        [base] = reserved_ports(stack, 1, ranks=3)
        config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://127.0.0.1:{base}",
                                replay_endpoint=f"tcp://127.0.0.1:{base + 1}", bind=True)
        first = EventPublisherFactory.create(config, 0)
        stack.callback(first.shutdown)
        with pytest.raises(zmq.ZMQError, match=f"(?i)address already in use.*{base + 1}"):
            EventPublisherFactory.create(config, 1)
        socket.create_server(("127.0.0.1", base + 2)).close()  # where it would have answered
        subscriber = stack.enter_context(KVEventSubscriber(config.endpoint, config.replay_endpoint, poll_s=0.2))
        first.publish(KVEventBatch(time.time(), [BlockStored([7], None, [1, 2], 2, None)]))
        _until_at(subscriber, 1)
        assert subscriber.mirror.hashes() == [7]


def _until_at(subscriber: KVEventSubscriber, number: int) -> list[Report]:
    reports: list[Report] = []
    end = time.monotonic() + BOUND_S
    while subscriber.follower.next < number:
        assert time.monotonic() < end, f"after {BOUND_S} s: {reports[-5:]}"
        reports += subscriber.poll(0.1)
    return reports


def _ranks(reports: list[Report]) -> set[int | None]:
    return {report.batch.data_parallel_rank for report in reports if isinstance(report, Applied)}

"""Publisher and subscriber over real sockets, as several tests of the KV-event path open and watch them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from engine.core.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher
from engine.kv_events.reports import Applied, Report
from engine.kv_events.subscriber.process import KVEventSubscriber

#: For whatever must come about on a slow machine.
BOUND_S = 30.0
#: (live, replay) to bind.
ANY_PORTS = ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def a_batch(block_hash: int = 1, tokens: int = 2) -> KVEventBatch:
    return KVEventBatch(time.time(), [BlockStored([block_hash], None, list(range(tokens)), tokens, None)])


def open_publisher(closing: ExitStack, endpoints: tuple[str, str] = ANY_PORTS, *, batches: int = 0,
              **more: object) -> ZmqEventPublisher:
    """One that has sent so many batches before anybody came."""
    opened = ZmqEventPublisher(0, *endpoints, **more)
    closing.callback(opened.shutdown)
    for number in range(batches):
        opened.publish(a_batch(number))
    until(lambda: not opened.log.waiting)
    return opened


def open_subscriber(closing: ExitStack, to: ZmqEventPublisher, **more: object) -> KVEventSubscriber:
    more = {"poll_s": 0.2, "answer_s": 2.0} | more
    return closing.enter_context(KVEventSubscriber(to.address, to.replay_address, **more))


def read_until(reader: KVEventSubscriber, done: Callable[[list[Report]], object]) -> list[Report]:
    """Everything reported until `done`, which is called after each poll."""
    reports: list[Report] = []
    end = time.monotonic() + BOUND_S
    while not done(reports):
        assert time.monotonic() < end, f"after {BOUND_S} s: {reports[-5:]}"
        reports += reader.poll(0.05)
    return reports


def numbers_of(reports: list[Report]) -> list[int]:
    return [report.number for report in reports if isinstance(report, Applied)]

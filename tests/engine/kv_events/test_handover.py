"""The publisher's queue: in order, never lost, whoever sleeps is woken, and a put that wakes nobody calls nobody."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as some

from engine.kv_events.publisher.handover import NAP_S, NAPS, NappingQueue

BOUND_S = 30.0


def test_everything_that_is_there_is_taken_at_once_and_in_order() -> None:
    queue = NappingQueue()
    for number in range(5):
        queue.put(number)
    assert len(queue) == 5
    assert queue.take(0.0) == [0, 1, 2, 3, 4]
    assert queue.take(0.0) == [] and len(queue) == 0


@given(some.floats(0.0, 3 * NAP_S))
def test_an_empty_queue_is_waited_for_as_long_as_was_said(timeout_s: float) -> None:
    began = time.monotonic()
    assert NappingQueue().take(timeout_s) == []
    assert time.monotonic() - began >= timeout_s * 0.9


class Taker:
    """Takes in a thread of its own until it is given None."""

    def __init__(self, queue: NappingQueue, timeout_s: float = BOUND_S) -> None:
        self.took: list[object] = []
        self._queue, self._timeout_s = queue, timeout_s
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while None not in self.took:
            self.took += self._queue.take(self._timeout_s)

    def end(self) -> list[object]:
        self._queue.put(None)
        self.thread.join(BOUND_S)
        assert not self.thread.is_alive()
        return self.took[:-1]


def _until(condition) -> None:
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(NAP_S)


def test_a_sleeper_is_woken_and_not_left_to_its_time_out() -> None:
    """It has run out of naps, and would sleep for 30 s."""
    queue = NappingQueue()
    taker = Taker(queue)
    _until(lambda: queue._sleeps)
    began = time.monotonic()
    queue.put("x")
    _until(lambda: taker.took)
    assert time.monotonic() - began < BOUND_S / 3
    assert taker.end() == ["x"]


def test_while_batches_come_a_put_wakes_nobody() -> None:
    """The taker naps: it is never asleep when the next one comes, so the lock stays as it is."""
    queue = NappingQueue()
    assert queue.take(NAP_S * NAPS / 2) == []
    queue.put("x")
    assert queue._wake.locked()


def test_nothing_is_lost_between_threads_that_put_and_one_that_falls_asleep_again_and_again() -> None:
    """Three threads put at their own pace, the taker's patience is about one pace long; each thread's order is kept."""
    queue = NappingQueue()
    taker = Taker(queue, timeout_s=0.0005)

    def put(name: int) -> None:
        for number in range(2000):
            queue.put((name, number))
            if number % 100 == 0:
                time.sleep(0.0005)

    putters = [threading.Thread(target=put, args=(name,)) for name in range(3)]
    for putter in putters:
        putter.start()
    for putter in putters:
        putter.join(BOUND_S)
    took = taker.end()
    assert len(took) == 6000
    for name in range(3):
        assert [number for who, number in took if who == name] == list(range(2000))


def test_two_that_wake_at_once_do_no_harm() -> None:
    """Both saw it asleep; the second one finds it woken."""
    queue = NappingQueue()
    for _ in range(2):
        queue._sleeps = True
        queue.put("x")
    assert queue.take(0.0) == ["x", "x"]
    assert queue.take(2 * NAP_S) == []

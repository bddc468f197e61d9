"""The KV-event path where callers, peers and bytes are unkind: what must still hold, case by case."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

zmq = pytest.importorskip("zmq")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

from engine.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch  # noqa: E402
from engine.errors import BadFrameError  # noqa: E402
from engine.kv_events.codec import encode_batch, number_frame, read_answer, read_live, read_request  # noqa: E402
from engine.kv_events.publisher.process import ZmqEventPublisher  # noqa: E402
from engine.kv_events.reports import Gap, Malformed, Report, Restarted, Unrecoverable, Unverified  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from tests.engine.kv_events.kv_lab import (  # noqa: E402
    ANY_PORTS,
    BOUND_S,
    a_batch,
    numbers_of,
    open_publisher,
    open_subscriber,
    read_until,
)

FULL = encode_batch(KVEventBatch(1.0, [
    BlockStored([1, b"ab"], None, [1, 2, 3, 4], 2, None, medium="GPU", extra_keys=[("a", 1), None],
                lookahead_token_ids=[[1], [2]]),
    BlockRemoved([1]), AllBlocksCleared()]), 0, 7)
DESCRIPTORS = "/proc/self/fd"


def test_restarts_in_a_row_on_the_same_ports_are_each_told_and_followed(closing: ExitStack) -> None:
    """Five lives of as many batches each: the numbers alone look like one life that says everything twice."""
    first = open_publisher(closing)
    subscriber = open_subscriber(closing, first)
    publisher, epochs = first, []
    for life in range(5):
        if life:
            publisher.shutdown()
            publisher = open_publisher(closing, (first.address, first.replay_address), bind=True, epoch=life)
        for number in range(3):
            publisher.publish(a_batch(10 * life + number))
        held = [10 * life + number for number in range(3)]
        reports = read_until(subscriber, lambda _, held=held: subscriber.mirror.hashes() == held)
        assert numbers_of(reports) == [0, 1, 2]
        epochs += [report.epoch for report in reports if isinstance(report, Restarted)]
    assert epochs == [1, 2, 3, 4] and subscriber.mirror.unknown_since is None


def test_a_replay_socket_that_answers_garbage_makes_the_loss_known_and_live_goes_on(closing: ExitStack) -> None:
    context = closing.enter_context(zmq.Context())
    live, replay = (closing.enter_context(context.socket(kind)) for kind in (zmq.PUB, zmq.ROUTER))
    ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (live, replay)]
    subscriber = closing.enter_context(KVEventSubscriber(
        *(f"tcp://127.0.0.1:{port}" for port in ports), poll_s=0.05, answer_s=0.1))
    garbage = [[b""], [b"", b"", b"\xff" * 8, b"x"], [b"", b"", b"\xff" * 8, b"", bytes(47)], [b"x"] * 4,
               [b"", b"", number_frame(2), b"\xc1"], [b"", b"", b"\xff" * 7 + b"\xfe", FULL, b"\xff" * 48]]
    told: list[Report] = []

    def step() -> None:
        told.extend(subscriber.poll(0.01))
        while replay.poll(0):
            peer = replay.recv_multipart()[0]
            for frames in garbage:
                replay.send_multipart([peer, *frames])

    end = time.monotonic() + BOUND_S
    while 4 not in numbers_of(told) and time.monotonic() < end:
        for number in (0, 1, 4):
            live.send_multipart([b"", number_frame(number), encode_batch(a_batch(number), 0, 7)])
        step()
    lost = [report for report in told if isinstance(report, Unrecoverable)]
    assert (lost[-1].last, subscriber.mirror.unknown_since) == (3, lost[0].first)
    assert any(isinstance(report, Malformed) and report.channel == "replay" for report in told)


def test_a_topic_that_nobody_publishes_is_silence(closing: ExitStack) -> None:
    """The one beside it, which asked for the beginning of the topic, hears the batch."""
    publisher = open_publisher(closing, topic="kv@one")
    other, same = (closing.enter_context(KVEventSubscriber(publisher.address, topic=topic))
                   for topic in ("kv@two", "kv@"))
    end = time.monotonic() + BOUND_S
    while not same.poll(0.02) and time.monotonic() < end:
        publisher.publish(a_batch(1))
    assert publisher.log.numbered and same.follower.wire > 0
    assert other.poll(0.1) == [] and other.mirror.next_seq == 0


@pytest.mark.parametrize("make", [
    lambda: ZmqEventPublisher(0, "nowhere"),
    lambda: ZmqEventPublisher(0, "tcp://127.0.0.1:*", "nowhere"),
    lambda: ZmqEventPublisher(1, "tcp://127.0.0.1:abc"),
    lambda: ZmqEventPublisher(0, *ANY_PORTS, buffer_steps=-1),
    lambda: KVEventSubscriber("nowhere"),
    lambda: KVEventSubscriber("tcp://127.0.0.1:9", "nowhere"),
])
def test_what_could_not_be_made_leaves_no_descriptor(make: Callable[[], object]) -> None:
    gc.collect()  # what other tests have left is not closed meanwhile
    before = len(os.listdir(DESCRIPTORS))
    for _ in range(5):
        with pytest.raises((zmq.ZMQError, ValueError)):
            make()
    assert len(os.listdir(DESCRIPTORS)) == before


def test_an_asynchronous_iteration_cancelled_again_and_again_tells_each_batch_once(closing: ExitStack) -> None:
    publisher = open_publisher(closing)
    subscriber = open_subscriber(closing, publisher)
    told: list[int] = []

    async def read(upto: int | None) -> None:
        async for report in subscriber:
            told.extend(numbers_of([report]))
            if upto is not None and len(told) >= upto:
                return

    async def main() -> None:
        published = 0
        for turn in range(30):
            task = asyncio.create_task(read(None))
            for _ in range(20):
                publisher.publish(a_batch(published))
                published += 1
            await asyncio.sleep(0.002 * (turn % 5))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        if len(told) < published:
            await asyncio.wait_for(read(published), BOUND_S)

    asyncio.run(main())
    assert told == list(range(600))


messages = some.sampled_from([
    [b"", number_frame(3), FULL], [b"", b"t", number_frame(3), FULL],
    [b"", b"", b"\xff" * 7 + b"\xfe", FULL, bytes(48)],
    [b"", b"", b"\xff" * 8, b"", bytes(48)], [b"", number_frame(3), number_frame(4), b"snapshot"]])
wounds = some.lists(some.tuples(some.integers(0, 4), some.integers(0, 200), some.binary(max_size=9)), min_size=1,
                    max_size=4)


@settings(deadline=None, max_examples=500)
@given(messages, wounds)
def test_wounded_messages_are_read_or_are_bad_frames(message: list[bytes], wounds: list) -> None:
    """Bytes cut out, put in or replaced, frames taken away: no other error comes out of a reader."""
    frames = list(message)
    for which, at, put in wounds:
        if which < len(frames):
            frame = frames[which]
            at %= len(frame) + 1
            frames[which] = frame[:at] + put + frame[at + len(put) // 2:]
            if not put:
                del frames[which]
    for read in (read_live, read_answer, read_request):
        try:
            read(frames)
        except BadFrameError:
            pass


def test_a_publisher_that_comes_later_is_followed_from_its_beginning(closing: ExitStack) -> None:
    """Nobody answers for many questions: nothing is told, and nothing is given up."""
    first = open_publisher(closing)
    first.shutdown()
    subscriber = open_subscriber(closing, first, answer_s=0.02)
    assert subscriber.poll(0.5) == []
    later = open_publisher(closing, (first.address, first.replay_address), bind=True)
    for number in range(3):
        later.publish(a_batch(number))
    reports = read_until(subscriber, lambda _: subscriber.mirror.next_seq == 3)
    assert numbers_of(reports) == [0, 1, 2]
    assert not any(isinstance(report, Unrecoverable | Restarted) for report in reports)
    assert all(report.last <= 2 for report in reports if isinstance(report, Gap))


def test_an_option_that_zmq_refuses_is_an_error_at_once() -> None:
    """In a process of its own: a socket that nobody closed would keep its context, and the process, for ever."""
    code = ("from engine.kv_events.publisher.process import ZmqEventPublisher\n"
            "try: ZmqEventPublisher(0, 'tcp://127.0.0.1:*', hwm=-1)\nexcept Exception as e: print('said', e)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True, check=False)
    assert "said Invalid argument" in done.stdout


def _bind(socket: zmq.Socket, address: str, end: float) -> None:
    """As soon as the socket that had it before has given it back: ZMQ closes behind one's back."""
    while True:
        try:
            return socket.bind(address)
        except zmq.ZMQError as error:
            assert error.errno == zmq.EADDRINUSE and time.monotonic() < end


def test_a_publisher_of_the_originals_format_that_comes_back_with_just_the_next_number_is_not_believed(
        closing: ExitStack) -> None:
    """Nothing in its batches tells the lives apart, within the same second; that the connection ended does."""
    context = closing.enter_context(zmq.Context())
    address = ""

    def speak_until(subscriber: KVEventSubscriber | None, number: int) -> KVEventSubscriber:
        nonlocal address
        with context.socket(zmq.PUB) as life:
            end = time.monotonic() + BOUND_S
            _bind(life, address or "tcp://127.0.0.1:*", end)
            address = life.getsockopt_string(zmq.LAST_ENDPOINT)
            subscriber = subscriber or closing.enter_context(KVEventSubscriber(address))
            while subscriber.follower.next <= number:
                assert time.monotonic() < end
                life.send_multipart([b"", number_frame(number), encode_batch(a_batch(100 + number), 0, None)])
                told.extend(subscriber.poll(0.02))
        return subscriber

    told: list[Report] = []
    subscriber = speak_until(None, 0)
    assert subscriber.mirror.unknown_since is None
    speak_until(subscriber, 1)
    assert subscriber.mirror.unknown_since == 1
    assert [report.next for report in told if isinstance(report, Unverified)] == [1]

"""End to end with the original: its publisher and our subscriber, a subscriber of its kind and our publisher.

    KV_VLLM_PYTHONPATH=/somewhere/site-packages pytest tests/engine/kv_events/test_interop.py
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

zmq = pytest.importorskip("zmq")

from engine.core import kv_events as ours  # noqa: E402
from engine.kv_events.reports import Applied, Gap, Healed, Report, Restarted, Unrecoverable  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from scenarios.worlds.addresses import reserved_ports  # noqa: E402
from tests.engine.kv_events.vllm_events import WHY_NOT, vllm_events  # noqa: E402

BOUND_S = 30.0
END = (-1).to_bytes(8, "big", signed=True)


@pytest.fixture(scope="module")
def theirs() -> Any:
    module = vllm_events()
    if module is None:
        pytest.skip(WHY_NOT)
    return module


class Addresses:
    def __init__(self, closing: ExitStack) -> None:
        self.live_port, self.replay_port = reserved_ports(closing, 2)

    @property
    def live(self) -> str:
        return f"tcp://127.0.0.1:{self.live_port}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def publisher(self, module: Any, closing: ExitStack, **more: Any) -> Any:
        made = module.ZmqEventPublisher(0, endpoint=f"tcp://*:{self.live_port}", replay_endpoint=self.replay, **more)
        closing.callback(made.shutdown)
        return made


def batch(module: Any, number: int, ts: float | None = None) -> Any:
    """Stores block `number` behind the one before it; every third batch removes its grandparent, too."""
    events = [module.BlockStored(
        block_hashes=[number], parent_block_hash=number - 1 if number else None, token_ids=[number] * 4, block_size=4,
        lora_id=None, medium="GPU", lora_name=None)]
    if number % 3 == 2:
        events.append(module.BlockRemoved(block_hashes=[number - 2], medium="GPU"))
    return module.KVEventBatch(ts=time.time() if ts is None else ts, events=events)


def blocks_after(count: int) -> list[int]:
    return [n for n in range(count) if n % 3 or n + 2 >= count]


def follow(subscriber: KVEventSubscriber, done: Callable[[list[Report]], bool]) -> list[Report]:
    reports: list[Report] = []
    end = time.monotonic() + BOUND_S
    while not done(reports):
        assert time.monotonic() < end, reports[-3:]
        reports += subscriber.poll(0.1)
    return reports


def _until_free(*ports: int) -> None:
    end = time.monotonic() + BOUND_S
    for port in ports:
        while True:
            try:
                socket.create_server(("", port)).close()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_our_subscriber_comes_late_to_their_publisher(theirs: Any, closing: ExitStack) -> None:
    """A hundred batches were said before: it asks in the original's words, and mirrors what it is told."""
    at = Addresses(closing)
    publisher = at.publisher(theirs, closing)
    for number in range(100):
        publisher.publish(batch(theirs, number))
    subscriber = closing.enter_context(KVEventSubscriber(at.live, at.replay, poll_s=0.2, answer_s=1.0))
    reports = follow(subscriber, lambda seen: sum(isinstance(r, Applied) for r in seen) == 100)
    assert [r.number for r in reports if isinstance(r, Applied)] == list(range(100))
    assert subscriber.mirror.hashes() == blocks_after(100)
    assert subscriber.mirror.unknown_since is None
    assert not any(isinstance(r, Unrecoverable | Restarted) for r in reports)


def test_our_subscriber_follows_their_publisher_live_and_heals_what_it_missed(theirs: Any, closing: ExitStack) -> None:
    """It reads, stops reading until its high-water mark of 5 has cost it batches, and reads again."""
    at = Addresses(closing)
    publisher = at.publisher(theirs, closing, hwm=5)
    subscriber = closing.enter_context(KVEventSubscriber(at.live, at.replay, poll_s=0.2, answer_s=1.0, hwm=5,
                                                         socket_buffer_bytes=4096))
    number = 0
    reports: list[Report] = []
    while not any(isinstance(r, Applied) and r.source == "live" for r in reports):
        publisher.publish(batch(theirs, number))
        number += 1
        reports += subscriber.poll(0.05)
    healed_before = sum(isinstance(r, Healed) for r in reports)
    while number < 5000:  # their buffers on the way hold some hundred kilobytes
        publisher.publish(batch(theirs, number))
        number += 1
    reports += follow(subscriber, lambda _: subscriber.follower.next == number)
    assert [r.number for r in reports if isinstance(r, Applied)] == list(range(number))
    assert any(isinstance(r, Gap) for r in reports)
    assert sum(isinstance(r, Healed) for r in reports) > healed_before
    assert subscriber.mirror.hashes() == blocks_after(number)


def test_our_subscriber_tells_that_their_publisher_was_restarted(theirs: Any, closing: ExitStack) -> None:
    """Its batches carry no epoch: the numbers went back while the time went on."""
    at = Addresses(closing)
    with ExitStack() as first_life:
        publisher = at.publisher(theirs, first_life)
        for number in range(20):
            publisher.publish(batch(theirs, number))
        subscriber = closing.enter_context(KVEventSubscriber(at.live, at.replay, poll_s=0.2, answer_s=1.0))
        follow(subscriber, lambda _: subscriber.follower.next == 20)
    _until_free(at.live_port, at.replay_port)  # the original's shutdown does not wait for that
    publisher = at.publisher(theirs, closing)
    for number in range(7):
        publisher.publish(batch(theirs, number))
    reports = follow(subscriber, lambda _: subscriber.follower.next == 7 and subscriber.mirror.next_seq == 7)
    assert sum(isinstance(r, Restarted) for r in reports) == 1
    assert subscriber.mirror.hashes() == blocks_after(7)


def test_a_reader_with_their_types_understands_our_publisher(theirs: Any, closing: ExitStack) -> None:
    """What their documentation shows: SUB and a socket for replay, numbers compared, gaps asked for, their decoder."""
    at = Addresses(closing)
    publisher = at.publisher(ours, closing)
    decode = msgspec.msgpack.Decoder(theirs.KVEventBatch).decode
    context = closing.enter_context(zmq.Context())
    live, replay = (closing.enter_context(context.socket(kind)) for kind in (zmq.SUB, zmq.DEALER))
    live.setsockopt_string(zmq.SUBSCRIBE, "")
    live.connect(at.live)
    replay.connect(at.replay)
    number, seen = 0, {}
    while not live.poll(20):  # until the subscription has arrived
        publisher.publish(batch(ours, number, ts=float(number)))
        number += 1
    for _ in range(50):
        publisher.publish(batch(ours, number, ts=float(number)))
        number += 1
    last = -1
    while last < number - 1:
        assert live.poll(BOUND_S * 1000)
        _, seq_bytes, payload = live.recv_multipart()
        seq = int.from_bytes(seq_bytes, "big")
        if seq > last + 1:
            replay.send_multipart((b"", (last + 1).to_bytes(8, "big")))
            while True:
                assert replay.poll(BOUND_S * 1000)
                _, _, again_bytes, again = replay.recv_multipart()
                if again_bytes == END:
                    break
                seen.setdefault(int.from_bytes(again_bytes, "big"), decode(again))
        seen.setdefault(seq, decode(payload))
        last = max(last, seq)
    assert sorted(seen) == list(range(number))
    for seq, got in seen.items():
        assert type(got) is theirs.KVEventBatch
        assert (got.ts, got.data_parallel_rank) == (float(seq), 0)
        assert got.events == batch(theirs, seq).events


#: What a stored block may say beside what it must; versions of theirs differ in how much of it they know.
OPTIONAL = {
    "extra_keys": [("a", 1), None], "group_idx": 1, "kv_cache_spec_kind": "full", "kv_cache_spec_sliding_window": 1024,
    "locality": "LOCAL", "ownership": "tier", "session_id": "s", "lookahead_token_ids": [[9], []]}


def test_what_they_wrote_is_written_again_byte_for_byte(theirs: Any) -> None:
    """Each optional field alone, and all at once, through our types and back."""
    if theirs.BlockStored.__struct_fields__ != ours.BlockStored.__struct_fields__:
        pytest.skip("another version of theirs: its types have other fields")
    removed = {name for name in OPTIONAL if name in theirs.BlockRemoved.__struct_fields__}
    for names in [set(), *({name} for name in OPTIONAL), set(OPTIONAL)]:
        more = {name: OPTIONAL[name] for name in names}
        payload = msgspec.msgpack.encode(theirs.KVEventBatch(1.5, [
            theirs.BlockStored([7, b"\x08"], 6, [1, 2, 3, 4], 2, 5, "CPU", None, **more),
            theirs.BlockRemoved([7], None, **{name: more[name] for name in names & removed}),
            theirs.AllBlocksCleared()], 3))
        batch = msgspec.msgpack.decode(payload, type=ours.KVEventBatch)
        for name, value in more.items():
            assert getattr(batch.events[0], name) == value
        assert msgspec.msgpack.encode(batch) == payload


def test_their_bytes_and_ours_say_the_same_without_an_epoch(theirs: Any) -> None:
    """The same batch, each by its own types: the same maps with the same keys in the same order.

    Not the same bytes for every version of theirs: msgspec writes a longer header where a type may have 16 keys.
    """
    from engine.kv_events.codec import encode_batch

    for number in range(6):
        of_theirs = batch(theirs, number, ts=1.5)
        of_theirs.data_parallel_rank = 3
        said, wanted = (msgspec.msgpack.decode(payload) for payload in (
            encode_batch(batch(ours, number, ts=1.5), 3, None), msgspec.msgpack.encode(of_theirs)))
        assert said == wanted
        assert [list(event) for event in said[1]] == [list(event) for event in wanted[1]]

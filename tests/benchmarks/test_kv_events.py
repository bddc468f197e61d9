"""Publishing KV-cache events: rate, what a call costs, a replay of a whole window; beside vLLM's where it is installed.

Both publishers take turns within one run, so that a busy machine hits them alike; what counts is the ratio of medians.
Figures say how many batches a second a reader got, not how fast they could be thrown away. They are printed beside
their aims; what is asserted is that all batches came, never a time.

    pytest tests/benchmarks/test_kv_events.py -s                      one turn
    RINGTWIN_TURNS=5 pytest tests/benchmarks/test_kv_events.py -s     the measurement
    KV_VLLM_PYTHONPATH=/somewhere/site-packages pytest ...      vLLM from an environment of its own
"""

from __future__ import annotations

import gc
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

zmq = pytest.importorskip("zmq")

from engine.core import kv_events as ours  # noqa: E402
from engine.kv_events.reports import Applied  # noqa: E402
from engine.kv_events.subscriber.process import KVEventSubscriber  # noqa: E402
from scenarios.worlds.addresses import reserved_ports  # noqa: E402
from tests.engine.kv_events.vllm_events import vllm_events  # noqa: E402

TURNS = int(os.environ.get("RINGTWIN_TURNS", "1"))
BATCHES = 20_000
WINDOW = 10_000
BOUND_S = 60.0
DECODED_TURNS, DECODED = 101, 50


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    found = {"ours": ours}
    theirs = vllm_events()
    if theirs is not None:
        found["vllm"] = theirs
    return found


#: A reader in a process of its own: with the publisher's interpreter it would share a lock, and be what is measured.
#: It says the first number, and each one that ends a turn, each with how many batches came so far and how long its
#: thread, and all its threads together, were at work. A fast one takes single frames without pyzmq's conveniences, or
#: it would be slower than what is measured; a raw one receives whole messages as programs do, a decoding one reads
#: them, too.
READER = """
import sys, time, msgspec, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 0)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.connect(sys.argv[1])
turn, kind, receive, count = int(sys.argv[2]), sys.argv[3], super(zmq.Socket, socket).recv, 0
decode = msgspec.msgpack.Decoder().decode
while True:
    if kind == "fast":
        receive()
        number = int.from_bytes(receive(), "big")
        receive()
    else:
        _, number, payload = socket.recv_multipart()
        number = int.from_bytes(number, "big")
        if kind == "decoding":
            decode(payload)
    count += 1
    if count == 1 or (number + 1) % turn == 0:
        print(number, count, time.thread_time(), time.process_time(), flush=True)
"""

#: Asks for everything at each line that it is told, and says how many batches, of four frames each, came in how many
#: seconds.
ASKER = """
import sys, time, zmq
end = (-1).to_bytes(8, "big", signed=True)
for _ in sys.stdin:
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.connect(sys.argv[1])
    began, frames, receive = time.perf_counter(), 0, super(zmq.Socket, dealer).recv
    dealer.send_multipart([b"", (0).to_bytes(8, "big")])
    while receive() != end:
        frames += 1
    print(frames // 4, time.perf_counter() - began, flush=True)
    dealer.close(0)
"""


class Floor:
    """No publisher at all: a batch is encoded and sent where it is handed over, and nothing is kept of it."""

    class ZmqEventPublisher:
        def __init__(self, _rank: int, *, endpoint: str, **_: Any) -> None:
            self._context, self._number = zmq.Context(), 0
            self._socket = self._context.socket(zmq.PUB)
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.bind(endpoint)
            self._encode = msgspec.msgpack.Encoder().encode

        def publish(self, batch: Any) -> None:
            self._socket.send_multipart((b"", self._number.to_bytes(8, "big"), self._encode(batch)))
            self._number += 1

        def shutdown(self) -> None:
            self._context.destroy(0)

    BlockStored, KVEventBatch = ours.BlockStored, ours.KVEventBatch


class Stand:
    """One publisher on free ports, and plain sockets that read from it."""

    def __init__(self, module: Any, buffer_steps: int = WINDOW) -> None:
        self.module = module
        self.context = zmq.Context()
        self.child: subprocess.Popen[str] | None = None
        self.held = ExitStack()
        live, replay = reserved_ports(self.held, 2)
        self.publisher = module.ZmqEventPublisher(
            0, endpoint=f"tcp://*:{live}", replay_endpoint=f"tcp://127.0.0.1:{replay}", buffer_steps=buffer_steps,
            max_queue_size=10 * BATCHES)
        self.live = f"tcp://127.0.0.1:{live}"
        self.replay = f"tcp://127.0.0.1:{replay}"

    def batch(self, events: int) -> Any:
        stored = [self.module.BlockStored(block_hashes=[number], parent_block_hash=None, token_ids=list(range(16)),
                                          block_size=16, lora_id=None, medium="GPU", lora_name=None)
                  for number in range(events)]
        return self.module.KVEventBatch(ts=1.0, events=stored)

    def reader(self) -> Any:
        """A SUB socket that is connected: a batch was received."""
        socket = self.context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(self.live)
        end = time.monotonic() + BOUND_S
        while not socket.poll(20):
            assert time.monotonic() < end
            self.publisher.publish(self.batch(1))
        while socket.poll(50):
            socket.recv_multipart()
        return socket

    def other_reader(self, kind: str, turn: int) -> None:
        """A reader in another process, connected, and the next number at the beginning of a turn."""
        self.turn = turn
        self.child = subprocess.Popen([sys.executable, "-c", READER, self.live, str(turn), kind],
                                      stdout=subprocess.PIPE, text=True)
        said, batch, sent = self.child.stdout, self.batch(1), 0
        end = time.monotonic() + BOUND_S
        while not select.select([said], [], [], 0.02)[0]:
            assert time.monotonic() < end
            self.publisher.publish(batch)
            sent += 1
        self._first, _, *self._at_work_s = self._said()
        for _ in range(-sent % turn):
            self.publisher.publish(batch)
        self.turn_ends()

    def turn_ends(self) -> tuple[float, float]:
        """The reader got the last batch of a turn, and every one before it. -> seconds that its thread, and all of its
        process, were at work meanwhile
        """
        thread_s, process_s = self._at_work_s
        number, count, *self._at_work_s = self._said()
        assert (number + 1) % self.turn == 0
        assert count == number - self._first + 1, "batches were lost"
        return self._at_work_s[0] - thread_s, self._at_work_s[1] - process_s

    def payload(self, events: int) -> bytes:
        """A batch as it travels."""
        reader = self.reader()
        self.publisher.publish(self.batch(events))
        payload = reader.recv_multipart()[2]
        reader.close(0)
        return bytes(payload)

    def asker(self) -> None:
        """A process that asks for replays, and has had a first one."""
        self.child = subprocess.Popen([sys.executable, "-c", ASKER, self.replay], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        self.replayed_s()

    def replayed_s(self) -> float:
        """How long the replay of a whole window takes."""
        self.child.stdin.write("again\n")
        self.child.stdin.flush()
        count, took_s = self.child.stdout.readline().split()
        assert int(count) == WINDOW
        return float(took_s)

    def _said(self) -> tuple[int, int, float, float]:
        number, count, thread_s, process_s = self.child.stdout.readline().split()
        return int(number), int(count), float(thread_s), float(process_s)

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
        self.publisher.shutdown()
        self.context.destroy(0)
        self.held.close()


@pytest.fixture
def stand() -> Iterator[Callable[..., Stand]]:
    opened: list[Stand] = []

    def make(module: Any, **more: Any) -> Stand:
        opened.append(Stand(module, **more))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def _say(title: str, unit: str, found: dict[str, list[float]], *, aim: str) -> None:
    medians = {name: statistics.median(values) for name, values in found.items()}
    ratio = f", ours / vllm {medians['ours'] / medians['vllm']:.2f}" if "vllm" in medians else ""
    print(f"\n{title}: " + ", ".join(f"{name} {value:,.3g} {unit}" if value < 10 else f"{name} {value:,.0f} {unit}"
                                      for name, value in medians.items()) + f"{ratio} (aim: {aim})")


@pytest.mark.parametrize("kind", ["fast", "raw", "decoding"])
@pytest.mark.parametrize(("events", "aim"), [(1, 1.3), (10, 1.1), (100, 1.0)])
def test_batches_per_second_reach_a_reader(modules, stand, events: int, aim: float, kind: str) -> None:
    """From the first `publish` to the last batch of a turn in a reader of another process."""
    turn = BATCHES if events < 100 else BATCHES // 10
    taking_part = {**modules, "floor": Floor}
    rates, busy, sends, reads = ({name: list[float]() for name in taking_part} for _ in range(4))
    stands = {name: stand(module) for name, module in taking_part.items()}
    for one in stands.values():
        one.other_reader(kind, turn)
    for _ in range(TURNS):
        for name, one in stands.items():
            batch, publish = one.batch(events), one.publisher.publish
            began, at_work_s = time.perf_counter(), time.process_time()
            for _ in range(turn):
                publish(batch)
            thread_s, process_s = one.turn_ends()
            took_s = time.perf_counter() - began
            rates[name].append(turn / took_s)
            busy[name].append(100 * thread_s / took_s)
            sends[name].append((time.process_time() - at_work_s) / turn * 1e6)
            reads[name].append(process_s / turn * 1e6)
    _say(f"batches of {events} events, {kind} reader", "batches/s", rates, aim=f"at least {aim} times")
    _say("  the reader's thread was at work", "%", busy, aim="none: of 100 it alone is the bound")
    _say("  a batch costs the processors where it is published", "µs", sends, aim="none")
    _say("  and where it is read", "µs", reads, aim="none: half of the sum is the least on two cores")
    if kind == "decoding":
        payloads = {name: one.payload(events) for name, one in stands.items()}
        _say("  a payload has", "bytes", {name: [len(payload)] for name, payload in payloads.items()}, aim="none")
        _say("  and is decoded in", "µs", _decoded_us(payloads), aim="none")


def _decoded_us(payloads: dict[str, bytes]) -> dict[str, list[float]]:
    """As the reader does it, in turns."""
    decode, found = msgspec.msgpack.Decoder().decode, {name: list[float]() for name in payloads}
    for _ in range(DECODED_TURNS):
        for name, payload in payloads.items():
            began = time.perf_counter()
            for _ in range(DECODED):
                decode(payload)
            found[name].append((time.perf_counter() - began) / DECODED * 1e6)
    return found


def test_a_call_of_publish_costs(modules, stand) -> None:
    """The median of single calls at a pace that the publisher follows, as in a step loop."""
    times: dict[str, list[float]] = {name: [] for name in modules}
    stands = {name: stand(module) for name, module in modules.items()}
    for _ in range(TURNS):
        for name, one in stands.items():
            batch, publish, clock = one.batch(10), one.publisher.publish, time.perf_counter_ns
            for _ in range(2000):
                began = clock()
                publish(batch)
                times[name].append((clock() - began) / 1000)
                time.sleep(0)  # the publisher's thread may run
    _say("a call of publish", "µs", times, aim="at most 1 µs")
    assert stands["ours"].publisher.log.lost_at_full_queue == 0


def test_a_window_of_ten_thousand_batches_is_replayed(modules, stand) -> None:
    """From the question to the end marker, by the same plain DEALER in another process for both."""
    seconds: dict[str, list[float]] = {name: [] for name in modules}
    stands = {name: stand(module) for name, module in modules.items()}
    for one in stands.values():
        reader = one.reader()
        batch = one.batch(1)
        for _ in range(WINDOW):
            one.publisher.publish(batch)
        for _ in range(WINDOW):
            reader.recv_multipart()
        reader.close(0)
        one.asker()
    for _ in range(TURNS):
        for name, one in stands.items():
            seconds[name].append(one.replayed_s())
    _say("replay of 10,000 batches", "s", seconds, aim="at most 0.6 times")


def test_our_subscriber_catches_up_with_a_whole_window(stand) -> None:
    """The same replay through follower and mirror, and then a snapshot of as many blocks."""
    one = stand(ours)
    for number in range(WINDOW):
        one.publisher.publish(ours.KVEventBatch(1.0, [ours.BlockStored([number], None, list(range(16)), 16, None)]))
    gc.collect()
    began = time.perf_counter()
    with KVEventSubscriber(one.live, one.replay, poll_s=0.1) as subscriber:
        seen = 0
        while seen < WINDOW:
            seen += sum(isinstance(report, Applied) for report in subscriber.poll(BOUND_S))
        print(f"\nfollower and mirror over 10,000 batches: {time.perf_counter() - began:.3f} s (no aim)")
        assert len(subscriber.mirror.blocks) == WINDOW

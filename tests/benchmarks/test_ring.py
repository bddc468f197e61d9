"""One object to two readers and an answer from the first: MessageQueue beside vLLM's, Pipe and ZMQ PUSH.

They take turns within one run, so that a busy machine hits them alike; what counts is the ratio of the medians.
vLLM's queue takes part where `vllm` can be imported. Several runs are several placements on the cores.

    pytest tests/benchmarks/test_ring.py -s
"""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
from typing import NamedTuple

import pytest

from engine.ipc.message_queue import MessageQueue

try:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue as VllmQueue
except ImportError:
    VllmQueue = None

zmq = pytest.importorskip("zmq")
numpy = pytest.importorskip("numpy")
pytest.importorskip("pytest_benchmark")

CHUNK_BYTES, CHUNKS = 8 << 20, 4
BOUND_S = 60.0
BURST = 2000
#: vLLM's readers spin for a second after a message, on cores that the next transport needs.
PARK_S = 1.1
processes = multiprocessing.get_context("fork")


class Case(NamedTuple):
    """`turns` times every transport sends the payload `rounds` times, `gap_s` apart, or all in one burst."""

    name: str
    payload: object
    turns: int = 5
    rounds: int = 60
    gap_s: float = 0.0
    burst: bool = False


CASES = [
    Case("64 B", bytes(64)),
    Case("1 KiB", bytes(1 << 10)),
    Case("16 KiB", bytes(16 << 10)),
    Case("64 B, 5 ms apart", bytes(64), turns=3, gap_s=0.005),
    Case("64 B, burst, each", bytes(64), turns=5, rounds=BURST, burst=True),
    Case("256 KiB", bytes(256 << 10), rounds=20),
    Case("4 MiB bytes", bytes(4 << 20), turns=5, rounds=6),
    Case("4 MiB ndarray", numpy.zeros(4 << 20, "u1"), turns=5, rounds=6),
    Case("32 MiB bytes", bytes(32 << 20), turns=3, rounds=2),
    Case("32 MiB ndarray", numpy.zeros(32 << 20, "u1"), turns=3, rounds=2),
]


class ByQueue:
    """Any class with MessageQueue's interface."""

    def __init__(self, kind, _folder) -> None:
        self.rpc = kind(2, 2, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS)
        bell = getattr(self.rpc, "bell_address", None)
        self.children = _start(_queue_child, kind, self.rpc.export_handle(), bell)
        self.answers = kind.create_from_handle(self.children.pipes[0].recv(), 0)
        self.rpc.wait_until_ready()
        self.answers.wait_until_ready()

    def send(self, payload) -> None:
        self.rpc.enqueue(payload)

    def answer(self):
        return self.answers.dequeue(BOUND_S)

    def close(self) -> None:
        self.rpc.enqueue(None)
        self.children.join()
        self.answers.shutdown()
        self.rpc.shutdown()


def _queue_child(rank, pipe, kind, handle, bell):
    rpc = kind.create_from_handle(handle, rank)
    response = None
    if rank == 0:
        response = kind(1, 1, max_chunk_bytes=1 << 20, max_chunks=CHUNKS, **({"bell": bell} if bell else {}))
        pipe.send(response.export_handle())
    rpc.wait_until_ready()
    if response:
        response.wait_until_ready()
    _serve(rank, lambda: rpc.dequeue(BOUND_S), response.enqueue if response else None)
    for queue in filter(None, (response, rpc)):
        queue.shutdown()


class ByPipe:
    def __init__(self, _kind, _folder) -> None:
        self.children = _start(_pipe_child)

    def send(self, payload) -> None:
        for pipe in self.children.pipes:
            pipe.send(payload)

    def answer(self):
        return self.children.pipes[0].recv()

    def close(self) -> None:
        self.send(None)
        self.children.join()


def _pipe_child(rank, pipe):
    _serve(rank, pipe.recv, pipe.send)


class ByZmq:
    def __init__(self, _kind, folder) -> None:
        self.children = _start(_zmq_child, folder)
        self.context = zmq.Context()
        self.pushes = [self.context.socket(zmq.PUSH) for _ in range(2)]
        for rank, push in enumerate(self.pushes):
            push.bind(f"ipc://{folder}/to{rank}")
        self.pull = self.context.socket(zmq.PULL)
        self.pull.bind(f"ipc://{folder}/back")

    def send(self, payload) -> None:
        data = pickle.dumps(payload, protocol=5)
        for push in self.pushes:
            push.send(data, copy=len(data) < 65536)

    def answer(self):
        return pickle.loads(self.pull.recv())

    def close(self) -> None:
        self.send(None)
        self.children.join()
        self.context.destroy()


def _zmq_child(rank, _pipe, folder):
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.connect(f"ipc://{folder}/to{rank}")
    push.connect(f"ipc://{folder}/back")
    _serve(rank, lambda: pickle.loads(pull.recv(copy=False).buffer), lambda value: push.send(pickle.dumps(value)))
    context.destroy()


def _serve(rank, receive, reply):
    """Rank 0 answers each object with its length, and of a burst, which counts down, only the last."""
    while (message := receive()) is not None:
        if rank == 0 and not (type(message) is tuple and message[0]):
            reply(len(message))


class _start:
    """Two children; `pipes` lead to them."""

    def __init__(self, body, *args) -> None:
        self.pipes, self.children = [], []
        for rank in range(2):
            here, there = processes.Pipe()
            child = processes.Process(daemon=True, target=body, args=(rank, there, *args))
            child.start()
            self.pipes.append(here)
            self.children.append(child)

    def join(self) -> None:
        for child in self.children:
            child.join(BOUND_S)


WAYS = {"MessageQueue": (ByQueue, MessageQueue), "vLLM": (ByQueue, VllmQueue), "Pipe": (ByPipe, None),
        "ZMQ PUSH": (ByZmq, None)}


@pytest.fixture(scope="module")
def transports(tmp_path_factory):
    opened = {name: way(kind, tmp_path_factory.mktemp("sockets")) for name, (way, kind) in WAYS.items()
              if way is not ByQueue or kind is not None}
    yield opened
    for transport in opened.values():
        transport.close()


@pytest.fixture(scope="module")
def table(transports):
    """One row per case, printed when all are done."""
    rows = []
    yield rows
    print("\nmedian us" + " " * 13 + "".join(f"{name:>18}" for name in transports) + "   (x MessageQueue)")
    for name, medians in rows:
        ours = medians["MessageQueue"]
        print(f"{name:<22}" + "".join(f"{m:11.1f} {m / ours:5.1f}x" for m in medians.values()))


def run(transport, case) -> list[float]:
    """Seconds per object."""
    times = []
    if case.burst:
        began = time.perf_counter()
        for left in reversed(range(case.rounds)):
            transport.send((left, case.payload))
        transport.answer()
        return [(time.perf_counter() - began) / case.rounds]
    for _ in range(case.rounds):
        if case.gap_s:
            time.sleep(case.gap_s)
        began = time.perf_counter()
        transport.send(case.payload)
        transport.answer()
        times.append(time.perf_counter() - began)
    return times


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_ring_answers_sooner_than_zmq(transports, table, benchmark, case):
    times = {name: [] for name in transports}
    for transport in transports.values():
        run(transport, case._replace(rounds=2))
    if "vLLM" in transports:
        time.sleep(PARK_S)
    for _ in range(case.turns):
        for name, transport in transports.items():
            times[name] += run(transport, case)
            if name == "vLLM":
                time.sleep(PARK_S)
    medians = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
    table.append((case.name, medians))
    benchmark.extra_info.update(medians)
    benchmark.pedantic(run, args=(transports["MessageQueue"], case._replace(rounds=1)), rounds=5)
    if not case.burst and not case.gap_s:  # ZMQ sends a burst in few system calls; a wake-up costs all the same
        assert medians["MessageQueue"] < medians["ZMQ PUSH"]

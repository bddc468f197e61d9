"""Round trip of one object to two readers and back from the first: MessageQueue beside Pipe and ZMQ PUSH.

The three take turns within one run, so that a busy machine hits them alike; what counts is the ratio of the medians.

    pytest tests/benchmarks/test_ring.py -s
"""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time

import pytest

from engine.ipc.message_queue import MessageQueue

zmq = pytest.importorskip("zmq")
pytest.importorskip("pytest_benchmark")

SIZES = [64, 1 << 10, 16 << 10, 256 << 10]
TURNS, ROUNDS = 10, 30
CHUNK_BYTES = 1 << 20
BOUND_S = 30.0
processes = multiprocessing.get_context("fork")


def queue_child(rank, handle, bell, pipe, _folder):
    rpc = MessageQueue.create_from_handle(handle, rank)
    response = MessageQueue(1, 1, max_chunk_bytes=CHUNK_BYTES, bell=bell) if rank == 0 else None
    if response:
        pipe.send(response.export_handle())
    while (message := rpc.dequeue(BOUND_S)) is not None:
        if response:
            response.enqueue(len(message))
    for queue in filter(None, (response, rpc)):
        queue.shutdown()


def pipe_child(rank, _handle, _bell, pipe, _folder):
    while (message := pipe.recv()) is not None:
        if rank == 0:
            pipe.send(len(message))


def zmq_child(rank, _handle, _bell, _pipe, folder):
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.connect(f"ipc://{folder}/to{rank}")
    push.connect(f"ipc://{folder}/back")
    while (message := pickle.loads(pull.recv())) is not None:
        if rank == 0:
            push.send(pickle.dumps(len(message)))
    context.destroy()


class Transports:
    """Three ways to the same six children; each `round_trip` ends with the answer of rank 0."""

    def __init__(self, folder) -> None:
        self.rpc = MessageQueue(2, 2, max_chunk_bytes=CHUNK_BYTES)
        ours, children = [], []
        for body in (queue_child, pipe_child, zmq_child):
            for rank in range(2):
                here, there = processes.Pipe()
                child = processes.Process(daemon=True, target=body, args=(
                    rank, self.rpc.export_handle(), self.rpc.bell_address, there, folder))
                child.start()
                ours.append(here)
                children.append(child)
        self.children, self.pipes = children, ours[2:4]
        self.answers = MessageQueue.create_from_handle(ours[0].recv(), 0)
        self.rpc.wait_until_ready(BOUND_S)
        self.context = zmq.Context()
        self.pushes = [self.context.socket(zmq.PUSH) for _ in range(2)]
        for rank, push in enumerate(self.pushes):
            push.bind(f"ipc://{folder}/to{rank}")
        self.pull = self.context.socket(zmq.PULL)
        self.pull.bind(f"ipc://{folder}/back")
        self.ways = {"MessageQueue": self.by_queue, "Pipe": self.by_pipe, "ZMQ PUSH": self.by_zmq}

    def by_queue(self, payload):
        self.rpc.enqueue(payload)
        return self.answers.dequeue(BOUND_S)

    def by_pipe(self, payload):
        for pipe in self.pipes:
            pipe.send(payload)
        return self.pipes[0].recv()

    def by_zmq(self, payload):
        data = pickle.dumps(payload, protocol=5)
        for push in self.pushes:
            push.send(data)
        return pickle.loads(self.pull.recv())

    def close(self) -> None:
        self.rpc.enqueue(None)
        for pipe in self.pipes:
            pipe.send(None)
        for push in self.pushes:
            push.send(pickle.dumps(None))
        for child in self.children:
            child.join(BOUND_S)
        self.answers.shutdown()
        self.rpc.shutdown()
        self.context.destroy()


@pytest.fixture(scope="module")
def transports(tmp_path_factory):
    opened = Transports(tmp_path_factory.mktemp("sockets"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def table():
    """One row per size, printed when all sizes are done."""
    rows = []
    yield rows
    names = "".join(f"{name:>16}" for name in rows[0][1])
    print(f"\nround trip, two readers, median us{names}   (x MessageQueue)")
    for size, medians in rows:
        ours = medians["MessageQueue"]
        print(f"{size:>10} bytes" + " " * 18 + "".join(f"{m:10.1f} {m / ours:4.1f}x" for m in medians.values()))


@pytest.mark.parametrize("size", SIZES)
def test_the_ring_answers_sooner_than_zmq(transports, table, benchmark, size):
    payload, times = bytes(size), {name: [] for name in transports.ways}
    for way in transports.ways.values():
        assert way(payload) == size
    for _ in range(TURNS):
        for name, way in transports.ways.items():
            for _ in range(ROUNDS):
                began = time.perf_counter()
                way(payload)
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken) * 1e6 for name, taken in times.items()}
    table.append((size, medians))
    benchmark.extra_info.update(medians)
    benchmark.pedantic(transports.by_queue, args=(payload,), rounds=100, warmup_rounds=10)
    assert medians["MessageQueue"] < medians["ZMQ PUSH"]

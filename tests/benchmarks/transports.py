"""What `test_ring` measures: one sender, two receivers, answers from the first; queues, pipes, sockets, bare memory.

Each transport starts its two children, sends objects to both with `send`, takes answers of the first with `answer`,
and is over after `close`. The answer to an object is its length; a burst counts down and only its last is answered.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import struct

import zmq

from engine.ipc.message_queue import MessageQueue

try:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue as VllmQueue
    NO_VLLM = ""
except ImportError as error:
    VllmQueue, NO_VLLM = None, str(error)

READERS = 2
CHUNK_BYTES, CHUNKS = 8 << 20, 4
BOUND_S = 60.0
processes = multiprocessing.get_context("fork")


class Children:
    """Two processes that run `body(rank, pipe, *args)`; `pipes` lead to them."""

    def __init__(self, body, *args) -> None:
        self.pipes, self.children = [], []
        for rank in range(READERS):
            here, there = processes.Pipe()
            child = processes.Process(daemon=True, target=body, args=(rank, there, *args))
            child.start()
            self.pipes.append(here)
            self.children.append(child)

    def join(self) -> None:
        for child in self.children:
            child.join(BOUND_S)


def serve(rank, receive, reply) -> None:
    while (message := receive()) is not None:
        if rank == 0 and not (type(message) is tuple and message[0]):
            reply(len(message))


class ByQueue:
    """Any class with MessageQueue's interface."""

    def __init__(self, kind, _folder) -> None:
        self.rpc = kind(READERS, READERS, max_chunk_bytes=CHUNK_BYTES, max_chunks=CHUNKS)
        bell = getattr(self.rpc, "bell_address", None)
        self.children = Children(_queue_child, kind, self.rpc.export_handle(), bell)
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
    serve(rank, lambda: rpc.dequeue(BOUND_S), response.enqueue if response else None)
    for queue in filter(None, (response, rpc)):
        queue.shutdown()


class ByPipe:
    def __init__(self, _kind, _folder) -> None:
        self.children = Children(lambda rank, pipe: serve(rank, pipe.recv, pipe.send))

    def send(self, payload) -> None:
        for pipe in self.children.pipes:
            pipe.send(payload)

    def answer(self):
        return self.children.pipes[0].recv()

    def close(self) -> None:
        self.send(None)
        self.children.join()


class ByZmq:
    """PUSH to each, and a PULL for the answers."""

    def __init__(self, _kind, folder) -> None:
        self.children = Children(_zmq_child, folder)
        self.context = zmq.Context()
        self.pushes = [self.context.socket(zmq.PUSH) for _ in range(READERS)]
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
    serve(rank, lambda: pickle.loads(pull.recv(copy=False).buffer), lambda value: push.send(pickle.dumps(value)))
    context.destroy()


class BySpin:
    """The floor, no transport: one slot of memory, everybody spins, bytes are copied once in and once out."""

    _SIZE, _DATA = struct.Struct("@q"), 256

    def __init__(self, _kind, _folder) -> None:
        memory = memoryview(mmap.mmap(-1, self._DATA + (40 << 20)))
        self._turns, self._answers, self._memory = memory[:8].cast("q"), memory[128:136].cast("q"), memory
        self.children = Children(self._child)

    def _child(self, rank, _pipe) -> None:
        turns, answers, memory, turn = self._turns, self._answers, self._memory, 0
        kept = memoryview(bytearray(40 << 20))
        while True:
            while turns[0] == turn:
                os.sched_yield()
            turn, (size,) = turn + 1, self._SIZE.unpack_from(memory, 64)
            if size < 0:
                return
            kept[:size] = memory[self._DATA:self._DATA + size]
            if rank == 0:
                answers[0] = turn

    def send(self, payload) -> None:
        size = len(payload)
        self._memory[self._DATA:self._DATA + size] = memoryview(payload).cast("B")
        self._post(size)

    def _post(self, size) -> None:
        self._SIZE.pack_into(self._memory, 64, size)
        self._turns[0] += 1

    def answer(self):
        while self._answers[0] != self._turns[0]:
            os.sched_yield()
        return self._SIZE.unpack_from(self._memory, 64)[0]

    def close(self) -> None:
        self._post(-1)
        self.children.join()


#: Name -> how to open it. vLLM's queue takes part where it can be imported.
WAYS = {"MessageQueue": (ByQueue, MessageQueue), "vLLM": (ByQueue, VllmQueue), "Pipe": (ByPipe, None),
        "ZMQ PUSH": (ByZmq, None), "spin, memcpy": (BySpin, None)}
if VllmQueue is None:
    del WAYS["vLLM"]

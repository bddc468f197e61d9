"""Many messages, of all sizes, through four readers that stall at random: the exact sequence, digest by digest.

RINGTWIN_RING_MESSAGES and RINGTWIN_RING_MIXED set the numbers of small and of mixed messages; the full form is
1,000,000 and 10,000 (`make soak`).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import time

import pytest

from engine.ipc.message_queue import MessageQueue

pytest.importorskip("zmq")

BOUND_S = 120.0
READERS = 4
SEED = 20
SMALL = int(os.environ.get("RINGTWIN_RING_MESSAGES", "20000"))
MIXED = int(os.environ.get("RINGTWIN_RING_MIXED", "60"))
processes = multiprocessing.get_context("fork")


def messages(sizes, count):
    """The same for everybody: number, and bytes cut from a pool at a place that depends on the number."""
    dice = random.Random(SEED)
    pool = random.Random(SEED).randbytes(64 << 10) * (1 + max(sizes) // (64 << 10) + 1)
    for number in range(count):
        size = int(dice.choice(sizes) * dice.random())
        begin = dice.randrange(64 << 10)
        yield number, pool[begin:begin + size]


def digest(number, data) -> bytes:
    return hashlib.blake2b(data, digest_size=8, key=number.to_bytes(8, "big")).digest()


def read_all(handle, rank, sizes, count, pipe):
    queue = MessageQueue.create_from_handle(handle, rank)
    queue.wait_until_ready(BOUND_S)
    dice, wrong = random.Random(rank), []
    for number, expected in messages(sizes, count):
        if dice.random() < 0.001:
            time.sleep(dice.random() * 0.02)
        got_number, got = queue.dequeue(BOUND_S)
        if (got_number, digest(got_number, got)) != (number, digest(number, expected)):
            wrong.append((number, got_number))
    pipe.send((wrong, queue.position, queue.check_integrity()))
    queue.shutdown()


@pytest.mark.parametrize("sizes, count, chunk_bytes, overflows", [
    pytest.param([64, 512, 4 << 10, 64 << 10], SMALL, 128 << 10, False, id="up-to-64-KiB"),
    pytest.param([64, 64 << 10, 1 << 20, 4 << 20, 40 << 20], MIXED, 2 << 20, True, id="up-to-40-MiB"),
])
def test_four_readers_that_stall_get_the_exact_sequence(sizes, count, chunk_bytes, overflows):
    queue = MessageQueue(READERS, READERS, max_chunk_bytes=chunk_bytes, max_chunks=6)
    pipes, children = [], []
    try:
        for rank in range(READERS):
            ours, theirs = processes.Pipe()
            child = processes.Process(target=read_all, args=(queue.export_handle(), rank, sizes, count, theirs),
                                      daemon=True)
            child.start()
            pipes.append(ours)
            children.append(child)
        queue.wait_until_ready(BOUND_S)
        began = time.perf_counter()
        for message in messages(sizes, count):
            queue.enqueue(message, BOUND_S)
        for ours in pipes:
            assert ours.poll(BOUND_S), "a reader did not come to its end"
            assert ours.recv() == ([], count, [])
        took, stats = time.perf_counter() - began, queue.stats()
        print(f"\n{count} messages, {stats.bytes / 1e6:.0f} MB, {stats.overflows} overflows: {took:.1f} s, "
              f"{count / took:.0f}/s; {stats.waits} waits, the longest {stats.longest_wait_s * 1e3:.0f} ms")
        assert (stats.messages, stats.depth, stats.overflows > 0) == (count, 0, overflows)
    finally:
        for child in children:
            child.kill()
            child.join()
        queue.shutdown()

"""A real ring in shared memory whose writer or reader is killed at a store."""

import os
import signal

import pytest

from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from engine.ipc.segment import unlink_segment
from engine.process.real_ports import RealPorts
from faults.plan import Fate, Fault, kill, plan
from tests.faults.stage import Stage, core, end_of, rpc_ring, worker

SPEC = rpc_ring()
LAYOUT = RingLayout(len(SPEC.readers), SPEC.max_chunk_bytes, SPEC.max_chunks)


@pytest.fixture
def name():
    made = f"ringtwin-test-{os.getpid()}-{os.urandom(4).hex()}"
    yield made
    unlink_segment(made)


def take(view):
    return bytes(view[:5])


@pytest.mark.parametrize("store", ["reset", "data", "readers", "written"])
def test_a_writer_killed_at_any_store_of_its_third_message_leaves_two(tmp_path, name, store):
    play = Stage(tmp_path, plan(kill("core.0", at=f"core.0/rpc:store.{store}", nth=3)))
    outside = RealPorts(worker(0))
    ring = outside.create_ring(SPEC, name)
    readers = [RingReader(LAYOUT, ring.memory, ring.fence, number) for number in (0, 1)]

    def write(ports):
        ring = ports.attach_ring(SPEC, name)
        writer = RingWriter(LAYOUT, ring.memory, ring.fence)
        sent = 0
        while True:
            sent += writer.try_write([b"msg-%d" % sent])

    pid = play.fork(core(), write, RealPorts)
    taken = [[], []]
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for mine, reader in zip(taken, readers, strict=True):
            if (message := reader.try_read(take)) is not EMPTY:
                mine.append(message)
    assert end_of(pid) == -signal.SIGKILL
    for mine, reader in zip(taken, readers, strict=True):
        while (message := reader.try_read(take)) is not EMPTY:
            mine.append(message)
    assert taken == [[b"msg-0", b"msg-1"]] * 2
    outside.close()
    play.network.close()


def test_a_reader_killed_between_its_read_and_its_flag_fills_the_ring(tmp_path, name):
    play = Stage(tmp_path, plan(kill("worker.1", at="worker.1/rpc:store.read", nth=2)))
    ports = play.ports(core(), RealPorts(core()))
    ring = ports.create_ring(SPEC, name)
    writer = RingWriter(LAYOUT, ring.memory, ring.fence)
    bell = ports.doorbell(name, ring.memory, LAYOUT.readers_bell_offset)
    sent = [writer.try_write([b"msg-%d" % number]) for number in range(2)]
    bell.ring()

    def read(ports):
        ring = ports.attach_ring(SPEC, name)
        reader = RingReader(LAYOUT, ring.memory, ring.fence, 1)
        while True:
            reader.try_read(take)

    assert end_of(play.fork(worker(1), read, RealPorts)) == -signal.SIGKILL
    other = RingReader(LAYOUT, ring.memory.inner, ring.fence, 0)
    assert [other.try_read(take) for _ in range(2)] == [b"msg-0", b"msg-1"]
    sent += [writer.try_write([b"msg-2"]), writer.try_write([b"msg-3"])]
    assert sent == [True, True, True, False]
    bell.close()
    ports.close()
    play.network.close()


def test_a_lost_bell_does_not_wake_and_the_next_one_does(tmp_path, name):
    play = Stage(tmp_path, plan(Fault(id="", site="core.0/rpc:doorbell", fate=Fate.DROP)))
    ports = play.ports(core(), RealPorts(core()))
    ring = ports.create_ring(SPEC, name)
    outside = RealPorts(worker(0))
    reader = outside.doorbell(name, outside.attach_ring(SPEC, name).memory, LAYOUT.readers_bell_offset)
    bell = ports.doorbell(name, ring.memory, LAYOUT.readers_bell_offset)
    seen = reader.seen()
    bell.ring()
    assert not reader.wait(seen, 0.05)
    bell.ring()
    assert reader.wait(seen, 5.0)
    bell.close()
    reader.close()
    ports.close()
    outside.close()
    play.network.close()

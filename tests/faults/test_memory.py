"""The stores of a real ring are sites, in order and by name."""

import pytest

from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from faults.memory import FaultyMemory
from faults.plan import Fate, Fault

LAYOUT = RingLayout(2, 64, 2)


class Died(Exception):
    pass


class Watched:
    """A ring with one writer and two readers whose stores are listed; `stop` may raise or return a fault."""

    def __init__(self, stop=lambda name, nth: None, layout=LAYOUT):
        self.stores, self.stop = [], stop
        self.bytes = bytearray(layout.total_bytes)
        self.memory = FaultyMemory(memoryview(self.bytes), layout, self.on_store)
        self.writer = RingWriter(layout, self.memory, lambda: None)
        self.readers = [RingReader(layout, self.memory, lambda: None, reader) for reader in (0, 1)]

    def on_store(self, name):
        result = self.stop(name, self.stores.count(name) + 1)
        self.stores.append(name)
        return result

    def read(self, reader):
        return self.readers[reader].try_read(lambda view: bytes(view[:5]))


def test_a_write_and_its_reads_are_these_stores_in_this_order():
    ring = Watched()
    ring.writer.try_write([b"hel", b"lo"])
    assert [ring.read(0), ring.read(1)] == [b"hello", b"hello"]
    assert ring.stores == ["reset", "data", "readers", "written", "read", "read"]


def test_a_message_stored_in_pieces_is_one_data_store():
    layout = RingLayout(2, 1 << 20, 2)
    ring = Watched(layout=layout)
    ring.writer.try_write([b"x" * 70_000, b"y" * 70_000])
    ring.writer.try_write([b"x" * 70_000, b"y" * 70_000])
    assert ring.stores == ["reset", "data", "readers", "written"] * 2


def test_loads_and_bells_are_no_stores():
    ring = Watched()
    assert ring.read(0) is EMPTY
    ring.memory[LAYOUT.readers_bell_offset:LAYOUT.readers_bell_offset + 4] = b"\1\2\3\4"
    ring.memory[LAYOUT.writer_bell_offset:LAYOUT.writer_bell_offset + 4] = b"\1\2\3\4"
    assert ring.stores == []
    assert len(ring.memory) == LAYOUT.total_bytes


@pytest.mark.parametrize("name", ["reset", "data", "readers", "written"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_writer_that_dies_before_a_store_leaves_an_exact_prefix(name, nth):
    """Whatever store it is, messages before are whole and the one being written is not seen."""
    def stop(store, count):
        if (store, count) == (name, nth):
            raise Died

    ring = Watched(stop)
    seen = []
    with pytest.raises(Died):
        for number in range(4):
            assert ring.writer.try_write([b"msg-%d" % number])
            seen.append((ring.read(0), ring.read(1)))
    assert seen == [(b"msg-%d" % number,) * 2 for number in range(nth - 1)]
    assert [ring.read(0), ring.read(1)] == [EMPTY, EMPTY]


def test_a_reader_that_dies_before_its_flag_keeps_the_chunk():
    def stop(store, count):
        if (store, count) == ("read", 2):
            raise Died

    ring = Watched(stop)
    ring.writer.try_write([b"hello"])
    assert ring.read(0) == b"hello"
    with pytest.raises(Died):
        ring.read(1)
    assert ring.writer.try_write([b"world"])
    assert not ring.writer.free()


def corrupting(name, byte=-1):
    fault = Fault(id="f1", site="core.0/rpc:store.data", fate=Fate.CORRUPT, byte=byte)
    return lambda store, count: fault if (store, count) == (name, 1) else None


def test_corrupt_data_is_one_changed_byte_of_a_published_message():
    ring = Watched(corrupting("data", byte=0))
    ring.writer.try_write([b"hello"])
    ring.writer.try_write([b"world"])
    assert [ring.read(0), ring.read(0)] == [bytes([ord("h") ^ 0xFF]) + b"ello", b"world"]


def test_a_corrupt_flag_is_seen_by_the_ring_s_own_check():
    ring = Watched(corrupting("written"))
    ring.writer.try_write([b"hello"])
    assert ring.bytes[LAYOUT.written_offset(0)] == 0xFE
    assert ring.writer.check_integrity()

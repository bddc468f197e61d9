"""The ring's layout, its stores and its refusals, on plain bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import QueueDecodeError
from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from engine.topology import READER_STORES, WRITER_STORES


def no_fence() -> None:
    pass


def ring(n_reader=1, chunk_bytes=64, chunks=2, memory=None):
    layout = RingLayout(n_reader, chunk_bytes, chunks)
    memory = memoryview(bytearray(layout.total_bytes)) if memory is None else memory
    return RingWriter(layout, memory, no_fence), [RingReader(layout, memory, no_fence, k) for k in range(n_reader)]


class Recorder:
    """Memory that names each store as the fault layer does, and raises at the store it is told to."""

    def __init__(self, layout: RingLayout) -> None:
        self.inner = memoryview(bytearray(layout.total_bytes))
        self.layout = layout
        self.stores: list[str] = []
        self.fail_at: str | None = None

    def __getitem__(self, where):
        return self.inner[where]

    def __setitem__(self, where, value):
        is_byte = isinstance(where, int)
        name = self.layout.store_name(where if is_byte else where.start).partition(":")[0]
        if name == "written" and not value:
            name = "reset"
        if name == "reader":
            name = "read" if is_byte else "readers"
        if name == self.fail_at:
            raise RuntimeError(name)
        self.stores.append(name)
        self.inner[where] = value


def test_the_layout_is_vllms_followed_by_two_bells_on_lines_of_their_own():
    layout = RingLayout(n_reader=2, max_chunk_bytes=1000, max_chunks=3)
    assert layout.metadata_offset == 3000
    assert [layout.written_offset(c) for c in range(3)] == [3000, 3003, 3006]
    assert layout.reader_offset(1, 1) == 3005
    assert layout.vllm_bytes == 3009
    assert (layout.readers_bell_offset, layout.writer_bell_offset) == (3072, 3136)
    assert layout.total_bytes % 64 == 0 and layout.presence_of(1).stop <= layout.total_bytes


def test_every_byte_of_the_segment_has_a_name():
    layout = RingLayout(2, 8, 2)
    names = [layout.store_name(k) for k in range(layout.total_bytes)]
    assert names[:16] == ["data"] * 16
    assert names[16:22] == ["written:0", "reader:0:0", "reader:1:0", "written:1", "reader:0:1", "reader:1:1"]
    assert set(names[22:]) == {"bell:readers", "bell:writer", "presence"}
    with pytest.raises(ValueError, match="outside"):
        layout.store_name(layout.total_bytes)


@pytest.mark.parametrize("sizes", [(0, 64, 1), (1, 7, 1), (1, 64, 0), (1, 1 << 32, 1)])
def test_sizes_that_make_no_ring_are_refused(sizes):
    with pytest.raises(ValueError, match="a ring needs"):
        RingLayout(*sizes)


def test_a_write_and_a_read_store_in_the_documented_order():
    layout = RingLayout(2, 64, 2)
    memory = Recorder(layout)
    writer, readers = ring(2, memory=memory)
    writer.try_write([b"head", b"body"])
    assert tuple(memory.stores) == WRITER_STORES
    memory.stores.clear()
    readers[1].try_read(bytes)
    assert tuple(memory.stores) == READER_STORES


def test_a_large_message_counts_as_one_data_store_by_its_start():
    layout = RingLayout(1, 1 << 20, 2)
    starts = []

    class Memory(Recorder):
        def __setitem__(self, where, value):
            starts.append(layout.starts_message(where if isinstance(where, int) else where.start))
            super().__setitem__(where, value)

    memory = Memory(layout)
    writer, readers = ring(1, 1 << 20, memory=memory)
    writer.try_write([b"x"])
    starts.clear()
    writer.try_write([b"head", b"y" * (600 << 10), b"z" * 5])
    assert memory.stores[4:] == ["reset", "data", "data", "data", "readers", "written"] and starts.count(True) == 1
    readers[0].try_read(lambda view: None)
    assert readers[0].try_read(lambda view: bytes(view[:4]) + bytes(view[4 + (600 << 10):][:5])) == b"headzzzzz"


@pytest.mark.parametrize("moves_from", [1, 99])
@pytest.mark.parametrize("store", WRITER_STORES)
def test_a_write_that_dies_at_any_store_published_nothing_and_can_be_done_again(store, moves_from):
    layout = RingLayout(1, 64, 2)
    memory = Recorder(layout)
    writer, (reader,) = ring(1, memory=memory)
    writer.moves_from = moves_from
    for number in range(3):  # the chunk has been used before
        writer.try_write([bytes([number])])
        reader.try_read(bytes)
    memory.fail_at = store
    with pytest.raises(RuntimeError):
        writer.try_write([b"\x63"])
    assert writer.position == 3 and reader.try_read(bytes) is EMPTY
    memory.fail_at = None
    assert writer.try_write([b"\x64"]) and reader.try_read(lambda view: view[0]) == 0x64


def test_a_read_that_dies_before_its_flag_is_done_again_and_holds_the_chunk():
    layout = RingLayout(1, 64, 1)
    memory = Recorder(layout)
    writer, (reader,) = ring(1, chunks=1, memory=memory)
    writer.try_write([b"a"])
    memory.fail_at = "read"
    with pytest.raises(RuntimeError):
        reader.try_read(bytes)
    memory.fail_at = None
    assert not writer.try_write([b"b"])
    assert reader.try_read(lambda view: bytes(view[:1])) == b"a"
    assert writer.try_write([b"b"])


def test_a_message_that_cannot_be_taken_frees_its_chunk_and_keeps_the_order():
    writer, (reader,) = ring(chunks=1)

    def refuse(view):
        raise QueueDecodeError("bad")

    writer.try_write([b"a"])
    with pytest.raises(QueueDecodeError):
        reader.try_read(refuse)
    assert writer.try_write([b"b"])
    assert reader.try_read(lambda view: bytes(view[:1])) == b"b"


def test_a_process_on_its_way_out_does_not_mark_as_read_what_it_did_not_take():
    writer, (reader,) = ring(chunks=1)
    writer.try_write([b"a"])

    def interrupted(view):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader.try_read(interrupted)
    assert not writer.free() and reader.position == 0


def test_a_refused_end_stays_on_its_slot():
    """vllm#5801: an end that looked for another chunk skipped one."""
    writer, readers = ring(2, chunks=3)
    assert all(writer.try_write([bytes([n])]) for n in range(3))
    assert [readers[0].try_read(lambda v: v[0]) for _ in range(3)] == [0, 1, 2]
    for _ in range(5):  # full: reader 1 has read nothing
        assert not writer.try_write([b"\x03"]) and readers[0].try_read(bytes) is EMPTY
    assert writer.position == 3 and readers[0].position == 3
    assert [readers[1].try_read(lambda v: v[0]) for _ in range(2)] == [0, 1]
    assert writer.try_write([b"\x03"]) and writer.try_write([b"\x04"]) and not writer.try_write([b"\x05"])
    assert [readers[0].try_read(lambda v: v[0]) for _ in range(2)] == [3, 4]
    assert [readers[1].try_read(lambda v: v[0]) for _ in range(3)] == [2, 3, 4]


def test_a_message_larger_than_a_chunk_is_an_error_that_stores_nothing():
    writer, (reader,) = ring(chunk_bytes=8)
    with pytest.raises(ValueError, match="do not fit"):
        writer.try_write([b"123456789"])
    assert reader.try_read(bytes) is EMPTY and writer.try_write([b"12345678"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 5), max_size=120))
def test_any_order_of_attempts_gives_every_reader_an_exact_prefix(n_reader, chunks, actors):
    """Actor 0 writes a small message, actor 5 a large one."""
    writer, readers = ring(n_reader, chunks=chunks)
    writer.moves_from = 3
    got = [[] for _ in readers]
    for actor in actors:
        if actor in (0, 5):
            writer.try_write([writer.position.to_bytes(2, "big") + bytes(3 if actor else 0)])
        elif actor <= n_reader and (found := readers[actor - 1].try_read(lambda v: v[0] << 8 | v[1])) is not EMPTY:
            got[actor - 1].append(found)
        assert writer.position - min(r.position for r in readers) <= chunks
        assert not writer.check_integrity() and not any(r.check_integrity() for r in readers)
    assert all(seen == list(range(reader.position)) for seen, reader in zip(got, readers, strict=True))


def test_a_stray_write_into_the_flags_is_noticed():
    writer, (reader,) = ring()
    writer.try_write([b"a"])
    writer._memory[writer.layout.written_offset(0)] = 7
    assert any("flags are [7, 0]" in error for error in writer.check_integrity() + reader.check_integrity())


def test_a_large_message_takes_the_place_of_the_last_one_that_all_have_read():
    writer, readers = ring(2, chunks=4)
    writer.moves_from = 3
    places = []

    def send(data, *takers):
        assert writer.try_write([data])
        place = writer._memory[writer.layout.written_offset((writer.position - 1) % 4)]
        places.append((writer.position - 1) % 4 if place == 1 else place - 2)
        for reader in takers:
            assert readers[reader].try_read(lambda view: bytes(view[:len(data)])) == data

    for number in range(9):
        send(b"large%d" % number, 0, 1)
    assert set(places) == {0}
    send(b"s", 0, 1)
    assert places[-1] != 0  # a small one stays where its chunk is now
    send(b"large", 0)
    send(b"large next", 0)
    assert places[-1] not in places[-2:-1]  # reader 1 has not read that one
    assert not writer.check_integrity() and not readers[0].check_integrity()


def test_a_flag_that_names_no_chunk_is_a_decode_error_that_frees_its_chunk():
    writer, (reader,) = ring()
    writer.try_write([b"a"])
    writer._memory[writer.layout.written_offset(0)] = 254
    with pytest.raises(QueueDecodeError, match="message 0 is 254"):
        reader.try_read(bytes)
    assert reader.position == 1 and writer.free()


def test_a_ring_of_more_chunks_than_a_flag_can_name_moves_nothing():
    writer, (reader,) = ring(chunks=130)
    writer.moves_from = 1
    for number in range(300):
        assert writer.try_write([bytes([number % 256])])
        assert reader.try_read(lambda view: view[0]) == number % 256
    assert set(bytes(writer._memory[writer.layout.written_offset(c)] for c in range(130))) == {1}


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=60))
def test_the_read_that_makes_room_for_a_full_ring_says_that_the_writer_may_wait(chunks, n_reader, turns):
    writer, readers = ring(n_reader, chunks=chunks)
    for turn in turns:
        if turn == 0:
            writer.try_write([b"m"])
        elif turn <= n_reader:
            full = not writer.free()
            took = readers[turn - 1].try_read(bytes) is not EMPTY
            if full and writer.free():
                assert took and readers[turn - 1].writer_may_wait()
            if took and chunks > 1 and not full:
                assert not readers[turn - 1].writer_may_wait()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=40))
def test_a_writer_has_room_as_far_as_all_readers_have_read_and_no_further(chunks, n_reader, turns):
    writer, readers = ring(n_reader, chunks=chunks)
    for who, count in turns:
        for _ in range(count):
            if who > n_reader:
                continue
            if who:
                readers[who - 1].try_read(bytes)
                continue
            room = writer.position - min(reader.position for reader in readers) < chunks
            if writer.has_room:
                assert room
            assert writer.free() is room
            assert writer.has_room is room
            assert writer.try_write([b"m"]) is room

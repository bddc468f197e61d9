"""The loops of the queue, stepped by hand: deadlines, overflow, cancellation, what they tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.effects import Attempt, MarkPoint, Now, Observe, Receive, RingBell, RingCrossing, Send, WaitBell
from engine.errors import (
    PeerDeadError,
    QueueCancelledError,
    QueueDecodeError,
    QueueError,
    QueueTimeoutError,
)
from engine.ipc.framing import (
    OUT_OF_BAND_BYTES,
    READY_FRAME,
    decode,
    encode,
    encode_chunk,
    from_overflow_frames,
    is_overflow,
    object_taker,
    overflow_frames,
    pack,
    parts_of,
    rehearsal,
    unpack,
)
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from engine.topology import Mark

CHUNK_BYTES = 256
BIG = b"B" * CHUNK_BYTES


class World:
    """One writer, some readers, a wire that can be held, and a clock that moves when somebody sleeps."""

    def __init__(self, n_reader: int = 1, chunks: int = 2, gap_s: float = 5.0,
                 full_fence: Any = lambda: True) -> None:
        layout = RingLayout(n_reader, CHUNK_BYTES, chunks)
        memory = memoryview(bytearray(layout.total_bytes))
        self.now = 100.0
        self.wire: list[list[Any]] = []  # in flight
        self.arrived: list[list[list[Any]]] = [[] for _ in range(n_reader)]
        self.told: list[Any] = []
        self.on_sleep = lambda: None
        self.writer = QueueWriter("q", RingWriter(layout, memory, lambda: None), n_reader, bell="bell",
                                  space_bell="space", overflow_outbox="overflow")
        self.readers = [
            QueueReader("q", RingReader(layout, memory, lambda: None, k), bell="bell", space_bell="space",
                        overflow_inbox=f"overflow{k}", gap_s=gap_s, full_fence=full_fence) for k in range(n_reader)]

    def deliver(self) -> None:
        for frames in self.wire:
            for inbox in self.arrived:
                inbox.append(frames)
        self.wire.clear()

    def put(self, obj: Any, deadline: float | None = None) -> int:
        return self.run(self.writer.enqueue(encode(obj), deadline))

    def get(self, deadline: float | None = None, reader: int = 0) -> Any:
        return decode(self.run(self.readers[reader].dequeue(deadline)))

    def run(self, loop: Any) -> Any:
        result: Any = None
        error: Exception | None = None
        steps = 0
        while True:
            try:
                effect = loop.throw(error) if error else loop.send(result)
            except StopIteration as stop:
                return stop.value
            steps += 1
            assert steps < 10_000, "the loop does not end"
            result, error = None, None
            try:
                result = self.answer(effect)
            except Exception as failure:
                error = failure

    def answer(self, effect: Any) -> Any:
        match effect:
            case Attempt():
                return effect.operation()
            case Now():
                return self.now
            case Send():
                self.wire.append(effect.frames)
            case Receive():
                inbox = self.arrived[int(effect.inboxes[0].removeprefix("overflow"))]
                if not inbox:
                    self.sleep(effect.deadline)
                return (effect.inboxes[0], 0, inbox.pop(0)) if inbox else None
            case WaitBell():
                self.sleep(effect.deadline)
                return False
            case _:
                self.told.append(effect)
        return None

    def sleep(self, deadline: float | None) -> None:
        if deadline is not None and deadline <= self.now:
            return
        self.now = min(self.now + 0.5, deadline or 1e9)
        self.on_sleep()


def test_what_is_enqueued_is_dequeued_and_every_step_is_told():
    world = World()
    assert world.put({"a": 1}) == 0 and world.put("b") == 1
    assert world.get() == {"a": 1} and world.get() == "b"
    crossings = [(e.operation, e.position, e.overflow) for e in world.told if isinstance(e, RingCrossing)]
    assert crossings == [("send", 0, False), ("send", 1, False), ("receive", 0, False), ("receive", 1, False)]
    assert [e.bell for e in world.told if isinstance(e, RingBell)] == ["bell", "bell", "space"]  # then none can wait


@pytest.mark.parametrize("fenced", [True, False])
def test_a_reader_rings_for_room_when_the_writer_may_wait_for_that_chunk(fenced):
    """Two chunks: once message n + 1 was written, the writer may wait for readers of n. Without a fence, always."""
    world = World(full_fence=lambda: fenced)
    for n in (1, 2, 3):
        world.put(n)
        world.get()
    world.put(4)
    world.put(5)
    world.get()
    world.get()
    told = "".join(e.bell[0] for e in world.told if isinstance(e, RingBell))  # "b" for a message, "s" for room
    assert told == ("bbbbbs" if fenced else "bsbsbsbbss")


def test_a_full_ring_is_marked_once_and_the_timeout_publishes_nothing():
    world = World()
    world.put(0), world.put(1)
    with pytest.raises(QueueTimeoutError, match="was not sent"):
        world.put(2, deadline=world.now + 3)
    assert world.now == 103.0
    assert [e.mark for e in world.told if isinstance(e, MarkPoint)] == [Mark.RING_FULL]
    assert [e.position for e in world.told if isinstance(e, RingCrossing)] == [0, 1]
    assert [world.get(), world.get()] == [0, 1]
    assert world.put(3) == 2 and world.get() == 3


def test_a_deadline_that_is_over_looks_once_and_never_sleeps():
    """vllm#41357: an expired deadline became a wait for ever."""
    world = World()
    for deadline in (0.0, -5.0, world.now, world.now - 1):
        with pytest.raises(QueueTimeoutError):
            world.get(deadline)
    world.put("there")
    assert world.get(deadline=-1.0) == "there"
    world.put(0), world.put(1)
    with pytest.raises(QueueTimeoutError):
        world.put(2, deadline=0.0)
    assert world.now == 100.0


def test_an_expired_deadline_still_takes_a_payload_that_has_arrived():
    world = World()
    world.put(BIG)
    world.deliver()
    assert world.get(deadline=0.0) == BIG


def test_a_timeout_between_flag_and_payload_loses_and_misplaces_nothing():
    world = World()
    world.put(BIG), world.put("after")
    for _ in range(3):
        with pytest.raises(QueueTimeoutError):
            world.get(deadline=world.now + 1)
        assert world.readers[0].position == 0
    world.deliver()
    assert [world.get(), world.get()] == [BIG, "after"]


def test_payloads_that_come_before_their_flags_are_kept():
    world = World(chunks=4)
    world.put(BIG), world.put("between"), world.put(BIG + b"2"), world.put(BIG + b"3")
    world.deliver()
    world.arrived[0].insert(0, [READY_FRAME])  # of the writer's greeting, read by nobody
    world.arrived[0].reverse()
    assert [world.get() for _ in range(4)] == [BIG, "between", BIG + b"2", BIG + b"3"]


def test_a_stale_payload_is_dropped_and_never_handed_out_as_the_next_one():
    world = World()
    world.put("plain")
    world.get()
    world.arrived[0].append(overflow_frames(encode("stale"), 0))
    world.put(BIG)
    world.deliver()
    assert world.get() == BIG


def test_a_payload_without_a_mark_is_taken_in_order():
    world = World()
    world.put(BIG)
    world.wire = [frames[:-1] for frames in world.wire]
    world.deliver()
    assert world.get() == BIG


def test_a_lost_payload_is_an_error_after_a_patience_and_the_queue_goes_on():
    world = World(gap_s=2.0)
    world.put(BIG), world.put(BIG + b"2")
    lost = world.wire.pop(0)
    world.deliver()
    with pytest.raises(QueueTimeoutError):
        world.get(deadline=world.now + 1)
    with pytest.raises(QueueDecodeError, match="message 0 was lost"):
        world.get()
    world.arrived[0].append(lost)  # too late
    assert world.get() == BIG + b"2"


def test_a_lost_doorbell_costs_one_recheck():
    world = World()
    world.on_sleep = lambda: world.put("late") if world.writer.position == 0 else None
    assert world.get() == "late"
    waits = [e.data for e in world.told if isinstance(e, Observe)]
    assert waits == [{"ring": "q", "began": 100.0, "deadline": None, "ended": 100.5, "outcome": "ok"}]


@pytest.mark.parametrize(("error", "outcome"), [(QueueCancelledError, "cancelled"), (PeerDeadError, "peer-dead")])
def test_a_cancelled_wait_passes_its_error_on_and_leaves_the_queue_intact(error, outcome):
    world = World()

    def die():
        raise error("stop")

    world.on_sleep = die
    with pytest.raises(error):
        world.get()
    world.put(0), world.put(1)
    with pytest.raises(error):
        world.put(2)
    assert [e.data["outcome"] for e in world.told if isinstance(e, Observe)] == [outcome, outcome]
    assert [world.get(), world.get()] == [0, 1]


def test_what_a_writer_published_before_its_death_is_handed_out_first():
    world = World()

    def publish_and_die():
        if world.writer.position == 0:
            world.put("last words")
        raise PeerDeadError("the writer has died")

    world.on_sleep = publish_and_die
    assert world.get() == "last words"
    with pytest.raises(PeerDeadError):
        world.get()


def test_a_writer_that_dies_between_flag_and_payload_ends_the_readers_wait():
    world = World()
    world.put(BIG)
    world.wire.clear()

    def answer(effect, real=world.answer):
        if isinstance(effect, WaitBell):
            raise PeerDeadError("the writer has died")
        return real(effect)

    world.answer = answer
    with pytest.raises(PeerDeadError):
        world.get()
    assert world.now <= 101.0


def test_a_damaged_chunk_is_an_error_that_frees_it():
    world = World(chunks=1)
    world.put("x")
    world.writer.writer._memory[0] = 9
    with pytest.raises(QueueDecodeError, match="begins with 9"):
        world.get()
    world.put("y")
    assert world.get() == "y"


def test_an_overflow_without_a_socket_is_an_error_at_the_writer():
    world = World()
    world.writer.overflow_outbox = None
    with pytest.raises(QueueError, match="does not fit"):
        world.put(BIG)
    world.put("fits")
    assert world.get() == "fits"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["put", "put-big", "get", "deliver"]), st.integers(0, 1)), max_size=60))
def test_any_mix_of_sizes_timeouts_and_late_payloads_is_an_exact_prefix(actions):
    world = World(n_reader=2, chunks=3)
    sent, got = [], [[], []]
    for action, reader in actions:
        if action == "deliver":
            world.deliver()
            continue
        try:
            if action == "get":
                got[reader].append(world.get(world.now, reader))
            else:
                message = (BIG if action == "put-big" else b"") + str(len(sent)).encode()
                world.put(message, world.now)
                sent.append(message)
        except QueueTimeoutError:
            pass
    world.deliver()
    for reader in (0, 1):
        while (message := world.run(world.readers[reader].try_dequeue())) is not EMPTY:
            got[reader].append(decode(message))
        assert got[reader] == sent


# -- framing


def test_a_chunk_holds_vllms_bytes():
    assert b"".join(pack([b"ab", b"cde"])) == b"\x00\x00\x02" b"\x00\x00\x00\x02ab" b"\x00\x00\x00\x03cde"


def test_a_message_overflows_from_vllms_count_on():
    assert not is_overflow([b"x" * 93], 100) and is_overflow([b"x" * 94], 100)
    assert not is_overflow([b"x" * 40, b"x" * 49], 100) and is_overflow([b"x" * 40, b"x" * 50], 100)
    assert len(b"".join(pack([b"x" * 93]))) == 100


def test_only_large_buffers_travel_beside_the_pickle():
    numpy = pytest.importorskip("numpy")
    small, large = numpy.zeros(OUT_OF_BAND_BYTES - 1, "u1"), numpy.arange(OUT_OF_BAND_BYTES, dtype="u1")
    parts = encode([small, large])
    assert [len(part) for part in parts[1:]] == [OUT_OF_BAND_BYTES] and encode_chunk([small, large]) == parts
    copied = [bytes(p) for p in parts]
    assert (decode(copied)[1] == large).all()


@pytest.mark.parametrize("obj", [b"", bytes(OUT_OF_BAND_BYTES - 1), ("f", {"k": [b"x" * 100]}), list(range(99))])
def test_a_small_object_makes_the_same_chunk_on_the_short_way(obj):
    chunk = encode_chunk(obj)
    assert chunk == b"".join(pack(encode(obj))) and parts_of([chunk]) == encode(obj)
    assert object_taker()(memoryview(chunk + bytes(9))) == (obj, len(chunk) - 7)


@pytest.mark.parametrize("obj", [bytes(OUT_OF_BAND_BYTES), bytearray(OUT_OF_BAND_BYTES + 1),
                                 (1, {"k": bytes(OUT_OF_BAND_BYTES)})])
def test_an_object_with_large_bytes_does_not_go_the_short_way(obj):
    parts = encode(obj)
    assert type(encode_chunk(obj)) is list and decode(list(map(bytes, parts))) == obj
    taken, size = object_taker()(memoryview(b"".join(pack(parts)) + bytes(9)))
    assert taken == obj and type(taken) is type(obj) and size == sum(map(len, parts))


def test_who_is_held_twice_is_still_one_where_it_can_be_changed():
    """A bytearray also held out of sight, and a list that holds itself, beside bytes that travel uncopied."""
    class_like = {"deep": [[[[]]]]}
    changing, large = bytearray(OUT_OF_BAND_BYTES), bytes(OUT_OF_BAND_BYTES)
    class_like["deep"][0][0][0].append(changing)
    itself = [large]
    itself.append(itself)
    one = decode(list(map(bytes, encode([changing, class_like, large]))))
    other = decode(list(map(bytes, encode(itself))))
    assert one[0] is one[1]["deep"][0][0][0][0] and one[2] == large
    assert other[1] is other and other[0] == large


def test_a_rehearsal_takes_a_message_as_any_other():
    take, taken = object_taker(), []
    rehearsal(lambda view: taken.append(take(view)))()
    assert [obj for obj, _ in taken] == [("rehearsal", b"")]


@pytest.mark.parametrize("chunk", [b"\x02" + bytes(9), bytes(10), b"\x00\x00\x02\x00\x00\x00\x01xyz\xff\xff\xff\xff"])
def test_bytes_that_are_no_message_are_a_named_error(chunk):
    with pytest.raises(QueueDecodeError):
        unpack(memoryview(chunk))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=8, max_size=64))
def test_no_bytes_make_a_chunk_read_beyond_its_end(data):
    try:
        parts = unpack(memoryview(data))
    except QueueDecodeError:
        return
    assert data[0] == 1 or sum(map(len, parts)) <= len(data)


def test_an_object_whose_class_is_missing_is_a_named_error():
    with pytest.raises(QueueDecodeError, match="ModuleNotFoundError"):
        decode([b"cno_such_module\nThing\n."])


def test_frames_of_an_overflow_carry_its_position():
    assert from_overflow_frames(overflow_frames([b"p", b"q"], 7)) == (7, [b"p", b"q"])
    assert from_overflow_frames([b"p"]) == (None, [b"p"])

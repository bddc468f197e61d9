"""The loops in which the ends of a queue find out that all are there, stepped by hand: no process, no clock.

Who is there stands in the ring's own memory, so the same loops run wherever there is such a memory.
"""

import pytest

from engine.effects import Attempt, Identity, IsAlive, Now, Receive, Send
from engine.errors import PeerDeadError, QueueTimeoutError
from engine.ipc.framing import READY_FRAME
from engine.ipc.presence import LocalReaders, Presence, RemoteReaders
from engine.ipc.queue import QueueReader, QueueWriter
from engine.ipc.readiness import wait_for_readers, wait_for_writer
from engine.ipc.ring import MOVE_BYTES, RingLayout, RingReader, RingWriter

LAYOUT = RingLayout(2, 64, 3)
RANKS = [4, 7]
EVERYTHING = b"\x01"


def named(reader, kind=b"\x01", tail=b"x"):
    return kind + b"RTrank%d:" % reader + tail


class World:
    """Answers the effects: a clock that moves while nothing comes, mail that is to come, processes that live."""

    def __init__(self, mail=()):
        self.memory = memoryview(bytearray(LAYOUT.total_bytes))
        self.mail, self.sent, self.now = list(mail), [], 0.0
        self.dead: set[int] = set()

    def presence(self, me):
        return Presence("rpc", LAYOUT, self.memory, RANKS, me)

    def writer(self):
        return QueueWriter("rpc", RingWriter(LAYOUT, self.memory, bool), 2, bell="b", space_bell="s",
                           overflow_outbox="overflow", readers=LocalReaders(self.presence(None)))

    def reader(self, k=0):
        return QueueReader("rpc", RingReader(LAYOUT, self.memory, bool, k), bell="b", space_bell="s",
                           overflow_inbox="overflow", presence=self.presence(k))

    def come(self, *readers):
        for reader in readers:
            self.presence(reader).announce(Identity(100 + reader, 5))

    def run(self, loop):
        answer = None
        try:
            while True:
                effect = loop.send(answer)
                answer = self.answer(effect)
        except StopIteration as stop:
            return stop.value

    def answer(self, effect):
        if isinstance(effect, Now):
            return self.now
        if isinstance(effect, Attempt):
            return effect.operation()
        if isinstance(effect, IsAlive):
            return effect.process.pid not in self.dead
        if isinstance(effect, Send):
            return self.sent.append((effect.outbox, effect.frames))
        assert isinstance(effect, Receive)
        for number, (socket, frame) in enumerate(self.mail):
            if socket in effect.inboxes:
                del self.mail[number]
                return socket, 0, [frame] if isinstance(frame, bytes) else frame
        if effect.deadline:
            self.now = max(self.now, effect.deadline)
        return None


def subscriptions(*readers):
    return [("overflow", frame) for reader in readers for frame in (EVERYTHING, named(reader))]


def test_a_writer_says_ready_once_each_reader_has_come_and_subscribed():
    world = World(subscriptions(0, 1))
    world.come(0, 1)
    queue = world.writer()
    world.run(wait_for_readers(queue, 10.0))
    assert world.sent == [("overflow", [READY_FRAME])] and queue.writer.moves_from == MOVE_BYTES


def test_one_reader_that_subscribes_twice_is_not_two():
    """Two subscriptions to everything are here, and yet one reader is missing, by its rank."""
    world = World([*subscriptions(0), ("overflow", EVERYTHING), ("overflow", named(0, tail=b"again"))])
    world.come(0, 1)
    with pytest.raises(QueueTimeoutError, match=r"1 of 2 readers did not come, ranks \[7\]"):
        world.run(wait_for_readers(world.writer(), 10.0))
    assert world.sent == [] and world.now == 10.0


def test_a_reader_that_lives_but_has_not_subscribed_is_missing():
    world = World(subscriptions(1))
    world.come(0, 1)
    with pytest.raises(QueueTimeoutError, match=r"ranks \[4\]"):
        world.run(wait_for_readers(world.writer(), 1.0))


def test_readers_that_say_no_name_are_counted_by_their_subscriptions():
    """As vLLM's do. Of such readers nobody knows whether they may lie at another chunk's place."""
    world = World([("overflow", EVERYTHING)] * 2)
    queue = world.writer()
    world.run(wait_for_readers(queue, 1.0))
    assert world.sent == [("overflow", [READY_FRAME])] and queue.writer.moves_from > MOVE_BYTES


@pytest.mark.parametrize("how", ["dead", "left"])
def test_a_reader_that_came_and_went_ends_the_wait_at_once(how):
    world = World(subscriptions(0, 1))
    world.come(0, 1)
    if how == "dead":
        world.dead.add(101)
    else:
        world.presence(1).withdraw()
    with pytest.raises(PeerDeadError, match="reader of rank 7 (has died|was shut down)"):
        world.run(wait_for_readers(world.writer(), 1.0))


def test_a_second_remote_reader_of_a_rank_is_refused_and_the_first_is_told():
    world = World([*subscriptions(0, 1), ("remote", named(9)), ("remote", named(9, tail=b"second"))])
    world.come(0, 1)
    queue = world.writer()
    queue.remotes, queue.remote_outbox = RemoteReaders("rpc", [9]), "remote"
    world.run(wait_for_readers(queue, 1.0))
    assert world.sent == [("remote", [b"RTtaken" + named(9, tail=b"second")[1:]]), ("overflow", [READY_FRAME]),
                          ("remote", [READY_FRAME])]


def test_a_remote_reader_that_left_ends_the_wait():
    world = World([("remote", named(9)), ("remote", named(9, kind=b"\x00"))])
    queue = world.writer()
    queue.remotes, queue.remote_outbox = RemoteReaders("rpc", [9]), "remote"
    with pytest.raises(PeerDeadError, match="rank 9"):
        world.run(wait_for_readers(queue, 1.0))


def test_a_reader_waits_for_the_writer_s_word_and_keeps_what_came_before_it():
    world = World([("overflow", READY_FRAME)])
    world.presence(None).announce(Identity(1, 1))
    reader = world.reader()
    world.run(wait_for_writer(reader, 1.0))
    assert reader.heard_ready


def test_a_reader_whose_writer_is_silent_waits_until_its_deadline():
    world = World()
    world.presence(None).announce(Identity(1, 1))
    with pytest.raises(QueueTimeoutError, match="did not say that all readers are there"):
        world.run(wait_for_writer(world.reader(), 2.0))
    assert world.now == 2.0


def test_a_reader_whose_writer_dies_waits_no_longer():
    world = World()
    world.presence(None).announce(Identity(1, 1))
    world.dead.add(1)
    with pytest.raises(PeerDeadError, match="the writer has died"):
        world.run(wait_for_writer(world.reader(), 1000.0))
    assert world.now < 1.0


def test_a_reader_without_a_socket_has_nothing_to_wait_for():
    reader = World().reader()
    reader.overflow_inbox = None
    assert list(wait_for_writer(reader, 1.0)) == []

"""An answer overtakes live batches: what still lies in the reader's own socket is not missing."""

from __future__ import annotations

import time
from collections import deque

import pytest

from engine.effects import Now, Receive, Send, WasCut
from engine.kv_events.reports import Applied, Gap, Healed, Report, Restarted, Snapshot, Unrecoverable
from engine.kv_events.subscriber import reading
from engine.kv_events.subscriber.follower import KVEventFollower
from engine.kv_events.subscriber.reading import Reading
from engine.messages import KVEventBatch
from tests.engine.kv_events.kv_world import KVWorld

QUIET_S = 0.2


def _answered(world: KVWorld) -> None:
    """A silence long enough for a question, and its answer, while live stands still."""
    world.pass_time()
    world.serve_requests()
    while world.answers:
        world.receive_answer()


def _notices(world: KVWorld) -> list[object]:
    return [report for report in world.reports if isinstance(report, Gap | Healed | Unrecoverable | Snapshot)]


@pytest.mark.parametrize("speaks_epochs", [True, False])
def test_a_backlog_that_an_answer_overtakes_is_no_loss(speaks_epochs: bool) -> None:
    """Twenty batches wait live, a window of four is replayed: every batch comes live, once, and nothing is told."""
    world = KVWorld(buffer_steps=4, max_queue_size=100, quiet_s=QUIET_S, speaks_epochs=speaks_epochs)
    world.follower.questions.tags = speaks_epochs
    world.send(1)
    world.receive_live()
    _answered(world)
    world.send(20)
    _answered(world)
    assert world.follower.next == 1
    while world.live:
        world.receive_live()
    world.heal()
    assert [report.number for report in world.told(Applied)] == list(range(21)) and _notices(world) == []


def test_a_lost_tail_is_told_when_live_has_been_quiet_and_not_before() -> None:
    world = KVWorld(quiet_s=QUIET_S)
    world.send(3)
    world.live.clear()
    _answered(world)
    world.pass_time(QUIET_S / 2)
    assert world.reports == [] and world.follower.deadline() == pytest.approx(world.now + QUIET_S / 2)
    world.pass_time(QUIET_S / 2 + 1e-6)
    assert _notices(world) == [Gap(0, 2), Healed(0, 2)] and world.mirrored() == world.truth()


def test_a_loss_that_live_has_passed_is_told_at_once() -> None:
    """0 to 9 came not and are out of the window, 10 came: nothing has to be waited for, though more is on its way."""
    world = KVWorld(buffer_steps=4, max_queue_size=100, quiet_s=QUIET_S, snapshots=False)
    world.send(11)
    for _ in range(10):
        world.live.popleft()
    world.receive_live()
    world.send(2)
    world.serve_requests()
    while world.answers:
        world.receive_answer()
    assert [(loss.first, loss.last) for loss in world.told(Unrecoverable)] == [(0, 8)]
    assert world.follower.next == 11 and len(world.live) == 2


def test_a_loss_in_a_backlog_is_told_when_the_reader_comes_to_it() -> None:
    """The answer that overtook it came whole: no second question is needed, and what follows is not held up."""
    world = KVWorld(buffer_steps=4, max_queue_size=100, quiet_s=QUIET_S, snapshots=False)
    world.send(1)
    world.receive_live()
    _answered(world)
    world.send(20)
    del world.live[5]  # batch 6
    _answered(world)
    while world.live:
        world.receive_live()
    assert _notices(world) == [Gap(6, 6), *world.told(Unrecoverable)]
    assert [(loss.first, loss.last) for loss in world.told(Unrecoverable)] == [(6, 6)]
    assert world.follower.next == 21 and not world.requests


def test_a_backlog_of_the_old_life_comes_before_the_restart_that_an_answer_tells() -> None:
    world = KVWorld(quiet_s=QUIET_S)
    world.send(3)
    world.receive_live()
    world.restart()
    world.send(1)
    world.live.pop()
    _answered(world)
    while world.live:
        world.receive_live()
    assert [report.number for report in world.told(Applied)] == [0, 1, 2]
    world.heal()
    assert len(world.told(Restarted)) == 1
    assert world.mirrored() == world.truth() and world.told(Unrecoverable) == []


class _Reader:
    """Turns of a reading, driven by hand: sockets are queues, a wait ends at once."""

    def __init__(self) -> None:
        self.world = KVWorld(max_queue_size=1000)
        self.follower = KVEventFollower(poll_s=1.0, answer_s=1.0)
        self.reading = Reading(lambda: self.follower)
        self.inboxes: dict[str, deque[list[bytes]]] = {"kv": self.world.live, "replay": self.world.answers}
        self.now = 0.0
        self.asked = 0
        self.was_cut = False

    def read(self, deadline: float) -> list[object]:
        loop = self.reading.turn(deadline)
        effect = next(loop)
        try:
            while True:
                effect = loop.send(self._answer(effect))
        except StopIteration:
            found = list(self.reading.told)
            self.reading.told.clear()
            return found

    def _answer(self, effect: object) -> object:
        match effect:
            case Now():
                return self.now
            case WasCut():
                was_cut, self.was_cut = self.was_cut, False
                return was_cut
            case Send(frames=frames):
                self.asked += 1
                return self.world.requests.append(frames)
            case Receive(inboxes=inboxes, deadline=deadline):
                for inbox in inboxes:
                    if self.inboxes[inbox]:
                        return inbox, 0, self.inboxes[inbox].popleft()
                self.now = max(self.now, deadline)
                return None
        raise AssertionError(effect)


def test_a_reader_that_paused_reads_before_it_asks_and_before_it_gives_a_question_up() -> None:
    """Five seconds of pause: the answer that came meanwhile is one, and the batches were no silence."""
    reader = _Reader()
    reader.read(0.1)
    assert reader.asked == 1
    for _ in range(50):
        reader.world.store()
        reader.world.flush()
    reader.world.serve_requests()
    reader.now = 5.0
    found = reader.read(5.1)
    assert [report.number for report in found if isinstance(report, Applied)] == list(range(50))
    assert reader.asked == 1 and reader.follower.answers == 1


def test_after_a_cut_the_publisher_is_asked_with_the_first_batch_that_comes() -> None:
    """Nobody knows what went by meanwhile: the question goes out at once, and not after a silence."""
    reader = _Reader()
    reader.read(0.1)
    reader.world.serve_requests()
    reader.read(0.2)
    for asked in (1, 2):
        reader.world.store()
        reader.world.flush()
        reader.read(reader.now)
        assert reader.asked == asked
        reader.was_cut = True


def test_one_message_at_a_time_leaves_neither_socket_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live batches without end, a reader in a hurry, and an answer: it is read with the second call."""
    monkeypatch.setattr(reading, "BURST_MESSAGES", 1)
    reader = _Reader()
    reader.read(0.1)
    for _ in range(50):
        reader.world.store()
        reader.world.flush()
    reader.world.serve_requests()
    answers = len(reader.world.answers)
    for _ in range(2 * answers):
        reader.read(0.0)
    assert reader.world.live and not reader.world.answers


def test_a_reader_that_slept_over_a_real_backlog_is_told_of_no_loss() -> None:
    """20,000 batches wait in its socket, far below the high-water mark; the publisher replays the last hundred."""
    pytest.importorskip("zmq")
    from engine.kv_events.publisher.process import ZmqEventPublisher
    from engine.kv_events.subscriber.process import KVEventSubscriber

    publisher = ZmqEventPublisher(0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", buffer_steps=100)
    try:
        with KVEventSubscriber(publisher.address, publisher.replay_address, poll_s=0.3) as reader:
            while not any(isinstance(report, Applied) and report.source == "live" for report in reader.poll(0.05)):
                publisher.publish(KVEventBatch(time.time(), []))
            first = publisher.log.numbered
            for _ in range(20_000):
                publisher.publish(KVEventBatch(time.time(), []))
            end = time.monotonic() + 30
            while publisher.log.waiting and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.5)  # the reader's pause, longer than `poll_s`
            told: list[Report] = []
            while reader.follower.next < publisher.log.numbered and time.monotonic() < end:
                told += reader.poll(0.05)
            assert [report for report in told if not isinstance(report, Applied)] == []
            assert told[0].number <= first and told[-1].number == publisher.log.numbered - 1
    finally:
        publisher.shutdown()

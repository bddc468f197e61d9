"""When a subscriber that is told to stop may leave: not before it has asked once more, and nothing is missing."""

from __future__ import annotations

from scenarios.lab.follower import UntilCaughtUp
from tests.engine.kv_events.kv_world import KVWorld


class Lab:
    """Whoever tells a subscriber to stop, and hears that it is ready."""

    def __init__(self) -> None:
        self.stop = False
        self.heard = 0
        self.until = UntilCaughtUp(lambda: self.stop, self._ready)

    def _ready(self) -> None:
        self.heard += 1


def _answer(world: KVWorld) -> None:
    """The question under way is answered to the end."""
    world.pass_time()
    world.serve_requests()
    while world.answers:
        world.receive_answer()


def test_it_is_ready_once_with_the_first_answer_and_stays_until_it_is_told() -> None:
    world, lab = KVWorld(), Lab()
    assert not lab.until(world.follower) and lab.heard == 0
    for _ in range(3):
        _answer(world)
        assert not lab.until(world.follower) and lab.heard == 1


def test_an_answer_from_before_it_was_told_is_not_enough() -> None:
    """It has caught up with all it knows of, and a batch that nobody told it of was published: it asks, and leaves."""
    world, lab = KVWorld(), Lab()
    _answer(world)
    world.store()
    world.flush()
    world.live.clear()
    lab.stop = True
    assert world.follower.caught_up and not lab.until(world.follower)
    _answer(world)
    assert lab.until(world.follower) and world.mirrored() == world.truth()


def test_it_stays_while_anything_is_missing() -> None:
    """Told to stop it is answered, but the answer lacks a batch that came: it leaves with the answer that has it."""
    world, lab = KVWorld(), Lab()
    _answer(world)
    lab.stop = True
    assert not lab.until(world.follower)
    world.pass_time()
    world.serve_requests()  # the answer is on its way, and knows nothing of what follows
    world.store()
    world.store()
    world.flush()
    world.live.popleft()
    world.receive_live()
    while world.answers:
        world.receive_answer()
    assert world.follower.answers == 2 and not lab.until(world.follower)
    world.heal()
    assert lab.until(world.follower) and world.mirrored() == world.truth()


def test_one_that_cannot_ask_is_ready_at_once_and_leaves_at_once() -> None:
    world, lab = KVWorld(replay=False), Lab()
    assert not lab.until(world.follower) and lab.heard == 1
    lab.stop = True
    assert lab.until(world.follower) and lab.heard == 1

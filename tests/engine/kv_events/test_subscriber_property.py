"""Whatever is lost, doubled, late, restarted or overrun: the mirror is true, or the loss is told."""

from __future__ import annotations

import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.kv_events.reports import Applied, Gap, Healed, Restarted, Snapshot, Unrecoverable, Unverified
from tests.engine.kv_events.kv_world import KVWorld

#: A soak sets thousands.
EXAMPLES = int(os.environ.get("KV_EXAMPLES", "150"))

small = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("store"), small), st.tuples(st.just("remove"), small), st.tuples(st.just("clear")),
    st.tuples(st.just("unencodable")), st.tuples(st.just("flush")),
    st.tuples(st.just("live"), small), st.tuples(st.just("drop-live"), small), st.tuples(st.just("double-live")),
    st.tuples(st.just("swap-live")), st.tuples(st.just("serve")), st.tuples(st.just("drop-request")),
    st.tuples(st.just("answer"), small), st.tuples(st.just("drop-answer")), st.tuples(st.just("double-answer")),
    st.tuples(st.just("time")), st.tuples(st.just("restart")), st.tuples(st.just("join")),
)
mostly_publishing = st.lists(st.one_of(st.tuples(st.just("store"), small), st.tuples(st.just("flush")), steps),
                             max_size=60)


def play(world: KVWorld, step: tuple) -> None:
    match step:
        case ("store", parent):
            world.store(parent)
        case ("remove", which):
            world.remove(which)
        case ("clear",):
            world.clear()
        case ("unencodable",):
            world.publish_unencodable()
        case ("flush",):
            world.flush()
        case ("live", count):
            for _ in range(count):
                world.receive_live()
        case ("drop-live", count):
            for _ in range(min(count, len(world.live))):
                world.live.popleft()
        case ("double-live",) if world.live:
            world.live.appendleft(world.live[0])
        case ("swap-live",) if len(world.live) > 1:
            world.live[0], world.live[1] = world.live[1], world.live[0]
        case ("serve",):
            world.serve_requests()
        case ("drop-request",) if world.requests:
            world.requests.popleft()
        case ("answer", count):
            for _ in range(count):
                world.receive_answer()
        case ("drop-answer",) if world.answers:
            world.answers.popleft()
        case ("double-answer",) if world.answers:
            world.answers.appendleft(world.answers[0])
        case ("time",):
            world.pass_time()
        case ("restart",):
            world.restart()
        case ("join",):
            world.join()


def check(world: KVWorld) -> None:
    """Never silently wrong, never out of order, every gap ended."""
    world.heal()
    assert world.follower.next == world.follower.wire == world.mirror.next_seq
    if world.mirror.unknown_since is None or not world.told(Unverified):  # a new life that has not said anything yet
        assert world.follower.next == world.life.log.numbered
    assert world.follower.held == 0
    assert world.follower.caught_up
    if world.life.log.epoch is not None and not world.life.log.lost_at_full_queue + world.life.log.lost_unencodable:
        assert world.mirror.unknown_since is None, "the publisher could have told its state"
    if world.mirror.unknown_since is None:
        assert world.mirrored() == world.truth()
    expected, missing = 0, set()
    for report in world.reports:
        match report:
            case Applied(number=number):
                assert number == expected
                expected += 1
                missing.discard(number)
            case Gap(first=first, last=last):
                assert first <= last and not missing & set(range(first, last + 1))
                missing |= set(range(first, last + 1))
            case Healed(first=first, last=last):
                assert expected == last + 1 and first <= last
            case Unrecoverable(first=first, last=last):
                assert expected == first and set(range(first, last + 1)) <= missing
                missing -= set(range(first, last + 1))
                expected = last + 1
            case Snapshot(next=number):
                assert number == expected
            case Restarted():
                assert not missing
                expected = 0
    assert not missing


@settings(max_examples=EXAMPLES, deadline=None)
@given(mostly_publishing)
@example([("time",), ("store", 0), ("flush",), ("restart",), ("store", 0), ("flush",), ("restart",)])
@example([("store", 0), ("flush",), ("live", 1), ("restart",), ("store", 0), ("flush",), ("drop-live", 1),
          ("store", 0), ("flush",), ("live", 1)])
def test_the_mirror_is_true_or_the_loss_is_told(history: list[tuple]) -> None:
    """Any interleaving of publishing, losses, late joins, overruns and restarts of one of our publishers."""
    world = KVWorld()
    for step in history:
        play(world, step)
    check(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(mostly_publishing)
def test_the_same_holds_for_a_publisher_that_only_speaks_the_original(history: list[tuple]) -> None:
    """Without epochs and reports; what such a publisher lost before sending at its end it can tell nobody."""
    world = KVWorld(speaks_epochs=False, max_queue_size=10**6)
    for step in history:
        if step[0] != "unencodable":
            play(world, step)
    check(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(mostly_publishing)
def test_the_same_holds_while_little_can_be_held_back(history: list[tuple]) -> None:
    """Live batches that find no room behind a hole are asked for later, not forgotten."""
    world = KVWorld(max_held=2)
    for step in history:
        play(world, step)
    check(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(steps.filter(lambda step: step[0] not in ("restart", "unencodable")), max_size=60))
def test_within_the_window_every_loss_heals(history: list[tuple]) -> None:
    """Where the publisher still has everything and finally answers, nothing may be given up."""
    world = KVWorld(buffer_steps=10**6, max_queue_size=10**6, tries=10**6)
    for step in history:
        play(world, step)
    check(world)
    assert world.told(Unrecoverable) == []
    assert world.mirrored() == world.truth()

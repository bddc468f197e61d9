"""Doorbells on a shared word, between threads and between processes."""

from __future__ import annotations

import mmap
import multiprocessing
import threading
import time

import pytest

from engine.ipc import wait
from engine.ipc.wait import SHORT_WAIT_S, FutexDoorbell, Spin, SpinThenNap, SpinThenSleep, _Habit, has_futex
from tests.engine.ipc.queue_lab import used_s, wake_costs_s


@pytest.fixture
def line():
    memory = mmap.mmap(-1, 4096)
    yield memoryview(memory)


def test_a_ring_between_the_ticket_and_the_wait_is_not_lost(line):
    sleeper, ringer = FutexDoorbell(line, 64), FutexDoorbell(line, 64)
    seen = sleeper.seen()
    ringer.ring()
    assert sleeper.wait(seen, 60.0)
    assert not sleeper.wait(sleeper.seen(), 0.0)


def test_a_wait_ends_at_its_timeout_and_says_that_nothing_rang(line):
    bell = FutexDoorbell(line, 0, spin_s=0)
    began = time.monotonic()
    assert not bell.wait(bell.seen(), 0.05)
    assert 0.05 <= time.monotonic() - began < 2.0


def test_a_glance_is_a_few_looks_whose_turns_are_given_away_and_sees_a_ring_in_between(line, monkeypatch):
    turns, bell, ringer = [], FutexDoorbell(line, 0), FutexDoorbell(line, 0)
    monkeypatch.setattr(wait, "_give_way", lambda: turns.append(None) or (len(turns) == 7 and ringer.ring()))
    assert not bell.glance(seen := bell.seen()) and 0 < len(turns) < 7
    assert bell.glance(seen) and len(turns) == 7
    assert bell.glance(seen) and len(turns) == 7


def test_a_bell_that_always_sleeps_does_not_glance_and_a_closed_one_is_quiet(line, monkeypatch):
    monkeypatch.setattr(wait, "_give_way", lambda: pytest.fail("it looked"))
    bell = FutexDoorbell(line, 0, spin_s=0)
    seen = bell.seen()
    assert not bell.glance(seen)
    bell.ring()
    assert bell.glance(seen)
    bell.close()
    assert not bell.glance(seen)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_a_timeout_that_is_over_does_not_sleep(line, timeout_s):
    bell = FutexDoorbell(line, 0)
    assert not bell.wait(bell.seen(), timeout_s)


def _echo(memory, rounds):
    ask, answer = FutexDoorbell(memory, 0, spin_s=0), FutexDoorbell(memory, 64, spin_s=0)
    for number in range(1, rounds + 1):
        seen = ask.seen()
        while memory[128] != number % 256:
            ask.wait(seen, 30.0)
            seen = ask.seen()
        memory[129] = number % 256
        answer.ring()


def test_two_processes_that_always_sleep_wake_each_other_a_thousand_times(line):
    if not has_futex():
        pytest.skip("no futex on this system")
    rounds = 1000
    child = multiprocessing.get_context("fork").Process(target=_echo, args=(line, rounds))
    child.start()
    ask, answer = FutexDoorbell(line, 0, spin_s=0), FutexDoorbell(line, 64, spin_s=0)
    longest = 0.0
    for number in range(1, rounds + 1):
        seen, began = answer.seen(), time.monotonic()
        line[128] = number % 256
        ask.ring()
        while line[129] != number % 256:
            assert answer.wait(seen, 30.0), "a wake-up was lost"
            seen = answer.seen()
        longest = max(longest, time.monotonic() - began)
    child.join(30)
    assert child.exitcode == 0 and longest < 5.0


def test_one_ring_wakes_every_sleeper(line):
    woken = []

    def sleep():
        bell = FutexDoorbell(line, 0, spin_s=0)
        barrier.wait()
        woken.append(bell.wait(seen, 30.0))

    barrier, seen = threading.Barrier(4), FutexDoorbell(line, 0).seen()
    threads = [threading.Thread(target=sleep) for _ in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    FutexDoorbell(line, 0).ring()
    for thread in threads:
        thread.join(30)
    assert woken == [True, True, True]


def test_ringers_without_a_common_counter_always_change_the_word(line):
    ringers = [FutexDoorbell(line, 0) for _ in range(3)]
    ringers[1]._number = ringers[0]._number  # as after a fork
    for turn in range(3000):
        before = ringers[0].seen()
        ringers[turn % 3].ring()
        assert ringers[0].seen() != before


def test_a_sleeper_uses_no_processor_time(line):
    bell = FutexDoorbell(line, 0)
    assert used_s(lambda: bell.wait(bell.seen(), 0.5)) < 0.02


@pytest.mark.parametrize("strategy", [SpinThenSleep(), Spin(), SpinThenNap(busy_s=0.0)])
def test_every_strategy_notices_a_ring_and_a_timeout(line, strategy):
    bell = FutexDoorbell(line, 0)
    seen = bell.seen()
    assert not strategy.wait(bell, seen, 0.01)
    bell.ring()
    assert strategy.wait(bell, seen, 0.01)


def test_a_closed_bell_may_still_be_rung_by_a_thread_that_comes_late(line):
    bell = FutexDoorbell(line, 0)
    bell.close()
    bell.ring()


def waited(habit: _Habit, wait_s: float) -> tuple[float, float, float]:
    habit.last = wait_s
    return habit.guess()


def test_a_bell_that_is_rung_regularly_is_looked_at_around_the_usual_moment():
    habit = _Habit(50e-6)
    for wait_s in (0.0251, 0.0252, 0.0250, 0.0251, 0.9, 0.0252, 0.0250):
        assert waited(habit, wait_s) == (50e-6, 0.0, 0.0)  # not enough to guess from
    first, again, last = waited(habit, 0.0251)
    assert first == 50e-6 and 0.0246 < again < 0.0250 and 0.0252 < last < 0.0256
    habit.forget()
    assert habit.guess() == (50e-6, 0.0, 0.0)


def test_who_wakes_before_the_usual_moment_rehearses_once_and_nobody_else_does(line):
    bell, rehearsed = FutexDoorbell(line, 0), []
    bell.rehearse = lambda: rehearsed.append(bell.seen())
    assert not bell.wait(bell.seen(), 0.01) and rehearsed == []
    bell._habit.windows = (0.0, 0.002, 0.004)
    assert not bell.wait(seen := bell.seen(), 0.01) and rehearsed == [seen]


def test_a_bell_that_is_rung_soon_is_looked_at_for_longer_and_one_without_habits_is_not():
    for waits, expected_s in (([80e-6] * 8, 210e-6), ([0.005] * 8, 10.05e-3), ([0.01, 0.2] * 4, 50e-6)):
        habit = _Habit(50e-6)
        for wait_s in waits:
            waited(habit, wait_s)
        assert habit.guess() == (pytest.approx(expected_s), 0.0, 0.0)


def test_a_bell_that_is_not_rung_any_more_costs_one_spin_and_then_nothing(line):
    """The least of three: a core that is taken away for a moment counts as time spent. Each wake costs some, too."""
    bell, first, others = FutexDoorbell(line, 0), [], []

    def wait_often(waits: int) -> None:
        for _ in range(waits):
            assert not bell.wait(bell.seen(), 0.1)

    a_wake_s = wake_costs_s()
    for _ in range(3):
        for _ in range(8):
            waited(bell._habit, SHORT_WAIT_S)
        first.append(used_s(lambda: wait_often(1)))
        others.append(used_s(lambda: wait_often(5)))
    assert min(first) < 2 * SHORT_WAIT_S + 0.005 + 4 * a_wake_s
    assert min(others) < 0.005 + 4 * 5 * a_wake_s


def test_a_bell_must_be_aligned(line):
    with pytest.raises(ValueError, match="aligned"):
        FutexDoorbell(line, 2)

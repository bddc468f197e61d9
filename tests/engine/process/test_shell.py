"""A process's answers to effects: every wait ends, at its deadline, at a wake-up, or because it is told to."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.effects import (
    Attempt,
    AwaitEnds,
    Beat,
    Call,
    EndChild,
    Gone,
    JoinThread,
    Now,
    Put,
    Receive,
    RingBell,
    Send,
    StartChild,
    StartThread,
    Take,
    WaitBell,
)
from engine.errors import PeerDeadError, QueueCancelledError
from engine.frontend.handles.monitor import GRACE_S, LOOK_S, CoreMonitor
from engine.ipc.wait import FutexDoorbell
from engine.ports import SocketSpec
from engine.process import shell
from engine.process.liveness import Liveness
from engine.process.real_ports import RealPorts
from engine.process.shell import BEAT, Process
from engine.topology import NodeKind, core, frontend

LONG_S = 30.0


@pytest.fixture
def process():
    made = Process(RealPorts(core()))
    made.add_bell("bell", FutexDoorbell(bytearray(64), 0))
    yield made
    made.close()
    made.ports.close()


def one(effect):
    """A loop of one effect."""
    return (yield effect)


def soon(process, effect) -> float:
    return process.ports.clock.monotonic() + effect


def later(action) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def timed(process, effect):
    began = time.monotonic()
    return process.run(one(effect)), time.monotonic() - began


def test_effects_are_answered_and_a_failed_one_is_thrown_into_the_loop(process) -> None:
    process.worker = type("W", (), {"double": lambda self, x: 2 * x})()

    def loop():
        assert (yield Call("double", (4,), {})) == 8
        with pytest.raises(ZeroDivisionError):
            yield Attempt("ring", lambda: 1 / 0)
        yield Put("q", "a")
        yield Put("q", "b")
        return (yield Take("q", None)), (yield Now())

    items, now = process.run(loop())
    assert items == ["a", "b"] and abs(now - time.monotonic()) < 1.0


@pytest.mark.parametrize("make", [
    lambda deadline: Take("q", deadline), lambda deadline: WaitBell("bell", deadline),
], ids=["Take", "WaitBell"])
def test_a_deadline_ends_a_wait_and_one_in_the_past_looks_once(make, process) -> None:
    found, took_s = timed(process, make(soon(process, 0.05)))
    assert not found and 0.04 < took_s < 1.0
    found, took_s = timed(process, make(soon(process, -100.0)))
    assert not found and took_s < 0.04


def test_a_thread_that_was_never_started_has_ended(process) -> None:
    ended, took_s = timed(process, JoinThread("input", soon(process, LONG_S)))
    assert ended and took_s < 5.0


@pytest.mark.parametrize("begins", ["before", "after", "never"])
def test_a_thread_whose_start_is_broken_off_runs_before_it_is_joined_or_never(process, monkeypatch, begins) -> None:
    """A SIGTERM comes when the system has the new thread, which has yet to be given a turn."""
    started, ran, start = [], [], threading.Thread.start

    def broken_off(thread) -> None:
        started.append(thread)
        raise SystemExit("SIGTERM")

    def loop():
        ran.append((yield Now()))

    def begin() -> None:
        start(started[0])
        started[0].join(LONG_S)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", broken_off)
        with pytest.raises(SystemExit):
            process.run(one(StartThread("input", loop())))
    if begins == "before":
        begin()
    assert all(process.run(one(JoinThread("input", soon(process, LONG_S)))) for _ in range(2))
    if begins == "after":
        begin()
    assert len(ran) == (begins == "before")


def test_a_take_wakes_at_the_first_item(process) -> None:
    thread = later(lambda: process.queues["q"].put("x"))
    items, took_s = timed(process, Take("q", soon(process, LONG_S)))
    assert items == ["x"] and took_s < 5.0
    thread.join()


def test_a_ring_between_looking_and_sleeping_is_not_lost(process) -> None:
    process.run(one(RingBell("bell")))
    rang, took_s = timed(process, WaitBell("bell", soon(process, LONG_S)))
    assert rang and took_s < 0.5


@pytest.mark.parametrize("before", [True, False])
def test_cancel_ends_a_wait_on_a_bell_that_began_before_or_begins_after(before: bool, process) -> None:
    error = PeerDeadError("worker.1 died")
    if before:
        thread = later(lambda: process.cancel(error))
    else:
        process.cancel(error)
        thread = later(lambda: None)
    with pytest.raises(PeerDeadError, match="worker.1"):
        while True:
            process.run(one(WaitBell("bell", soon(process, LONG_S))))
    thread.join()


def test_the_first_reason_stays_and_a_loop_always_sees_a_cancellation(process) -> None:
    process.cancel(ValueError("first"))
    process.cancel(QueueCancelledError("second"))
    with pytest.raises(QueueCancelledError, match="first"):
        process.run(one(WaitBell("bell", None)))


@pytest.fixture
def pair(process, tmp_path):
    """A ROUTER in this process, a DEALER that speaks to it."""
    address = f"ipc://{tmp_path / 's'}"[:107]
    process.sockets["in"] = process.ports.open_socket(SocketSpec(
        name="in", kind="PULL", peer_kind=NodeKind.CORE, bind=True, address=address))
    process.sockets["out"] = process.ports.open_socket(SocketSpec(
        name="out", kind="PUSH", peer_kind=NodeKind.FRONTEND, bind=False, address=address))
    return process


def test_a_receive_gets_messages_in_order_and_ends_at_its_deadline(pair) -> None:
    for number in range(3):
        pair.run(one(Send("out", [bytes([number])])))
    got = [pair.run(one(Receive(("in",), soon(pair, 5.0)))) for _ in range(3)]
    assert got == [("in", 0, [bytes([number])]) for number in range(3)]
    nothing, took_s = timed(pair, Receive(("in",), soon(pair, 0.05)))
    assert nothing is None and 0.04 < took_s < 1.0


@pytest.fixture
def child(process):
    """A child that waits for its recipe, started before the first socket."""
    process.run(one(StartChild(core(1), "fork")))
    yield core(1)
    process.run(one(EndChild(core(1), "kill")))
    process.run(one(AwaitEnds((core(1),), None)))


def test_a_receive_ends_by_cancel_and_by_a_childs_end_but_hands_out_what_is_there(child, pair) -> None:
    thread = later(lambda: pair.run(one(EndChild(child, "kill"))))
    nothing, took_s = timed(pair, Receive(("in",), soon(pair, LONG_S), (child,)))
    assert nothing is None and took_s < LONG_S / 3
    assert pair.run(one(AwaitEnds((child,), 0.0))) == {child: Gone(-9)}
    thread.join()
    pair.run(one(Send("out", [b"last"])))
    assert pair.run(one(Receive(("in",), soon(pair, 5.0)))) == ("in", 0, [b"last"])
    pair.run(one(Send("out", [b"later"])))
    end, got = soon(pair, 5.0), None
    while got is None and soon(pair, 0.0) < end:  # the end is told at each look, and what has arrived before that
        got = pair.run(one(Receive(("in",), end, (child,))))
    assert got == ("in", 0, [b"later"])
    pair.cancel(QueueCancelledError("over"))
    with pytest.raises(QueueCancelledError, match="over"):
        pair.run(one(Receive(("in",), None)))


def test_cancel_wakes_a_receive_that_sleeps_already(pair, monkeypatch) -> None:
    monkeypatch.setattr(shell, "LOOK_UP_S", LONG_S)
    sleeping = threading.Event()
    fileno = pair.sockets["in"].fileno

    def about_to_sleep() -> int:
        sleeping.set()
        return fileno()

    monkeypatch.setattr(pair.sockets["in"], "fileno", about_to_sleep)
    thread = later(lambda: sleeping.wait() and pair.cancel(QueueCancelledError("over")))
    began = time.monotonic()
    with pytest.raises(QueueCancelledError, match="over"):
        pair.run(one(Receive(("in",), soon(pair, LONG_S))))
    assert time.monotonic() - began < LONG_S / 3
    thread.join()


def test_who_cancels_while_another_thread_closes_writes_to_nothing_that_is_closed(process, monkeypatch) -> None:
    """Its number may be another file's by then."""
    write, closing = os.write, []

    def wake(descriptor: int, data: bytes) -> int:
        closing.append(later(process.close))
        closing[0].join(0.2)  # longer than it takes, if nothing keeps it
        return write(descriptor, data)

    monkeypatch.setattr(shell.os, "write", wake)
    process.cancel(QueueCancelledError("over"))
    closing[0].join(LONG_S)
    process.cancel(QueueCancelledError("too late"))
    assert not closing[0].is_alive() and len(closing) == 1


def test_a_beat_tells_its_number_and_when_it_was(process) -> None:
    process.heartbeat = memoryview(bytearray(64))
    process.run(one(Beat(41)))
    count, at_ns = BEAT.unpack_from(process.heartbeat)
    assert count == 41 and abs(at_ns / 1e9 - time.monotonic()) < 1.0


# -- when is the core dead


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.booleans()), min_size=1, max_size=30))
def test_a_beat_that_stands_still_is_reported_at_the_next_look_and_one_that_moves_never(looks) -> None:
    now, beat, moved_at = 0.0, 1, 0.0
    liveness = Liveness("core.0", 3.0, now)
    liveness.on_tick(beat, now)
    for wait_s, moves in looks:
        now += wait_s
        if moves:
            beat, moved_at = beat + 1, now
        told = liveness.on_tick(beat, now)
        assert (told is not None) == (now - moved_at > 3.0)


def test_an_old_beat_seen_for_the_first_time_is_as_old_as_it_is() -> None:
    """Whoever looks once a minute is told at that look, not one bound later."""
    liveness = Liveness("core.0", 3.0, 0.0)
    assert liveness.on_tick(5, 1.0, beaten_at=0.9) is None
    assert "59.00 s" in liveness.on_tick(9, 62.0, beaten_at=3.0)
    assert liveness.on_tick(10, 62.1, beaten_at=62.05) is None


def test_each_witness_of_a_death_suffices_and_is_told_once() -> None:
    notice = CoreMonitor("core.0", 3.0, 0.0)
    assert "ENGINE_CORE_DEAD" in notice.on_notice()
    assert notice.on_notice() is None and notice.on_tick(1, 100.0) is None
    still = CoreMonitor("core.0", 3.0, 0.0)
    assert still.on_tick(1, 0.0) is None and "no progress" in still.on_tick(1, 3.1)


def test_a_sentinel_leaves_time_for_last_words_and_then_counts() -> None:
    monitor = CoreMonitor("core.0", 3.0, 0.0)
    assert monitor.gone() is None
    monitor.on_gone(" (exit code -9)", 1.0)
    monitor.on_gone(" (again)", 1.01)
    assert monitor.gone() == "core.0 died (exit code -9)"
    assert monitor.on_tick(1, 1.0) is None and monitor.deadline() == 1.0 + LOOK_S
    assert monitor.on_tick(1, 1.0 + GRACE_S - LOOK_S / 2) is None and monitor.deadline() == 1.0 + GRACE_S
    assert monitor.on_tick(1, 1.0 + GRACE_S) == "core.0 died (exit code -9)"
    assert monitor.deadline() is None
    assert monitor.on_last_word() is None


def test_who_has_read_the_last_word_of_a_core_that_is_gone_waits_for_no_more() -> None:
    monitor = CoreMonitor("core.0", 3.0, 0.0)
    monitor.on_gone(" (exit code -9)", 1.0)
    assert monitor.on_last_word() == "core.0 died (exit code -9)"
    assert monitor.deadline() is None and monitor.on_tick(1, 2.0) is None


def test_a_frontends_ports_close_without_anything_opened() -> None:
    RealPorts(frontend()).close()

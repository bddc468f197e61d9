"""Fates of whole processes: how one meets its own, and how the lab lets stopped ones go on.

Promises: a process that is killed or stopped at a site does not execute one more instruction of the thread that
crossed it, so one plan gives one place of death. A process that is killed or stopped by another one's crossing
is dead or stopped before that crossing ends. No signal ever goes to a process id that was reused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from faults.fates import Hold, Release, steps
from faults.judge import is_over
from faults.plan import HOLDING_FATES, Fate, Fault, Plan
from faults.real.board import LAB, Board
from faults.sites import victim_of

#: How often somebody who holds something looks whether it may go.
HOLD_LOOK_S = 0.003
#: How often a hanging thread looks whether the lab is still there.
LAB_LOOK_S = 0.1
#: A signalled process is dead or stopped well within this.
SIGNAL_S = 1.0

_SIGNALS = {Fate.KILL: signal.SIGKILL, Fate.STALL: signal.SIGSTOP, Fate.TERMINATE: signal.SIGTERM}


def _stat(pid: int | str) -> tuple[str, int]:
    """(state letter, start in clock ticks) from /proc; ("", 0) for a process, or PID/task/TID, that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[19])


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; with its id it names a process for good. 0: gone."""
    return _stat(pid)[1]


def is_alive(pid: int, ticks: int) -> bool:
    """Whether exactly this process runs, sleeps or is stopped (a zombie does not)."""
    state, started = _stat(pid)
    return bool(state) and state not in "ZX" and started == ticks


def is_stopped(pid: int, ticks: int) -> bool:
    """Whether each thread of exactly this process is: they stop one after the other."""
    state, started = _stat(pid)
    if state != "T" or started != ticks:
        return False
    with contextlib.suppress(OSError):
        return all(_stat(f"{pid}/task/{thread}")[0] in ("T", "") for thread in os.listdir(f"/proc/{pid}/task"))
    return False


def stands_still(pid: int, ticks: int) -> bool:
    """Whether it does nothing: it is stopped, or gone."""
    return is_stopped(pid, ticks) or not is_alive(pid, ticks)


def stop_all(processes: Iterable[tuple[int, int]]) -> None:
    """SIGSTOP. Each of them (pid, ticks) stands still, or is gone, when this returns."""
    stopped = [process for process in processes if send_signal(*process, signal.SIGSTOP)]
    _await(lambda: all(stands_still(*process) for process in stopped), time.monotonic)


def _await(done: Callable[[], bool], now: Callable[[], float]) -> None:
    deadline = now() + SIGNAL_S
    while not done() and now() < deadline:
        time.sleep(0.0002)


def send_signal(pid: int, ticks: int, number: int) -> bool:
    """Signal exactly this process. -> False if it is gone"""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


class Performer:
    """Carries out process fates inside the process that crosses the site."""

    def __init__(self, board: Board, clock: Any, on_release: Callable[[Fault, str, int], None]) -> None:
        self._board = board
        self._clock = clock
        self._on_release = on_release

    def perform(self, fault: Fault, site: str, nth: int) -> None:
        """Called with everything on record already: the caller may not come back.

        Raises RuntimeError for `raise` and SystemExit for `exit`.
        """
        for step in steps(fault, site, nth):
            if isinstance(step, Hold):
                self._hold(fault)
            elif isinstance(step, Release):
                self._on_release(fault, site, nth)
            elif step.victim is not None:
                self.strike(fault, step.victim)
            elif fault.fate is Fate.TERMINATE:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                # To this very thread: it is acted upon before the call returns, whichever other threads there are.
                signal.pthread_kill(threading.get_ident(), _SIGNALS[fault.fate])

    def reaches(self, fault: Fault) -> bool:
        """Whether the process that it hits was born and lives."""
        process = self._board.process(*victim_of(fault))
        return process is not None and is_alive(*process)

    def strike(self, fault: Fault, victim: tuple[str, int]) -> None:
        """By the process id on the board, whoever asks: it is dead or stopped when this returns."""
        process = self._board.process(*victim)
        if process is None or not send_signal(*process, _SIGNALS[fault.fate]):
            return
        done = {Fate.KILL: lambda: not is_alive(*process),
                Fate.STALL: lambda: stands_still(*process)}.get(fault.fate)
        if done is not None:
            _await(done, self._clock.monotonic)

    def _hold(self, fault: Fault) -> None:
        board, since = self._board, self._clock.monotonic()
        lab, look = board.process(LAB), since + LAB_LOOK_S
        while True:
            now = self._clock.monotonic()
            if is_over(fault, since, now, board.count) or board.healed_since(fault.id, since):
                break
            if lab is not None and now >= look:
                look = now + LAB_LOOK_S
                if not is_alive(*lab):
                    os.kill(os.getpid(), signal.SIGKILL)  # nobody is left to release or to remove it
            time.sleep(HOLD_LOOK_S)


class Supervisor:
    """The lab's side: lets stopped processes go on when their `until` came true. Poll `tick` every few ms, where
    it `may_be_due`."""

    def __init__(self, board: Board, plan: Plan, now: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._plan = plan
        self._now = now
        self._seat = board.seat(LAB)
        self._stalls = [fault for fault in plan.faults if fault.fate is Fate.STALL]
        self._seat.enter(os.getpid(), start_ticks(os.getpid()))

    @property
    def may_be_due(self) -> bool:
        """Whether there are stalls in the plan: without, nothing is to be let go on."""
        return bool(self._stalls)

    def tick(self) -> tuple[str, ...]:
        """-> ids of the stalls that were released now"""
        if not self.may_be_due:
            return ()
        released = []
        for fault in self._held(self._stalls):
            if is_over(fault, self._board.fired_at(fault.id) or 0.0, self._now(), self._board.count):
                self._seat.released(fault.id, self._now())
                released.append(fault.id)
        self._resume()
        return tuple(released)

    def release_all(self) -> tuple[str, ...]:
        """Heal: end every delay, stall, hang and refusal that is on now, whatever it waits for. -> their ids"""
        released = [fault.id for fault in self._held(f for f in self._plan.faults if f.fate in HOLDING_FATES)]
        for fault_id in released:
            self._seat.released(fault_id, self._now())
        self._resume()
        return tuple(released)

    def stopped(self) -> tuple[str, ...]:
        """The nodes that a stall holds now."""
        return tuple(victim_of(fault)[0] for fault in self._held(self._stalls))

    def _held(self, faults: Any) -> list[Fault]:
        held = []
        for fault in faults:
            fired_at = self._board.fired_at(fault.id)
            if fired_at is not None and (self._board.released_at(fault.id) or 0.0) < fired_at:
                held.append(fault)
        return held

    def _was_released(self, fault: Fault) -> bool:
        released_at = self._board.released_at(fault.id)
        fired_at = self._board.fired_at(fault.id)
        return fired_at is not None and released_at is not None and released_at >= fired_at

    def _resume(self) -> None:
        """SIGCONT, again and again while it is stopped: a process says that it stops just before it does."""
        # Asked in this order: a stall that fires meanwhile is not among the released ones.
        let_go = [fault for fault in self._stalls if self._was_released(fault)]
        held = {victim_of(fault) for fault in self._held(self._stalls)} if let_go else set()
        for fault in let_go:
            victim = victim_of(fault)
            if victim in held:
                continue
            process = self._board.process(*victim)
            if process is not None and is_stopped(*process):
                with contextlib.suppress(OSError):
                    send_signal(*process, signal.SIGCONT)

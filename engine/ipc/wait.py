"""How a process sleeps until another one has done something: a futex on a word of shared memory.

Promises
- No wake-up is lost between `seen` and `wait`: every ring changes the word, and one sleeps only on the value seen.
- A sleeper uses no processor time; a spinner gives its turn away at each look, and sleeps where others want the core.
- The first few looks of a wait come before anything is got ready for a longer one: who shares a core with the ringer
  lets it go on at once.
- A bell that is not rung costs `SPIN_S` of looking per wait; one that was rung every few milliseconds until now, once
  twice the usual wait, `2 * SHORT_WAIT_S` at most.
- Every wait ends at its time-out. A wake-up for no reason is possible and means "look again".
- Ringing costs a system call only when somebody sleeps.

A bell in memory, alone on its cache line

    word        4 bytes    changes at every ring
    sleepers    4 bytes    not 0: somebody may be asleep

    sleeper     word seen -> condition looked at -> sleepers = 1 -> FUTEX_WAIT(word is still what was seen)
    ringer      sleepers taken back to 0 -> word changed -> full fence -> FUTEX_WAKE if sleepers was or is 1

A sleeper that sets `sleepers` too late for the ringer to see finds the word changed; one whose 1 is taken back is
woken by whoever took it. Several processes may ring one bell without a common counter: each puts down numbers
of its own sequence and never the one that is there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

from engine.ports import Doorbell

WORD_BYTES = 4
#: Looking before sleeping: the time a peer needs for a short answer.
SPIN_S = 50e-6
#: A wait that usually ends within this is spun through, its turn given away at each look: a sleep would cost a wake-up
#: of 50 to 100 us, and as much again for a core that has halted and a cache that has gone cold.
SHORT_WAIT_S = 10e-3
#: Who sleeps until shortly before the usual moment wakes this much earlier: a timed sleep ends as late as that.
WAKE_S = 200e-6
#: Waits from which the next one is guessed.
_REMEMBERED = 8
#: Looks between two looks at the clock.
_LOOKS = 4
#: A turn given away that took longer than this went to somebody who computes: spinning on would wait for whole slices.
_CROWDED_S = 100e-6

_FUTEX_WAIT, _FUTEX_WAKE, _EVERYBODY = 0, 1, 0x7FFFFFFF
_MASK = 0xFFFFFFFF
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
#: Where an uncontended lock is a full fence, `sleepers` may be trusted; elsewhere every ring is a system call.
_LOCK_IS_FULL_FENCE = os.uname().machine == "x86_64"
_lock = Lock()
_give_way = os.sched_yield


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def _open_futex() -> tuple[Callable[..., int], int] | None:
    number = _FUTEX_NUMBERS.get(os.uname().machine)
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    syscall = ctypes.CDLL(None).syscall  # releases the interpreter's lock while it sleeps
    syscall.restype = ctypes.c_long
    syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
    return syscall, number


_futex = _open_futex()


def full_fence() -> bool:
    """No load below is done before a store above is seen. -> whether that is so on this machine"""
    with _lock:
        return _LOCK_IS_FULL_FENCE


def has_futex() -> bool:
    """Whether sleepers are woken here, or look again every half millisecond."""
    return _futex is not None


class _Habit:
    """How long the last waits of one sleeper took. The shortest and the longest of them do not count."""

    def __init__(self, spin_s: float) -> None:
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._new = 0
        #: How long the last wait took until it rang. Put down by who must be quick then, and taken in before the next.
        self.last = 0.0
        #: When to look, in seconds of a wait: until the first, and from the second to the third; asleep otherwise.
        self.windows = self._unknown = (spin_s, 0.0, 0.0)

    def forget(self) -> None:
        self._waits.clear()
        self._new, self.last, self.windows = 0, 0.0, self._unknown

    def guess(self) -> tuple[float, float, float]:
        if self.last:
            self._waits.append(self.last)
            self._new, self.last = self._new + 1, 0.0
        if self._new >= _REMEMBERED // 2 and len(self._waits) == _REMEMBERED:
            self._new, self.windows = 0, self._unknown
            _, low, *_, high, _ = sorted(self._waits)
            if high <= SHORT_WAIT_S:
                self.windows = 2 * high + self._unknown[0], 0.0, 0.0
            elif high - low + 2 * WAKE_S <= low / 6:
                self.windows = self._unknown[0], low - WAKE_S, high + WAKE_S
        return self.windows


class FutexDoorbell:
    """A bell at `offset` of shared `memory` (a writable buffer; 8 bytes, aligned to 4). See `ports.Doorbell`.

    A wait looks for `spin_s` before it sleeps; for longer, or once more around the usual moment, where the bell is
    rung regularly. 0: it always sleeps. One process may hold several objects on one bell.
    """

    def __init__(self, memory: Any, offset: int, spin_s: float = SPIN_S) -> None:
        if offset % WORD_BYTES:
            raise ValueError(f"a bell must be aligned to {WORD_BYTES} bytes, got offset {offset}")
        self._spin_s, self._habit = spin_s, _Habit(spin_s)
        self._line: Any = memoryview(memory)[offset:offset + 2 * WORD_BYTES].cast("I")  # word, sleepers
        self._anchor: Any = ctypes.c_uint32.from_buffer(memory, offset)
        self._address = ctypes.addressof(self._anchor)
        self._number = int.from_bytes(os.urandom(WORD_BYTES), "little")
        #: Run when it wakes shortly before the usual moment, at most once per wait: what it will run then is warm.
        self.rehearse: Callable[[], Any] | None = None

    def ring(self) -> None:
        line = self._line
        if line is None:  # closed meanwhile by the thread that shuts down
            return
        anybody = line[1]
        if anybody:
            line[1] = 0
        self._number = number = (self._number + 1) & _MASK
        line[0] = number if line[0] != number else number ^ 0x80000000
        if _LOCK_IS_FULL_FENCE:
            with _lock:
                pass
            if not (anybody or line[1]):
                return
        if _futex is not None:
            _futex[0](_futex[1], self._address, _FUTEX_WAKE, _EVERYBODY, None)

    def seen(self) -> int:
        if _LOCK_IS_FULL_FENCE:  # there, loads stay in order
            return self._line[0]
        word = self._line[0]
        full_fence()  # the ticket first, then what one looks at
        return word

    def glance(self, seen: int) -> bool:
        """The first looks of a wait, where it has any. -> whether it rang"""
        line = self._line
        if self._spin_s and line is not None:
            for _ in range(_LOOKS):
                if line[0] != seen:
                    return True
                _give_way()
        return line is not None and line[0] != seen

    def wait(self, seen: int, timeout_s: float) -> bool:
        line = self._line
        if line[0] != seen or timeout_s <= 0:
            return line[0] != seen
        began = time.monotonic()
        until = began + timeout_s
        if self._spin_s:
            first, again, last = self._habit.guess()
            rang = _spin(line, seen, min(began + first, until))
            if not rang and again:
                rang = self._sleep(seen, min(began + again, until))
                if not rang:
                    if self.rehearse is not None:
                        self.rehearse()
                    rang = _spin(line, seen, min(began + last, until))
            if rang:
                self._habit.last = rang - began
                return True
        rang = self._sleep(seen, until)
        if rang:
            self._habit.last = rang - began
            return True
        self._habit.forget()
        return False

    def _sleep(self, seen: int, until: float) -> float:
        """Asleep until rung or until then. -> about when it rang, 0 if it did not"""
        line = self._line
        while line[0] == seen and (left := until - time.monotonic()) > 0:
            if _futex is None:
                time.sleep(min(left, 0.0005))
            else:
                whole = int(left)
                limit = _Timespec(whole, int((left - whole) * 1e9))
                line[1] = 1
                _futex[0](_futex[1], self._address, _FUTEX_WAIT, seen, ctypes.addressof(limit))
        return time.monotonic() if line[0] != seen else 0.0

    def close(self) -> None:
        self._line = self._anchor = self.rehearse = None


def _spin(line: Any, seen: int, until: float) -> float:
    """Look until then, or until somebody who computes needs the core. -> about when it rang, 0 if it did not"""
    now = time.monotonic()
    while now < until:
        for _ in range(_LOOKS):
            if line[0] != seen:
                return now
            _give_way()
        before, now = now, time.monotonic()
        if now - before > _CROWDED_S:
            break
    return now if line[0] != seen else 0.0


class WaitStrategy(Protocol):
    """How an end of a queue passes the time until its bell rings. `wait` as `Doorbell.wait`; may return early."""

    def wait(self, bell: Doorbell, seen: int, timeout_s: float) -> bool: ...


class SpinThenSleep:
    """The default: the bell's own short spin, then asleep until rung. Idle readers cost nothing."""

    def wait(self, bell: Doorbell, seen: int, timeout_s: float) -> bool:
        return bell.wait(seen, timeout_s)


class Spin:
    """Looks without end, giving its turn away each time. Fastest while every spinner has a core of its own."""

    def wait(self, bell: Doorbell, seen: int, timeout_s: float) -> bool:
        os.sched_yield()
        return bell.seen() != seen


class SpinThenNap:
    """Spins for `busy_s` after the last ring, then looks every `nap_s`: needs no futex, wakes late."""

    def __init__(self, busy_s: float = 3.0, nap_s: float = 0.001) -> None:
        self._busy_s = busy_s
        self._nap_s = nap_s
        self._rang_at = time.monotonic()

    def wait(self, bell: Doorbell, seen: int, timeout_s: float) -> bool:
        now = time.monotonic()
        if bell.seen() != seen:
            self._rang_at = now
            return True
        if now - self._rang_at < self._busy_s:
            os.sched_yield()
        else:
            time.sleep(min(self._nap_s, timeout_s))
        return bell.seen() != seen

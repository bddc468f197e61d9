"""How a process sleeps until another one has done something: a futex on a word of shared memory.

Promises
- No wake-up is lost between `seen` and `wait`: every ring changes the word, and one sleeps only on the value seen.
- A sleeper uses no processor time; a spinner gives its turn away at each look.
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
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

from engine.ports import Doorbell

WORD_BYTES = 4
#: Looks at the word before sleeping: about 50 us, the time a peer needs for a short answer.
SPIN_TURNS = 100
#: Who was woken this soon after falling asleep spins longer the next time: a peer that has to wake up first needs
#: about 100 us for its answer, and to sleep meanwhile would cost a second wake-up.
SHORT_SLEEP_S, LONGER = 0.0003, 5

_FUTEX_WAIT, _FUTEX_WAKE, _EVERYBODY = 0, 1, 0x7FFFFFFF
_MASK = 0xFFFFFFFF
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
#: Where an uncontended lock is a full fence, `sleepers` may be trusted; elsewhere every ring is a system call.
_LOCK_IS_FULL_FENCE = os.uname().machine == "x86_64"
_lock = Lock()


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


def has_futex() -> bool:
    """Whether sleepers are woken here, or look again every half millisecond."""
    return _futex is not None


class FutexDoorbell:
    """A bell at `offset` of shared `memory` (a writable buffer; 8 bytes, aligned to 4). See `ports.Doorbell`.

    `spin` is the number of looks before sleeping, several times that after a sleep that turned out short. One
    process may hold several objects on one bell.
    """

    def __init__(self, memory: Any, offset: int, spin: int = SPIN_TURNS) -> None:
        if offset % WORD_BYTES:
            raise ValueError(f"a bell must be aligned to {WORD_BYTES} bytes, got offset {offset}")
        self.spin = self._spin = spin
        self._word: Any = ctypes.c_uint32.from_buffer(memory, offset)
        self._sleepers: Any = ctypes.c_uint32.from_buffer(memory, offset + WORD_BYTES)
        self._address = ctypes.addressof(self._word)
        self._number = int.from_bytes(os.urandom(WORD_BYTES), "little")

    def ring(self) -> None:
        word, sleepers = self._word, self._sleepers
        if word is None:  # closed meanwhile by the thread that shuts down
            return
        anybody = sleepers.value
        if anybody:
            sleepers.value = 0
        self._number = number = (self._number + 1) & _MASK
        word.value = number if word.value != number else (number ^ 0x80000000)
        if _LOCK_IS_FULL_FENCE:
            with _lock:
                pass
            if not (anybody or sleepers.value):
                return
        if _futex is not None:
            _futex[0](_futex[1], self._address, _FUTEX_WAKE, _EVERYBODY, None)

    def seen(self) -> int:
        return self._word.value

    def wait(self, seen: int, timeout_s: float) -> bool:
        word = self._word
        for _ in range(self._spin if timeout_s > 0 else 0):
            if word.value != seen:
                return True
            os.sched_yield()
        if word.value != seen or timeout_s <= 0:
            return word.value != seen
        began = time.monotonic()
        until = began + timeout_s
        while word.value == seen and timeout_s > 0:
            if _futex is None:
                time.sleep(min(timeout_s, 0.0005))
            else:
                whole = int(timeout_s)
                limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
                self._sleepers.value = 1
                _futex[0](_futex[1], self._address, _FUTEX_WAIT, seen, ctypes.addressof(limit))
            timeout_s = until - (now := time.monotonic())
            self._spin = self.spin * LONGER if now - began < SHORT_SLEEP_S else self.spin
        return word.value != seen

    def close(self) -> None:
        self._word = self._sleepers = None


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

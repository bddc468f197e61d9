"""A descriptor that becomes readable by itself, so that who waits for messages looks again while one is held back."""

from __future__ import annotations

import contextlib
import ctypes
import os

_CLOCK_MONOTONIC = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """A timerfd (Python has one only from 3.13 on): readable every `period_s` while armed."""

    def __init__(self) -> None:
        self.fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._armed = False

    def arm(self, period_s: float) -> None:
        """0 disarms."""
        if bool(period_s) == self._armed:
            return
        self._armed = bool(period_s)
        nanoseconds = int(period_s * 1e9)
        setting = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
        if _libc.timerfd_settime(self.fd, 0, ctypes.byref(setting), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def forget(self) -> None:
        """No longer readable, until it expires again."""
        if self._armed:
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 8)

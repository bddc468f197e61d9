"""Stops a thread of another process right behind its next store to a few bytes, by the processor's watchpoints.

Linux on x86_64, by ptrace: each thread of the process is seized, and its debug registers watch the bytes. A thread that
has stored there stands still, exactly there, until it is let go. Other signals pass. All calls have to come from one
thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from pathlib import Path

#: More bytes are not watched: four registers of eight.
MOST_BYTES = 32
_WORD = 8
_SEIZE, _INTERRUPT, _CONT, _DETACH, _POKEUSER = 0x4206, 0x4207, 7, 17, 6
_WALL = 0x40000000
#: Of `struct user`: where its debug registers lie. Of these 7 has the switches: a register on, for writes, of 8 bytes.
_REGISTERS, _SWITCHES, _ON, _FOR_WRITES, _OF_EIGHT = 848, 7, 0b1, 0b01, 0b10
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def obstacle() -> str | None:
    """Why no store of another process can be seen here, in a line, or None."""
    if platform.machine() != "x86_64" or not hasattr(os, "pidfd_open"):
        return "watchpoints are set on Linux and x86_64 alone"
    with contextlib.suppress(OSError, ValueError):
        if os.geteuid() and int(_SCOPE.read_text()):
            return f"this system lets nobody trace a process that is not its child ({_SCOPE})"
    return None


class Tripwire:
    """On `size` bytes, from an address of the process on, which is a multiple of 8. Raises OSError where it is gone."""

    def __init__(self, pid: int, address: int, size: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        self._pid = pid
        words = range(address, address + size, _WORD)
        assert not address % _WORD and size <= MOST_BYTES, f"{size} bytes at {address:#x}"
        self._threads: set[int] = set()
        self._stands: int | None = None
        try:
            for name in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError, ChildProcessError):  # that thread has ended
                    self._seize(int(name), words)
        except OSError:
            self.leave()
            raise

    def tripped(self) -> bool:
        """Whether a thread has stored there; it stands still then."""
        for thread in list(self._threads) if self._stands is None else ():
            self._look_at(thread)
            if self._stands is not None:
                break
        return self._stands is not None

    def _look_at(self, thread: int) -> None:
        """What has become of it since the last look."""
        try:
            found, status = os.waitpid(thread, _WALL | os.WNOHANG)
        except ChildProcessError:
            self._threads.discard(thread)
            return
        if not found:
            return
        if not os.WIFSTOPPED(status):
            self._threads.discard(thread)
        elif _has_stored(status):
            self._stands = thread
        else:
            with contextlib.suppress(ProcessLookupError):
                self._ask(_CONT, thread, 0, _not_for_us(status))

    def go_on(self) -> None:
        thread, self._stands = self._stands, None
        if thread is not None:
            with contextlib.suppress(ProcessLookupError):
                self._ask(_CONT, thread)

    def leave(self, number: int = 0) -> None:
        """The process is traced no more. The thread that stands still is met by this signal where it does."""
        if number and self._stands is not None:
            self._libc.tgkill(self._pid, self._stands, number)
        for thread in sorted(self._threads, key=lambda one: one == self._pid):  # a process ends by its first thread
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                passes = 0
                if thread != self._stands:
                    with contextlib.suppress(ProcessLookupError):  # if it is dead, that is waited for
                        self._ask(_INTERRUPT, thread)
                    _, status = os.waitpid(thread, _WALL)
                    if not os.WIFSTOPPED(status):
                        continue
                    passes = _not_for_us(status)
                try:
                    self._ask(_POKEUSER, thread, _REGISTERS + _SWITCHES * _WORD)
                    self._ask(_DETACH, thread, 0, passes)
                except ProcessLookupError:
                    os.waitpid(thread, _WALL)
        self._threads.clear()
        self._stands = None

    def _seize(self, thread: int, words: range) -> None:
        self._ask(_SEIZE, thread)
        self._threads.add(thread)
        self._ask(_INTERRUPT, thread)
        _, status = os.waitpid(thread, _WALL)
        switches = 0
        for register, word in enumerate(words):
            self._ask(_POKEUSER, thread, _REGISTERS + register * _WORD, word)
            switches |= _ON << 2 * register | (_FOR_WRITES | _OF_EIGHT << 2) << 16 + 4 * register
        self._ask(_POKEUSER, thread, _REGISTERS + _SWITCHES * _WORD, switches)
        self._ask(_CONT, thread, 0, _not_for_us(status))

    def _ask(self, what: int, thread: int, place: int = 0, value: int = 0) -> None:
        ctypes.set_errno(0)
        if self._libc.ptrace(what, thread, place, value) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"ptrace of thread {thread}: {os.strerror(number)}")


def _has_stored(status: int) -> bool:
    """Of a thread that stands still: by a watchpoint, and by no event of the tracing itself."""
    return os.WSTOPSIG(status) == signal.SIGTRAP and not status >> 16


def _not_for_us(status: int) -> int:
    """The signal by which it stands still, and which it is still to get; 0: it is ours, or none."""
    return 0 if status >> 16 or _has_stored(status) else os.WSTOPSIG(status)

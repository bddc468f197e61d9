"""The lab's end of the host: a process of vLLM's interpreter that has imported it, and forks the callers of plays."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from scenarios.lab import home
from scenarios.worlds.engine import Connected
from scenarios.worlds.vllm.environment import IMPORT_S, VARIABLES
from scenarios.worlds.vllm.host.recipe import (
    PACKET_BYTES,
    Ended,
    Failed,
    Ready,
    Recipe,
    Shared,
    Start,
    Started,
    Word,
    decode,
    encode,
)


class VllmError(RuntimeError):
    """vLLM could not be brought up in its interpreter: says why, and where it was printed."""


class Host:
    """`path`: what its interpreter looks through first. Raises VllmError where vLLM cannot be imported, or the stand-in
    does not fit it.
    """

    def __init__(self, python: Path, path: Sequence[Path], log: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._words: list[Word] = []
        self._memory: dict[int, int] = {}  # by number of the caller: a descriptor of its /dev/shm
        self._number = 0
        with home.starting(), open(log, "ab") as file:
            self._process = subprocess.Popen(
                [str(python), "-m", "scenarios.worlds.vllm.host", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, path))})
        theirs.close()
        self.version = self._brought_up(log)

    def _brought_up(self, log: Path) -> str:
        word = self._await(lambda one: isinstance(one, (Ready, Failed)), IMPORT_S)
        if isinstance(word, Ready):
            return word.version
        self.close()
        why = word.why if isinstance(word, Failed) else f"no word of it within {IMPORT_S:.0f} s"
        raise VllmError(f"vLLM cannot be played: {why}; what it printed: {log}")

    def start(self, recipe: Recipe) -> Caller:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._number += 1
        socket.send_fds(self._socket, [encode(Start(self._number, recipe))], [theirs.fileno()])
        theirs.close()
        number = self._number
        started = self._await(lambda one: isinstance(one, Started) and one.number == number, 10.0)
        shared = self._await(lambda one: isinstance(one, Shared) and one.number == number, 10.0)
        if not isinstance(started, Started) or not isinstance(shared, Shared):
            raise VllmError("the host of vLLM's plays does not answer")
        return Caller(self, started.pid, Connection(ours.detach()), self._memory.pop(number, -1), shared.why_not)

    def exit_of(self, pid: int) -> int | None:
        """Of a process that was waited for there."""
        self._hear(0.0)
        return next((word.status for word in self._words if isinstance(word, Ended) and word.pid == pid), None)

    def _await(self, is_it: Callable[[Word], bool], at_most_s: float) -> Word | None:
        deadline = time.monotonic() + at_most_s
        while True:
            for word in self._words:
                if is_it(word):
                    self._words.remove(word)
                    return word
            left = deadline - time.monotonic()
            if left <= 0 or not self._hear(left):
                return None

    def _hear(self, at_most_s: float) -> bool:
        """Take in what has come. -> whether the host is there"""
        while select.select([self._socket], [], [], at_most_s)[0]:
            data, descriptors, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, 1)
            if not data:
                return False
            word = decode(data)
            if isinstance(word, Shared) and descriptors:
                self._memory[word.number] = descriptors[0]
            self._words.append(word)
            at_most_s = 0.0
        return True

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Caller(Connected):
    """A caller of a play, as `scenarios.lab.script.Actor`; what it was forked from tells of its end."""

    def __init__(self, host: Host, pid: int, connection: Connection, memory: int, why_not: str) -> None:
        super().__init__(connection)
        self._host, self.pid = host, pid
        self.memory, self.shares_memory_because = memory, why_not
        self._end = os.pidfd_open(pid)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)

    @property
    def exitcode(self) -> int | None:
        return self._host.exit_of(self.pid)

    def files(self) -> set[str]:
        """What is in its /dev/shm, if it has one of its own."""
        return set() if self.memory < 0 else {f"/dev/shm/{name}" for name in os.listdir(self.memory)}

    def close(self) -> None:
        self.kill()
        self.connection.close()
        for descriptor in (self._end, self.memory):
            if descriptor >= 0:
                os.close(descriptor)
        self._end = self.memory = -1

"""A gloo group of its own, beside torch.distributed's default one, driven by a thread of its own.

Promises
- Nothing here is waited for: what was begun is over when `done` is readable, and then `outcome` has it.
- gloo cannot be called off. Whoever waits no more closes the group: its thread lets go of it when gloo does, at the
  latest at the time-out of what was begun, and keeps no process from ending.
- Groups that meet at one host's ports do not take each other for their own: the store says whose it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

Frames = list[list[int]]

#: Ports that the first member tries to bind, from the given one on.
PORTS_TRIED = 5
#: One attempt to find the store at a port.
_LOOK_S = 0.2
#: An idle thread lets go of its group well within this.
_CLOSE_S = 1.0
_WHOSE = "whose"


class GlooGroup:
    """The member of place `rank` of `size`. `token`: what all of them know, and no other group."""

    def __init__(self, rank: int, size: int, where: str, token: str) -> None:
        self._rank, self._size, self._where, self._token = rank, size, where, token
        self._jobs: SimpleQueue[Callable[[], Frames] | None] = SimpleQueue()
        self._outcome: Frames | BaseException | None = None
        self._group: Any = None
        self._busy = False
        self._lock = threading.Lock()  # the thread may be late to tell, when `done` is another file's number
        self.done = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="gloo", daemon=True)
        self._thread.start()

    def meet(self, frame: Sequence[int], timeout_s: float) -> None:
        """Begin to meet the others, and bring this to the first collective."""
        ends = time.monotonic() + timeout_s

        def meeting() -> Frames:
            self._group = _meet(self._rank, self._size, self._where, self._token, timeout_s)
            return _gather(self._group, frame, max(0.001, ends - time.monotonic()))

        self._begin(meeting)

    def gather(self, frame: Sequence[int], timeout_s: float) -> None:
        """Begin to bring `frame`, and to hear the others'."""
        self._begin(lambda: _gather(self._group, frame, timeout_s))

    def outcome(self) -> Frames | None:
        """What each member brought to what was begun last; None: it is not over. Raises what gloo raised."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done)
            self._busy = False
            if isinstance(self._outcome, BaseException):
                raise self._outcome
            return self._outcome
        return None

    def close(self) -> None:
        """Safe to call twice."""
        self._jobs.put(None)
        if not self._busy:
            self._thread.join(_CLOSE_S)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.done)

    def _begin(self, job: Callable[[], Frames]) -> None:
        self._busy = True
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._outcome = job()
            except BaseException as error:
                self._outcome = error
            del job
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self.done, 1)
        self._group = self._outcome = None


def _meet(rank: int, size: int, where: str, token: str, timeout_s: float) -> Any:
    """-> the group, once its members are joined with each other"""
    if "torch" not in sys.modules:
        import torch

        torch.set_num_threads(1)  # a few numbers: no pool of threads is worth it
    from torch.distributed import ProcessGroupGloo

    kind, _, place = where.partition("://")
    began = time.monotonic()
    if kind == "file":
        from torch.distributed import FileStore

        store, host = FileStore(place, size), "127.0.0.1"
    else:
        name, _, port = place.rpartition(":")
        store = _tcp_store(name, int(port), rank, size, token, timeout_s)
        host = _own_address(name, int(port))
    left = timedelta(seconds=max(0.001, timeout_s - (time.monotonic() - began)))
    store.set_timeout(left)
    options = ProcessGroupGloo._Options()
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._threads, options._timeout = 1, left
    return ProcessGroupGloo(store, rank, size, options)


def _gather(group: Any, frame: Sequence[int], timeout_s: float) -> Frames:
    import torch
    from torch._C._distributed_c10d import AllgatherOptions

    mine = torch.tensor(frame, dtype=torch.int64)
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    options = AllgatherOptions()
    options.timeout = timedelta(seconds=timeout_s)
    group.allgather([parts], [mine], options).wait()
    return [part.tolist() for part in parts]


# -- meeting over tcp


def _tcp_store(host: str, port: int, rank: int, size: int, token: str, timeout_s: float) -> Any:
    """The first member's store, at the first of these ports that it could bind."""
    from torch.distributed import TCPStore

    if rank == 0:
        listener = _listen(host, port)
        bound = listener.getsockname()[1]
        store = TCPStore(host, bound, size, True, timedelta(seconds=timeout_s), wait_for_workers=False,
                         master_listen_fd=listener.detach())
        store.set(_WHOSE, token)
        return store
    ends = time.monotonic() + timeout_s
    while True:
        for tried in range(port, port + PORTS_TRIED):
            found = _store_of(host, tried, size, token)
            if found is not None:
                return found
            if time.monotonic() >= ends:
                raise TimeoutError(f"no member opened a store for this group at {host}, ports {port} to "
                                   f"{port + PORTS_TRIED - 1}")
        time.sleep(0.01)  # a port that refuses tells at once, and nothing tells when it will not


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError where all of the ports are taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in range(port, port + PORTS_TRIED):
        try:
            return socket.create_server((host.strip("[]"), tried), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {port + PORTS_TRIED - 1} of {host} are taken")


def _store_of(host: str, port: int, size: int, token: str) -> Any:
    """The store at this port, if it is this group's."""
    from torch.distributed import TCPStore

    try:
        socket.create_connection((host.strip("[]"), port), _LOOK_S).close()
        store = TCPStore(host, port, size, False, timedelta(seconds=_LOOK_S), wait_for_workers=False)
        return store if store.get(_WHOSE) == token.encode() else None
    except (OSError, RuntimeError):  # nobody listens there, or somebody else
        return None


def _own_address(host: str, port: int) -> str:
    """By which of its addresses this host reaches that one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((host.strip("[]"), port))
        return str(asking.getsockname()[0])

"""Where the members of a group meet: a file on one host, or a port of the first one's.

Promises
- At a port that another process has, the first member goes on to the next one, `PORTS_TRIED` in all; the others look
  for it there. Nobody takes a stranger, or another group, for its own: who listens there says whose it is before
  anything else, and whoever says nothing is left after `_LOOK_S`.

    the first member    a signpost at the group's port: "<token> <port of the store>"; the store at any free port
    the others          ask at each of the ports in turn, until one points to their group's store

The store cannot be asked itself: its client waits for ever for the first word of a listener that is no store.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

#: Ports that the first member tries to bind, from the given one on.
PORTS_TRIED = 5
#: One question at a port.
_LOOK_S = 0.2
_PAUSE_S = 0.01
_LINE_BYTES = 1024


@contextlib.contextmanager
def meeting_at(where: str, rank: int, size: int, token: str, ends: float) -> Iterator[tuple[Any, str]]:
    """-> the store of those who meet there, and this host's address among them. Raises OSError, TimeoutError."""
    kind, _, place = where.partition("://")
    if kind == "file":
        from torch.distributed import FileStore

        yield FileStore(place, size), "127.0.0.1"
        return
    name, _, first = place.rpartition(":")
    host, port = name.strip("[]"), int(first)
    from torch.distributed import TCPStore

    if rank:
        store_port = _ask(host, port, token, ends)
        yield _store(TCPStore, host, store_port, size, ends, is_master=False), _own_address(host, port)
        return
    with _listen(host, port) as listener:
        store = _store(TCPStore, host, 0, size, ends, is_master=True)
        with _signpost(listener, f"{token} {store.port}\n".encode()):
            yield store, _own_address(host, port)


def _store(kind: Any, host: str, port: int, size: int, ends: float, *, is_master: bool) -> Any:
    left = timedelta(seconds=max(0.001, ends - time.monotonic()))
    return kind(host, port, size, is_master, left, wait_for_workers=False)


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError where all of the ports are taken."""
    for tried in range(port, port + PORTS_TRIED):
        try:
            return socket.create_server((host, tried), family=_family(host))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {port + PORTS_TRIED - 1} of {host} are taken")


@contextlib.contextmanager
def _signpost(listener: socket.socket, line: bytes) -> Iterator[None]:
    """Say this to whoever comes."""
    wake, stop = socket.socketpair()

    def serve() -> None:
        while listener in select.select([listener, wake], [], [])[0]:
            with contextlib.suppress(OSError), listener.accept()[0] as asking:
                asking.settimeout(_LOOK_S)
                asking.sendall(line)

    thread = threading.Thread(target=serve, name="signpost", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.close()
        thread.join()
        wake.close()


def _ask(host: str, port: int, token: str, ends: float) -> int:
    """-> the port of the group's store, once somebody points to it"""
    while True:
        for tried in range(port, port + PORTS_TRIED):
            said, _, store_port = _hear(host, tried).rpartition(" ")
            if said == token:
                return int(store_port)
            if time.monotonic() >= ends:
                raise TimeoutError(f"nobody at {host}, ports {port} to {port + PORTS_TRIED - 1}, knows of this group")
        time.sleep(_PAUSE_S)  # a port that refuses tells at once, and nothing tells when it will not


def _hear(host: str, port: int) -> str:
    """What is said at this port first, at most a line."""
    said = b""
    with contextlib.suppress(OSError), socket.create_connection((host, port), _LOOK_S) as asking:
        until = time.monotonic() + _LOOK_S
        while not said.endswith(b"\n") and len(said) < _LINE_BYTES and time.monotonic() < until:
            more = asking.recv(_LINE_BYTES)
            if not more:
                break
            said += more
    return said.decode(errors="replace").rstrip("\n")


def _own_address(host: str, port: int) -> str:
    """By which of its addresses this host reaches that one."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))
        return str(asking.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

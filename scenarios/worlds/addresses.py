"""Addresses that a lab chooses: for the KV events of its engine, and of the engines beside it."""

from __future__ import annotations

import contextlib
import socket
from contextlib import ExitStack


def address_of_rank(base: str, rank: int) -> str:
    """Where one data-parallel rank publishes, as whoever routes by KV events has to know it.

    Said here once more, and not asked of the engine: the lab must not follow an engine to a wrong address.
    """
    if base.startswith("tcp://"):
        host, _, port = base.rpartition(":")
        return f"{host}:{int(port) + rank}"
    return base if rank == 0 else f"{base}_dp{rank}"


def free_ports(count: int, *, ranks: int = 1) -> list[int]:
    """Ports of the loopback that nobody has at this moment, each with so many in a row for its ranks."""
    found: list[int] = []
    with ExitStack() as taken:
        while len(found) < count:
            first = taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for port in range(first + 1, first + ranks):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(first)
    return found

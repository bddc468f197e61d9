"""Addresses that a lab chooses: for the KV events of its engine, and of the engines beside it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from engine.config import EngineConfig


def with_events_at(config: EngineConfig, paths: str, ports: Callable[[], Sequence[int]]) -> EngineConfig:
    """The engine publishes where the lab's subscribers look: below `paths`, or on the first of two `ports`.

    Socket buffers can be made small on tcp only: libzmq leaves those of ipc as they are. A path is bound by itself; of
    a port with a host's name the publisher has to be told.
    """
    events = config.kv_events
    if not events.enable_kv_cache_events or events.endpoint is not None:
        return config
    live, replay = (f"tcp://127.0.0.1:{port}" for port in ports()) if events.socket_buffer_bytes else (
        f"ipc://{paths}{name}.ipc" for name in ("kv", "replay"))
    return msgspec.structs.replace(config, kv_events=msgspec.structs.replace(
        events, endpoint=live, replay_endpoint=replay, bind=True if events.socket_buffer_bytes else None))


def address_of_rank(base: str, rank: int) -> str:
    """Where one data-parallel rank publishes, as whoever routes by KV events has to know it.

    Said here once more, and not asked of the engine: the lab must not follow an engine to a wrong address.
    """
    if base.startswith("tcp://"):
        host, _, port = base.rpartition(":")
        return f"{host}:{int(port) + rank}"
    return base if rank == 0 else f"{base}_dp{rank}"


def reserved_ports(held: ExitStack, count: int, *, ranks: int = 1) -> list[int]:
    """Ports of the loopback, each with so many in a row for its ranks, that nobody else is given while `held` is open.

    A socket holds each, bound and not listening. It may be shared from then on, so whoever asks for just that port
    (with SO_REUSEADDR, as ZMQ does) can listen there, again and again; what the kernel chooses is never one of them.
    """
    found: list[int] = []
    while len(found) < count:
        with ExitStack() as tried, contextlib.suppress(OSError, OverflowError):
            first = _hold(tried, 0)
            for port in range(first + 1, first + ranks):
                _hold(tried, port)
            found.append(first)
            held.enter_context(tried.pop_all())
    return found


def _hold(held: ExitStack, port: int) -> int:
    one = held.enter_context(socket.socket())
    one.bind(("127.0.0.1", port))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return one.getsockname()[1]

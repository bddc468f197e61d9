"""One relayed connection: bytes each way, cut into messages, and how it ends.

Promises: bytes pass unchanged but for what the plan does to a message; what cannot be handed on yet is bounded, so a
slow reader slows its writer: nothing is read for a way that has `BUFFER_BYTES` to hand on (a message is kept until it
is whole, whatever its size). Nobody is connected to on behalf of a peer that does not speak ZMTP. Nothing here waits.

    open      -> bytes pass
    cutting   -> what came before the cut is handed on, then both ends are closed, at the latest after `LAST_BYTES_S`
    silent    -> both ends stay, and what comes on them vanishes
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from enum import StrEnum

from faults.real.wire import BUFFER_BYTES, LAST_BYTES_S
from scenarios.worlds.vllm.relay.frames import NotZmtpError, Parser, Piece

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class State(StrEnum):
    OPEN = "open"
    CUTTING = "cutting"
    SILENT = "silent"
    CLOSED = "closed"


class Way:
    """One direction of a link. `is_up`: from the end that connects to the end that is bound."""

    def __init__(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self.source: socket.socket | None = None
        self.sink: socket.socket | None = None
        self.parser = Parser()
        self.pending = bytearray()
        self.ended = False  # its source says nothing more
        self.broken = False  # its sink takes nothing more

    @property
    def reads(self) -> bool:
        return self.source is not None and not self.ended and len(self.pending) < BUFFER_BYTES


class Link:
    """`connect` makes the connection onwards; `on_piece(way, piece)` is called for each piece that has come in, and
    hands on what shall pass by `Way.pending`, or ends the link; `now` is a clock in seconds."""

    def __init__(self, client: socket.socket, connect: Callable[[], socket.socket | None],
                 on_piece: Callable[[Way, Piece], None], now: Callable[[], float]) -> None:
        self.up, self.down = Way(is_up=True), Way(is_up=False)
        self.state = State.OPEN
        self.core: int | None = None  # who connects, once that is known
        self.pid = 0
        self._connect, self._on_piece, self._now = connect, on_piece, now
        self._close_by = 0.0
        client.setblocking(False)
        self.up.source = self.down.sink = client

    def ways(self) -> tuple[Way, Way]:
        return self.up, self.down

    def wanted(self) -> dict[socket.socket, int]:
        """Which of its sockets are waited for, and for what."""
        found: dict[socket.socket, int] = {}
        for way in self.ways():
            if way.source is not None and (way.reads or (self.state is not State.OPEN and not way.ended)):
                found[way.source] = found.get(way.source, 0) | _READ
            if way.sink is not None and way.pending and not way.broken:
                found[way.sink] = found.get(way.sink, 0) | _WRITE
        return found

    def serve(self, ready: dict[socket.socket, int], holds: Callable[[Way], bool]) -> None:
        """Do what can be done now. `holds(way)`: whether something of it is still to be handed on, later."""
        for way in self.ways():
            if way.source is not None and ready.get(way.source, 0) & _READ and not way.ended:
                self._read(way)
            if self.state is State.CLOSED:
                return
            self.flush(way)
        self._end(holds)

    def flush(self, way: Way) -> None:
        if way.sink is None or not way.pending:
            return
        if way.broken:
            way.pending.clear()
            return
        try:
            del way.pending[:way.sink.send(way.pending)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            way.broken = True
            way.pending.clear()

    def cut(self) -> None:
        self.state = State.CUTTING
        self._close_by = self._now() + LAST_BYTES_S

    def silence(self) -> None:
        self.state = State.SILENT

    def close(self) -> None:
        self.state = State.CLOSED
        for end in (self.up.source, self.up.sink):
            if end is not None:
                end.close()

    def _read(self, way: Way) -> None:
        assert way.source is not None
        try:
            data = way.source.recv(BUFFER_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            way.ended = True
            return
        if self.state is not State.OPEN:
            return
        try:
            pieces = way.parser.feed(data)
        except NotZmtpError:
            self.close()
            return
        if way.is_up and self.up.sink is None and way.parser.recognized and not self._onwards():
            self.close()
            return
        for piece in pieces:
            if self.state is not State.OPEN:
                return
            self._on_piece(way, piece)

    def _onwards(self) -> bool:
        server = self._connect()
        if server is None:
            return False
        server.setblocking(False)
        self.up.sink = self.down.source = server
        return True

    def _end(self, holds: Callable[[Way], bool]) -> None:
        if self.state is State.CUTTING:
            if all(way.ended or way.source is None for way in self.ways()) or self._now() >= self._close_by:
                self.close()
            else:
                self._shut()
        elif self.state is State.OPEN and any(
                (way.ended and not way.pending and not holds(way)) or (way.broken and not holds(self._other(way)))
                for way in self.ways()):
            self.close()

    def _shut(self) -> None:
        for way in self.ways():
            if not way.pending and way.sink is not None:
                with contextlib.suppress(OSError):
                    way.sink.shutdown(socket.SHUT_WR)

    def _other(self, way: Way) -> Way:
        return self.down if way is self.up else self.up

    @property
    def must_look_again(self) -> bool:
        """Whether it ends by the clock."""
        return self.state is State.CUTTING

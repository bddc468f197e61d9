"""A proxy on the wire that counts ZMTP messages and cuts the connection at one of them.

It runs in a thread of the process that connects; its port connects to the proxy instead. Promises: bytes
pass unchanged, and it buffers at most `BUFFER_BYTES` each way, so a slow reader still slows its writer; at a cut
every message before the nth is handed on, and of the nth so many bytes as the fault's `byte` says (none without
one); then both connections are closed. While the fault's `until` is not true, new connections are closed as soon as
they come. Where the cut is silent both stay open until then, and what comes on them vanishes; new ones wait.
Where the target's file is gone nobody is connected, as without a proxy: who closes a socket asks who is.

    greeting   64 bytes each way (ZMTP 3.x), mechanism NULL
    frame      flags | size: 1, or 8 if LONG, big-endian | body        flags: 1 MORE, 2 LONG, 4 COMMAND

ipc is listened to under an abstract name, so nothing is left behind; tcp on a free port of the loopback.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any

from faults.plan import Fault

GREETING_BYTES = 64
BUFFER_BYTES = 256 << 10
#: How long closing waits for the peer to take what was sent before the cut, and to close in turn.
LAST_BYTES_S = 0.3
#: How often a refusing proxy looks whether it may stop.
LOOK_S = 0.003
#: How often one without a connection looks whether its target is there. libzmq connects again after 100 ms and more.
FOLLOW_S = 0.02
_MORE, _LONG, _COMMAND = 1, 2, 4


class Scanner:
    """Finds where messages begin in one direction of a ZMTP stream. Pure."""

    def __init__(self) -> None:
        self._skip = GREETING_BYTES  # bytes of a greeting or body still to come
        self._header = b""
        self._in_message = False

    def feed(self, data: bytes) -> list[int]:
        """-> offsets in `data` at which the first frame of a message begins"""
        starts, at = [], 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            if not self._header:
                flags = data[at]
                if not flags & _COMMAND:
                    if not self._in_message:
                        starts.append(at)
                    self._in_message = bool(flags & _MORE)
            needed = (9 if (self._header or data[at:at + 1])[0] & _LONG else 2) - len(self._header)
            self._header += data[at:at + needed]
            at += needed
            if len(self._header) == (9 if self._header[0] & _LONG else 2):
                self._skip = int.from_bytes(self._header[1:], "big")
                self._header = b""
        return starts


def parse_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """What `socket` needs for a ZMQ address. Raises ValueError for other transports than ipc and tcp."""
    transport, _, place = address.partition("://")
    if transport == "ipc":
        return socket.AF_UNIX, "\0" + place[1:] if place.startswith("@") else place
    if transport == "tcp":
        host, _, port = place.rpartition(":")
        host = host.strip("[]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise ValueError(f"{address!r}: only ipc and tcp have a wire to cut")


class _Flow:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, site: str | None) -> None:
        self.source, self.sink, self.site = source, sink, site
        self.scanner = Scanner()
        self.pending = bytearray()
        self.ended = False
        self.cut_at: tuple[Fault, str, int] | None = None  # at this crossing, once `allowed` further bytes have come
        self.allowed = 0


class WireProxy:
    """Stands before `target`. `up` and `down` are the wire sites of what the connecting side sends and gets.

    `cross(site)` counts a message and returns the fault that cuts there, or None. `is_over(fault, since)` and
    `on_release(fault)` say when a refusal ends, and that it did.
    """

    _made = 0

    def __init__(self, target: str, *, up: str | None, down: str | None,
                 cross: Callable[[str], tuple[Fault | None, int]], is_over: Callable[[Fault, float], bool],
                 on_release: Callable[[Fault, str, int], None], now: Callable[[], float]) -> None:
        self._family, self._target = parse_address(target)
        self._sites = up, down
        self._cross, self._is_over, self._on_release, self._now = cross, is_over, on_release, now
        self._refusal: tuple[Fault, str, int, float] | None = None
        self._flows: list[tuple[_Flow, _Flow]] = []
        self._silenced: list[socket.socket] = []  # ends of connections that carry nothing any more
        self._selector = selectors.DefaultSelector()
        #: The target's file, where it has one.
        self._file = self._target if isinstance(self._target, str) and not self._target.startswith("\0") else None
        self._place: Any  # where it listens
        if self._family == socket.AF_UNIX:
            WireProxy._made += 1
            name = f"ringtwin-wire-{os.getpid()}-{WireProxy._made}-{os.urandom(4).hex()}"
            self._place, self.address = "\0" + name, f"ipc://@{name}"
            self._listener = self._listening()
        else:
            host = "::1" if self._family == socket.AF_INET6 else "127.0.0.1"
            self._place = host, 0
            self._listener = self._listening()
            port = self._listener.getsockname()[1]
            self.address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    def _listening(self) -> socket.socket:
        listener = socket.socket(self._family, socket.SOCK_STREAM)
        listener.bind(self._place)
        listener.listen(16)
        return listener

    def close(self) -> None:
        """Hand on what is under way, then end. To be called when the ZMQ context is terminated."""
        os.write(self._wake_write, b"x")
        self._closing = True  # from then on the thread may close the pipe
        self._thread.join(LAST_BYTES_S + 1.0)

    # -- the thread

    def _run(self) -> None:
        deadline: float | None = None
        try:
            while True:
                if self._closing:
                    if deadline is not None and (not self._flows or self._now() >= deadline):
                        return
                    deadline = deadline or self._now() + LAST_BYTES_S
                self._turn()
        finally:
            for pair in list(self._flows):
                self._drop(pair)
            self._close_silenced()
            self._listener.close()
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _turn(self) -> None:
        self._follow()
        ends = self._silenced if self._silenced or self._is_silent() else [self._listener] * (not self._is_shut)
        wanted: dict[socket.socket | int, int] = dict.fromkeys(ends, selectors.EVENT_READ)
        if not self._closing:
            wanted[self._wake_read] = selectors.EVENT_READ
        for pair in self._flows:
            for flow in pair:
                if not flow.ended and len(flow.pending) < BUFFER_BYTES:
                    wanted[flow.source] = wanted.get(flow.source, 0) | selectors.EVENT_READ
                if flow.pending:
                    wanted[flow.sink] = wanted.get(flow.sink, 0) | selectors.EVENT_WRITE
        self._watch(wanted)
        idle_s = FOLLOW_S if self._follows else 1.0
        ready = {key.fileobj: events for key, events in
                 self._selector.select(LOOK_S if self._refusal or self._closing else idle_s)}
        self._end_refusal()
        if self._listener in ready:
            self._accept()
        for end in [end for end in self._silenced if end in ready]:
            self._swallow(end)
        for pair in list(self._flows):
            self._serve(pair, ready)

    def _watch(self, wanted: dict[socket.socket | int, int]) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in wanted:
                self._selector.unregister(key.fileobj)
            elif wanted[key.fileobj] != key.events:
                self._selector.modify(key.fileobj, wanted[key.fileobj])
        known = {key.fileobj for key in self._selector.get_map().values()}
        for place, events in wanted.items():
            if place not in known:
                self._selector.register(place, events)

    @property
    def _is_shut(self) -> bool:
        return self._listener.fileno() < 0

    @property
    def _follows(self) -> bool:
        return self._file is not None and not self._flows

    def _follow(self) -> None:
        """Listen where somebody may be there to connect to."""
        if self._follows and os.path.exists(str(self._file)) == self._is_shut:
            if self._is_shut:
                self._listener = self._listening()
            else:
                self._forget(self._listener)

    def _forget(self, end: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(end)
        end.close()

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            fault, site, nth, since = self._refusal
            if self._is_over(fault, since):
                self._refusal = None
                self._close_silenced()
                self._on_release(fault, site, nth)

    def _is_silent(self) -> bool:
        return self._refusal is not None and self._refusal[0].silent

    def _swallow(self, end: socket.socket) -> None:
        """Nobody else is told, not even of its end."""
        try:
            if end.recv(BUFFER_BYTES):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._silenced.remove(end)
        self._forget(end)

    def _close_silenced(self) -> None:
        for end in self._silenced:
            self._forget(end)
        self._silenced.clear()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refusal is not None:
            client.close()
            return
        server = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            server.connect(self._target)
        except OSError:  # nobody is bound there yet: ZMQ tries again by itself
            client.close()
            server.close()
            return
        for end in (client, server):
            end.setblocking(False)
            if self._family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._flows.append((_Flow(client, server, self._sites[0]), _Flow(server, client, self._sites[1])))

    def _serve(self, pair: tuple[_Flow, _Flow], ready: dict[Any, int]) -> None:
        for flow in pair:
            try:
                if not flow.ended and ready.get(flow.source, 0) & selectors.EVENT_READ and self._read(flow, pair):
                    return  # cut
                if flow.pending:
                    del flow.pending[:flow.sink.send(flow.pending)]
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                self._drop(pair)
                return
        if any(flow.ended and not flow.pending for flow in pair):
            self._drop(pair)

    def _read(self, flow: _Flow, pair: tuple[_Flow, _Flow]) -> bool:
        """-> whether the connection was cut"""
        data = flow.source.recv(BUFFER_BYTES)
        if not data:
            flow.ended = True
            return False
        if flow.site is not None and flow.cut_at is None:
            for start in flow.scanner.feed(data):
                fault, nth = self._cross(flow.site)
                if fault is not None:
                    flow.pending += data[:start]
                    data = data[start:]
                    flow.cut_at, flow.allowed = (fault, flow.site, nth), max(0, fault.byte)
                    break
        if flow.cut_at is None:
            flow.pending += data
            return False
        flow.pending += data[:flow.allowed]
        flow.allowed -= min(flow.allowed, len(data))
        if flow.allowed:
            return False
        fault, site, nth = flow.cut_at
        if fault.silent:
            self._silence(pair)
        else:
            self._cut(pair)
        if fault.until is None and not fault.silent:
            self._on_release(fault, site, nth)
        else:
            self._refusal = fault, site, nth, self._now()
        return True

    def _silence(self, pair: tuple[_Flow, _Flow]) -> None:
        """Deliver what came before; of the rest nobody hears."""
        for flow in pair:
            with contextlib.suppress(OSError):
                flow.sink.settimeout(LAST_BYTES_S)
                flow.sink.sendall(flow.pending)
                flow.sink.setblocking(False)
        self._flows.remove(pair)
        self._silenced += [flow.source for flow in pair]

    def _cut(self, pair: tuple[_Flow, _Flow]) -> None:
        """Deliver what came before, then close so that nothing delivered is lost to a reset."""
        for flow in pair:
            with contextlib.suppress(OSError):
                flow.sink.settimeout(LAST_BYTES_S)
                flow.sink.sendall(flow.pending)
                flow.sink.shutdown(socket.SHUT_WR)
        for flow in pair:
            with contextlib.suppress(OSError):
                flow.source.settimeout(LAST_BYTES_S)
                while flow.source.recv(BUFFER_BYTES):
                    pass
        self._drop(pair)

    def _drop(self, pair: tuple[_Flow, _Flow]) -> None:
        if pair in self._flows:
            self._flows.remove(pair)
        for flow in pair:
            self._forget(flow.source)

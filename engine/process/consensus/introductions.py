"""How ranks that nobody has told of each other meet in real processes: one listens, the others say who they are.

    rank 0            listens at the group's address, keeps the register, and answers all at once
    the others        connect, again and again until somebody is there; send a card, and wait for the answer
    on the wire       length (4 bytes), then a card or an answer in msgpack

Promises
- A wait ends with the answer, at its deadline, or at once when the process is cancelled.
- A rank 0 that finds another one listening comes to it as all others do, so both are told that there are two.
- What others send is never trusted: who sends no card is hung up on, and keeps nobody waiting.
- An answer names all by what they said of themselves; they share a host, or are told that they do not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from engine.errors import CollectiveError
from engine.process.consensus.effects import Card
from engine.process.consensus.register import Answer, Register, ranks_named

#: Waits for one of these descriptors to be readable, or so long. Raises when the process is cancelled.
Wait = Callable[[list[int], float], object]
_RETRY_S = 0.02
_LOOK_S = 0.5
_MOST_BYTES = 1 << 20
_HEAD = 4


class _Peer:
    """A connection that does not wait."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.card: Card | None = None
        self._read = bytearray()

    def hear(self) -> tuple[bytes | None, bool]:
        """-> (what it has said in full, if it has), whether it is gone"""
        with contextlib.suppress(BlockingIOError):
            try:
                more = self.connection.recv(1 << 16)
            except ConnectionError:
                more = b""
            self._read += more
            if not more:
                return None, True
        length = int.from_bytes(self._read[:_HEAD], "big")
        if length > _MOST_BYTES:
            return None, True
        if len(self._read) < _HEAD or len(self._read) < _HEAD + length:
            return None, False
        return bytes(self._read[_HEAD:_HEAD + length]), False

    def say(self, what: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(what)
        with contextlib.suppress(OSError):  # who is gone hears nothing
            self.connection.settimeout(_LOOK_S)
            self.connection.sendall(len(body).to_bytes(_HEAD, "big") + body)

    def close(self) -> None:
        self.connection.close()


def introduce(card: Card, size: int, where: str, deadline: float, wait: Wait, now: Callable[[], float],
              ) -> tuple[Card, ...]:
    """See the effect `Introduce`."""
    card = msgspec.structs.replace(card, agrees={**card.agrees, "host": _host()})
    began = now()
    if card.rank == 0:
        listener = _listen(where)
        if listener is not None:
            with listener:
                try:
                    return _gather(card, size, where, deadline, wait, now, listener)
                finally:
                    if where.startswith("ipc://"):
                        Path(_path(where)).unlink(missing_ok=True)
    while True:
        said = _ask(card, where, deadline, wait, now)
        if said is not None:
            return _of(said)
        if now() >= deadline:
            raise CollectiveError(f"the ranks that meet at {where} cannot step together: {ranks_named([0])} of {size} "
                                  f"did not answer within {deadline - began:.3g} s")
        wait([], min(_RETRY_S, max(0.0, deadline - now())))


def _gather(card: Card, size: int, where: str, deadline: float, wait: Wait, now: Callable[[], float],
            listener: socket.socket) -> tuple[Card, ...]:
    """Of the one that listens."""
    began, register, peers = now(), Register(size, where), list[_Peer]()
    register.come(card)
    listener.setblocking(False)
    try:
        while not register.refusal and register.cards is None:
            if now() >= deadline:
                register.give_up(deadline - began)
                break
            wait([listener.fileno(), *(peer.connection.fileno() for peer in peers)],
                 min(_LOOK_S, max(0.0, deadline - now())))
            with contextlib.suppress(BlockingIOError, ConnectionError):
                peers.append(_Peer(listener.accept()[0]))
            for peer in list(peers):
                if not _take(peer, register):
                    peers.remove(peer)
                    peer.close()
        answer = Answer(register.cards or (), register.refusal)
        for peer in peers:
            if peer.card is not None:
                peer.say(answer)
    finally:
        for peer in peers:
            peer.close()
    return _of(answer)


def _take(peer: _Peer, register: Register) -> bool:
    """-> whether it is still to be answered"""
    said, gone = peer.hear()
    if gone:
        if peer.card is not None:
            register.leave(peer.card)
        return False
    if said is not None and peer.card is None:
        try:
            peer.card = msgspec.msgpack.decode(said, type=Card)
        except msgspec.DecodeError:
            return False
        register.come(peer.card)
    return True


def _ask(card: Card, where: str, deadline: float, wait: Wait, now: Callable[[], float]) -> Answer | None:
    """-> what is answered; None: nobody is there, or who was there has gone"""
    with contextlib.suppress(OSError), contextlib.closing(_connect(where)) as connection:
        peer = _Peer(connection)
        peer.say(card)
        connection.setblocking(False)
        while now() < deadline:
            wait([connection.fileno()], min(_LOOK_S, max(0.0, deadline - now())))
            said, gone = peer.hear()
            if said is not None:
                with contextlib.suppress(msgspec.DecodeError):
                    return msgspec.msgpack.decode(said, type=Answer)
                return None
            if gone:
                return None
    return None


def _of(answer: Answer) -> tuple[Card, ...]:
    if answer.refusal:
        raise CollectiveError(answer.refusal)
    return answer.cards


# -- where ----------------------------------------------------------------------------------------------------------


def _listen(where: str) -> socket.socket | None:
    """None: somebody listens there."""
    try:
        if not where.startswith("ipc://"):
            return socket.create_server(_host_and_port(where), family=_family(where))
        with _one_at_a_time(Path(_path(where)).parent):
            return _listen_to_file(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise CollectiveError(f"nobody can meet at {where}: {error}") from error


def _listen_to_file(where: str) -> socket.socket | None:
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError), contextlib.closing(_connect(where)):
        return None
    Path(_path(where)).unlink(missing_ok=True)  # of a group that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_path(where))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all processes: two that find nobody would take each other's file for one that was left."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _connect(where: str) -> socket.socket:
    if not where.startswith("ipc://"):
        return socket.create_connection(_host_and_port(where), _LOOK_S)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_LOOK_S)
        connection.connect(_path(where))
    except BaseException:
        connection.close()
        raise
    return connection


def _path(where: str) -> str:
    return where.removeprefix("ipc://")


def _host_and_port(where: str) -> tuple[str, int]:
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def _family(where: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in _host_and_port(where)[0] else socket.AF_INET


@lru_cache(maxsize=1)
def _host() -> str:
    """What tells this host, and the numbers of its processes, from others."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()

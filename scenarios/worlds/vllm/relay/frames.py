"""What a ZMTP 3.x stream consists of: greeting, commands, messages of frames. Pure.

Promises: however the bytes are cut up, the pieces are the same, and what they were read from, joined, is the stream:
nothing is added, and only a message that has not ended is kept back. Bytes that no ZMTP peer would send are an error
at once, of a greeting already at its first ten bytes; before those nothing is handed out.

    greeting   64 bytes: FF, 8 of padding, 7F, version 3, minor, mechanism 20, as-server, filler
    frame      flags | size: 1, or 8 if LONG, big-endian | body        flags: 1 MORE, 2 LONG, 4 COMMAND
    command    length of its name | name | what it says: READY has properties, SUBSCRIBE and CANCEL a topic

A subscription is a command since ZMTP 3.1 and was a message before: here it is a message of one frame, as an XPUB
reads it (01 or 00, then the topic), and is written again as it came. With another mechanism than NULL messages cannot
be told apart: all behind the greeting is handed out as commands.

`faults.real.wire.Scanner` only finds where messages begin. Here they are wanted whole, and strangers are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from faults.real.wire import GREETING_BYTES

SIGNATURE_BYTES = 10
#: A frame of more is no frame that anybody here sends; whoever announces it would have it all kept.
FRAME_BYTES = 1 << 30
_MORE, _LONG, _COMMAND, _KNOWN = 1, 2, 4, 7
_VERSION_AT, _MECHANISM = 10, slice(12, 32)
_SUBSCRIPTIONS = {b"SUBSCRIBE": b"\x01", b"CANCEL": b"\x00"}


class NotZmtpError(ValueError):
    """These bytes are no ZMTP 3.x: says which."""


class Kind(StrEnum):
    GREETING = "greeting"
    COMMAND = "command"
    MESSAGE = "message"
    SUBSCRIPTION = "subscription"  # a message, too


class Piece(msgspec.Struct, frozen=True):
    """`raw`: as it came. `frames`: of a message, its bodies. `identity`: of a READY that tells one."""

    kind: Kind
    raw: bytes
    frames: tuple[Any, ...] = ()
    identity: bytes | None = None

    @property
    def is_message(self) -> bool:
        return self.kind in (Kind.MESSAGE, Kind.SUBSCRIPTION)


class Parser:
    """Of one direction of one connection. After a NotZmtpError it is of no use any more."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = 0  # bytes of the greeting that were handed out
        self._greeting = b""
        self._is_plain = True
        self._raw: list[bytes] = []  # of the message that has not ended
        self._frames: list[Any] = []

    @property
    def recognized(self) -> bool:
        """Whether so much has come that the peer speaks ZMTP."""
        return self._greeted >= SIGNATURE_BYTES

    @property
    def kept(self) -> int:
        """Bytes of what has not ended."""
        return len(self._buffer) + sum(map(len, self._raw))

    def feed(self, data: bytes) -> list[Piece]:
        """-> what is whole now, in order. Raises NotZmtpError."""
        self._buffer += data
        pieces: list[Piece] = []
        if self._greeted < GREETING_BYTES:
            self._greet(pieces)
            if self._greeted < GREETING_BYTES:
                return pieces
        if not self._is_plain:
            if self._buffer:
                pieces.append(Piece(Kind.COMMAND, bytes(self._buffer)))
                self._buffer.clear()
            return pieces
        while (found := self._frame()) is not None:
            self._take(*found, pieces)
        return pieces

    def _greet(self, pieces: list[Piece]) -> None:
        step = bytes(self._buffer[:GREETING_BYTES - self._greeted])
        so_far = self._greeting + step
        if so_far[:1] != b"\xff"[:len(so_far)] or (len(so_far) >= SIGNATURE_BYTES and so_far[9:10] != b"\x7f"):
            raise NotZmtpError(f"no greeting of ZMTP: {so_far[:SIGNATURE_BYTES].hex()}")
        if len(so_far) > _VERSION_AT and so_far[_VERSION_AT] < 3:
            raise NotZmtpError(f"ZMTP of version {so_far[_VERSION_AT]}, before 3")
        if len(so_far) < SIGNATURE_BYTES:
            return
        del self._buffer[:len(step)]
        self._greeting, self._greeted = so_far, len(so_far)
        self._is_plain = so_far[_MECHANISM].rstrip(b"\0") == b"NULL"
        if step:
            pieces.append(Piece(Kind.GREETING, step))

    def _frame(self) -> tuple[int, bytes, int] | None:
        """Cut the next frame out of the buffer. -> (flags, its bytes, where its body begins), None: not whole yet"""
        buffer = self._buffer
        if not buffer:
            return None
        flags = buffer[0]
        if flags & ~_KNOWN or (flags & _COMMAND and flags & _MORE):
            raise NotZmtpError(f"no frame has flags {flags:#04x}")
        begin = 9 if flags & _LONG else 2
        if len(buffer) < begin:
            return None
        size = int.from_bytes(buffer[1:begin], "big")
        if size > FRAME_BYTES:
            raise NotZmtpError(f"a frame of {size} bytes")
        if len(buffer) < begin + size:
            return None
        raw = bytes(buffer[:begin + size])
        del buffer[:begin + size]
        return flags, raw, begin

    def _take(self, flags: int, raw: bytes, begin: int, pieces: list[Piece]) -> None:
        body = memoryview(raw)[begin:]
        if flags & _COMMAND:  # may stand between the frames of a message: it overtakes that
            pieces.append(_command(raw, bytes(body)))
            return
        self._raw.append(raw)
        self._frames.append(body)
        if not flags & _MORE:
            whole = raw if len(self._raw) == 1 else b"".join(self._raw)
            pieces.append(Piece(Kind.MESSAGE, whole, tuple(self._frames)))
            self._raw, self._frames = [], []


def _command(raw: bytes, body: bytes) -> Piece:
    name, rest = body[1:1 + body[0]] if body else b"", body[1 + body[0]:] if body else b""
    if name in _SUBSCRIPTIONS:
        return Piece(Kind.SUBSCRIPTION, raw, (_SUBSCRIPTIONS[name] + rest,))
    return Piece(Kind.COMMAND, raw, (), _identity(rest) if name == b"READY" else None)


def _identity(properties: bytes) -> bytes | None:
    """What a READY says its socket is called, None where it says nothing of that."""
    while properties:
        name = properties[1:1 + properties[0]]
        rest = properties[1 + properties[0]:]
        size = int.from_bytes(rest[:4], "big")
        value, properties = rest[4:4 + size], rest[4 + size:]
        if name.lower() == b"identity":
            return value or None
    return None


def encoded(kind: Kind, frames: Sequence[Any]) -> bytes:
    """A message as it travels. No frames are no bytes: what is not there is not sent."""
    if kind is Kind.SUBSCRIPTION:
        first = bytes(frames[0]) if frames else b""
        name = next((name for name, sign in _SUBSCRIPTIONS.items() if sign == first[:1]), None)
        if name is not None:
            return _framed(_COMMAND, bytes([len(name)]) + name + first[1:])
    return b"".join([_framed(_MORE if index < len(frames) - 1 else 0, bytes(frame))
                     for index, frame in enumerate(frames)])


def _framed(flags: int, body: bytes) -> bytes:
    if len(body) > 255:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body

"""One append-only file per process: crossings and observations; survives SIGKILL.

    record   length 4 bytes LE | crc32 4 bytes LE | msgpack Record

Each record is one unbuffered `os.write` on an O_APPEND descriptor, so what was written before a SIGKILL is
on disk, and at most the last record is torn: a kill may cut a long write. `read_journal` stops at the first record
that does not add up, and says whether a kill explains it.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

_HEAD = struct.Struct("<II")
#: Of a journals' folder: what others have seen cross, in journals of the same names, to be read as a part of those.
RELAYED = "relayed"


class Kind(StrEnum):
    CROSSING = "x"  # a site was passed: `site`, `nth`, and for messages `digest`, `occurrence`
    OBSERVATION = "o"  # `site` is the observation's name, `data` what was seen
    RECEIPT = "f"  # a fault fired: `site` is the fault's id
    RELEASE = "r"  # what a fault held was let go: `site` is the fault's id


class Record(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """One line of a journal. Source of truth for every judge."""

    number: int  # counts from 0 within the process
    at: float  # monotonic seconds, one clock for all processes of a host; virtual in the twin
    thread: str  # "main", "input", "output", ...
    kind: Kind
    site: str
    nth: int = 0
    digest: str = ""  # of the message's frames; pairs a receive with its send
    occurrence: int = 0  # how often this digest was seen on this site before
    data: dict[str, Any] = {}


class JournalFile(msgspec.Struct, frozen=True):
    node: str
    life: int
    records: list[Record]
    torn: bool  # the file ends in the middle of a record
    damage: str | None = None  # what no death of a writer explains: where the file stops making sense


def digest_of(frames: Sequence[Any]) -> str:
    """16 hex digits of what travels: frame lengths and bytes."""
    if len(frames) == 1 and type(frames[0]) is bytes:  # nearly all ring messages and outputs
        frame = frames[0]
        return blake2b(len(frame).to_bytes(8, "little") + frame, digest_size=8).hexdigest()
    state = blake2b(digest_size=8)
    for frame in frames:
        view = memoryview(frame).cast("B") if not isinstance(frame, bytes) else frame
        state.update(len(view).to_bytes(8, "little"))
        state.update(view)
    return state.hexdigest()


class Journal:
    """Writes one process's records. Safe to use from several threads."""

    def __init__(self, write: Callable[[bytes], Any], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._encode = _encoder()
        self._lock = threading.RLock()  # a signal handler may record while its thread does
        self._number = 0

    def append(self, kind: Kind, site: str, *, nth: int = 0, digest: str = "", occurrence: int = 0,
               data: dict[str, Any] | None = None, thread: str = "main") -> None:
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._write(_framed(self._encode(
                Record(number, self._now(), thread, kind, site, nth, digest, occurrence, data or {}))))


def _framed(body: bytes) -> bytes:
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def journal_bytes(records: Iterable[Record]) -> bytes:
    """A whole journal, as `Journal` would have written it record by record."""
    encode = _encoder()
    return b"".join([_framed(encode(record)) for record in records])


def _encoder() -> Callable[[Any], bytes]:
    return msgspec.msgpack.Encoder(enc_hook=repr).encode  # recording never kills


def journal_path(folder: Path, node: str, life: int) -> Path:
    return folder / f"{node}@{life}.journal"


def open_journal(folder: Path, node: str, life: int, now: Callable[[], float]) -> Journal:
    """A journal on disk. The descriptor is closed by the process's end, on purpose."""
    fd = os.open(journal_path(folder, node, life), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    return Journal(lambda data: os.write(fd, data), now)


def parse_journal(data: bytes, node: str, life: int) -> JournalFile:
    records, offset, decode, damage = [], 0, msgspec.msgpack.Decoder(Record).decode, None
    # A run has thousands, and a report a thousand runs: nothing is looked up that is known.
    size, end, head, checked = _HEAD.size, len(data), _HEAD.unpack_from, zlib.crc32
    while (begin := offset + size) <= end:
        length, crc = head(data, offset)
        after = begin + length
        if after > end:
            break
        body = data[begin:after]
        try:
            if checked(body) != crc:
                raise msgspec.DecodeError("its bytes do not add up")
            records.append(decode(body))
        except msgspec.DecodeError as error:
            damage = f"record {len(records)}, at byte {offset}: {error}"
            break
        offset = after
    torn = offset != len(data)
    if torn and not records:  # the first record of a process is too short to be cut
        damage = damage or "no record in it can be read"
    return JournalFile(node, life, records, torn, damage)


def read_journal(path: Path) -> JournalFile:
    node, _, life = path.stem.partition("@")
    return parse_journal(path.read_bytes(), node, int(life))

"""What a message says of itself, for its crossing's record: how long a large one is, and what one of KV events holds.

    with a frame of 64 KiB and more: {"bytes"}, of all its frames; such a frame travels without a copy
    of a request, an output: {"buffers"}, how many frames of its own it has beside its body

    live batch     {"seq", "ts", "epoch", "payload"}, with "clears" where it clears; `payload` tells bytes apart
    question       {"start"}, or {"start", "tag"}; for a snapshot {"tag", "snapshot": true}
    replayed       as a live batch
    end            {"end": true}, with "tag", "start", "epoch", "oldest", "next", "count" where it has a report
    piece          {"tag", "epoch", "next", "piece", "pieces", "known"}

    to a core      {"ready": true}, {"start": wave, "exclude"}
    from a core    {"start_wave"}, {"wave_complete"}, {"scheduler_stats", "counted_at"}
    to a client    {"wave", "running"}, with "counts"              a subscription   {"index"}
    of a client    {"first_request": rank, "wave"}

Promise: what is no such message says nothing. Numbers only, read from the bytes by themselves, and not as the engine
reads them: a judge wants to know what came, whatever a reader made of it. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.messages import EngineCoreOutputs, EngineCoreRequestType
from engine.topology import Channel

_NUMBER = struct.Struct(">q")
_SIX = struct.Struct(">6Q")
_REPORT = ("tag", "start", "epoch", "oldest", "next", "count")
_PLACE = ("tag", "epoch", "next", "piece", "pieces", "known")
_OF_A_CORE = ("scheduler_stats", "counted_at", "start_wave", "wave_complete")
_END, _PIECE = -1, -2
#: What a frame must have for its message to tell its length.
LARGE_BYTES = 64 << 10
SUBSCRIBE = b"\x01"  # begins a subscription

Told = Callable[[Sequence[Any]], dict[str, Any] | None]


class _Head(msgspec.Struct, array_like=True):
    """A batch without a look at its events."""

    ts: float
    events: msgspec.Raw
    rank: int | None = None
    epoch: int | None = None


_head = msgspec.msgpack.Decoder(_Head).decode


def said_of(channel: Channel | None) -> Told | None:
    """What tells it of the messages of this channel; None where there is none."""
    return _OF.get(channel, _size) if channel is not None else None


def _size(frames: Sequence[Any]) -> dict[str, Any] | None:
    for frame in frames:
        if len(frame) >= LARGE_BYTES:
            return {"bytes": sum(map(len, frames))}
    return None


def _beside(least: int) -> Told:
    """Of a message that has so many frames without those of its own."""
    def told(frames: Sequence[Any]) -> dict[str, Any] | None:
        said = _size(frames)
        return said if len(frames) <= least else {**(said or {}), "buffers": len(frames) - least}

    return told


def _sized(says: Told) -> Told:
    """The same, with the length of what is large."""
    def told(frames: Sequence[Any]) -> dict[str, Any] | None:
        said, size = says(frames), _size(frames)
        return said if size is None else {**(said or {}), **size}

    return told


def _live(frames: Sequence[Any]) -> dict[str, Any] | None:
    return _batch(frames[1], frames[2]) if len(frames) == 3 else None


def _replay(frames: Sequence[Any]) -> dict[str, Any] | None:
    if len(frames) < 4 or (len(frames) == 4 and bytes(frames[3]) == b"snapshot"):
        return _question(frames)
    if len(frames) > 5 or len(frames[2]) != _NUMBER.size:
        return None
    number = _NUMBER.unpack(frames[2])[0]
    if number == _END:
        report = _named(_REPORT, frames[4]) if len(frames) == 5 else {}
        return None if report is None else {"end": True, **report}
    if number == _PIECE:
        return _named(_PLACE, frames[4]) if len(frames) == 5 else None
    return _batch(frames[2], frames[3])


def _question(frames: Sequence[Any]) -> dict[str, Any] | None:
    if len(frames) < 2 or len(frames[0]) or any(len(frame) != _NUMBER.size for frame in frames[1:3]):
        return None
    said = {"start": _NUMBER.unpack(frames[1])[0]}
    if said["start"] < 0:
        return None
    if len(frames) > 2:
        said["tag"] = _NUMBER.unpack(frames[2])[0]
    if len(frames) == 4:
        return {"tag": said["tag"], "snapshot": True}
    return said


def _batch(number: Any, payload: Any) -> dict[str, Any] | None:
    if len(number) != _NUMBER.size:
        return None
    try:
        head = _head(payload)
    except msgspec.DecodeError:
        return None
    said: dict[str, Any] = {"seq": _NUMBER.unpack(number)[0], "ts": head.ts, "epoch": head.epoch,
                            "payload": zlib.crc32(payload)}
    if b"AllBlocksCleared" in bytes(payload):
        said["clears"] = True
    return said


def _named(names: tuple[str, ...], frame: Any) -> dict[str, Any] | None:
    """A checksum may follow."""
    if len(frame) not in (_SIX.size, _SIX.size + 4):
        return None
    return dict(zip(names, _SIX.unpack_from(frame), strict=True))


def _said_of_waves(frames: Sequence[Any]) -> dict[str, Any] | None:
    first = bytes(frames[0])
    if first[:1] == SUBSCRIBE:
        return _subscribed(first)
    if first == b"READY":
        return {"ready": True}
    if first != EngineCoreRequestType.START_DP_WAVE or len(frames) != 2:
        return None
    found = _unpacked(frames[1])
    return {"start": found[0], "exclude": found[1]} if _are_numbers(found, 2) else None


def _reported(frames: Sequence[Any]) -> dict[str, Any] | None:
    found = _unpacked(frames[0])
    named = dict(zip(EngineCoreOutputs.__struct_fields__, found, strict=False)) if isinstance(found, list) else {}
    return {name: named[name] for name in _OF_A_CORE if named.get(name) is not None} or None


def _told_to_clients(frames: Sequence[Any]) -> dict[str, Any] | None:
    first = bytes(frames[0])
    if first[:1] == SUBSCRIBE:
        return _subscribed(first)
    found = _unpacked(first)
    if not isinstance(found, list) or len(found) != 3:
        return None
    if not isinstance(found[2], bool):
        return {"first_request": found[1], "wave": found[2]} if _are_numbers(found, 3) else None
    counts, wave, running = found
    return {"wave": wave, "running": running, **({} if counts is None else {"counts": counts})}


def _subscribed(frame: bytes) -> dict[str, Any] | None:
    index = subscriber_in(frame)
    return None if index is None else {"index": index}


def subscriber_in(frame: bytes) -> int | None:
    """Who subscribes by name."""
    return int.from_bytes(frame[1:], "little") if len(frame) == 3 else None


def told_in_pipe(message: Any) -> bytes:
    """What stands behind the checksum of a word on a pipe."""
    return bytes(message[4:])


class _Tagged(msgspec.Struct):
    """Of a word nothing but which it is: a recipe is large, and the rest of it is passed over."""

    type: Any = None


_TAGGED = msgspec.msgpack.Decoder(_Tagged)


def _said_at_birth(frames: Sequence[Any]) -> dict[str, Any] | None:
    """Which word it is, or of which kind the recipe."""
    try:
        word = _TAGGED.decode(told_in_pipe(frames[0])).type
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return {"word": word} if isinstance(word, str) else None


def _unpacked(frame: Any) -> Any:
    try:
        return msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _are_numbers(found: Any, count: int) -> bool:
    return isinstance(found, list) and len(found) == count and all(one is None or isinstance(one, int) for one in found)


_OF: dict[Channel, Told] = {
    Channel.REQUESTS: _beside(2), Channel.OUTPUTS: _beside(1),
    Channel.KV: _sized(_live), Channel.REPLAY: _sized(_replay), Channel.WAVE: _said_of_waves, Channel.REPORT: _reported,
    Channel.STATS: _told_to_clients, Channel.BIRTH: _said_at_birth,
}

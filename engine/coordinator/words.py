"""What a coordinator says and hears, as bytes (pure).

    to the cores       READY
                       02 | [wave, excluded rank or nil]    START_DP_WAVE
    from the cores     EngineCoreOutputs with scheduler_stats, start_wave or wave_complete; never outputs
    to the clients     [counts or nil, wave, running]       counts: [waiting, running, share of the cache] of each
    from the clients   [client, rank, wave]                 a first request ("old")

Subscriptions are those of `engine/wire/subscriptions.py`. Reading raises BadFrameError, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.coordinator.board import Counts, Notice, Start
from engine.errors import BadFrameError
from engine.messages import EngineCoreOutputs, EngineCoreRequestType, Wave
from engine.wire.codec import DeadNotice, decode_outputs

_encode = msgspec.msgpack.Encoder().encode
_decode_start = msgspec.msgpack.Decoder(tuple[Wave, int | None]).decode
_decode_notice = msgspec.msgpack.Decoder(tuple[tuple[Counts, ...] | None, Wave, bool]).decode
_decode_first = msgspec.msgpack.Decoder(tuple[int, int, Wave]).decode


class FirstRequest(msgspec.Struct, frozen=True):
    """A client that believes the group at rest has sent a request to this rank."""

    client: int
    rank: int
    wave: int


def encode_start(start: Start) -> list[bytes]:
    return [EngineCoreRequestType.START_DP_WAVE, _encode((start.wave, start.exclude))]


def decode_start(frames: Sequence[Any]) -> Start:
    kind = bytes(frames[0]) if frames else b""
    if kind != EngineCoreRequestType.START_DP_WAVE or len(frames) != 2:
        raise BadFrameError(f"no START of a wave: {len(frames)} frames, the first {kind[:8].hex() or 'empty'}")
    return Start(*_read(_decode_start, frames[1], "START of a wave"))


def encode_notice(notice: Notice) -> list[bytes]:
    return [_encode((notice.counts, notice.wave, notice.running))]


def decode_notice(frames: Sequence[Any]) -> Notice:
    return Notice(*_read(_decode_notice, frames[0] if frames else b"", "notice of a coordinator"))


def encode_first_request(first: FirstRequest) -> list[bytes]:
    return [_encode((first.client, first.rank, first.wave))]


def decode_first_request(frames: Sequence[Any]) -> FirstRequest:
    return FirstRequest(*_read(_decode_first, frames[0] if frames else b"", "first request"))


def decode_report(frames: Sequence[Any]) -> EngineCoreOutputs:
    """What a core reports. Its outputs are no business of a coordinator."""
    report = decode_outputs(frames)
    if isinstance(report, DeadNotice) or report.outputs or report.utility_output is not None:
        raise BadFrameError("outputs of a core, which are its clients'")
    return report


def _read(decode: Any, frame: Any, what: str) -> Any:
    try:
        return decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrameError(f"a {what} is malformed: {error}") from None

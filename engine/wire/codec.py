"""One codec for ZMQ: msgpack of the vocabulary, nothing executable.

    request   [type 1 byte][msgpack]
    output    [msgpack EngineCoreOutputs]     or the one frame ENGINE_CORE_DEAD

Decoding checks types and shapes; whatever does not fit is a `BadFrameError` that says what was wrong. Further frames,
such as vLLM's of large buffers, are not read. Pickle
is never used here. Every encoded message is a fresh buffer, so nothing ZMQ may still send is ever written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.errors import BadFrameError
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
)

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(EngineCoreRequest).decode
_decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
_decode_ids = msgspec.msgpack.Decoder(list[str]).decode
_decode_utility = msgspec.msgpack.Decoder(tuple[int, int, str, list[Any]]).decode
#: A request frame longer than this is refused before it is parsed.
MAX_FRAME_BYTES = 64 << 20


class Abort(msgspec.Struct, frozen=True):
    request_ids: list[str]


class Utility(msgspec.Struct, frozen=True):
    client_index: int
    call_id: int
    method: str
    args: list[Any]


class DeadNotice(msgspec.Struct, frozen=True):
    """The core's last word."""


def encode_add(request: EngineCoreRequest) -> list[bytes]:
    return [EngineCoreRequestType.ADD, _encode(request)]


def encode_abort(request_ids: Sequence[str]) -> list[bytes]:
    return [EngineCoreRequestType.ABORT, _encode(list(request_ids))]


def encode_utility(utility: Utility) -> list[bytes]:
    return [EngineCoreRequestType.UTILITY,
            _encode((utility.client_index, utility.call_id, utility.method, utility.args))]


def encode_outputs(outputs: EngineCoreOutputs) -> list[bytes]:
    return [_encode(outputs)]


def decode_request(frames: Sequence[Any]) -> EngineCoreRequest | Abort | Utility:
    """Raises BadFrameError for anything that is not a request."""
    if len(frames) < 2:
        raise BadFrameError(f"a request has a type frame and a body, this one has {len(frames)} frames")
    kind, body = bytes(frames[0]), frames[1]
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrameError(f"a body of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    try:
        if kind == EngineCoreRequestType.ADD:
            return _decode_request(body)
        if kind == EngineCoreRequestType.ABORT:
            return Abort(_decode_ids(body))
        if kind == EngineCoreRequestType.UTILITY:
            return Utility(*_decode_utility(body))
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrameError(f"the body of a request of type {kind.hex()} is malformed: {error}") from None
    raise BadFrameError(f"unknown request type {kind[:8].hex() or 'empty'}")


def decode_outputs(frames: Sequence[Any]) -> EngineCoreOutputs | DeadNotice:
    """Raises BadFrameError for anything that is not an output."""
    if not frames:
        raise BadFrameError("an output without frames")
    if len(frames) == 1 and len(frames[0]) == len(ENGINE_CORE_DEAD) and bytes(frames[0]) == ENGINE_CORE_DEAD:
        return DeadNotice()
    try:
        return _decode_outputs(frames[0])
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise BadFrameError(f"an output is malformed: {error}") from None

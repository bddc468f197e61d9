"""One codec for ZMQ: msgpack of the vocabulary, nothing executable.

    request   [type 1 byte][msgpack][buffer] ...
    output    [msgpack EngineCoreOutputs][buffer] ...     or the one frame ENGINE_CORE_DEAD

Prompts, and what calls ask and are answered, travel in the body or, from `own_frame_bytes` on, as frames of their own
(`engine/wire/buffers.py`). Decoding checks types and shapes; whatever does not fit is a `BadFrameError` that says what
was wrong. Pickle is never used here. Every encoded message is a fresh buffer, so nothing ZMQ may still send is ever
written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.errors import BadFrameError
from engine.messages import (
    ENGINE_CORE_DEAD,
    ClientIndex,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
)
from engine.wire.buffers import Apart, decode_with


def _without_buffers(code: int, data: memoryview) -> Any:
    raise BadFrameError("the body names a buffer, and none came")


_Call = tuple[ClientIndex, int, str, list[Any]]
_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(EngineCoreRequest).decode
_decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs, ext_hook=_without_buffers).decode
_decode_ids = msgspec.msgpack.Decoder(list[str]).decode
_decode_utility = msgspec.msgpack.Decoder(_Call, ext_hook=_without_buffers).decode
#: A request longer than this, all its frames together, is refused before it is parsed.
MAX_REQUEST_BYTES = 64 << 20
_UNREADABLE = (msgspec.DecodeError, ValueError, TypeError, RecursionError, UnicodeDecodeError)


class Abort(msgspec.Struct, frozen=True):
    request_ids: list[str]


class Utility(msgspec.Struct, frozen=True):
    client_index: int
    call_id: int
    method: str
    args: list[Any]


class DeadNotice(msgspec.Struct, frozen=True):
    """The core's last word."""


def encode_add(request: EngineCoreRequest, own_frame_bytes: int = 0) -> list[bytes]:
    """`own_frame_bytes`: what has so many travels as a frame of its own; 0: nothing does. The same of the others."""
    if not own_frame_bytes:
        return [EngineCoreRequestType.ADD, _encode(request)]
    apart = Apart(own_frame_bytes)
    prompt = apart.integers(request.prompt_token_ids)
    if apart.frames:
        request = msgspec.structs.replace(request, prompt_token_ids=prompt)
    return [EngineCoreRequestType.ADD, _encode(request), *apart.frames]


def encode_abort(request_ids: Sequence[str]) -> list[bytes]:
    return [EngineCoreRequestType.ABORT, _encode(list(request_ids))]


def encode_utility(utility: Utility, own_frame_bytes: int = 0) -> list[bytes]:
    args, buffers = utility.args, []
    if own_frame_bytes:
        apart = Apart(own_frame_bytes)
        args, buffers = [apart.anything(value) for value in args], apart.frames
    return [EngineCoreRequestType.UTILITY,
            _encode((utility.client_index, utility.call_id, utility.method, args)), *buffers]


def encode_outputs(outputs: EngineCoreOutputs, own_frame_bytes: int = 0) -> list[bytes]:
    answer = outputs.utility_output
    if answer is None or not own_frame_bytes:
        return [_encode(outputs)]
    apart = Apart(own_frame_bytes)
    result = apart.anything(answer.result)
    if apart.frames:
        answer = msgspec.structs.replace(answer, result=result)
        outputs = msgspec.structs.replace(outputs, utility_output=answer)
    return [_encode(outputs), *apart.frames]


def decode_request(frames: Sequence[Any]) -> EngineCoreRequest | Abort | Utility:
    """Raises BadFrameError for anything that is not a request."""
    if len(frames) < 2:
        raise BadFrameError(f"a request has a type frame and a body, this one has {len(frames)} frames")
    kind, body, buffers = bytes(frames[0]), frames[1], frames[2:]
    size = sum(len(frame) for frame in frames)
    if size > MAX_REQUEST_BYTES:
        raise BadFrameError(f"a request of {size} bytes is over the limit of {MAX_REQUEST_BYTES}")
    try:
        if kind == EngineCoreRequestType.ADD:
            if not buffers:
                return _decode_request(body)
            return msgspec.convert(decode_with(body, buffers), EngineCoreRequest)
        if kind == EngineCoreRequestType.ABORT:
            if buffers:
                raise BadFrameError(f"an abort has no buffers, this one has {len(buffers)}")
            return Abort(_decode_ids(body))
        if kind == EngineCoreRequestType.UTILITY:
            return Utility(*(msgspec.convert(decode_with(body, buffers), _Call) if buffers else _decode_utility(body)))
    except _UNREADABLE as error:
        raise BadFrameError(f"the body of a request of type {kind.hex()} is malformed: {_told(error)}") from None
    raise BadFrameError(f"unknown request type {kind[:8].hex() or 'empty'}")


def decode_outputs(frames: Sequence[Any]) -> EngineCoreOutputs | DeadNotice:
    """Raises BadFrameError for anything that is not an output."""
    if not frames:
        raise BadFrameError("an output without frames")
    if len(frames) == 1 and len(frames[0]) == len(ENGINE_CORE_DEAD) and bytes(frames[0]) == ENGINE_CORE_DEAD:
        return DeadNotice()
    body, buffers = frames[0], frames[1:]
    try:
        outputs = _decode_outputs(body) if not buffers else msgspec.convert(
            decode_with(body, buffers), EngineCoreOutputs)
    except _UNREADABLE as error:
        raise BadFrameError(f"an output is malformed: {_told(error)}") from None
    return outputs


def _told(error: Exception) -> str:
    """Of a field with a type of its own the decoder says only that an extension stands where none may."""
    return "a buffer that it names did not come" if "got `ext`" in str(error) else str(error)

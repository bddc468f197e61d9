"""The bytes of KV-cache events: batches, live messages, replay requests and answers.

Promises
- Whoever reads vLLM's format reads ours, and the other way round. What we add stands behind what the original
  reads: a fourth element of a batch (the epoch), further frames of a request, a fifth of an end marker. Who does not
  ask for a report or a snapshot gets none.
- Bytes that are not a message raise BadFrameError, nothing else.

    live       (topic, number, payload)                   number: 8 bytes big-endian, from 0
    payload    msgpack [ts, events, data_parallel_rank, epoch]
    request    (b"", start)  or  (b"", start, tag)        start: 8 bytes big-endian; tag: 8 bytes, asks for a report
    answer     (b"", topic, number, payload) ...          one message a batch, ascending
    end        (b"", b"", -1, b"")                        -1: 8 bytes big-endian, signed
               (b"", b"", -1, b"", report)                to a request with a tag

    snapshot   (b"", 0, tag, b"snapshot")                 asks for the publisher's present state
    piece      (b"", topic, -2, payload, place)           payload: a batch that stores blocks; in any order
    place      tag | epoch | next | piece | pieces | known        6 x 8 bytes big-endian, then 4: a checksum
               the state before batch `next`; with known = 0 the publisher does not know it, and there is one piece

    report     tag | start | epoch | oldest | next | count        6 x 8 bytes big-endian, then 4: a checksum
               every number in [oldest, next) is in this answer or was lost before it was sent; `count` batches
               precede the report. Without it an answer that lost a frame looks like one that had none to give.

The checksum (CRC-32, of a piece with its payload) is there because nobody says such a number a second time: one that
was changed on its way would have a reader give up batches that still come. It may be missing, of an older publisher.

The epoch tells one life of a publisher from the next. It rides on every batch because a restarted publisher
may reach just the number that a subscriber waits for.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.errors import BadFrameError
from engine.messages import EventBatch, KVEventBatch

END = (-1).to_bytes(8, "big", signed=True)
PIECE = (-2).to_bytes(8, "big", signed=True)
SNAPSHOT = b"snapshot"
NUMBER_BYTES = 8
LARGEST = 2**63 - 1
_SIX = struct.Struct(">6Q")
_CHECK_BYTES = 4
_PLAIN_FIELDS = EventBatch.__struct_fields__


class LivedBatch(KVEventBatch, frozen=True):
    """A batch as it travels. `epoch` is None where the publisher is not ours."""

    epoch: int | None = None


class BadBatchError(BadFrameError):
    """The batch of a message cannot be read, but its number can."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class ReplayRequest(msgspec.Struct, frozen=True):
    start: int
    tag: int | None = None
    snapshot: bool = False


class EndReport(msgspec.Struct, frozen=True):
    tag: int
    start: int
    epoch: int
    oldest: int
    next: int
    count: int


class Place(msgspec.Struct, frozen=True):
    """Where a piece belongs: `piece` of `pieces` of the state that life `epoch` had before batch `next`."""

    tag: int
    epoch: int
    next: int
    piece: int = 0
    pieces: int = 1
    known: int = 1


class ReplayAnswer(msgspec.Struct, frozen=True):
    """One message from the replay socket: a numbered batch, a piece of a snapshot (`place`), or the end (neither)."""

    number: int = -1
    batch: LivedBatch | None = None
    report: EndReport | None = None
    place: Place | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LivedBatch).decode


def encode_batch(batch: Any, data_parallel_rank: int | None, epoch: int | None) -> bytes:
    """The payload. Raises TypeError, ValueError or OverflowError (msgspec's) where the batch is no message.

    A batch type with fields of its own is sent as it is, without an epoch: its readers know its shape.
    """
    if type(batch).__struct_fields__ != _PLAIN_FIELDS:
        return _encode(batch)
    rank = data_parallel_rank if batch.data_parallel_rank is None else batch.data_parallel_rank
    if epoch is None:
        return _encode(EventBatch(batch.ts, batch.events, rank))
    return _encode(LivedBatch(batch.ts, batch.events, rank, epoch))


def number_frame(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def read_live(frames: Sequence[Any]) -> tuple[int, LivedBatch]:
    """(number, batch) of a live message. Raises BadBatchError where only the number can be read."""
    if len(frames) != 3:
        raise BadFrameError(f"a live batch has 3 frames, got {len(frames)}")
    return _numbered(frames[1], frames[2])


def request_frames(start: int, tag: int | None = None) -> list[bytes]:
    return [b"", number_frame(start)] if tag is None else [b"", number_frame(start), number_frame(tag)]


def snapshot_request(tag: int) -> list[bytes]:
    return [b"", number_frame(0), number_frame(tag), SNAPSHOT]


def read_request(frames: Sequence[Any]) -> ReplayRequest:
    if len(frames) not in (2, 3, 4) or len(frames[0]) or (len(frames) == 4 and bytes(frames[3]) != SNAPSHOT):
        raise BadFrameError(f"a replay request is an empty frame, a number and at most a tag, got {len(frames)} frames "
                            f"of {[len(frame) for frame in frames]} bytes")
    tag = _number(frames[2], "tag") if len(frames) > 2 else None
    return ReplayRequest(_number(frames[1]), tag, len(frames) == 4)


def piece_frames(place: Place, payload: bytes, topic: bytes = b"") -> list[bytes]:
    return [b"", topic, PIECE, payload, _checked(msgspec.structs.astuple(place), payload)]


def end_frames(report: EndReport | None = None) -> list[bytes]:
    frames = [b"", b"", END, b""]
    if report is not None:
        frames.append(_checked(msgspec.structs.astuple(report)))
    return frames


def read_answer(frames: Sequence[Any]) -> ReplayAnswer:
    if len(frames) not in (4, 5) or len(frames[0]):
        raise BadFrameError(f"a replay answer has 4 frames, the first of them empty, got {len(frames)}")
    if bytes(frames[2]) == PIECE and len(frames) == 5:
        return _piece(frames)
    if bytes(frames[2]) != END:
        if len(frames) != 4:
            raise BadFrameError("a replayed batch has 4 frames, got 5")
        return ReplayAnswer(*_numbered(frames[2], frames[3]))
    if len(frames[3]):
        raise BadFrameError("an end marker has an empty payload")
    if len(frames) == 4:
        return ReplayAnswer()
    return ReplayAnswer(report=EndReport(*_six(frames[4], "the report of an end marker")))


def is_of_topic(frames: Sequence[Any], topic: bytes) -> bool:
    """Whether a subscriber to `topic` is meant by an answer: by its beginning, as live batches are chosen.

    What carries no topic (an end, or a message that is none) is for everybody.
    """
    return not topic or len(frames) not in (4, 5) or bytes(frames[2]) == END or bytes(frames[1]).startswith(topic)


def _numbered(frame: Any, payload: Any) -> tuple[int, LivedBatch]:
    number = _number(frame)
    try:
        return number, read_batch(payload)
    except BadFrameError as error:
        raise BadBatchError(str(error), number) from None


def _piece(frames: Sequence[Any]) -> ReplayAnswer:
    place = Place(*_six(frames[4], "the place of a piece", frames[3]))
    if place.piece >= place.pieces:
        raise BadFrameError(f"piece {place.piece} of {place.pieces} of a snapshot")
    return ReplayAnswer(batch=read_batch(frames[3]), place=place)


def _checked(numbers: Sequence[int], payload: bytes = b"") -> bytes:
    body = _SIX.pack(*numbers)
    return body + zlib.crc32(body, zlib.crc32(payload)).to_bytes(_CHECK_BYTES, "big")


def _six(frame: Any, what: str, payload: Any = b"") -> tuple[int, ...]:
    if len(frame) not in (_SIX.size, _SIX.size + _CHECK_BYTES):
        raise BadFrameError(f"{what} has {_SIX.size + _CHECK_BYTES} bytes, got {len(frame)}")
    body, check = bytes(frame[:_SIX.size]), bytes(frame[_SIX.size:])
    if check and int.from_bytes(check, "big") != zlib.crc32(body, zlib.crc32(payload)):
        raise BadFrameError(f"the checksum of {what} is wrong")
    numbers = _SIX.unpack(body)
    if max(numbers) > LARGEST:
        raise BadFrameError(f"a number in {what} is at most 2**63 - 1, got {max(numbers)}")
    return numbers


def _number(frame: Any, what: str = "number") -> int:
    if len(frame) != NUMBER_BYTES:
        raise BadFrameError(f"a {what} has {NUMBER_BYTES} bytes, got {len(frame)}")
    number = int.from_bytes(frame, "big")
    if number > LARGEST:
        raise BadFrameError(f"a {what} is at most 2**63 - 1, got {number}")
    return number


def read_batch(payload: Any) -> LivedBatch:
    try:
        return _decode(payload)
    except Exception as error:  # what the decoder says of a nesting that is too deep is none of its own errors
        raise BadFrameError(f"not a batch of KV events: {error}") from None

"""Frames of their own: what is put apart comes back, and what is lost, mixed up or changed is a BadFrameError."""

from __future__ import annotations

import struct
from array import array
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from engine.errors import BadFrameError
from engine.messages import EngineCoreOutputs, EngineCoreRequest, SamplingParams, UtilityOutput
from engine.wire.buffers import BYTES, INTEGERS, MAX_BUFFERS
from engine.wire.codec import (
    MAX_REQUEST_BYTES,
    Abort,
    DeadNotice,
    Utility,
    decode_outputs,
    decode_request,
    encode_abort,
    encode_add,
    encode_outputs,
    encode_utility,
)

integers = st.integers(-(1 << 33), 1 << 33) | st.integers(-5, 200_000)
lists_of_integers = st.lists(integers, max_size=40)
anything = st.recursive(
    st.none() | st.booleans() | integers | st.text(max_size=9) | st.floats(allow_nan=False) | st.binary(max_size=60),
    lambda inner: lists_of_integers | st.lists(inner, max_size=6) | st.dictionaries(
        st.text(max_size=3), inner, max_size=3))
thresholds = st.integers(0, 80)
TWO = [list(range(20)), list(range(20, 40))]


def request_of(prompt: list[int]) -> EngineCoreRequest:
    return EngineCoreRequest("r-1", prompt, SamplingParams(max_tokens=3, stop_token_ids=(7, 8), stop=("x",)))


def call_of(*args: object) -> Utility:
    return Utility(0, 7, "ping", list(args))


def answer_of(result: object) -> EngineCoreOutputs:
    return EngineCoreOutputs(utility_output=UtilityOutput(7, None, result))


@given(lists_of_integers, thresholds)
def test_a_prompt_comes_back_whatever_is_put_apart(prompt: list[int], threshold: int) -> None:
    request = request_of(prompt)
    assert decode_request(encode_add(request, threshold)) == request


@given(st.lists(anything, max_size=4), thresholds)
def test_what_a_call_is_given_comes_back(args: list[object], threshold: int) -> None:
    assert decode_request(encode_utility(call_of(*args), threshold)) == call_of(*args)


@given(anything, thresholds)
def test_what_a_call_answers_comes_back(result: object, threshold: int) -> None:
    assert decode_outputs(encode_outputs(answer_of(result), threshold)) == answer_of(result)


def test_only_what_is_large_is_put_apart() -> None:
    assert [len(encode_add(request_of([1] * count), 64)) for count in (15, 16)] == [2, 3]
    assert [len(encode_utility(call_of(b"x" * count), 64)) for count in (63, 64)] == [2, 3]
    assert len(encode_utility(call_of("x" * 1000, {"a": [1.5] * 1000}), 64)) == 2
    assert len(encode_outputs(answer_of({"a": TWO, "b": (b"y" * 64,)}), 64)) == 4
    assert len(encode_add(request_of([1 << 31] * 1000), 64)) == 2  # no number of 32 bits
    assert len(encode_add(request_of([1] * 100_000))) == 2


def test_truths_are_no_numbers() -> None:
    assert decode_request(encode_utility(call_of([True] * 50), 64)).args == [[True] * 50]
    assert all(value is True for value in decode_request(encode_utility(call_of([True] * 50), 64)).args[0])


def test_what_its_caller_may_write_to_is_copied() -> None:
    mine = bytearray(b"a" * 100)
    frames = encode_utility(call_of(mine), 64)
    mine[:] = b"b" * 100
    assert decode_request(frames).args == [b"a" * 100]


def test_what_is_read_does_not_hang_on_the_frame() -> None:
    frames = [*encode_utility(call_of(b"a" * 100, [5] * 30), 64)]
    frames[2], frames[3] = bytearray(frames[2]), bytearray(frames[3])
    found = decode_request([frames[0], frames[1], memoryview(frames[2]), memoryview(frames[3])])
    frames[2][:], frames[3][:] = bytes(100), bytes(120)
    assert found.args == [b"a" * 100, [5] * 30]


def test_no_more_are_put_apart_than_are_taken() -> None:
    call = call_of([b"z" * 64] * (MAX_BUFFERS + 5))
    frames = encode_utility(call, 64)
    assert len(frames) == 2 + MAX_BUFFERS
    assert decode_request(frames) == call
    with pytest.raises(BadFrameError, match="over the limit"):
        decode_request([*frames, b"z" * 64])


def test_a_request_over_the_limit_is_refused_with_all_its_frames() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return MAX_REQUEST_BYTES

    with pytest.raises(BadFrameError, match="over the limit"):
        decode_request([*encode_add(request_of([1])), Long()])


PROMPT = encode_add(request_of(list(range(40))), 64)
CALL = encode_utility(call_of(*TWO), 64)
ANSWER = encode_outputs(answer_of(TWO), 64)
PLACE = struct.Struct("<III")


def _named(index: int, buffer: bytes = b"1234", kind: int = BYTES, crc: int | None = None) -> Ext:
    return Ext(kind, PLACE.pack(index, len(buffer), crc32(buffer) if crc is None else crc))


def _call(*args: object) -> list[bytes]:
    return [b"\x03", msgspec.msgpack.encode((0, 7, "ping", args))]


@pytest.mark.parametrize(("frames", "why"), [
    (PROMPT[:2], "did not come"),
    (CALL[:2], "none came"),
    (CALL[:3], "the body names buffer 1, and 1 came"),
    ([*CALL, b"more"], "buffer 2 of 3 came, and the body does not name it"),
    ([*encode_add(request_of([1])), b"more"], "buffer 0 of 1 came, and the body does not name it"),
    ([*encode_abort(["r-1"]), b"more"], "an abort has no buffers"),
    ([CALL[0], CALL[1], CALL[3], CALL[2]], "buffer 0 is not the one that the body names"),
    ([CALL[0], CALL[2], CALL[1], CALL[3]], "malformed"),
    ([*PROMPT[:2], PROMPT[2][:-4]], "buffer 0 has 156 bytes, the body says 160"),
    ([*PROMPT[:2], b""], "buffer 0 has 0 bytes"),
    ([*_call(_named(0), _named(0)), b"1234"], "names buffer 0 twice"),
    ([*_call(_named(1)), b"1234"], "names buffer 1, and 1 came"),
    ([*_call(_named(0, kind=9)), b"1234"], "is no buffer"),
    ([*_call(Ext(BYTES, b"123")), b"1234"], "is no buffer"),
    ([*_call(_named(0, b"12345", INTEGERS)), b"12345"], "whole numbers"),
    ([*_call(_named(0, crc=1)), b"1234"], "is not the one"),
    ([b"\x00", msgspec.msgpack.encode(["r", _named(0), {}]), b"1234"], "malformed"),  # bytes are no prompt
    ([b"\x00", msgspec.msgpack.encode([_named(0), [1], {}]), b"1234"], "malformed"),
])
def test_what_is_not_whole_says_why(frames: list[bytes], why: str) -> None:
    with pytest.raises(BadFrameError, match=why):
        decode_request(frames)


@pytest.mark.parametrize(("frames", "why"), [
    (ANSWER[:1], "none came"),
    (ANSWER[:2], "the body names buffer 1, and 1 came"),
    ([ANSWER[0], ANSWER[2], ANSWER[1]], "is not the one"),
    ([*encode_outputs(answer_of(3)), b"more"], "does not name it"),
    ([ANSWER[0], ANSWER[1], ANSWER[2][:-1]], "has 79 bytes, the body says 80"),
])
def test_an_output_that_is_not_whole_says_why(frames: list[bytes], why: str) -> None:
    with pytest.raises(BadFrameError, match=why):
        decode_outputs(frames)


@settings(max_examples=300)
@given(st.sampled_from([PROMPT, CALL, ANSWER]), st.data())
def test_whatever_befalls_a_buffer_is_seen(frames: list[bytes], data) -> None:
    """Each is lost, doubled, swapped with another frame, cut, lengthened or changed in one byte: never taken."""
    first = 1 if frames is ANSWER else 2
    place = data.draw(st.integers(first, len(frames) - 1))
    damaged = list(frames)
    match data.draw(st.sampled_from(["omit", "double", "swap", "cut", "add", "flip"])):
        case "omit":
            del damaged[place]
        case "double":
            damaged.insert(place, frames[place])
        case "swap":
            other = data.draw(st.integers(0, len(frames) - 1).filter(lambda one: one != place))
            damaged[place], damaged[other] = frames[other], frames[place]
        case "cut":
            damaged[place] = frames[place][:data.draw(st.integers(0, len(frames[place]) - 1))]
        case "add":
            damaged[place] += data.draw(st.binary(min_size=1, max_size=9))
        case "flip":
            body = bytearray(frames[place])
            body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
            damaged[place] = bytes(body)
    with pytest.raises(BadFrameError):
        (decode_outputs if frames is ANSWER else decode_request)(damaged)


extensions = st.builds(Ext, st.integers(-128, 127) | st.sampled_from([BYTES, INTEGERS]),
                       st.binary(max_size=14) | st.builds(PLACE.pack, st.integers(0, 3), st.integers(0, 9),
                                                          st.sampled_from([0, crc32(b"1234"), crc32(b"")])))


@settings(max_examples=500)
@given(st.sampled_from([b"\x00", b"\x01", b"\x03"]), st.recursive(
    extensions | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    st.lists(st.sampled_from([b"1234", b"", b"\xc1"]) | st.binary(max_size=9), max_size=4))
def test_any_body_and_any_buffers_are_a_message_or_a_bad_frame(kind: bytes, body, buffers: list[bytes]) -> None:
    encoded = msgspec.msgpack.encode(body)
    for decode, frames in ((decode_request, [kind, encoded, *buffers]), (decode_outputs, [encoded, *buffers]),
                           (decode_request, [kind, msgspec.msgpack.encode([0, 1, "m", [body]]), *buffers])):
        try:
            found = decode(frames)
        except BadFrameError:
            continue
        assert isinstance(found, EngineCoreRequest | Abort | Utility | EngineCoreOutputs | DeadNotice)


@settings(max_examples=500)
@given(st.sampled_from([b"\x00", b"\x01", b"\x03"]), st.binary(max_size=60),
       st.lists(st.binary(max_size=9), max_size=3))
def test_any_bytes_with_buffers_are_a_message_or_a_bad_frame(kind: bytes, body: bytes, buffers: list[bytes]) -> None:
    for decode, frames in ((decode_request, [kind, body, *buffers]), (decode_outputs, [body, *buffers]),
                           (decode_request, [kind, b"\x94\x00\x00\xa1m\x91" + body, *buffers])):
        try:
            decode(frames)
        except BadFrameError:
            pass


def test_a_map_whose_key_is_a_map_is_a_bad_frame() -> None:
    with pytest.raises(BadFrameError):
        decode_request([b"\x03", b"\x94\x00\x00\xa1m\x91\x81\x80\x00"])


def test_numbers_travel_as_little_endian_ones_of_32_bits() -> None:
    assert encode_add(request_of([1, -2, 300] * 6), 64)[2][:12] == struct.pack("<iii", 1, -2, 300)
    assert array("i").itemsize == 4

"""The codec: what is encoded comes back, and bytes that are no message are a BadFrameError and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadFrameError
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SamplingParams,
    SchedulerStats,
    UtilityOutput,
)
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

ids = st.text(max_size=20)
tokens = st.lists(st.integers(0, 1 << 31), max_size=20)
params = st.builds(SamplingParams, temperature=st.floats(0, 2), top_p=st.floats(0.1, 1), top_k=st.integers(0, 50),
                   seed=st.none() | st.integers(-(1 << 63), (1 << 63) - 1), max_tokens=st.integers(1, 1000),
                   ignore_eos=st.booleans(), stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
                   stop_token_ids=st.lists(st.integers(0, 1 << 31), max_size=3).map(tuple))
requests = st.builds(EngineCoreRequest, ids, tokens, params, st.integers(0, 3), st.just(0),
                     st.floats(allow_nan=False, allow_infinity=False), st.none() | st.integers(0, 1 << 31))
outputs = st.builds(EngineCoreOutputs, st.integers(0, 3), st.lists(st.builds(
    EngineCoreOutput, ids, tokens, st.integers(0, 1000), st.none() | st.sampled_from(FinishReason),
    st.none() | st.integers(0, 99) | st.text(max_size=9), st.integers(0, 99)), max_size=4),
    st.none() | st.builds(SchedulerStats), st.just(1.5),
    st.none() | st.builds(UtilityOutput, st.integers(0, 99), st.none() | st.text(), st.none() | st.integers(0, 9)),
    step=st.integers(0, 99))


@given(requests)
def test_a_request_comes_back(request: EngineCoreRequest) -> None:
    assert decode_request(encode_add(request)) == request


@given(outputs)
def test_outputs_come_back(sent: EngineCoreOutputs) -> None:
    assert decode_outputs(encode_outputs(sent)) == sent


@given(st.lists(ids, max_size=5))
def test_an_abort_comes_back(request_ids: list[str]) -> None:
    assert decode_request(encode_abort(request_ids)) == Abort(request_ids)


def test_a_utility_and_the_notice_come_back() -> None:
    call = Utility(0, 7, "run_steps", [3, None, "x", [1.5]])
    assert decode_request(encode_utility(call)) == call
    assert decode_outputs([ENGINE_CORE_DEAD]) == DeadNotice()


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=60), max_size=4) | st.tuples(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03"]), st.binary(max_size=80)).map(list))
def test_any_bytes_are_a_message_or_a_bad_frame(frames: list[bytes]) -> None:
    for decode in (decode_request, decode_outputs):
        try:
            decode(frames)
        except BadFrameError:
            pass


@settings(max_examples=500)
@given(requests.map(encode_add) | outputs.map(encode_outputs), st.data())
def test_a_damaged_message_is_a_message_or_a_bad_frame(frames: list[bytes], data) -> None:
    """Cut, flipped or lengthened anywhere: nothing but BadFrameError, and what is accepted has the right types."""
    place = data.draw(st.integers(0, len(frames) - 1))
    body = bytearray(frames[place])
    match data.draw(st.sampled_from(["flip", "cut", "add"])):
        case "flip" if body:
            body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del body[data.draw(st.integers(0, len(body))):]
        case _:
            body += data.draw(st.binary(min_size=1, max_size=9))
    damaged = [*frames[:place], bytes(body), *frames[place + 1:]]
    for decode in (decode_request, decode_outputs):
        try:
            found = decode(damaged)
        except BadFrameError:
            continue
        assert isinstance(found, EngineCoreRequest | Abort | Utility | EngineCoreOutputs | DeadNotice)


@pytest.mark.parametrize("frames", [
    [], [b"\x00"], [b"", b""], [b"\x00", b""], [b"\x00", b"\x91" * 5000],
    [b"\x03", b"\x94\x00\x00" + b"\x91" * 100_000],
    [b"\x02", msgspec.msgpack.encode([0, 0])], [b"\x00\x00", b"\x90"], [b"\x01", msgspec.msgpack.encode("one")],
    [b"\x00", msgspec.msgpack.encode(["r", [1], {"max_tokens": 0}])],
    [b"\x00", msgspec.msgpack.encode(["r", [1], {"temperature": -1.0}])],
    [b"\x00", msgspec.msgpack.encode(["r", ["one"], {}])],
    [b"\x01", b"\x91\xa2\xff\xff"],
])
def test_what_a_request_is_not(frames: list[bytes]) -> None:
    with pytest.raises(BadFrameError):
        decode_request(frames)


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return MAX_REQUEST_BYTES + 1

    with pytest.raises(BadFrameError, match="over the limit"):
        decode_request([b"\x00", Long()])


def test_pickles_are_bytes_like_any_other() -> None:
    import pickle

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    body = pickle.dumps(Trap())
    for kind in (b"\x00", b"\x01", b"\x02", b"\x03"):
        with pytest.raises(BadFrameError):
            decode_request([kind, body])
    with pytest.raises(BadFrameError):
        decode_outputs([body])

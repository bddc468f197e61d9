"""What a coordinator says is what the others hear, and whatever else arrives is named and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.board import Notice, Start
from engine.coordinator.words import (
    FirstRequest,
    decode_first_request,
    decode_notice,
    decode_report,
    decode_start,
    encode_first_request,
    encode_notice,
    encode_start,
)
from engine.errors import BadFrameError
from engine.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats, UtilityOutput
from engine.wire.codec import encode_outputs

READ: list[Callable[[list[Any]], Any]] = [decode_start, decode_notice, decode_first_request, decode_report]


@pytest.mark.parametrize("start", [Start(0, None), Start(7, 3)])
def test_a_start_arrives_as_it_was_said(start: Start) -> None:
    frames = encode_start(start)
    assert frames[0] == b"\x02" and decode_start(frames) == start


@pytest.mark.parametrize("notice", [Notice(None, 2, True), Notice(((1, 2, 0.5), (0, 0, 0.0)), 0, False)])
def test_a_notice_arrives_as_it_was_said(notice: Notice) -> None:
    assert decode_notice(encode_notice(notice)) == notice


def test_a_first_request_names_its_client_first() -> None:
    frames = encode_first_request(FirstRequest(client=1, rank=3, wave=4))
    assert msgspec.msgpack.decode(frames[0]) == [1, 3, 4]
    assert decode_first_request(frames) == FirstRequest(1, 3, 4)


@pytest.mark.parametrize("said", [
    EngineCoreOutputs(1, scheduler_stats=SchedulerStats(1, 2, 3, 4), counted_at=(2, 5)),
    EngineCoreOutputs(1, start_wave=0), EngineCoreOutputs(1, wave_complete=3)])
def test_a_report_arrives_as_it_was_said(said: EngineCoreOutputs) -> None:
    assert decode_report(encode_outputs(said)) == said


@pytest.mark.parametrize("said", [
    EngineCoreOutputs(1, [EngineCoreOutput("a", [5])]), EngineCoreOutputs(1, utility_output=UtilityOutput(3))])
def test_what_is_for_clients_is_no_report(said: EngineCoreOutputs) -> None:
    with pytest.raises(BadFrameError, match="outputs of a core"):
        decode_report(encode_outputs(said))


@pytest.mark.parametrize("frames", [[], [b"\x02"], [b"\x03", b"\x92\x00\xc0"], [b"\x02", b"\x92\x00\xc0", b""]])
def test_a_start_has_its_type_and_a_body(frames: list[bytes]) -> None:
    with pytest.raises(BadFrameError, match="no START of a wave"):
        decode_start(frames)


def test_the_last_word_of_a_core_is_no_report() -> None:
    with pytest.raises(BadFrameError):
        decode_report([b"ENGINE_CORE_DEAD"])


@given(st.sampled_from(READ), st.lists(st.binary(max_size=40), max_size=3))
def test_foreign_bytes_are_a_bad_frame_and_nothing_else(read: Callable[[list[Any]], Any], frames: list[bytes]) -> None:
    try:
        read(frames)
    except BadFrameError as error:
        assert str(error)


_SAID = [encode_outputs(EngineCoreOutputs(1, scheduler_stats=SchedulerStats(1, 2, 3, 4), counted_at=(2, 5))),
         encode_start(Start(3, None)), encode_notice(Notice(((1, 2, 0.5),), 3, True)),
         encode_first_request(FirstRequest(1, 3, 4))]


@given(st.sampled_from(READ), st.sampled_from(_SAID), st.integers(0, 40), st.binary(max_size=9), st.booleans())
def test_what_is_nearly_a_word_is_one_or_a_bad_frame(read: Callable[[list[Any]], Any], said: list[bytes], place: int,
                                                     other: bytes, cut: bool) -> None:
    """A word with other bytes in it, or cut there; what of it is still one can be said again."""
    *first, last = said
    changed = last[:place] + other + (b"" if cut else last[place + len(other):])
    try:
        found = read([*first, changed])
    except BadFrameError as error:
        assert str(error)
    else:
        msgspec.msgpack.encode(msgspec.to_builtins(found))


@pytest.mark.parametrize("frame", [
    b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xa2\xff\xff", b"\x93\x00\xa2\xff\xff\x00"])
def test_what_is_too_deep_too_long_or_no_text_is_a_bad_frame(frame: bytes) -> None:
    for read in READ:
        with pytest.raises(BadFrameError):
            read([b"\x02", frame] if read is decode_start else [frame])


@pytest.mark.parametrize("wave", [-1, (1 << 48) + 1, (1 << 64) - 1])
def test_a_wave_that_nobody_can_have_counted_to_is_a_bad_frame(wave: int) -> None:
    packed = msgspec.msgpack.encode
    for read, frames in ((decode_start, [b"\x02", packed([wave, None])]), (decode_notice, [packed([None, wave, True])]),
                         (decode_first_request, [packed([0, 0, wave])]),
                         (decode_report, encode_outputs(EngineCoreOutputs(0, wave_complete=wave))),
                         (decode_report, encode_outputs(EngineCoreOutputs(0, start_wave=wave)))):
        with pytest.raises(BadFrameError):
            read(frames)

"""A stream as its caller reads it: slowly, and at its end."""

from __future__ import annotations

import pytest

from engine.errors import EngineDeadError
from engine.frontend.streams import Stream
from engine.messages import RequestOutput


def output(*tokens: int) -> RequestOutput:
    return RequestOutput(request_id="r0", prompt=None, prompt_token_ids=[1], token_ids=list(tokens), text="",
                         finished=False)


def test_a_slow_caller_gets_the_newest_output_alone():
    stream = Stream("r0")
    stream.put(output(5))
    stream.put(output(5, 6))
    assert stream.take() == output(5, 6)
    assert stream.take() is None


def test_what_came_before_an_error_is_read_before_it():
    stream, told = Stream("r0"), []
    stream.changed = lambda: told.append(stream.ended)
    stream.put(output(5))
    stream.fail(EngineDeadError("gone"))
    assert told == [False, True]
    assert stream.take() == output(5), "the caller has not seen it yet"
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            stream.take()

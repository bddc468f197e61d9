"""A subscriber without manners: what it sends is malformed, and its own loop does not notice."""

from __future__ import annotations

import pytest

from engine.effects import Loop, Now, Send
from engine.errors import BadFrameError
from engine.kv_events.codec import read_request
from engine.ports import Unroutable
from faults.malformed import REQUESTS, rudely

QUESTION = [b"", bytes(8)]


@pytest.mark.parametrize("frames", REQUESTS)
def test_each_of_its_requests_is_none(frames: tuple[bytes, ...]) -> None:
    with pytest.raises(BadFrameError):
        read_request(list(frames))


def test_its_own_loop_runs_as_ever() -> None:
    """Answers and errors reach it; the malformed requests come before each question, lost or not."""
    seen = []

    def loop() -> Loop[None]:
        seen.append((yield Now()))
        try:
            yield Send("replay", QUESTION)
        except Unroutable as error:
            seen.append(error)
        yield Send("other", [b"x"])

    rude = rudely(loop())
    assert next(rude) == Now()
    sent = [rude.send(1.5)]
    gone = Unroutable("nobody is there")
    sent += [rude.throw(gone) for _ in REQUESTS]
    assert [effect.frames for effect in sent] == [*map(list, REQUESTS), QUESTION]
    assert rude.throw(gone) == Send("other", [b"x"])
    assert seen == [1.5, gone]
    with pytest.raises(StopIteration):
        rude.send(None)

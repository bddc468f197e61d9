"""A subscriber without manners: before each of its questions it sends some that are none. Pure, for both worlds.

Nothing on the wire is damaged here: these frames are sent as they are, by a peer that may send what it likes.
"""

from __future__ import annotations

import contextlib
import pickle

from engine.effects import Loop, Send
from engine.errors import UnroutableError
from engine.ports import Unroutable

#: The name that it gives itself: no subscriber of an engine is called so.
IDENTITY = b"\x01nobody knows me"

_NUMBER = (0).to_bytes(8, "big")
#: Each is wrong in its own way. A request is an empty frame, a number, and at most a tag and a word.
REQUESTS: tuple[tuple[bytes, ...], ...] = (
    (b"",),
    (b"", _NUMBER, _NUMBER, b"snapshot", b""),
    (b"?", _NUMBER),
    (b"", b""),
    (b"", b"\x00\x00\x07"),
    (b"", (-1).to_bytes(8, "big", signed=True)),
    (b"", _NUMBER, b"tag"),
    (b"", _NUMBER, _NUMBER, b"everything"),
    (b"", pickle.dumps({"start": 0}, protocol=4)),
)


def rudely(loop: Loop[None], outbox: str = "replay") -> Loop[None]:
    """`loop`, with all of `REQUESTS` sent before each message to `outbox`."""
    step = loop.send
    answer = None
    while True:
        try:
            effect = step(answer)
        except StopIteration:
            return
        if isinstance(effect, Send) and effect.outbox == outbox:
            for frames in REQUESTS:
                with contextlib.suppress(Unroutable, UnroutableError):
                    yield Send(outbox, list(frames))
        try:
            step, answer = loop.send, (yield effect)
        except Exception as error:
            step, answer = loop.throw, error

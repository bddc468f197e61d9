"""Peers without manners. Pure, for both worlds.

A subscriber sends, before each of its questions, some that are none. Of a publisher a subscriber hears, before the
first messages of each socket, some that are none.

Nothing on the wire is damaged here: these frames are sent as they are, by a peer that may send what it likes.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
from collections import Counter, deque
from typing import Any

from engine.effects import Effect, Loop, Observe, Receive, Send
from engine.errors import UnroutableError
from engine.ports import Unroutable
from faults.between import between

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

_END, _PIECE = ((-number).to_bytes(8, "big", signed=True) for number in (1, 2))
_BATCH = b"\x93\xcb" + bytes(8) + b"\x90\x00"  # a batch of no events, of rank 0
_PICKLE = pickle.dumps({"ts": 0}, protocol=4)
#: Messages of the live socket that are none, each in its own way. One is a topic, a number and a batch.
LIVE: tuple[tuple[bytes, ...], ...] = (
    (b"", _NUMBER),
    (b"", _NUMBER, _BATCH, b""),
    (b"", b"\x00\x00\x07", _BATCH),
    (b"", (1 << 63).to_bytes(8, "big"), _BATCH),
    (b"", _NUMBER, b""),
    (b"", _NUMBER, b"\x91" * 5000),
    (b"", _NUMBER, _PICKLE),
)
#: The same of the replay socket. An answer is an empty frame, a topic, a number and a batch, or an end.
ANSWERS: tuple[tuple[bytes, ...], ...] = (
    (b"", b"", _NUMBER),
    (b"", b"", _NUMBER, _BATCH, b"", b""),
    (b"?", b"", _NUMBER, _BATCH),
    (b"", b"", _NUMBER, _BATCH, b""),
    (b"", b"", _NUMBER[:7], _BATCH),
    (b"", b"", (1 << 63).to_bytes(8, "big"), _BATCH),
    (b"", b"", _NUMBER, _PICKLE),
    (b"?", b"", _END, b""),
    (b"", b"", _END, b"?"),
    (b"", b"", _END, b"", bytes(47)),
    (b"", b"", _END, b"", b""),
    (b"", b"", _PIECE, _BATCH),
    (b"", b"", _PIECE, _BATCH, bytes(47)),
    (b"", b"", _PIECE, _BATCH, struct.pack(">6Q", 0, 0, 0, 1, 1, 1)),
    (b"", b"", _PIECE, _PICKLE, struct.pack(">6Q", 0, 0, 0, 0, 1, 1)),
)
#: Messages of the replay socket that are meant for who subscribed to this topic: the first one is told, and none is
#: taken. There the socket knows no subscriptions.
ELSEWHERE = b"another topic"
ANSWERS_ELSEWHERE: tuple[tuple[bytes, ...], ...] = (
    (b"", ELSEWHERE, _NUMBER, _BATCH),
    (b"", ELSEWHERE, _PIECE, _BATCH, struct.pack(">6Q", 0, 0, 0, 0, 1, 1)),
)
#: Before so many messages of each socket.
_HEARD_BEFORE = 2


def rudely(loop: Loop[None], outbox: str = "replay") -> Loop[None]:
    """`loop`, with all of `REQUESTS` sent before each message to `outbox`."""
    def answer(effect: Effect) -> Loop[Any]:
        if isinstance(effect, Send) and effect.outbox == outbox:
            for frames in REQUESTS:
                with contextlib.suppress(Unroutable, UnroutableError):
                    yield Send(outbox, list(frames))
        return (yield effect)

    return between(loop, answer)


def amid_noise(loop: Loop[None], topic: bytes = b"", live: str = "kv", answers: str = "replay") -> Loop[None]:
    """`loop`, which hears all of `LIVE`, and of `ANSWERS`, before each of the first messages of these inboxes."""
    heard: Counter[str] = Counter()
    late: dict[str, deque[Any]] = {live: deque(), answers: deque()}
    noises = {live: [(topic, *frames[1:]) for frames in LIVE],
              # What has no topic is for everybody, and so is what has no place for one.
              answers: [(frames[0], topic, *frames[2:]) if len(frames) in (4, 5) else frames for frames in ANSWERS]}

    def answer(effect: Effect) -> Loop[Any]:
        if not isinstance(effect, Receive):
            return (yield effect)
        waiting = next((late[inbox] for inbox in effect.inboxes if late.get(inbox)), None)
        if waiting is not None:
            return (yield from _told(waiting.popleft()))
        got = yield effect
        if got is None or got[0] not in late:
            return got
        inbox, peer, frames = got
        heard[inbox] += 1
        if heard[inbox] > _HEARD_BEFORE:
            return got
        first, *rest = noises[inbox]
        late[inbox].extend((inbox, peer, list(noise)) for noise in rest)
        for place, noise in enumerate(ANSWERS_ELSEWHERE if topic and inbox == answers else ()):
            once = heard[inbox] == 1 and not place
            late[inbox].append((inbox, peer, list(noise)) if once else (inbox, peer, list(noise), None))
        late[inbox].append((inbox, peer, frames, None))
        return (yield from _told((inbox, peer, list(first))))

    return between(loop, answer)


def _told(message: tuple[Any, ...]) -> Loop[Any]:
    """A message that is none is on record before it is handed over; any other has four parts."""
    if len(message) == 3:
        yield Observe("malformed", {"edge": message[0]})
    return message[:3]

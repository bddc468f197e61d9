"""The core's two I/O threads (pure): decode what arrives, send what is ready.

Promises: a frame that is no request is dropped and reported, and the thread lives on; outputs leave in the
order they were handed over; `Dead` leaves after all of them, also where the output thread failed in
between: what it had taken and not sent is in `unsent`, for `last_words`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from engine.core.engine_core import INPUT, OUTPUT, Dead, MalformedRequest, reason_of
from engine.core.pulse import Pulse
from engine.effects import Loop, Now, Observe, Put, Receive, Send, Take
from engine.errors import BadFrameError
from engine.messages import ENGINE_CORE_DEAD
from engine.wire.codec import decode_request, encode_outputs
from engine.wire.handshake import REQUESTS
from engine.wire.wiring import OUTPUTS

_AT_ONCE = 0.0


def input_loop(edge: str, pulse: Pulse) -> Loop[None]:
    """Runs until its process cancels it (the Receive raises)."""
    while True:
        now = yield Now()
        pulse.beat("input", now)
        got = yield Receive((REQUESTS,), now + pulse.every_s)
        if got is None:
            continue
        frames = got[2]
        try:
            item: Any = decode_request(frames)
        except BadFrameError as error:
            item = MalformedRequest(str(error), _whose(frames))
            yield Observe("bad-frame", {"edge": edge, "error": item.error, "request": item.request_id})
        yield Put(INPUT, item)


def output_loop(clients: int, unsent: deque[Any], pulse: Pulse) -> Loop[None]:
    """One outbox per client: outputs.0, outputs.1, ... Ends after `Dead`."""
    while True:
        now = yield Now()
        pulse.beat("output", now)
        unsent.extend((yield Take(OUTPUT, now + pulse.every_s)))
        while unsent:
            item = unsent[0]
            yield from _send(item, clients)
            unsent.popleft()
            if isinstance(item, Dead):
                return


def last_words(clients: int, unsent: deque[Any]) -> Loop[None]:
    """In the place of an output thread that failed: what it left, each once more at most, `Dead` among it."""
    unsent.extend((yield Take(OUTPUT, _AT_ONCE)))
    for item in unsent:
        try:
            yield from _send(item, clients)
        except (Exception, SystemExit) as error:
            yield Observe("not-sent", {"edge": OUTPUTS, "error": reason_of(error)})
    unsent.clear()


def _send(item: Any, clients: int) -> Loop[None]:
    if isinstance(item, Dead):
        for client_index in range(clients):
            yield Send(f"{OUTPUTS}.{client_index}", [ENGINE_CORE_DEAD])
    elif 0 <= item.client_index < clients:
        yield Send(f"{OUTPUTS}.{item.client_index}", encode_outputs(item.outputs))
    else:
        yield Observe("bad-frame", {"edge": OUTPUTS, "error": f"no client {item.client_index}"})


def _whose(frames: list[Any]) -> str | None:
    """The request id of a malformed ADD, where so much can still be read."""
    try:
        body = msgspec.msgpack.decode(frames[1])
        return body[0] if isinstance(body[0], str) else None
    except (msgspec.DecodeError, ValueError, IndexError, TypeError, KeyError, RecursionError):
        return None

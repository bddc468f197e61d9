"""The core's two I/O threads (pure): decode what arrives, send what is ready.

Promises: a frame that is no request is dropped and reported, and the thread lives on; outputs leave in the
order they were handed over; `Dead` leaves after all of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.core.engine_core import INPUT, OUTPUT, Dead, Malformed
from engine.effects import Loop, Observe, Put, Receive, Send, Take
from engine.errors import BadFrameError
from engine.ipc.handshake import REQUESTS
from engine.messages import ENGINE_CORE_DEAD
from engine.serial import decode_request, encode_outputs
from engine.wiring import OUTPUTS


def input_loop(edge: str) -> Loop[None]:
    """Runs until its process cancels it (the Receive raises)."""
    while True:
        got = yield Receive((REQUESTS,), None)
        if got is None:
            return
        frames = got[2]
        try:
            item: Any = decode_request(frames)
        except BadFrameError as error:
            item = Malformed(str(error), _whose(frames))
            yield Observe("bad-frame", {"edge": edge, "error": item.error, "request": item.request_id})
        yield Put(INPUT, item)


def output_loop(clients: int) -> Loop[None]:
    """One outbox per client: outputs.0, outputs.1, ... Ends after `Dead`."""
    while True:
        for item in (yield Take(OUTPUT, None)):
            if isinstance(item, Dead):
                for client_index in range(clients):
                    yield Send(f"{OUTPUTS}.{client_index}", [ENGINE_CORE_DEAD])
                return
            if not 0 <= item.client_index < clients:
                yield Observe("bad-frame", {"edge": OUTPUTS, "error": f"no client {item.client_index}"})
                continue
            yield Send(f"{OUTPUTS}.{item.client_index}", encode_outputs(item.outputs))


def _whose(frames: list[Any]) -> str | None:
    """The request id of a malformed ADD, where so much can still be read."""
    try:
        body = msgspec.msgpack.decode(frames[1])
        return body[0] if isinstance(body[0], str) else None
    except (msgspec.DecodeError, ValueError, IndexError, TypeError, KeyError, RecursionError):
        return None

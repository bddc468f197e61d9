"""The core's two I/O threads (pure): decode what arrives, send what is ready.

Promises: a frame that is no request is dropped and reported, and the thread lives on; outputs leave in the
order they were handed over; `Dead` leaves after all of them, also where the output thread failed in
between: what it had taken and not sent is in `unsent`, for `last_words`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engine.coordinator.board import Start
from engine.coordinator.sockets import COORDINATOR, READY, REPORTS, WAVES
from engine.coordinator.waves import StartWave
from engine.coordinator.words import decode_start
from engine.core.engine_core import reason_of
from engine.core.io.items import INPUT, OUTPUT, ClientGone, Dead, MalformedRequest, Terminate
from engine.core.io.pulse import Pulse
from engine.effects import Loop, Now, Observe, Put, Receive, Send, Take, WasCut
from engine.errors import BadFrameError
from engine.messages import ENGINE_CORE_DEAD, EngineCoreOutputs, EngineCoreRequestType
from engine.wire.codec import decode_request, encode_outputs
from engine.wire.wiring import OUTPUTS

_AT_ONCE = 0.0


def input_loop(edges: Mapping[str, str], pulse: Pulse, clients: Mapping[str, int] | None = None,
               look_s: float = 0.0, *, headless: bool = False, in_step: bool = True) -> Loop[None]:
    """Runs until its process cancels it (the Receive raises). `edges`: the name of what each inbox brings.

    `clients`: by inbox, where there are several; any of them may leave, and come back, which is looked for every
    `look_s`. None: there is one. `headless`: its client may ask it to leave. `in_step`: it steps together with others.
    """
    inboxes, every_s = tuple(edges), min(pulse.every_s, look_s) if clients else pulse.every_s
    while True:
        now = yield Now()
        pulse.beat("input", now)
        for inbox, index in (clients or {}).items():
            if (yield WasCut(inbox)):
                while (last := (yield Receive((inbox,), _AT_ONCE))) is not None:
                    yield from _take_in(last[2], edges[inbox], index, headless=headless)
                yield Observe("client-cut", {"client": index})
                yield Put(INPUT, ClientGone(index))
                yield from announce(inbox)  # before it who comes back sends nothing
        got = yield Receive(inboxes, now + every_s)
        if got is None:
            continue
        inbox, _, frames = got
        if inbox == WAVES:
            yield from _started(frames, edges[inbox], in_step)
        else:
            yield from _take_in(frames, edges[inbox], None if clients is None else clients[inbox], headless=headless)


def _take_in(frames: list[Any], edge: str, client: int | None, *, headless: bool) -> Loop[None]:
    """`client`: which of several has sent it."""
    if headless and [bytes(frame) for frame in frames] == [EngineCoreRequestType.LEAVE]:
        yield Put(INPUT, Terminate("its client has closed"))
        return
    try:
        item: Any = decode_request(frames)
        _check_index(item, client)
    except BadFrameError as error:
        item = MalformedRequest(str(error), _whose(frames), client or 0)
        yield Observe("bad-frame", {"edge": edge, "error": item.error, "request": item.request_id})
    yield Put(INPUT, item)


def announce(inbox: str) -> Loop[None]:
    """To a client, as soon as it is there: this core can be sent to."""
    yield Send(inbox, [b""])


def _check_index(item: Any, index: int | None) -> None:
    """Raises BadFrameError where what one of several clients sends is to be answered to another one."""
    said = getattr(item, "client_index", index)
    if index is not None and said != index:
        raise BadFrameError(f"client {index} speaks of itself as {said}")


def _started(frames: list[Any], edge: str, in_step: bool) -> Loop[None]:
    """The coordinator says READY again to all when one comes late."""
    if len(frames) == 1 and bytes(frames[0]) == READY:
        return
    try:
        started: Start = decode_start(frames)
        if not in_step:
            raise BadFrameError("START of a wave, and this core steps alone")
    except BadFrameError as error:
        yield Observe("bad-frame", {"edge": edge, "error": str(error)})
        return
    yield Put(INPUT, started)


def outboxes_of(clients: int, *, coordinated: bool) -> dict[int, str]:
    """By the client's index: outputs.0, outputs.1, ..., and what goes to a coordinator."""
    return {**{index: f"{OUTPUTS}.{index}" for index in range(clients)},
            **({COORDINATOR: REPORTS} if coordinated else {})}


class Unheard:
    """A start that was reported, and that nobody may have heard: it is reported again and again until it was.

    Here, and not by the core's loop: that may wait in an all-reduce for those who were not woken.
    """

    def __init__(self, engine_index: int, unheard: Callable[[], StartWave | None], every_s: float) -> None:
        self._index, self._unheard, self.every_s = engine_index, unheard, every_s
        self._last: StartWave | None = None
        self._at = 0.0

    def due(self, now: float) -> list[bytes] | None:
        start = self._unheard()
        if start is None or start is not self._last:
            self._last, self._at = start, now
            return None
        if now < self._at + self.every_s:
            return None
        self._at = now
        return encode_outputs(EngineCoreOutputs(self._index, start_wave=start.wave))


def output_loop(outboxes: Mapping[int, str], unsent: deque[Any], pulse: Pulse, unheard: Unheard | None = None,
                own_frame_bytes: int = 0) -> Loop[None]:
    """One outbox per client. Ends after `Dead`."""
    every_s = pulse.every_s if unheard is None else min(pulse.every_s, unheard.every_s)
    while True:
        now = yield Now()
        pulse.beat("output", now)
        if unheard is not None and (again := unheard.due(now)) is not None:
            yield Send(REPORTS, again)
        unsent.extend((yield Take(OUTPUT, now + every_s)))
        while unsent:
            item = unsent[0]
            yield from _send(item, outboxes, own_frame_bytes)
            unsent.popleft()
            if isinstance(item, Dead):
                return


def last_words(outboxes: Mapping[int, str], unsent: deque[Any], own_frame_bytes: int = 0) -> Loop[None]:
    """In the place of an output thread that failed: what it left, each once more at most, `Dead` among it."""
    unsent.extend((yield Take(OUTPUT, _AT_ONCE)))
    for item in unsent:
        try:
            yield from _send(item, outboxes, own_frame_bytes)
        except (Exception, SystemExit) as error:
            yield Observe("not-sent", {"edge": OUTPUTS, "error": reason_of(error)})
    unsent.clear()


def _send(item: Any, outboxes: Mapping[int, str], own_frame_bytes: int) -> Loop[None]:
    if isinstance(item, Dead):
        for client_index, outbox in outboxes.items():
            if client_index != COORDINATOR:
                yield Send(outbox, [ENGINE_CORE_DEAD])
    elif item.client_index in outboxes:
        yield Send(outboxes[item.client_index], encode_outputs(item.outputs, own_frame_bytes))
    else:
        yield Observe("bad-frame", {"edge": OUTPUTS, "error": f"no client {item.client_index}"})


def _whose(frames: list[Any]) -> str | None:
    """The request id of a malformed ADD, where so much can still be read."""
    try:
        body = msgspec.msgpack.decode(frames[1])
        return body[0] if isinstance(body[0], str) else None
    except (msgspec.DecodeError, ValueError, IndexError, TypeError, KeyError, RecursionError):
        return None

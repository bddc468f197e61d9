"""How a core and its frontend meet (pure): empty frame, HELLO, metadata, READY, announcement.

    core -> frontend   b""                         so that the ROUTER learns the identity
    core -> frontend   {status: HELLO, local, headless}
    frontend -> core   {addresses, parallel_config}
    core -> frontend   {status: READY, local, headless, num_gpu_blocks}
    core -> frontend   b""                         on the input socket: the first message there announces the core

Promises: no work is sent before READY and the announcement; both sides leave with the same parallel
configuration; whoever waits in vain ends with a named error at its deadline; a repeated or foreign message is
ignored and reported, never fatal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.effects import AwaitEnds, Identity, IsAlive, Loop, MarkPoint, Now, Observe, Receive, Send
from engine.errors import ChildGoneError, StartupError
from engine.messages import EngineHandshakeMetadata
from engine.topology import Mark, Node

HANDSHAKE = "handshake"
REQUESTS = "requests"


class Greeting(msgspec.Struct, frozen=True, omit_defaults=True):
    """HELLO and READY: one map, so that either side may be older than the other."""

    status: str
    local: bool = True
    headless: bool = False
    num_gpu_blocks: int | None = None


def core_hello(deadline: float) -> Loop[EngineHandshakeMetadata]:
    """The core's first half: introduce oneself, learn where to connect. Raises StartupError at the deadline."""
    yield Send(HANDSHAKE, [b""])
    yield Send(HANDSHAKE, [msgspec.msgpack.encode(Greeting("HELLO", local=True, headless=False))])
    while True:
        got = yield Receive((HANDSHAKE,), deadline)
        if got is None:
            raise StartupError("the frontend did not answer the core's HELLO in time; "
                               "either it is gone or a handshake message was lost")
        try:
            return msgspec.msgpack.decode(got[2][-1], type=EngineHandshakeMetadata)
        except msgspec.DecodeError as error:
            yield Observe("bad-frame", {"edge": HANDSHAKE, "error": str(error)})


def core_ready(num_gpu_blocks: int) -> Loop[None]:
    """The core's second half: everything is loaded."""
    yield MarkPoint(Mark.READY)
    greeting = Greeting("READY", local=True, headless=False, num_gpu_blocks=num_gpu_blocks)
    yield Send(HANDSHAKE, [msgspec.msgpack.encode(greeting)])


def frontend_handshake(metadata: Mapping[int, EngineHandshakeMetadata], hello_s: float, startup_s: float,
                       ends: tuple[Node, ...] = (), inboxes: tuple[str, ...] = (HANDSHAKE, REQUESTS),
                       ) -> Loop[dict[int, int]]:
    """The frontend's side: what it has to say to each core, by engine. -> num_gpu_blocks of each.

    Without REQUESTS among `inboxes` they announce themselves to others.

    Raises StartupError naming what is still missing: a HELLO within `hello_s` of the start, everything else
    within `startup_s`; ChildGoneError where one of the children `ends` is gone before.
    """
    now = yield Now()
    engines = metadata.keys()
    hello_deadline, deadline = now + hello_s, now + startup_s
    greeted: set[int] = set()
    ready: dict[int, int] = {}
    announced = set() if REQUESTS in inboxes else set(engines)
    while len(ready) < len(engines) or len(announced) < len(engines):
        limit = deadline if len(greeted) == len(engines) else min(hello_deadline, deadline)
        got = yield Receive(inboxes, limit, ends)
        if got is None:
            gone = (yield AwaitEnds(ends, 0.0)) if ends else {}
            if gone:
                raise ChildGoneError(f"{', '.join(str(node.first_life) for node in gone)} died while starting")
            raise StartupError(_missing(engines, greeted, ready, announced))
        inbox, peer, frames = got
        if peer not in engines:
            yield Observe("bad-frame", {"edge": inbox, "error": f"unknown engine {peer}"})
        elif inbox == REQUESTS:
            announced.add(peer)
        elif frames != [b""]:
            problem = yield from _greeting(peer, frames, metadata[peer], greeted, ready)
            if problem:
                yield Observe("bad-frame", {"edge": inbox, "error": problem})
    return ready


def await_announcements(engines: Mapping[int, Identity], deadline: float, look_s: float) -> Loop[None]:
    """Of a client that did not start these: until each can be sent to. Raises StartupError naming those that cannot."""
    announced: set[int] = set()
    while len(announced) < len(engines):
        now = yield Now()
        got = yield Receive((REQUESTS,), min(deadline, now + look_s))
        if got is None:
            for index, identity in engines.items():
                if not (yield IsAlive(identity)):
                    raise StartupError(f"core.{index} has ended: its engines are to be started again")
            if now >= deadline:
                raise StartupError(_missing(engines, set(engines), dict.fromkeys(engines, 0), announced))
        elif got[1] in engines:
            announced.add(got[1])
        else:
            yield Observe("bad-frame", {"edge": REQUESTS, "error": f"unknown engine {got[1]}"})


def _greeting(peer: int, frames: list[Any], metadata: EngineHandshakeMetadata, greeted: set[int],
              ready: dict[int, int]) -> Loop[str]:
    """Take one greeting. -> what is wrong with it, or nothing."""
    try:
        greeting = msgspec.msgpack.decode(frames[-1], type=Greeting)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        return str(error)
    if greeting.status == "HELLO":
        greeted.add(peer)
        yield Send(HANDSHAKE, [msgspec.msgpack.encode(metadata)], peer)
        return ""
    if greeting.status != "READY" or greeting.num_gpu_blocks is None:
        return f"a greeting with status {greeting.status!r}"
    if peer not in greeted:
        return f"READY of core.{peer} before its HELLO"
    ready[peer] = greeting.num_gpu_blocks
    return ""


def _missing(engines: Collection[int], greeted: set[int], ready: dict[int, int], announced: set[int]) -> str:
    for what, seen in (("say HELLO", greeted), ("report READY", ready), ("open its input socket", announced)):
        late = [f"core.{k}" for k in sorted(engines) if k not in seen]
        if late:
            return f"{', '.join(late)} did not {what} in time"
    raise AssertionError("nothing is missing")

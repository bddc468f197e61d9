"""How a core and its frontend meet (pure): empty frame, HELLO, metadata, READY, announcement.

    core -> frontend   b""                         so that the ROUTER learns the identity
    core -> frontend   {status: HELLO, local, headless, ...}
    frontend -> core   {addresses, parallel_config}
    core -> frontend   {status: READY, local, headless, num_gpu_blocks, ...}, or {status: REFUSED, reason}
    core -> frontend   b""                         on the input socket: the first message there announces the core

A core that the head of its group has not started meets that head, and then its own client likewise, where it has one:
`engine/core/io/handshakes.py`.

Promises: no work is sent before READY and the announcement; both sides leave with the same parallel
configuration; whoever waits in vain ends with a named error at its deadline; a repeated or foreign message is
ignored and reported, never fatal. A core that came otherwise than it is expected, or refuses, ends the start by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from engine.effects import AwaitEnds, Identity, IsAlive, Loop, MarkPoint, Now, Observe, Receive, Send
from engine.errors import ChildGoneError, StartupError
from engine.messages import EngineHandshakeMetadata
from engine.ports import Unroutable
from engine.process.consensus.effects import Member
from engine.topology import Mark, Node

HANDSHAKE = "handshake"
REQUESTS = "requests"
#: What reading raises for frames that are no message: also for text that is none, and for what is nested too deep.
UNREADABLE = (msgspec.DecodeError, ValueError, IndexError, RecursionError)


class Greeting(msgspec.Struct, frozen=True, omit_defaults=True):
    """HELLO and READY: one map, so that either side may be older than the other."""

    status: str
    local: bool = True  # whether it asks for its client's sockets, and is started by it
    headless: bool = False  # whether it has no client where it was started
    num_gpu_blocks: int | None = None
    member: Member | None = None  # who it is, to one that has not started it
    parallel_config_hash: str | None = None
    stats: str | None = None  # to its own client: what the head's coordinator says to clients, and who that is
    coordinator: Member | None = None
    reason: str | None = None  # why it refuses

    @property
    def place(self) -> tuple[bool, bool]:
        return self.local, self.headless


#: How a core greets whoever has started it.
LOCAL = Greeting("HELLO")


def core_hello(deadline: float, inbox: str = HANDSHAKE, greeting: Greeting = LOCAL,
               whom: str = "the frontend") -> Loop[EngineHandshakeMetadata]:
    """The core's first half: introduce oneself, learn where to connect. Raises StartupError at the deadline."""
    yield Send(inbox, [b""])
    yield Send(inbox, [msgspec.msgpack.encode(greeting)])
    while True:
        got = yield Receive((inbox,), deadline)
        if got is None:
            raise StartupError(f"{whom} did not answer the core's HELLO in time; "
                               "it is gone, a handshake message was lost, or another core has "
                               "introduced itself by the same index")
        try:
            return msgspec.msgpack.decode(got[2][-1], type=EngineHandshakeMetadata)
        except UNREADABLE as error:
            yield Observe("bad-frame", {"edge": inbox, "error": str(error)})


def core_ready(num_gpu_blocks: int, greetings: Mapping[str, Greeting] | None = None) -> Loop[None]:
    """The core's second half: everything is loaded. `greetings`: as it has greeted, by inbox."""
    yield MarkPoint(Mark.READY)
    for inbox, greeting in (greetings or {HANDSHAKE: LOCAL}).items():
        said = msgspec.structs.replace(greeting, status="READY", num_gpu_blocks=num_gpu_blocks)
        yield Send(inbox, [msgspec.msgpack.encode(said)])


def core_refuse(inbox: str, greeting: Greeting, reason: str) -> Loop[None]:
    """Instead of READY: these two cannot work together."""
    yield Send(inbox, [msgspec.msgpack.encode(msgspec.structs.replace(greeting, status="REFUSED", reason=reason))])


def heard_by_nobody(engine: int, greeting: Greeting) -> None:
    """Of whoever knows all that cores say when they greet."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """How the cores come: those that were not started here, and those that nothing is asked of from here."""

    headless: frozenset[int] = frozenset()
    of_others: frozenset[int] = frozenset()  # who have a client of their own

    @property
    def remote(self) -> frozenset[int]:
        return self.headless | self.of_others

    def place(self, engine: int) -> tuple[bool, bool]:
        return engine not in self.remote, engine in self.headless


def frontend_handshake(metadata: Mapping[int, EngineHandshakeMetadata], hello_s: float, startup_s: float,
                       ends: tuple[Node, ...] = (), inboxes: tuple[str, ...] = (HANDSHAKE, REQUESTS),
                       expected: Expected = Expected(), look_s: float = 1.0,
                       heard: Callable[[int, Greeting], None] = heard_by_nobody) -> Loop[dict[int, int]]:
    """The frontend's side: what it has to say to each core, by engine. -> num_gpu_blocks of each.

    Without REQUESTS among `inboxes` they announce themselves to others. `heard` is told of each READY.

    Raises StartupError naming what is still missing: a HELLO within `hello_s` of the start, everything else
    within `startup_s`; or who refuses, or is gone, of those that others have started, which is looked for every
    `look_s`; ChildGoneError where one of the children `ends` is gone before.
    """
    now = yield Now()
    engines = metadata.keys()
    hello_deadline, deadline = now + hello_s, now + startup_s
    connected: set[int] = set()  # whose empty frame came, by which a core begins
    greeted: dict[int, Greeting] = {}
    ready: dict[int, int] = {}
    announced = set(expected.of_others) if REQUESTS in inboxes else set(engines)
    while len(ready) < len(engines) or len(announced) < len(engines):
        limit = deadline if len(greeted) == len(engines) else min(hello_deadline, deadline)
        until = min(limit, (yield Now()) + look_s) if expected.remote else limit
        got = yield Receive(inboxes, until, ends)
        if got is None:
            gone = (yield AwaitEnds(ends, 0.0)) if ends else {}
            if gone:
                raise ChildGoneError(f"{', '.join(str(node.first_life) for node in gone)} died while starting")
            yield from _look_at(greeted)
            if (yield Now()) < limit:
                continue
            raise StartupError(_missing(engines, greeted, ready, announced) + _counted(engines, greeted, expected))
        inbox, peer, frames = got
        if peer not in engines:
            yield Observe("bad-frame", {"edge": inbox, "error": f"unknown engine {peer}"})
        elif inbox == REQUESTS:
            announced.add(peer)
        elif frames == [b""] and peer not in connected:
            connected.add(peer)
        else:
            problem = yield from _greeting(peer, frames, metadata[peer], expected, greeted, ready, heard)
            if problem:
                yield Observe("bad-frame", {"edge": inbox, "error": problem})
    return ready


def _look_at(greeted: Mapping[int, Greeting]) -> Loop[None]:
    """Of those that were not started here nothing else tells. Raises StartupError."""
    for engine, greeting in greeted.items():
        member = greeting.member
        if member is not None and member.process is not None and not (yield IsAlive(member.process)):
            raise StartupError(f"core.{engine} died while starting: it was started elsewhere, which may know why")


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


def _greeting(peer: int, frames: list[Any], metadata: EngineHandshakeMetadata, expected: Expected,
              greeted: dict[int, Greeting], ready: dict[int, int], heard: Callable[[int, Greeting], None]) -> Loop[str]:
    """Take one greeting. -> what is wrong with it, or nothing. Raises StartupError."""
    try:
        greeting = msgspec.msgpack.decode(frames[-1], type=Greeting)
    except UNREADABLE as error:
        return str(error)
    if greeting.status in ("HELLO", "READY") and greeting.place != expected.place(peer):
        raise StartupError(f"core.{peer} greets as {_place(*greeting.place)}, and is to be "
                           f"{_place(*expected.place(peer))}")
    if greeting.status == "HELLO":
        known = peer in greeted
        greeted[peer] = greeting
        try:
            yield Send(HANDSHAKE, [msgspec.msgpack.encode(metadata)], peer)
        except Unroutable:  # it has gone, which is told where it is watched
            return ""
        return f"core.{peer} says HELLO again: its first one was doubled, or two go by this index" if known else ""
    if greeting.status == "REFUSED":
        raise StartupError(f"core.{peer} refuses: {greeting.reason}")
    if greeting.status != "READY" or greeting.num_gpu_blocks is None:
        return f"a greeting with status {greeting.status!r}"
    if peer not in greeted:
        return f"READY of core.{peer} before its HELLO"
    if peer in expected.headless and (greeting.member is None or greeting.member.process is None):
        return f"READY of core.{peer}, which was not started here and does not say who it is"
    agreed = hash_of(metadata.parallel_config)
    if greeting.parallel_config_hash not in (None, agreed):
        raise StartupError(f"core.{peer} has another parallel configuration: its hash is "
                           f"{greeting.parallel_config_hash}, and here {agreed}")
    ready[peer] = greeting.num_gpu_blocks
    heard(peer, greeting)
    return ""


def hash_of(parallel_config: Mapping[str, int | str | bool]) -> str:
    """Equal where two have the same values, in whatever order."""
    return hashlib.sha256(msgspec.msgpack.encode(sorted(parallel_config.items()))).hexdigest()[:16]


def _place(local: bool, headless: bool) -> str:
    return "one that was started here" if local else "headless" if headless else "one with a client of its own"


def _counted(engines: Collection[int], greeted: Collection[int], expected: Expected) -> str:
    """Who has greeted, where not all are started here."""
    remote, local = expected.remote & set(engines), set(engines) - expected.remote
    came = set(greeted)
    return f" (said HELLO: {len(came & local)} of {len(local)} local, {len(came & remote)} of {len(remote)} remote)" \
        if remote else ""


def _missing(engines: Collection[int], greeted: Collection[int], ready: dict[int, int], announced: set[int]) -> str:
    for what, seen in (("say HELLO", greeted), ("report READY", ready), ("open its input socket", announced)):
        late = [f"core.{k}" for k in sorted(engines) if k not in seen]
        if late:
            return f"{', '.join(late)} did not {what} in time"
    raise AssertionError("nothing is missing")

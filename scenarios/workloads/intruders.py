"""What somebody says to engines who is none of their peers, at each socket that they bind: data, for plays."""

from __future__ import annotations

import random
import struct
from typing import Any
from zlib import crc32

import msgspec

from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutputs,
    EngineCoreRequestType,
    SchedulerStats,
    UtilityOutput,
)
from engine.wire.buffers import INTEGERS, MAX_BUFFERS
from engine.wire.codec import Utility, encode_outputs, encode_utility
from engine.wire.wiring import identity_of
from scenarios.history.play import Intruder, Options
from scenarios.workloads.workload import Action, of_nobody, raw

_DICE = random.Random(2)
#: Empty, many frames, lengths that nobody has, no msgpack at all, a wrong shape, too deep, large, and by lot. None
#: begins as a subscription does.
GARBAGE = [
    [b""], [b"?"] * 40, [b"\x93"],
    [b"\xdf\xff\xff\xff\xff"], [b"\xdd\xff\xff\xff\xff\x01"], [b"\xc1"], [b"\x93\x01\x02\xa1c"],
    [b"\x91" * 5000], [b"\x81\xa1x" + b"\x91" * 5000], [b"?" * 70_000],
    *[[bytes([_DICE.randrange(2, 256)]) + _DICE.randbytes(_DICE.randrange(1, 64))] for _ in range(8)],
]
#: Without what a real socket sends without a copy: for the first of those a process starts threads that it keeps.
SMALL = [frames for frames in GARBAGE if len(frames[0]) < 64 << 10]
#: Of this index there is nobody.
NOBODY = 99
SUBSCRIBES = [[b"\x01" + identity_of(NOBODY)], [b"\x01everything"]]
HELLO = [msgspec.msgpack.encode({"status": "HELLO"})]
READY = [msgspec.msgpack.encode({"status": "READY", "num_gpu_blocks": 1 << 60})]
_LARGEST = (1 << 64) - 1
COUNTS = SchedulerStats(num_running=_LARGEST, num_waiting=_LARGEST)
#: What is true of a core at rest, and was said by somebody else.
AT_REST = SchedulerStats(blocks_free=64, blocks_total=64)


def report(**said: Any) -> list[bytes]:
    """As an array whose order a decoder checks, and no type."""
    return encode_outputs(EngineCoreOutputs(**said))


#: Who speaks with a coordinator. Valid words of another, or the same twice, change nothing that matters.
TO_COORDINATOR = [
    Intruder(at="stats", kind="XSUB", bad=[*GARBAGE, *SUBSCRIBES, [b"\x93\x63\x00\x00"], [b"\x93\x00\x63\x00"],
                                           [b"\x93\x00\x00\xcf" + b"\xff" * 8]],
             idle=[[b"\x01"], [b"\x01" + identity_of(0)], [b"\x01" + identity_of(0)]]),
    Intruder(at="waves", kind="XSUB", bad=[*GARBAGE, *SUBSCRIBES, [b"READY"], [b"\x92\x00\x00"]],
             idle=[[b"\x01"], [b"\x01" + identity_of(1)], [b"\x01" + identity_of(1)]]),
    Intruder(at="reports", kind="PUSH", bad=[
        *GARBAGE, [ENGINE_CORE_DEAD], report(engine_index=0, utility_output=UtilityOutput(0, None, 1)),
        report(engine_index=NOBODY, wave_complete=0), report(engine_index=NOBODY, start_wave=0),
        report(engine_index=_LARGEST, scheduler_stats=COUNTS), report(engine_index=0, wave_complete=_LARGEST),
        report(engine_index=0, scheduler_stats=SchedulerStats(blocks_free=65, blocks_total=64)),
        report(engine_index=1, start_wave=_LARGEST), report(engine_index=1, start_wave=-1)],
        idle=[report(engine_index=1), report(engine_index=1, scheduler_stats=AT_REST),
              report(engine_index=1, scheduler_stats=AT_REST)]),
]
#: The same where no client tells of first requests.
TO_COORDINATOR_OF_TODAY = [*TO_COORDINATOR, Intruder(at="stats", kind="XSUB", bad=[[b"\x93\x00\x00\x00"]])]
_UNASKED = report(engine_index=0, utility_output=UtilityOutput(1 << 40, None, 1))


def to_client(outputs: str, requests: str) -> list[Intruder]:
    return [
        Intruder(at=outputs, kind="PUSH", bad=[*GARBAGE, report(engine_index=NOBODY), report(engine_index=1)],
                 idle=[_UNASKED, _UNASKED]),
        Intruder(at=requests, kind="DEALER", bad=[*GARBAGE, HELLO]),
        Intruder(at=requests, kind="DEALER", identity=identity_of(NOBODY), bad=[*GARBAGE, [b""], [b""]]),
        Intruder(at=requests, kind="DEALER", identity=b"\x01a name of its own", bad=[[b""]]),
    ]


def to_owner(*, early: bool) -> list[Intruder]:
    return [Intruder(at="handshake", kind="DEALER", identity=identity, bad=[*GARBAGE, [b""], HELLO, READY, READY],
                     early=early) for identity in (None, identity_of(NOBODY))]


def another_core_of_this_index(*, says_ready: bool) -> Intruder:
    """It introduces itself before the one that was started. Of the two HELLOs the later one is named, whose it is."""
    return Intruder(at="handshake", kind="DEALER", identity=identity_of(0), early=True, bad=[HELLO],
                    idle=[READY] if says_ready else [])


def ready_of_a_core_that_has_not_said_hello() -> Intruder:
    return Intruder(at="handshake", kind="DEALER", identity=identity_of(0), early=True, bad=[READY])


def to_outputs_of_another() -> Intruder:
    """Of two cores: what comes as outputs of the second one is nobody else's."""
    return Intruder(at="outputs.1", kind="PUSH", bad=[*GARBAGE, report(engine_index=0)], idle=[report(engine_index=1)])


def no_requests(other: int) -> list[Action]:
    """The same by a client of the core itself: behind a type that every core knows, and without one; and as if it were
    another one, which there is or not.
    """
    return [*(raw(b"\x00", *frames) for frames in SMALL), *(raw(*frames) for frames in SMALL),
            *(raw(*encode_utility(Utility(client, 1 << 40, "ping", [1]))) for client in (7, other))]


def of_no_client() -> list[Action]:
    return [of_nobody("of no client", 5, client_index=-1), raw(*encode_utility(Utility(-1, 1 << 40, "get_stats", [])))]


def no_buffers() -> list[Action]:
    """Requests that have buffers which are not what their body says, though it can be read: longer, too many, one that
    nobody names, what are no whole numbers, of no kind that there is, and named twice; more than there may be, though
    each is named; and beside an abort, which has none.
    """
    return [_said_to_have("longer", [b"\0" * 64], 68), _said_to_have("more", [b"\0" * 4] * 65, 4),
            _said_to_have("unnamed", [b"\0" * 4] * 2, 4), _said_to_have("broken", [b"\0" * 6], 6),
            _said_to_have("strange", [b"\0" * 4], 4, kind=3), _said_to_have("twice", [b"\0" * 4], 4, times=2),
            raw(EngineCoreRequestType.ABORT, msgspec.msgpack.encode(["nobody"]), b"\0" * 4),
            raw(EngineCoreRequestType.UTILITY, msgspec.msgpack.encode((0, 1 << 40, "ping", [
                [_ext(place, b"\0" * 4, 4) for place in range(MAX_BUFFERS + 1)]])), *[b"\0" * 4] * (MAX_BUFFERS + 1))]


def _ext(place: int, buffer: bytes, size: int, kind: int = INTEGERS) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(kind, struct.pack("<III", place, size, crc32(buffer)))


def _said_to_have(name: str, buffers: list[bytes], size: int, kind: int = INTEGERS, times: int = 1) -> Action:
    """A request whose prompt is the first of these buffers, of so many bytes as it says, or as often."""
    prompt: Any = _ext(0, buffers[0], size, kind)
    prompt = prompt if times == 1 else [prompt] * times
    return raw(EngineCoreRequestType.ADD, msgspec.msgpack.encode([name, prompt, {"max_tokens": 2}]), *buffers)


def amid(*intruders: Intruder) -> Options:
    return Options(intruders=list(intruders))

"""What the lab tells a process of a play of vLLM, and what they say to each other: the lab's interpreter and vLLM's
both read it.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from engine.topology import Channel
from scenarios.workloads.workload import Workload

#: So many times the bound of a request a caller waits for any word at all.
PATIENCE = 1.2
#: A relay answers within this.
GRANTED_S = 5.0


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A caller of `AsyncLLM`, of `LLM`, or of vLLM's HTTP server, and how it starts its engine."""

    index: int = 0  # of the frontend
    life: int = 0
    workload: Workload
    folder: str  # of the run: its board, its journals
    arguments: dict[str, Any]  # of vLLM's AsyncEngineArgs
    environment: dict[str, str]
    await_death_s: float = 0.0
    request_s: float  # how long a caller waits for the end of a call
    log: str  # the file that takes what its processes print
    synchronous: bool = False  # of `LLM`: a program that generates and waits
    over_http: bool = False  # of vLLM's server
    startup_s: float = 0.0  # how long one may take to come up
    isolated: bool = True  # a /dev/shm of its own
    relay: str = ""  # by which name one is asked to stand between it and its cores; empty: none does


class Wish(msgspec.Struct, frozen=True):
    """Caller or lab -> relay: to stand before the socket at `target`, of that client or for it (or a subscriber)."""

    target: str
    client: int
    channel: str = Channel.HANDSHAKE.value


def address_of(name: str) -> str:
    """Of a socket without a file."""
    return "\0" + name


def granted(relay: str, wish: Wish) -> str:
    """-> the address to connect to instead. `relay`: the name by which it is asked"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.settimeout(GRANTED_S)
        asked.connect(address_of(relay))
        asked.send(msgspec.msgpack.encode(wish))
        return asked.recv(4096).decode()


class Start(msgspec.Struct, frozen=True, tag=True):
    """Lab -> host, with the caller's end of a socket: fork a caller."""

    number: int
    recipe: Recipe


class Started(msgspec.Struct, frozen=True, tag=True):
    """Host -> lab."""

    number: int
    pid: int


class Shared(msgspec.Struct, frozen=True, tag=True):
    """Caller -> lab, with a descriptor of its /dev/shm, or none where it has that of all."""

    number: int
    why_not: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Host -> lab: one of its children, or an orphan of theirs, was waited for. `status`: its exit code, or -signal."""

    pid: int
    status: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Host -> lab: vLLM is imported."""

    version: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Host -> lab: it is not, or does not fit."""

    why: str


Word = Start | Started | Shared | Ended | Ready | Failed
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Word).decode
#: A word is one packet at most so long; workloads are a few KiB.
PACKET_BYTES = 1 << 20

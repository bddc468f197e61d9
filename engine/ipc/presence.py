"""Who is at the ends of a queue: what the segment says of them, and what arrives at the writer's sockets (pure).

Promises
- Each end writes its process's identity into the segment when it opens it, and takes it back when it leaves; whether
  that process still lives is asked of the world. An end that says nothing (vLLM's) is unknown: neither dead nor alive.
- A reader is known by its name, local ones and those on other hosts alike; of those that say no name (vLLM's),
  subscriptions are counted.
- Of two remote readers with one rank the later one is refused, and the first goes on.

    entry         pid: 4 | has left: 4 | start time: 8        where `RingLayout.presence_of` says
    subscription  1 (came) or 0 (left) | topic                a reader subscribes to everything, and to
                                                              "RTrank" + who it is + ":" + a random name
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from engine.effects import Attempt, Identity, IsAlive, Loop
from engine.errors import PeerDeadError
from engine.ipc.ring import RingLayout

#: While nothing comes, an end looks this often whether the other one lives and whether it was cancelled.
PEER_CHECK_S = 0.1
TOPIC, TAKEN = b"RTrank", b"RTtaken"
UNKNOWN, ALIVE, DEAD, LEFT = "unknown", "alive", "dead", "left"
WENT = {DEAD: "has died", LEFT: "was shut down"}

_ENTRY = struct.Struct("<IIQ")
_CAME_SIGN, _LEFT_SIGN = b"\x01", b"\x00"


class Presence:
    """The entries of one ring, as its writer (`me` None) or one of its readers sees them.

    `ranks` are the local readers' names, in their order in the ring.
    """

    def __init__(self, ring: str, layout: RingLayout, memory: Any, ranks: Sequence[int], me: int | None) -> None:
        self.ring, self.ranks = ring, ranks
        self._layout, self._memory, self._me = layout, memory, me
        self._others: Sequence[int | None] = range(layout.n_reader) if me is None else (None,)

    def announce(self, process: Identity) -> None:
        """Say that this process is this end."""
        self._memory[self._layout.presence_of(self._me)] = _ENTRY.pack(process.pid, 0, process.start_time)

    def withdraw(self) -> None:
        """This end leaves on its own feet."""
        self._memory[self._layout.presence_of(self._me)] = _ENTRY.pack(0, 1, 0)

    def all_known(self) -> bool:
        """Whether each reader has said who it is."""
        return all(any(self._memory[self._layout.presence_of(reader)]) for reader in range(self._layout.n_reader))

    def state(self, end: int | None) -> Loop[str]:
        """Of a reader, or the writer (None). -> `UNKNOWN` (said nothing yet, or never will), `ALIVE`, `DEAD`, `LEFT`"""
        return (yield from self._states((end,)))[0]

    def check(self) -> Loop[list[str]]:
        """-> the states of the writer, or of all readers. Raises PeerDeadError for one that has died or left."""
        states = yield from self._states(self._others)
        for other, state in zip(self._others, states, strict=True):
            if state in WENT:
                who = "the writer" if other is None else f"the reader of rank {self.ranks[other]}"
                raise PeerDeadError(f"{self.ring}: {who} {WENT[state]}")
        return states

    def _states(self, ends: Sequence[int | None]) -> Loop[list[str]]:
        entries = yield Attempt(self.ring, lambda: [self._look(end) for end in ends])
        states = []
        for entry in entries:
            states.append(entry if isinstance(entry, str) else ALIVE if (yield IsAlive(entry)) else DEAD)
        return states

    def _look(self, end: int | None) -> Identity | str:
        pid, left, started = _ENTRY.unpack(bytes(self._memory[self._layout.presence_of(end)]))
        return Identity(pid, started) if pid else LEFT if left else UNKNOWN


class LocalReaders:
    """Which readers of this host are there: they live, and have subscribed to the overflow socket."""

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self._subscribed: set[int] = set()
        self._subscriptions = 0

    def note(self, frame: Any) -> None:
        """What arrived at the overflow socket: a reader subscribes twice, to everything, and by its number."""
        came, reader, _ = _read(frame)
        if came and reader is not None:
            self._subscribed.add(reader)
        elif came:
            self._subscriptions += 1

    def may_be_complete(self) -> bool:
        """Whether so many have subscribed that `missing` is worth while: it asks for the life of each."""
        return max(self._subscriptions, len(self._subscribed)) >= len(self.presence.ranks)

    def missing(self) -> Loop[list[int]]:
        """-> the ranks of those that are not there yet. Raises PeerDeadError for one that came and went."""
        ranks, states = self.presence.ranks, (yield from self.presence.check())
        missing = [rank for reader, (rank, state) in enumerate(zip(ranks, states, strict=True))
                   if state != UNKNOWN and not (state == ALIVE and reader in self._subscribed)]
        strangers = self._subscriptions - len(self._subscribed)
        if strangers < states.count(UNKNOWN):  # vLLM's readers only subscribe
            missing += [rank for rank, state in zip(ranks, states, strict=True) if state == UNKNOWN]
        return missing


class RemoteReaders:
    """Which readers on other hosts are there, from what arrives at the writer's socket for them."""

    def __init__(self, ring: str, ranks: Sequence[int]) -> None:
        self._ring, self._ranks = ring, ranks
        self._came: dict[int, bytes] = {}
        self._left: set[int] = set()

    def note(self, frame: Any) -> list[bytes]:
        """-> what has to be told to everybody: the frame by which a second reader of a rank is refused"""
        came, rank, topic = _read(frame)
        if rank is None or rank not in self._ranks:
            return []
        first = self._came.setdefault(rank, topic) if came else self._came.get(rank)
        if bytes(frame[:1]) == _LEFT_SIGN and topic == first:
            self._left.add(rank)
        return [TAKEN + topic] if came and topic != first else []

    def missing(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._came]

    def check(self) -> None:
        """Raises PeerDeadError for one that is gone."""
        if self._left:
            raise PeerDeadError(f"{self._ring}: the remote reader of rank {min(self._left)} is gone")


def _read(frame: Any) -> tuple[bool, int | None, bytes]:
    """-> (somebody came, who: None if without a name, the topic)"""
    topic = bytes(frame[1:])
    who = topic[len(TOPIC):].partition(b":")[0]
    return bytes(frame[:1]) == _CAME_SIGN, int(who) if topic.startswith(TOPIC) and who.isdigit() else None, topic

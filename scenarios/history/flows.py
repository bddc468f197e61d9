"""What was sent and received on one edge, and which belongs to which.

A receive is paired with its send by (edge, digest, occurrence), a ring message by its position.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter
from typing import Any

from engine.topology import RING_CHANNELS, Edge
from faults.journal import Record

_DIGEST = attrgetter("digest")


class Flow:
    """The crossings of one edge: what was sent, what was received, and which belongs to which."""

    def __init__(self, name: str, edge: Edge, sends: list[Record], receives: list[Record]) -> None:
        self.name = name
        self.edge = edge
        self.sends = sends
        self.receives = receives
        self.source = str(edge.source)
        self.target = str(edge.target)

    @cached_property
    def in_order(self) -> bool:
        """Whether what was received is exactly the beginning of what was sent: then the n-th is the n-th."""
        sends, receives = self.sends, self.receives
        if len(receives) > len(sends) or not all(map(str.__eq__, map(_DIGEST, sends), map(_DIGEST, receives))):
            return False
        return self.edge.channel not in RING_CHANNELS or all(
            _ring_key(send) == _ring_key(receive) for send, receive in zip(sends, receives, strict=False))

    @cached_property
    def pairs(self) -> list[tuple[Record, Record]]:
        """(send, receive) in the order of the receives."""
        if self.in_order:
            return list(zip(self.sends, self.receives, strict=False))
        key = _ring_key if self.edge.channel in RING_CHANNELS else _message_key
        sent = {key(send): send for send in self.sends}
        found = []
        for receive in self.receives:
            send = sent.pop(key(receive), None)
            if send is not None:
                found.append((send, receive))
        return found

    @cached_property
    def unreceived(self) -> list[Record]:
        """Sends without a receive, in order."""
        if self.in_order:
            return self.sends[len(self.receives):]
        got = {id(send) for send, _ in self.pairs}
        return [send for send in self.sends if id(send) not in got]

    @cached_property
    def unsent(self) -> list[Record]:
        """Receives without a send: doubled, or changed on the way."""
        if self.in_order:
            return []
        known = {id(receive) for _, receive in self.pairs}
        return [receive for receive in self.receives if id(receive) not in known]

    def most_unread(self) -> int:
        """The largest number of frames that stood sent and not yet received."""
        if not self.sends:
            return 0
        receives, read, most = self.receives, 0, 0
        total = len(receives)
        for sent, send in enumerate(self.sends, 1):
            while read < total and receives[read].at < send.at:
                read += 1
            most = max(most, sent - read)
        return most


def _message_key(record: Record) -> tuple[str, int]:
    return record.digest, record.occurrence


def _ring_key(record: Record) -> Any:
    return record.data.get("position")

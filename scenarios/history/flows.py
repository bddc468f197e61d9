"""What was sent and received on one edge, and which belongs to which.

A receive is paired with its send by (edge, digest, occurrence), a ring message by its position.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

from engine.topology import RING_CHANNELS, Channel, Edge
from faults.journal import Record
from faults.plan import Fate
from scenarios.history.names import edge_of
from scenarios.history.receipts import Faults
from scenarios.history.records import Records

_DIGEST = attrgetter("digest")
#: Fates at a socket's `send` that leave the frame where it is: the crossing is recorded before.
NEVER_PUT = frozenset({Fate.KILL, Fate.RAISE, Fate.EXIT})


class Flow:
    """The crossings of one edge: what was sent, what was received, and which belongs to which."""

    def __init__(self, name: str, edge: Edge, sends: list[Record], receives: list[Record], kept: list[Record]) -> None:
        self.name = name
        self.edge = edge
        self.sends = sends
        self.receives = receives
        self.kept = kept  # crossings of `send` whose message stayed with its sender: not among `sends`
        self.source = str(edge.source)
        self.target = str(edge.target)

    @cached_property
    def in_order(self) -> bool:
        """Whether what was received is exactly the beginning of what was sent: then the n-th is the n-th."""
        sends, receives = self.sends, self.receives
        if len(receives) != len(sends):
            if len(receives) > len(sends):
                return False
            sends = sends[:len(receives)]
        if list(map(_DIGEST, sends)) != list(map(_DIGEST, receives)):
            return False
        return self.edge.channel not in RING_CHANNELS or list(map(_ring_key, sends)) == self.positions

    @cached_property
    def positions(self) -> list[Any]:
        """Where in its ring each message was read."""
        return list(map(_ring_key, self.receives))

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

    def read_until(self, since: float, sent_by: float, pause_s: float) -> float:
        """Until when, from `since` on, its receiver reads what was sent by then, without a longer pause."""
        for send, receive in self.pairs:
            if send.at <= sent_by and since < receive.at <= since + pause_s:
                since = receive.at
        return since

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


class Flows:
    """All edges of one play that anything crossed."""

    def __init__(self, by_channel: dict[Channel, list[Flow]]) -> None:
        self._by_channel = by_channel
        self._by_position: dict[str, dict[int, list[Record]]] = {}

    def of(self, *channels: Channel) -> list[Flow]:
        """The edges of these channels; all, if none is named."""
        if not channels:
            return list(chain.from_iterable(self._by_channel.values()))
        return [flow for channel in channels for flow in self._by_channel.get(channel, ())]

    def sends_by_position(self, flow: Flow) -> dict[int, list[Record]]:
        """What a ring's writer sent, by position. A broadcast is written once and may be recorded per reader."""
        known = self._by_position.get(flow.name)
        if known is not None:
            return known
        sends = flow.sends or next((other.sends for other in self.of(flow.edge.channel)
                                    if other.source == flow.source and other.sends), [])
        found: dict[int, list[Record]] = self._by_position.setdefault(flow.name, {})
        for send in sends:
            found.setdefault(send.data["position"], []).append(send)
        return found


def flows_of(seen: Records, faults: Faults) -> Flows:
    found: dict[Channel, list[Flow]] = defaultdict(list)
    struck = {receipt.id for receipt in faults.hit(*NEVER_PUT, operation=":send")
              if receipt.fault is not None and receipt.fault.victim is None}
    for name, edge in {part[0]: part[1] for part in map(edge_of, seen.crossings) if part}.items():
        sends, kept = seen.sends(name), []
        refused = {nth for site, nth in seen.unroutable if site == f"{name}:send"}
        never = set() if edge.channel in RING_CHANNELS else struck  # a ring's is on record when it has been written
        if never or refused:
            kept = [send for send in sends if send.nth in refused or send.data.get("fault") in never]
            sends = [send for send in sends if send.nth not in refused and send.data.get("fault") not in never]
        found[edge.channel].append(Flow(name, edge, sends, seen.receives(name), kept))
    return Flows(found)


def _message_key(record: Record) -> tuple[str, int]:
    return record.digest, record.occurrence


def _ring_key(record: Record) -> Any:
    return record.data.get("position")

"""What befalls the messages of one edge on their way, and what of it is on record.

A relay stands in the middle and plays both ends: a message crosses its sender's `send` when it has come in whole, the
`wire`, where the plan names that, and its receiver's `receive` when it is handed on. Fates are the lab's own, by the
lab's own `Crossings`: drop, delay and the like befall a receive, a cut the wire; a process that is killed, stopped or
asked to leave at a crossing is struck from outside, so it may be some instructions further than one of ours would be.
A message whose sender is killed by it is not handed on, nor is what that one has sent behind it.

What is crossed here is written into journals of its own, one for each end, beside those of the processes themselves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.topology import Edge, Node, at
from faults import fates
from faults.arrivals import Held, Inbox
from faults.journal import RELAYED, Kind, open_journal
from faults.plan import PROCESS_FATES, Fate, Fault
from faults.real.board import Board
from faults.real.crossings import Crossings
from faults.sites import home_of
from scenarios.worlds.vllm.relay.decoding import decoded_of, told_of

#: A frame of this size is on record as large (`docs/ARCHITECTURE.md`).
LARGE_BYTES = 64 << 10


class Cut(NamedTuple):
    """A connection ends at this crossing of a wire."""

    fault: Fault
    site: str
    nth: int


class _Clock:
    monotonic = staticmethod(time.monotonic)


class Ends:
    """The processes of a play between which a relay stands, each with its part of the plan."""

    def __init__(self, board: Board, folder: Path, clock: Any = _Clock) -> None:
        self.board, self.clock = board, clock
        self._journals = folder / "journals" / RELAYED
        self._journals.mkdir(exist_ok=True)
        self._crossings: dict[Node, Crossings] = {}

    def of(self, node: Node) -> Crossings:
        crossings = self._crossings.get(node)
        if crossings is None:
            journal = open_journal(self._journals, str(node), 0, self.clock.monotonic)
            crossings = self._crossings[node] = Crossings(self.board.plan, node, self.board, journal, self.clock)
        return crossings


class Struck:
    """Who is struck from outside at a crossing. A process that is stopped goes on by the lab's word."""

    def __init__(self) -> None:
        self._stops: list[tuple[Crossings, Fault, str, int]] = []

    def __bool__(self) -> bool:
        """Whether one stands still."""
        return bool(self._stops)

    def strike(self, end: Crossings, fault: Fault, site: str, nth: int) -> None:
        end.strike(fault)
        if fault.fate is Fate.STALL and fault.victim in (None, home_of(site)[0]):
            self._stops.append((end, fault, site, nth))

    def release(self) -> None:
        for stop in list(self._stops):
            end, fault, site, nth = stop
            if (end.board.released_at(fault.id) or 0.0) >= (end.board.fired_at(fault.id) or 0.0):
                self._stops.remove(stop)
                end.record(Kind.RELEASE, fault.id, nth, "", 0, fates.released(site, nth))


class Passage:
    """One edge. Messages are `(piece, frames)`; those of a connection that ends while they are held go to the next.

    `wire_alone`: its ends are the lab's to watch elsewhere, or nobody's.
    """

    def __init__(self, edge: Edge, ends: Ends, *, wire_alone: bool = False) -> None:
        self.edge, self._wire_alone = edge, wire_alone
        self._clock = ends.clock
        self._sender, self._receiver = ends.of(edge.source), ends.of(edge.target)
        self._sends, self._wire, self._receives = (at(edge, place) for place in ("send", "wire", "receive"))
        self._names_wire = self._sender.judge.names(self._wire)
        self._inbox = Inbox(self._receiver.is_over, self._on_release)
        self._has_died = False  # its sender, at a message of it
        self._struck = Struck()
        self.take = self._inbox.take

    @property
    def holding(self) -> bool:
        """Whether something here waits for a fault to be over."""
        return self._inbox.holding or bool(self._struck)

    def arrive(self, piece: Any, frames: Sequence[Any]) -> Cut | None:
        """A message has come in whole. -> the cut that ends its connection there: then it does not pass"""
        if self._wire_alone:
            return self._on_wire() or self._inbox.arrive(self._receives, (piece, frames), None, 0, 0.0)
        if self._has_died:
            return None
        data = told_of(self.edge.channel, frames)
        if (big := max(map(len, frames), default=0)) >= LARGE_BYTES:
            data["bytes"] = big
        fault, nth = self._note(self._sender, self._sends, frames, data)
        if fault is not None:
            self._struck.strike(self._sender, fault, self._sends, nth)
            self._has_died = fault.fate is Fate.KILL and fault.victim in (None, str(self.edge.source))
            if self._has_died:
                return None
        if (ends := self._on_wire()) is not None:
            return ends
        fault, nth = self._note(self._receiver, self._receives, frames, data)
        strikes = fault is not None and fault.fate in PROCESS_FATES
        self._inbox.arrive(self._receives, (piece, frames), None if strikes else fault,  # type: ignore[arg-type]
                           nth, self._clock.monotonic())
        if fault is not None and strikes:
            self._struck.strike(self._receiver, fault, self._receives, nth)
        return None

    def _on_wire(self) -> Cut | None:
        fault, nth = self._sender.note(self._wire) if self._names_wire else (None, 0)
        return None if fault is None else Cut(fault, self._wire, nth)

    def release(self) -> bool:
        """Let go what is over. -> whether a message may be taken now that was held"""
        self._struck.release()
        return self._inbox.release(self._clock.monotonic())

    def cut_is_over(self, cut: Cut, since: float) -> bool:
        return self._sender.is_over(cut.fault, since, self._clock.monotonic())

    def on_cut_over(self, cut: Cut) -> None:
        self._sender.released(cut.fault, cut.site, cut.nth)

    def _note(self, end: Crossings, site: str, frames: Sequence[Any],
              data: dict[str, Any]) -> tuple[Fault | None, int]:
        return end.note(site, frames=frames, data=data, decoded=lambda: decoded_of(self.edge.channel, frames))

    def _on_release(self, held: Held) -> None:
        self._receiver.released(held.fault, held.edge, held.nth)

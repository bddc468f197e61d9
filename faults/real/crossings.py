"""One process's crossings: judged, counted, recorded and, where a process fate fires, carried out.

Promises: a crossing is on disk and on the board before anything follows from it; a crossing that a fault
befell says so in its own record (`data`: `{"fate", "fault"}`) and leaves a receipt. Names in journals carry no
lives, because a sender does not know its peer's: the journal file tells which life it was. Safe to use from
several threads; a fate is met outside of the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.topology import Channel, Node
from faults import fates
from faults.journal import Journal, Kind, digest_of
from faults.judge import Judge, is_over
from faults.match import decoded_of
from faults.plan import PROCESS_FATES, Fate, Fault, Plan
from faults.real.board import Board, watched_sites
from faults.real.processes import Performer
from faults.real.unsteady import Unsteady
from faults.sites import bare, home_of, victim_of


class Crossings:
    """The judge, the journal and the board as the wrapped ports use them."""

    def __init__(self, plan: Plan, node: Node, board: Board, journal: Journal, clock: Any,
                 unsteady: Unsteady | None = None) -> None:
        self.name = bare(str(node))
        me = (self.name, node.life)
        self.judge = Judge(plan, self.name, node.life)
        self.board = board
        self.seat = board.seat(*me)
        self.clock = clock
        self._journal = journal
        self._lock = threading.RLock()  # a signal handler may cross while its thread does
        self._occurrences: dict[tuple[str, str], int] = {}
        self._watched = {bare(site): site for site in watched_sites(plan) if home_of(site) == me}
        self._resumes = {fault.id: 0.0 for fault in plan.faults
                         if fault.fate is Fate.STALL and victim_of(fault) == me != home_of(fault.site)}
        self._performer = Performer(board, clock, self.released)
        self._unsteady = unsteady

    def cross(self, site: str, **what: Any) -> tuple[Fault | None, int]:
        """`note` a crossing and meet a process fate there and then. -> (fault for the caller, nth)"""
        fault, nth = self.note(site, **what)
        if fault is not None and fault.fate in PROCESS_FATES:
            self._performer.perform(fault, site, nth)
            fault = None
        return fault, nth

    def perform(self, fault: Fault, site: str, nth: int) -> None:
        """Meet a process fate that `note` returned. May not come back; raises what the plan says."""
        self._performer.perform(fault, site, nth)

    def strike(self, fault: Fault) -> None:
        """Meet a kill, a stop or a SIGTERM that `note` returned for another process: this one stands beside it."""
        self._performer.strike(fault, victim_of(fault))

    def note(self, site: str, *, frames: Sequence[Any] | None = None, channel: Channel | None = None,
             digest: str = "", data: dict[str, Any] | None = None,
             decoded: Callable[[], Any] | None = None) -> tuple[Fault | None, int]:
        """Count and record one crossing. -> (the fault that fires, nth)

        `frames` is the message, for its digest and, with `channel`, for faults that match on what it says; `decoded`
        gives what it says where it is no message of our engine's.
        """
        judge, unsteady = self.judge, self._unsteady
        if unsteady is not None:
            unsteady.pause()
        if frames is not None and not digest:
            digest = digest_of(frames)
        with self._lock:
            if self._resumes:
                self._note_resumes()
            for fault_id in judge.awaited():
                if self.board.fired_at(fault_id) is not None:
                    judge.notice(fault_id)
            if decoded is None and channel is not None and frames is not None:
                decoded = partial(decoded_of, channel, frames)
            fault = fates.befalling(judge.crossing(site, decoded, 0 if frames is None else len(frames)),
                                    self._performer.reaches)
            nth = judge.count(site)
            occurrence = 0
            if digest:
                occurrence = self._occurrences.get((site, digest), 0)
                self._occurrences[site, digest] = occurrence + 1
            fates.note(self, self.name, site, nth, fault, digest=digest, occurrence=occurrence, data=data)
            watched = self._watched.get(site)
            if watched is not None:
                self.seat.crossed(watched, nth)
        if unsteady is not None:
            unsteady.pause()  # it was said, and is not done yet
        return fault, nth

    def is_over(self, fault: Fault, since: float, now: float) -> bool:
        """Whether what the fault holds since then may go, by its `until` or because the lab heals."""
        return is_over(fault, since, now, self.board.count) or self.board.healed_since(fault.id, since)

    def released(self, fault: Fault, site: str, nth: int) -> None:
        """On record: what the fault held at this crossing was let go."""
        self.seat.released(fault.id, self.clock.monotonic())
        self.record(Kind.RELEASE, fault.id, nth, "", 0, fates.released(site, nth))

    def record(self, kind: Kind, site: str, nth: int, digest: str, occurrence: int,
               data: dict[str, Any] | None) -> None:
        self._journal.append(kind, site, nth=nth, digest=digest, occurrence=occurrence, data=data,
                             thread=thread_name())

    def fired(self, fault: Fault) -> None:
        """On the board, for the others to see."""
        self.seat.fired(fault.id, self.clock.monotonic())

    def observe(self, name: str, data: dict[str, Any]) -> None:
        self.record(Kind.OBSERVATION, name, 0, "", 0, data)

    def _note_resumes(self) -> None:
        """A process that another one's crossing stopped finds out afterwards, here."""
        for fault_id, seen in self._resumes.items():
            at = self.board.released_at(fault_id)
            if at is not None and at > seen:
                self._resumes[fault_id] = at
                self.record(Kind.RELEASE, fault_id, 0, "", 0, fates.resumed(at))


def thread_name() -> str:
    name = threading.current_thread().name
    return "main" if name == "MainThread" else name

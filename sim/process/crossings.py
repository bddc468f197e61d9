"""One process's crossings: counted, judged and in its journal before anything follows from them.

Promises: the journal holds the records that a real process writes; a crossing that a fault befell says so in its own
record and leaves a receipt. What befalls the process then is none of this file's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from engine.topology import Channel, Node
from faults import fates
from faults.journal import Kind, Record
from faults.match import decoded_of
from faults.plan import Fault
from faults.sites import bare
from sim.kernel.kernel import Kernel
from sim.process.holds import Holds

_CROSSING = Kind.CROSSING
#: What nearly all crossings say of themselves besides. Nobody writes into it.
_NOTHING: dict[str, Any] = {}


class _OnThread:
    """The journal as one thread writes to it, and who is told of its faults: see `fates.Recorder`."""

    def __init__(self, crossings: Crossings, thread: str) -> None:
        self._crossings, self._thread = crossings, thread

    def record(self, kind: Kind, site: str, nth: int, digest: str, occurrence: int,
               data: dict[str, Any] | None) -> None:
        self._crossings.record(kind, site, self._thread, nth, data or {}, digest, occurrence)

    def fired(self, fault: Fault) -> None:
        self._crossings.kernel.notice_fault(fault)


class Crossings:
    """The judge, the journal and the board as one process uses them."""

    def __init__(self, kernel: Kernel, holds: Holds, node: Node, is_there: Callable[[Fault], bool]) -> None:
        """`is_there(fault)`: whether whom it hits is alive, for faults that have a victim elsewhere."""
        self.kernel = kernel
        self.holds = holds
        self.node = node
        self.name = bare(str(node))  # without life, as sites are named
        self.life = node.life
        self.recording = kernel.record
        self.records: list[Record] = []  # the journal; becomes bytes when somebody writes it to disk
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.gone = False  # the process is: nothing that held it is let go any more
        self._time = kernel.time
        self._is_there = is_there
        self._occurrences: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._judge = kernel.judge_of(self.name, self.life)
        self._judged = frozenset(self._judge.sites())
        self._watched = frozenset(site for node, life, site in holds.watched if (node, life) == (self.name, self.life))
        self._special = self._judged | self._watched  # nearly every crossing is at another site

    def may_fire_at(self, site: str) -> bool:
        """Whether the plan has a fault at this site of the process."""
        return site in self._judged

    def any_special(self, sites: Iterable[str]) -> bool:
        """Whether the plan has a fault at any of these sites, or waits for one of them to be crossed."""
        return not self._special.isdisjoint(sites)

    def note(self, site: str, thread: str, digest: str = "", data: dict[str, Any] | None = None,
             channel: Channel | None = None, frames: Any = None) -> Fault | None:
        """Count, judge and record one crossing. -> the fault that fires here: at the site's `counts`th one

        `channel` and `frames`: the message, for faults that match on what it says.
        """
        counts = self.counts
        nth = counts[site] = counts[site] + 1
        if site in self._special:
            return self._note_special(site, nth, thread, digest, data, channel, frames)
        if self.recording:
            occurrence = 0
            if digest:
                key = site, digest
                occurrence = self._occurrences[key]
                self._occurrences[key] = occurrence + 1
            records = self.records
            records.append(Record(len(records), self._time._now, thread, _CROSSING, site, nth, digest, occurrence,
                                  data or _NOTHING))
        return None

    def _note_special(self, site: str, nth: int, thread: str, digest: str, data: dict[str, Any] | None,
                      channel: Channel | None, frames: Any) -> Fault | None:
        """As `note`, at a site that the plan names."""
        fault = self._befalling(site, None if channel is None else lambda: decoded_of(channel, frames),
                                0 if frames is None else len(frames))
        occurrence = self._occurrences[site, digest]
        self._occurrences[site, digest] += bool(digest)
        fates.note(_OnThread(self, thread), self.name, site, nth, fault, digest=digest, occurrence=occurrence,
                   data=data)
        if site in self._watched:
            self.holds.crossed(self.name, self.life, site, nth)
        return fault

    def store(self, site: str, thread: str) -> Fault | None:
        """A store of a ring operation is about to be done: as `note`, but recorded only if a fault befalls it."""
        nth = self.counts[site] = self.counts[site] + 1
        if site in self._watched:
            self.holds.crossed(self.name, self.life, site, nth)
        fault = self._befalling(site, None)
        if fault is not None:
            fates.note(_OnThread(self, thread), self.name, site, nth, fault)
        return fault

    def _befalling(self, site: str, decoded: Callable[[], Any] | None, frames: int = 0) -> Fault | None:
        """The fault that fires at this crossing, if its victim is there: else nothing befalls anybody."""
        fault = self._judge.crossing(site, decoded, frames) if site in self._judged else None
        return fates.befalling(fault, self._is_there)

    def observe(self, name: str, data: dict[str, Any], thread: str = "main") -> None:
        """Something a judge wants to know. Not counted."""
        self.record(Kind.OBSERVATION, name, thread, 0, data)

    def released(self, fault: Fault, thread: str, site: str = "", nth: int = 0) -> None:
        """On record: what the fault held was let go, at a crossing or, without one, by another process's."""
        if not self.gone:
            self.record(Kind.RELEASE, fault.id, thread, nth,
                        fates.released(site, nth) if site else fates.resumed(self.kernel.now))

    def record(self, kind: Kind, site: str, thread: str, nth: int, data: dict[str, Any], digest: str = "",
               occurrence: int = 0) -> None:
        if self.recording:
            records = self.records
            records.append(Record(len(records), self._time._now, thread, kind, site, nth, digest, occurrence, data))

    def untie(self) -> None:
        """The play is over: the journal stays."""
        self._occurrences.clear()
        del self._is_there

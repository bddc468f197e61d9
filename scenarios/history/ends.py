"""How and when each process of a play ended, and which of these ends nobody had asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from engine.topology import NodeKind
from faults.plan import Fate
from scenarios.history.names import base, kind_of, life_of, of_life
from scenarios.history.play import Lab, Play, ProcessEnd
from scenarios.history.receipts import Faults, Receipt
from scenarios.history.records import FOREVER, Records


class Death(NamedTuple):
    """The end of one process. For SIGKILL `at` is the moment of the kill, else the exit."""

    node: str
    at: float
    how: str
    hit_at: float | None  # when a fault ended it, which may be long before it is gone; None: nobody planned this

    @property
    def planned(self) -> bool:
        return self.hit_at is not None

    @property
    def onset(self) -> float:
        """When it began: from then on callers may be told."""
        return self.at if self.hit_at is None else min(self.hit_at, self.at)


class Life(NamedTuple):
    """One life of one process, as its journal and the lab saw it."""

    node: str
    began_at: float
    ended_at: float | None  # None: still there when the lab stopped looking
    process: ProcessEnd | None  # None: the lab never saw it
    farewell: bool  # it left on its own feet
    struck_by: Receipt | None  # the first fault that ended it, or should have


class Ends(Mapping[str, Death]):
    """node -> its end, whatever the reason. The lab's own kills are no death."""

    def __init__(self, ends: dict[str, Death], deaths: list[Death]) -> None:
        self._ends = ends
        #: Ends of engine processes that no shutdown asked for, by time. Subscribers are not of the engine.
        self.deaths = deaths

    def __getitem__(self, node: str) -> Death:
        return self._ends[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, node: str) -> float:
        """When that process ended; infinite while it lives."""
        return self._ends[node].at if node in self._ends else FOREVER


def overstayed(process: ProcessEnd, play: Play, lab: Lab) -> bool:
    """Whether a process was still there after its bound, so that the lab had to end it, or could not.

    A play may ask the lab to kill the whole first engine (`kill_all_then_restart`): that is no overstaying.
    """
    if process.ended_at is None:
        return True
    return process.killed_by_lab and not _was_to_be_killed(process, play, lab)


def killed_as_asked(process: ProcessEnd, play: Play, lab: Lab) -> bool:
    """Whether the lab killed it because the play asks for that."""
    return _was_to_be_killed(process, play, lab) and (process.killed_by_lab or process.exitcode == -9)


def _was_to_be_killed(process: ProcessEnd, play: Play, lab: Lab) -> bool:
    if not play.options.kill_all_then_restart or process.life or lab.guard_expired:
        return False
    return process.node in map(str, play.topology.deployments[0].nodes)


def ends_of(play: Play, lab: Lab, seen: Records, faults: Faults) -> Ends:
    ends: dict[str, Death] = {}
    hits, known = faults.ending, set()
    for process in lab.processes:
        name = of_life(process.node, process.life)
        known.add(name)
        if process.ended_at is None or overstayed(process, play, lab):
            continue
        if killed_as_asked(process, play, lab):
            ends[name] = Death(name, process.ended_at, str(Fate.KILL), process.ended_at)
            continue
        code = process.exitcode
        how = hits[name].fate if name in hits else f"exit code {code}" if code is not None else "gone"
        ends[name] = Death(name, process.ended_at, str(how), hits[name].at if name in hits else None)
    for node, receipt in hits.items():
        if receipt.fate == Fate.KILL or (receipt.fate == Fate.EXIT and node not in known):
            ends[node] = Death(node, receipt.at, str(receipt.fate), receipt.at)
        elif node not in known and (node in seen.by_node("bye") or node in seen.by_node("dying")):
            ends[node] = Death(node, max(seen.last[node].at, receipt.at), str(receipt.fate), receipt.at)
    deaths = [death for death in ends.values()
              if kind_of(death.node) != NodeKind.SUBSCRIBER and not _leaves_in_order(death, seen)]
    return Ends(ends, sorted(deaths, key=attrgetter("at")))


def _leaves_in_order(death: Death, seen: Records) -> bool:
    if kind_of(death.node) == NodeKind.FRONTEND:
        return not death.planned and death.node in seen.by_node("bye")
    closing_at = seen.closes_at(death.node)
    return death.at >= closing_at and not (death.hit_at is not None and death.hit_at < closing_at)


def lives_of(lab: Lab, seen: Records, faults: Faults) -> list[Life]:
    processes = {of_life(process.node, process.life): process for process in lab.processes}
    lives = []
    for node in seen.nodes:
        if not (records := seen.records(node)):
            continue
        process, ended_at = processes.get(node), records[-1].at
        still_there = process is not None and process.ended_at is None
        if process is not None and process.ended_at is not None:
            ended_at = max(ended_at, process.ended_at)
        lives.append(Life(node, records[0].at, None if still_there else ended_at, process, node in seen.by_node("bye"),
                          faults.ending.get(node)))
    return sorted(lives, key=lambda life: (base(life.node), life_of(life.node)))

"""Virtual time, and everything of a play that no single process owns.

Promises
- The same topology, plan, seed and choices give the same journals, byte for byte: nothing here looks at the wall
  clock, at addresses or at the order of a set.
- Time only moves to the next thing that happens, so a play costs what happens in it, not how long it waits.
- Where the world may answer in several ways (what libzmq held at a death), `choose` picks one and remembers that
  there were others; `enumerate_choices` plays those too.
- When nothing is left to happen, `run` says so: an operation that is still open then hangs for ever.

    simpy's heap ->  function, arguments      timers, arrivals, wake-ups: plain calls, no Process, no AnyOf
                 ->  any simpy event          usable beside them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import simpy

from engine.topology import Node, Topology
from faults.journal import JournalFile, journal_bytes, journal_path
from faults.plan import Fault, Plan
from sim.kernel.costs import COSTS, Costs
from sim.process.holds import Holds
from sim.process.process import SimProcess
from sim.transport.ring_memory import Bell, Segment
from sim.transport.zmq_model import Network

Result = TypeVar("Result")
#: Length of a call in simpy's queue.
_CALL = 5


class SimulationError(Exception):
    """The twin was used wrongly."""


class Ended(StrEnum):
    QUIET = "quiet"  # nothing is left to happen: what is open now is open for ever
    STOPPED = "stopped"  # somebody said that the play is over
    GUARD = "guard"  # the virtual guard time passed


class Choice(msgspec.Struct, frozen=True):
    """One point at which the world had several allowed answers."""

    label: str
    count: int
    picked: int


class Choices:
    """Answers `choose`: from a prefix first; behind it the first outcome, or one drawn from `random`."""

    def __init__(self, prefix: Sequence[int] = (), random: Random | None = None) -> None:
        self._prefix = tuple(prefix)
        self._random = random
        self.made: list[Choice] = []

    def choose(self, count: int, label: str) -> int:
        place = len(self.made)
        if place < len(self._prefix):
            picked = min(self._prefix[place], count - 1)
        else:
            picked = self._random.randrange(count) if self._random else 0
        self.made.append(Choice(label, count, picked))
        return picked

    @property
    def picks(self) -> tuple[int, ...]:
        return tuple(choice.picked for choice in self.made)


class VirtualTime(simpy.Environment):
    """simpy's environment with exact times. Beside events its queue holds plain calls, which need no detour.

        event    (when, priority, number, event)
        call     (when, priority, number, function, arguments)
    """

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0  # of all doorbells so far
        self.stopped = False

    def call_at(self, when: float, function: Callable[..., Any], *arguments: Any) -> None:
        now = self._now
        heappush(self._queue, (when if when > now else now, 1, next(self._eid), function, arguments))

    def after(self, delay_s: float, function: Callable[..., Any], *arguments: Any) -> None:
        """`delay_s` is never negative."""
        heappush(self._queue, (self._now + delay_s, 1, next(self._eid), function, arguments))

    def step(self) -> None:
        """Let the next thing happen. Raises simpy's EmptySchedule where there is none."""
        if self._queue and len(self._queue[0]) == _CALL:
            self._now, _, _, function, arguments = heappop(self._queue)
            function(*arguments)
        else:
            super().step()

    def advance(self, guard: float) -> Ended:
        """Let things happen until none is left, `stopped`, or the next one lies behind `guard`."""
        queue = self._queue
        while queue and not self.stopped:
            if queue[0][0] > guard:
                self._now = guard
                return Ended.GUARD
            if len(queue[0]) == _CALL:  # as `step` does it
                self._now, _, _, function, arguments = heappop(queue)
                function(*arguments)
            else:
                super().step()
        return Ended.STOPPED if self.stopped else Ended.QUIET


class Simulation:
    """One play of the twin."""

    def __init__(self, topology: Topology, plan: Plan | None = None, seed: int = 0,
                 choices: Choices | Sequence[int] | None = (), *, costs: Costs = COSTS,
                 record: bool = True) -> None:
        """`choices`: picks to repeat (then the first outcome each), a `Choices`, or None: drawn from the seed."""
        self.topology = topology
        self.plan = plan or Plan()
        self.costs = costs
        self.record = record
        self.random = Random(seed)
        if not isinstance(choices, Choices):
            choices = Choices((), Random(seed)) if choices is None else Choices(choices)
        self.choices = choices
        self.env = VirtualTime()
        self.call_at = self.env.call_at
        self.after = self.env.after
        self.network = Network(self)
        self.holds = Holds(self)
        self.processes: dict[str, SimProcess] = {}  # by name with life
        self.segments: dict[str, Segment] = {}
        self.paths: dict[str, str] = {}  # files that exist, with the name of their owner
        self.fired: dict[str, float] = {}
        self.ended: Ended | None = None
        self._bells: dict[str, Bell] = {}
        self._collectives: dict[str, Any] = {}
        self._pids = 100

    # -- time

    @property
    def now(self) -> float:
        return self.env._now

    def run(self, guard_s: float = 3600.0) -> Ended:
        """Play on until nothing is left to happen, `stop` was called, or virtual `guard_s` since the beginning."""
        self.ended = self.env.advance(guard_s)
        return self.ended

    def stop(self) -> None:
        self.env.stopped = True

    # -- allowed outcomes

    def choose(self, count: int, label: str) -> int:
        """One of `count` allowed outcomes, 0 being the usual one."""
        return self.choices.choose(count, label) if count > 1 else 0

    def choose_amount(self, most: int, label: str, usual: int = 0) -> int:
        """How many of `most` things befell what may befall any prefix: none, all, one, half, all but one."""
        candidates = list(dict.fromkeys((usual, 0, most, most // 2, 1, most - 1)))
        candidates = [amount for amount in candidates if 0 <= amount <= most]
        return candidates[self.choose(len(candidates), label)]

    # -- what processes share

    def start_process(self, node: Node | str, main: Callable[[SimProcess], Any] | None = None, *,
                      parent: SimProcess | None = None, delay_s: float | None = None) -> SimProcess:
        """A new process. Its main thread runs the loop that `main(process)` returns, after the time a start takes."""
        node = Node.parse(node) if isinstance(node, str) else node
        if str(node) in self.processes:
            raise SimulationError(f"{node} was started twice; a restart is another life of the node")
        self._pids += 1
        process = SimProcess(self, node, parent, self._pids)
        self.processes[str(node)] = process
        if main is not None:
            delay_s = self.costs.process_start_s if delay_s is None else delay_s
            self.after(delay_s, process.begin, main)
        return process

    def process(self, name: str) -> SimProcess | None:
        """The process of that name; of a name without a life the latest one."""
        if "@" in name:
            return self.processes.get(name)
        lives = [process for process in self.processes.values() if process.name == name]
        return max(lives, key=lambda process: process.life) if lives else None

    def create_segment(self, name: str, size: int, owner: SimProcess | None = None) -> Segment:
        """Raises FileExistsError."""
        if name in self.segments:
            raise FileExistsError(f"segment {name} exists")
        segment = self.segments[name] = Segment(name, bytearray(size), owner.label if owner else "")
        return segment

    def unlink_segment(self, name: str) -> None:
        self.segments.pop(name, None)

    def bell(self, key: str) -> Bell:
        """The doorbell of that name, shared by every process that uses the name."""
        bell = self._bells.get(key)
        if bell is None:
            bell = self._bells[key] = Bell(self)
        return bell

    def collective(self, key: str, ranks: Sequence[Node | str], timeout_s: float) -> Any:
        """The process group of that name: see `sim.transport.collectives.CollectiveGroup`."""
        from sim.transport.collectives import CollectiveGroup

        group = self._collectives.get(key)
        if group is None:
            group = self._collectives[key] = CollectiveGroup(self, key, [str(rank) for rank in ranks], timeout_s)
        return group

    def groups(self) -> Iterable[Any]:
        return self._collectives.values()

    # -- faults

    def notice_fault(self, fault: Fault) -> None:
        """Tell every judge: faults that come after this one begin to count."""
        self.fired.setdefault(fault.id, self.now)
        for process in self.processes.values():
            process.judge.notice(fault.id)

    def leftovers(self) -> list[str]:
        """Segments and files that exist now, and processes that run."""
        return ([f"process {p.label}" for p in self.processes.values() if p.alive]
                + [f"segment {name}" for name in self.segments] + [f"file {path}" for path in self.paths])

    # -- journals

    def journals(self) -> dict[str, bytes]:
        """File name -> the journal's bytes, as `faults.journal.read_journal` takes them."""
        return {journal_path(Path(), p.name, p.life).name: journal_bytes(p.records) for p in self._players()}

    def journal_files(self) -> list[JournalFile]:
        """The journals as the judges take them, never encoded: `data` holds what the processes said, not yet copied."""
        return [JournalFile(p.name, p.life, p.records, torn=False) for p in self._players()]

    def _players(self) -> list[SimProcess]:
        return [process for process in self.processes.values() if not process.bystander]

    def write_journals(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.journals().items():
            (folder / name).write_bytes(data)

    def close(self) -> None:
        """Let go of loops that never ended, and of all that knots the play together: only its journals stay.

        What is knotted lives until the collector finds it, and a play leaves more than the collector lets pass.
        """
        for process in self.processes.values():
            process.forget_threads()
        for process in self.processes.values():
            process.untie()
        self.network.untie()
        self.env._queue.clear()
        self._bells.clear()
        self._collectives.clear()
        del self.network, self.holds


def enumerate_choices(play: Callable[[Choices], Result], bound: int = 8) -> Iterator[tuple[tuple[int, ...], Result]]:
    """Play every allowed outcome, at most `bound` of them. -> (picks, result) of each

    The first play takes the usual outcome everywhere. Plays that differ from it at one point come next, early
    points first, then those that differ at two: within a small bound this reaches every point, where a
    depth-first order would only ever vary the last one.
    """
    waiting: deque[tuple[int, ...]] = deque([()])
    for _ in range(bound):
        if not waiting:
            return
        prefix = waiting.popleft()
        choices = Choices(prefix)
        result = play(choices)
        yield choices.picks, result
        picks = choices.picks
        for place in range(len(prefix), len(picks)):
            for other in range(1, choices.made[place].count):
                waiting.append((*picks[:place], other))

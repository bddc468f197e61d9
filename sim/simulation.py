"""One play of the twin: its kernel, the host of its processes, and the processes by name.

Promises
- The same topology, plan, seed and choices give the same journals, byte for byte.
- When nothing is left to happen, `run` says so: an operation that is still open then hangs for ever.

    Simulation    processes   sim.process     threads that run the engine's loops, and what befalls them
                  host        sim.transport   sockets, rings, doorbells, process groups: what processes share
                  kernel      sim.kernel      time, choices, costs, plan: what all of them know
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.topology import Node, Topology
from faults.journal import JournalFile, journal_bytes, journal_path
from faults.plan import Fault, Plan
from faults.sites import victim_of
from sim.kernel.choices import Choices
from sim.kernel.costs import COSTS, Costs
from sim.kernel.kernel import Kernel, Scheduler
from sim.kernel.time import Ended
from sim.process.answers.table import ANSWERS
from sim.process.holds import Holds
from sim.process.process import SimProcess
from sim.transport.host import Host


class SimulationError(Exception):
    """The twin was used wrongly."""


class Simulation:
    """One play of the twin."""

    def __init__(self, topology: Topology, plan: Plan | None = None, seed: int = 0,
                 choices: Choices | Sequence[int] | None = (), *, costs: Costs = COSTS, record: bool = True,
                 given: Any = None, scheduler: Scheduler | None = None) -> None:
        """`choices`: picks to repeat (then the first outcome each), a `Choices`, or None: drawn from the seed.

        `given`: what the engines of the play run (`sim.nodes.model.Given`). `scheduler`: see `sim.process.preemption`.
        """
        self.topology = topology
        self.kernel = Kernel(plan, seed, choices, costs=costs, record=record, scheduler=scheduler)
        self.host = Host(self.kernel)
        self.holds = Holds(self.kernel)
        self.answers = ANSWERS
        self.costs = costs
        self.after = self.kernel.after
        self.processes: dict[str, SimProcess] = {}  # by name with life
        self.given = given
        self.when_any_ends: Callable[[], Any] | None = None  # for whoever watches from outside
        self._pids = 100

    # -- time

    @property
    def now(self) -> float:
        return self.kernel.now

    def run(self, guard_s: float = 3600.0) -> Ended:
        """Play on until nothing is left to happen, or virtual `guard_s` since the beginning."""
        return self.kernel.time.advance(guard_s)

    # -- processes

    def start_process(self, node: Node | str, main: Callable[[SimProcess], Any] | None = None, *,
                      parent: SimProcess | None = None, delay_s: float | None = None) -> SimProcess:
        """A new process. Its main thread runs the loop that `main(process)` returns, after the time a start takes."""
        node = Node.parse(node) if isinstance(node, str) else node
        if str(node) in self.processes:
            raise SimulationError(f"{node} was started twice; a restart is another life of the node")
        self._pids += 1
        process = SimProcess(self, node, parent, self._pids)
        self.processes[str(node)] = process
        if self.when_any_ends is not None:
            process.when_gone(self.when_any_ends)
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

    def struck_by(self, fault: Fault) -> SimProcess | None:
        """The process, in one of its lives, that a process fate of the plan hits, if it is there."""
        node, life = victim_of(fault)
        process = self.processes.get(f"{node}@{life}" if life else node)
        return process if process is not None and process.alive else None

    def process_of(self, pid: int) -> SimProcess | None:
        return next((process for process in self.processes.values() if process.pid == pid), None)

    def living(self) -> Iterator[SimProcess]:
        return (process for process in self.processes.values() if process.alive)

    def leftovers(self) -> list[str]:
        """Processes that run, segments and files that exist now."""
        return [f"process {p.label}" for p in self.processes.values() if p.alive] + self.host.leftovers()

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

    # -- its end

    def close(self) -> None:
        """Let go of loops that never ended, and of all that knots the play together: only its journals stay.

        What is knotted lives until the collector finds it, and a play leaves more than the collector lets pass.
        """
        self.when_any_ends = None
        for process in self.processes.values():
            process.forget_threads()
        for process in self.processes.values():
            process.untie()
        self.host.untie()
        self.holds.untie()
        self.kernel.time.forget()

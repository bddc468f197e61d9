"""What a scenario says to a world, and what a world gives back.

    run = world.play(topology=tensor_parallel(2), workload=recorded("eight-mixed"), plan=plan(...))
    run.holds(ends_once, tokens_match_reference)

`play` checks the plan, plays it, judges it and keeps the run. `holds` names the promises of this scenario; it
fails with the broken ones, their evidence and the command that plays the run again.
"""

from __future__ import annotations

import contextlib
import gc
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.topology import Topology, with_ranks
from faults.plan import Plan, PlanError
from scenarios.guarantees.judge import judge
from scenarios.guarantees.theirs import beyond, is_promised
from scenarios.history.play import OTHERS, Options, Play
from scenarios.history.run import Run, load_run, save
from scenarios.history.sides import Side, sides_of
from scenarios.history.verdicts import Verdict
from scenarios.lab.settings import lab_config, of_topology, spread
from scenarios.workloads.workload import Workload
from scenarios.worlds.provenance import provenance, versions


class BrokenPromiseError(AssertionError):
    """A promise of a scenario is not as declared. The last line is the command that repeats it."""


class NotHereError(PlanError):
    """A world has no such place or part: says which one this scenario asks for."""


class PlayedRun:
    """The runs of one play: one on the engine, one per allowed outcome in the twin."""

    def __init__(self, runs: list[Run], *, other_topology: bool = False) -> None:
        self.runs = runs
        self._other_topology = other_topology  # than the one its promises were written for

    def holds(self, *guarantees: Any, **expected: Verdict) -> None:
        """These guarantees are promised here. `guarantee_id=Verdict.BROKEN` declares what a canary must show.

        Raises BrokenPromiseError.
        """
        guarantees = tuple(one for one in guarantees if self._is_promised(one.id))
        if self._other_topology:  # a promise about rings says nothing where there are none
            guarantees = tuple(guarantee for guarantee in guarantees if guarantee.applies(self.runs[0].play))
        promises = tuple(guarantee.id for guarantee in guarantees)
        declared = {name.replace("_", "-"): verdict for name, verdict in expected.items()}
        self.runs = [_judged(run, promises, declared) for run in self.runs]
        wrong = [side for worlds in sides_of(self.runs).values() for side in worlds.values() if not side.as_declared]
        if wrong:
            run, _ = wrong[0].telling
            raise BrokenPromiseError("\n".join([*map(_sentence, wrong), f"replay: {replay_command(run)}"]))


    def _is_promised(self, guarantee: str) -> bool:
        """Whether the engine that was played has promised it, of what befell it."""
        world = self.runs[0].play.world
        return is_promised(guarantee, world) and (self.runs[0].play.is_ours or not any(
            beyond(guarantee, world, receipt) for run in self.runs for receipt in run.history.faults.receipts))


class World(ABC):
    """Plays scenarios. `name` is what reports call it."""

    name: str
    #: Whether it keeps its own time: then a machine that starves changes nothing.
    virtual_time = False

    def __init__(self, out: Path, *, tp: int | None = None, pp: int | None = None, dp: int | None = None,
                 clients: int | None = None, lockstep: bool = False, coordinator: bool = False,
                 seed: int = 0, unsteady: float = 0.0, device: str = "auto") -> None:
        self.out = out
        self.tp, self.pp, self.dp, self.clients = tp, pp, dp, clients
        self._together = {"lockstep": lockstep, "coordinator": coordinator}  # how several engines belong together
        self.seed, self.unsteady = seed, unsteady
        self.device = device
        self.scenario = "play"
        self.title = ""
        self.played: list[PlayedRun] = []

    def play(self, *, topology: Topology, workload: Workload, plan: Plan = Plan(),  # noqa: B008
             config: EngineConfig | None = None, options: Options | None = None) -> PlayedRun:
        """Play once. Raises PlanError for a plan that cannot be played on this topology."""
        written_for = topology
        staged = options is None or not options.without_engine  # a queue alone has readers, and no stages
        topology = with_ranks(topology, tp=self.tp, pp=self.pp if staged else None)
        if staged:
            topology = spread(topology, self.dp, clients=self.clients, **self._together)
        if topology != written_for:
            workload = shared(workload, topology)
        plan.check(topology)
        asked = config or lab_config()
        play = Play(
            scenario=self.scenario, title=self.title, world=self.name, topology=topology,
            workload=msgspec.to_builtins(workload.played()), plan=plan,
            config=of_topology(asked, topology), promises=(),
            options=options or Options(), seed=self.seed, unsteady=self.unsteady)
        return self.replay(play, other_topology=topology != written_for)

    def replay(self, play: Play, *, other_topology: bool = False) -> PlayedRun:
        """Play what was recorded in a run directory, or made by `play`."""
        if play.options.edits and self.name not in OTHERS:
            raise NotHereError(f"edits are of engines that are not ours: {', '.join(play.options.edits)}")
        play = msgspec.structs.replace(
            play, world=self.name, virtual_time=self.virtual_time, provenance=provenance(),
            versions=dict(versions(real=not self.virtual_time)))
        played = PlayedRun([load_run(path) for path in self._play(play)], other_topology=other_topology)
        self.played.append(played)
        if play.promises:
            played.runs = [_judged(run, play.promises, play.expected) for run in played.runs]
        return played

    @abstractmethod
    def _play(self, play: Play) -> list[Path]:
        """-> the run directories, one per outcome"""

    def folder(self, play: Play, choice: int = 0) -> Path:
        """A fresh directory for one run."""
        import shutil

        again = f".{len(self.played) + 1}" if self.played else ""  # a scenario may play more than once
        name = f"{play.scenario}-{self.name}{again}" + (f"-{choice}" if choice else "")
        path = self.out / "runs" / name.replace("/", "_")
        if path.exists():
            shutil.rmtree(path)
        (path / "journals").mkdir(parents=True)
        save(path / "play.json", msgspec.structs.replace(play, choice=choice))
        return path

    def close(self) -> None:  # noqa: B027 - most worlds keep nothing
        """End whatever the world keeps between plays."""


def shared(workload: Workload, topology: Topology) -> Workload:
    """The same where nobody can count the steps of its engines alone: they step together, or have several clients.

    Raises PlanError for one that has to.
    """
    if len(topology.clients_of(topology.engines[0].index)) == 1 and not any(
            hub.lockstep for hub in topology.coordinators):
        return workload
    *first, _ = workload.played().phases
    if any(phase.behind is None for phase in first) or any(phase.steps for phase in workload.phases):
        raise PlanError("its workload counts steps, and they are not those of one client alone")
    return msgspec.structs.replace(workload, free=True)


def _judged(run: Run, promises: tuple[str, ...], expected: dict[str, Verdict]) -> Run:
    """The same run with its promises on record and its verdicts beside them."""
    play = msgspec.structs.replace(run.play, promises=promises, expected=expected)
    judgement = judge(play, run.lab, run.journals)
    save(run.path / "play.json", play)
    save(run.path / "verdicts.json", judgement)
    return Run(run.path, play, run.lab, run.journals, judgement)


def _sentence(side: Side) -> str:
    run, cell = side.telling
    why = "; ".join(evidence.text for evidence in cell.evidence[:3]) or "no witness"
    declared = side.expected.value if side.expected else "not BROKEN"
    return f"{run.name}: {side.guarantee} is {side.verdict.value}, declared {declared}: {why}"


def replay_command(run: Run) -> str:
    return f"ringtwin replay {shlex.quote(str(run.path))}"


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """While a play or a page is made: records by the thousand stay, and the collector would look at them in vain."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

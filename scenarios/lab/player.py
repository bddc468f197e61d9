"""Plays scenarios in worlds, for the command line and for pytest alike.

Promises
- Whatever a scenario does, `play` returns a `ScenarioResult`: as declared, broken, not played (with the reason), or a
  failure of the harness. Only Ctrl-C and its like pass through.
- A failure of the harness is a run like any other, with its reason in `lab.failure`, so that no report can be
  made without it.
- A world is made when it is first needed; the module of a world that nobody asks for is never imported.
"""

from __future__ import annotations

import shlex
import time
import traceback
from pathlib import Path

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan, PlanError
from scenarios.history.play import Lab, Play
from scenarios.history.run import Run
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import Scenario
from scenarios.lab.settings import lab_config
from scenarios.worlds import base
from scenarios.worlds.base import BrokenPromiseError, NotHereError, PlayedRun, World
from scenarios.worlds.registry import WORLDS


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how scenarios are played. `tp`, `pp`, `dp`, `clients` None: as each scenario says."""

    out: Path
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    clients: int | None = None
    lockstep: bool = False  # of several engines
    coordinator: bool = False
    seed: int = 0
    unsteady: float = 0.0  # as `Play` has it
    device: str = "auto"


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario in one world."""

    scenario: str
    world: str
    runs: list[Run] = []
    seconds: float = 0.0
    broken: str | None = None  # what is not as declared
    skipped: str | None = None  # why it was not played
    failure: str | None = None  # the harness failed


class Worlds:
    """The worlds of one session, made when they are needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._made: dict[str, World] = {}

    def open(self, name: str, scenario: Scenario | None = None) -> World:
        """The world of this name, ready to play this scenario."""
        world = self._made.get(name)
        if world is None:
            settings = self.settings
            world = self._made[name] = WORLDS[name].make(
                settings.out, tp=settings.tp, pp=settings.pp, dp=settings.dp, clients=settings.clients,
                lockstep=settings.lockstep, coordinator=settings.coordinator, seed=settings.seed,
                unsteady=settings.unsteady, device=settings.device)
        world.played = []
        if scenario is not None:
            world.scenario, world.title = scenario.name, scenario.title
        return world

    def close(self) -> None:
        """End what the worlds keep; with a real one, every process this lab ever started."""
        if not all(world.virtual_time for world in self._made.values()):
            from scenarios.lab import home

            home.end()  # first: a fork server outlives its children, and a play that was cut off may have left some
        for world in self._made.values():
            world.close()
        self._made = {}


def play(scenario: Scenario, world: World) -> ScenarioResult:
    """Play one scenario in one world, opened for it."""
    began = time.monotonic()
    broken = failure = None
    if (skipped := scenario.not_played_in(world.name)) is None:
        try:
            scenario.function(world, **scenario.parameters)
        except BrokenPromiseError as error:
            broken = str(error)
        except Exception as error:
            skipped = fits(world, error)
            if skipped is None:
                failure = why(error)
    runs = [run for played in world.played for run in played.runs]
    if failure is not None:
        runs = failed(runs, failure, world)
    elif skipped is None and not runs:
        failure = "the scenario played nothing"
        runs = failed([], failure, world)
    return ScenarioResult(scenario=scenario.name, world=world.name, runs=runs, seconds=time.monotonic() - began,
                          broken=broken, skipped=skipped, failure=failure)


def replay(play: Play, world: World) -> ScenarioResult:
    """Play what was recorded, and hold it against what was declared then."""
    began = time.monotonic()
    world.scenario, world.title = play.scenario, play.title
    failure = None
    try:
        played = world.replay(play)
        if not play.promises:
            judge_by(played, play.expected)
        runs = played.runs
    except (PlanError, BrokenPromiseError):
        raise
    except Exception as error:
        failure = why(error)
        runs = failed([run for played in world.played for run in played.runs], failure, world)
    return ScenarioResult(scenario=play.scenario, world=world.name, runs=runs, seconds=time.monotonic() - began,
                          failure=failure)


def judge_by(played: PlayedRun, expected: dict[str, Verdict]) -> None:
    """Every guarantee that applies is judged; what is not as expected is seen in the cells, not raised."""
    try:
        played.holds(**{name.replace("-", "_"): verdict for name, verdict in expected.items()})
    except BrokenPromiseError:
        pass


def why(error: Exception) -> str:
    """One line, with the place where it came from."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"


def fits(world: World, error: BaseException) -> str | None:
    """Why a plan cannot be played in this world, or with the ranks that were asked for; None where the scenario itself
    is wrong.
    """
    if isinstance(error, NotHereError):
        return str(error)
    asked = {"ranks": world.tp, "stages": world.pp, "engines": world.dp, "clients": world.clients}
    if isinstance(error, PlanError) and any(asked.values()):
        of = " and ".join(f"{count} {name}" for name, count in asked.items() if count)
        return f"does not fit a topology of {of}: {error}"
    return None


def failed(runs: list[Run], reason: str, world: World) -> list[Run]:
    """The runs so far, the last one marked as a failure of the harness; one is made up where there is none."""
    if runs:
        last = runs[-1]
        return [*runs[:-1], Run(last.path, last.play, msgspec.structs.replace(last.lab, failure=reason), last.journals,
                                None)]
    play = Play(scenario=world.scenario, title=world.title, world=world.name, topology=tensor_parallel(world.tp or 2),
                workload={}, plan=Plan(), config=lab_config(), promises=(), virtual_time=world.virtual_time)
    nowhere = world.out / "runs" / f"{world.scenario}-{world.name}"
    return [Run(nowhere, play, Lab(began_at=0.0, ended_at=0.0, processes=[], leftovers=[], failure=reason), [], None)]


def replay_command(run: Run) -> str:
    """The one command that plays this run again."""
    if run.lab.failure is None or (run.path / "play.json").exists():
        return base.replay_command(run)
    return f"ringtwin run --scenario {shlex.quote(run.play.scenario)} --world {run.play.world}"


def repeat_command(world: World) -> str:
    """The same for a scenario that left no run."""
    runs = [run for played in world.played for run in played.runs]
    if runs:
        return replay_command(runs[-1])
    return f"ringtwin run --scenario {shlex.quote(world.scenario)} --world {world.name}"

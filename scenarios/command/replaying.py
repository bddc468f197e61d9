"""`ringtwin replay`: what a plan on its own is played with, where, and how often its verdicts were the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.history.play import Play
from scenarios.lab.player import ScenarioResult, Settings, Worlds, replay
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded

#: What a plan on its own is played with: nothing else happens than what the plan says.
CALM_WORKLOAD = "eight-even"


def play_of(plan: Plan, path: Path) -> Play:
    """A plan on its own, as a play. Its subscribers are those that it names. Raises PlanError."""
    subscribers = int(any("subscriber." in fault.site for fault in plan.faults))
    topology = tensor_parallel(2, subscribers=subscribers)
    plan.check(topology)
    config = lab_config(tensor_parallel_size=2, kv_events={"enable_kv_cache_events": bool(subscribers)})
    return Play(scenario=path.stem, title=f"The plan {path.name} with a calm workload", world="", topology=topology,
                workload=msgspec.to_builtins(recorded(CALM_WORKLOAD).played()), plan=plan, config=config, promises=())


def promising(play: Play, names: Sequence[str]) -> Play:
    """The same, with these promises too. What is declared to turn out otherwise stays declared."""
    more = [name for name in names if name not in play.declared]
    return msgspec.structs.replace(play, promises=(*play.promises, *more))


def inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def fresh(out: Path) -> Path:
    number = 1
    while (out / str(number)).exists():
        number += 1
    (out / str(number)).mkdir()
    return out / str(number)


def again(play: Play, times: int, out: Path, edits: Sequence[str] = ()) -> list[ScenarioResult]:
    """The same so often, each time in a folder of its own; with functions of an engine that is not ours changed."""
    play = msgspec.structs.replace(play, options=msgspec.structs.replace(play.options, edits=tuple(edits)))
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for _ in range(times):
        with closing(Worlds(Settings(out=fresh(out), seed=play.seed))) as worlds:
            results.append(replay(play, worlds.open(play.world)))
    return results


def repeated(results: Sequence[ScenarioResult]) -> str:
    """How often the verdicts were the same."""
    seen: dict[tuple[object, ...], int] = {}
    for result in results:
        key = (result.world, *sorted((cell.guarantee, cell.verdict.value) for run in result.runs if run.judgement
                                      for cell in run.judgement.cells))
        seen[key] = seen.get(key, 0) + 1
    lines = []
    for name in dict.fromkeys(result.world for result in results):
        times = sorted((count for key, count in seen.items() if key[0] == name), reverse=True)
        lines.append(f"{name}: {times[0]} of {sum(times)} with the same verdicts"
                     + (f", {len(times) - 1} other outcomes" if len(times) > 1 else ""))
    return "\n".join(lines)

"""The report as data: `results.json`, the agreement of the worlds, the exit code.

    {"scenarios": [{"name", "world", "verdicts": [{"guarantee", "verdict", "expected", "witnesses", "evidence"}],
                    "faults": [{"id", "fired"}], "seconds", "run"}],
     "agreement": {...}, "counts": {...}}

Exit codes: 0 every cell is as declared, else the first that applies of 3 (the harness failed), 1 (a broken
promise, a canary that was not caught, or a disagreement of the worlds), 2 (something is not known).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from reports.collect import Scenario, Side, cells_of, collect, harness_failure, unfired
from scenarios.history.run import Run, Verdict

DECISIVE = frozenset({Verdict.HELD, Verdict.BROKEN})


def results(runs: Sequence[Run], base: Path | None = None) -> dict[str, Any]:
    """The whole report as one JSON object. `base`: run paths inside it are written relative to it."""
    return {
        "scenarios": [_entry(run, base) for run in runs],
        "agreement": agreement(runs),
        "counts": counts(runs),
    }


def write_results(runs: Sequence[Run], out: Path, base: Path | None = None) -> None:
    out.write_bytes(msgspec.json.format(msgspec.json.encode(results(runs, base)), indent=1) + b"\n")


def _entry(run: Run, base: Path | None) -> dict[str, Any]:
    fired = {receipt.id: receipt.fired for receipt in run.judgement.faults} if run.judgement else {}
    path = run.path.relative_to(base) if base is not None and run.path.is_relative_to(base) else run.path
    entry = {
        "name": run.play.scenario,
        "world": run.play.world,
        "verdicts": [
            {"guarantee": cell.guarantee, "verdict": cell.verdict.value,
             "expected": cell.expected.value if cell.expected else None, "witnesses": cell.witnesses,
             "evidence": msgspec.to_builtins(cell.evidence)}
            for cell in cells_of(run)
        ],
        "faults": [{"id": fault.id, "fired": fired.get(fault.id, False)} for fault in run.play.plan.faults],
        "seconds": run.judgement.seconds if run.judgement else run.lab.ended_at - run.lab.began_at,
        "run": str(path),
    }
    if run.play.choice:
        entry["choice"] = run.play.choice
    if failure := harness_failure(run):
        entry["failure"] = failure
    return entry


def agreement(runs: Sequence[Run]) -> dict[str, Any]:
    """Where the worlds agree, disagree, or cannot be compared; see `disagree` for the rule."""
    compared, disagreements, differences, alone = 0, [], [], []
    for scenario in collect(runs):
        if not {"sim", "engine"} <= set(scenario.worlds):
            alone.append({"scenario": scenario.name, "worlds": scenario.worlds})
            continue
        for guarantee, worlds in scenario.sides.items():
            sim, engine = worlds.get("sim"), worlds.get("engine")
            entry = {"scenario": scenario.name, "guarantee": guarantee,
                     "sim": _values(sim), "engine": _values(engine)}
            if disagree(sim, engine):
                disagreements.append(entry)
            elif comparable(sim, engine):
                compared += 1
            elif set(entry["sim"]) != set(entry["engine"]):
                differences.append(entry)
    return {"agreed": compared, "disagreed": len(disagreements), "disagreements": disagreements,
            "differences": differences, "played_in_one_world": alone}


def _values(side: Side | None) -> list[str]:
    return [verdict.value for verdict in side.verdicts] if side else []


def comparable(sim: Side | None, engine: Side | None) -> bool:
    """Both worlds reached HELD or BROKEN at least once."""
    return bool(sim and engine and DECISIVE & set(sim.verdicts) and DECISIVE & set(engine.verdicts))


def disagree(sim: Side | None, engine: Side | None) -> bool:
    """One says HELD, the other BROKEN, and the engine's verdict is not among the twin's."""
    if not comparable(sim, engine):
        return False
    return any(verdict not in sim.verdicts for verdict in engine.verdicts if verdict in DECISIVE)


def counts(runs: Sequence[Run]) -> dict[str, Any]:
    """All counts of the report: promised cells and canaries by verdict, per world and together."""
    scenarios = collect(runs)
    sides = [side for scenario in scenarios for side in scenario.all_sides()]
    worlds = sorted({side.world for side in sides})
    faults = [fault for run in runs for fault in run.play.plan.faults]
    return {
        "scenarios": len(scenarios),
        "runs": len(runs),
        "promised": _by_verdict([side for side in sides if side.promised]),
        "promised_by_world": {
            world: _by_verdict([side for side in sides if side.promised and side.world == world]) for world in worlds},
        "guarantees_promised": len({side.guarantee for side in sides if side.promised}),
        "guarantees_held": {
            world: len({side.guarantee for side in sides
                        if side.promised and side.world == world and side.verdict is Verdict.HELD})
            for world in worlds},
        "broken_without_a_promise": sum(side.expected is None and not side.as_declared for side in sides),
        "canaries": {"declared": sum(side.canary for side in sides),
                     "as_declared": sum(side.canary and side.as_declared for side in sides)},
        "faults": {"planned": len(faults), "not_fired": sum(len(unfired(run)) for run in runs)},
        "harness_failures": sum(harness_failure(run) is not None for run in runs),
        "exit_code": exit_code(runs),
    }


def _by_verdict(sides: Sequence[Side]) -> dict[str, int]:
    found = Counter(side.verdict for side in sides)
    return {"cells": len(sides)} | {verdict.value: found[verdict] for verdict in Verdict}


def exit_code(runs: Sequence[Run]) -> int:
    """0 as declared, 3 harness failure (also: no runs at all), 1 broken or disagreeing, 2 not known."""
    if not runs or any(harness_failure(run) for run in runs):
        return 3
    scenarios = collect(runs)
    astray = [side for scenario in scenarios for side in scenario.all_sides() if not side.as_declared]
    if any(side.verdict in DECISIVE for side in astray) or disagreements(scenarios):
        return 1
    # What is left astray is UNKNOWN, UNTESTED or OUTSIDE where something else was declared: nothing was learnt.
    return 2 if astray or any(unfired(run) for run in runs) else 0


def disagreements(scenarios: Sequence[Scenario]) -> list[tuple[Scenario, str]]:
    return [(scenario, guarantee) for scenario in scenarios for guarantee, worlds in scenario.sides.items()
            if disagree(worlds.get("sim"), worlds.get("engine"))]


"""The report as data: `results.json`, the agreement of the worlds, the exit code.

    {"schema": 1,
     "provenance": {"runs", "known", "first", "last", "hosts", "commits", "commands", "versions", ...},
     "scenarios": [{"name", "world", "verdicts": [{"guarantee", "verdict", "expected", "witnesses", "evidence"}],
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

from reports.collect import collect, disagreements
from reports.provenance import origin_of
from reports.views.beside import besides
from scenarios.history.play import OTHERS
from scenarios.history.run import Run
from scenarios.history.sides import Side, cells_of, comparable, disagree
from scenarios.history.verdicts import DECISIVE, Verdict

#: Of this file. A reader of results that do not say it has those from before they told where they come from.
SCHEMA = 1


def results(runs: Sequence[Run], base: Path | None = None, unplayed: int = 0) -> dict[str, Any]:
    """The whole report as one JSON object. `base`: run paths inside it are written relative to it."""
    found = {
        "schema": SCHEMA,
        "provenance": msgspec.to_builtins(origin_of(runs)),
        "scenarios": [_entry(run, base) for run in runs],
        "agreement": agreement(runs),
        "counts": counts(runs),
    }
    if others := besides(runs):
        found["beside"] = msgspec.to_builtins(others)
    return found | ({"unplayed": unplayed} if unplayed else {})


def write_results(runs: Sequence[Run], out: Path, base: Path | None = None, unplayed: int = 0) -> None:
    out.write_bytes(readable(results(runs, base, unplayed)) + b"\n")


def readable(found: Any) -> bytes:
    """As JSON that a person can read, too."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


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
        "seconds": run.seconds,
        "run": str(path),
    }
    if run.play.choice:
        entry["choice"] = run.play.choice
    if run.play.options.edits:
        entry["edits"] = list(run.play.options.edits)
    if run.failure:
        entry["failure"] = run.failure
    return entry


def agreement(runs: Sequence[Run]) -> dict[str, Any]:
    """Where the worlds agree, disagree, or cannot be compared; `scenarios/history/sides.py` has the rule."""
    compared, disagreements, differences, alone = 0, [], [], []
    # Of engines that are not ours another verdict is no disagreement: `reports/views/beside.py` tells of it.
    for scenario in collect(runs):
        if len(scenario.worlds) < 2:
            alone.append({"scenario": scenario.name, "worlds": scenario.worlds})
            continue
        mine = [world for world in scenario.worlds if world not in OTHERS]
        for guarantee, worlds in scenario.sides.items() if len(mine) > 1 else ():
            sides = scenario.of_guarantee(guarantee)
            said = {world: _values(worlds.get(world)) for world in mine}
            entry = {"scenario": scenario.name, "guarantee": guarantee} | said
            if disagree(sides):
                disagreements.append(entry)
            elif comparable(sides):
                compared += 1
            elif len({frozenset(values) for values in said.values()}) > 1:
                differences.append(entry)
    return {"agreed": compared, "disagreed": len(disagreements), "disagreements": disagreements,
            "differences": differences, "played_in_one_world": alone}


def _values(side: Side | None) -> list[str]:
    return [verdict.value for verdict in side.verdicts] if side else []


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
        "faults": {"planned": len(faults), "not_fired": sum(len(run.unfired) for run in runs)},
        "harness_failures": sum(run.failure is not None for run in runs),
        "exit_code": exit_code(runs),
    }


def _by_verdict(sides: Sequence[Side]) -> dict[str, int]:
    found = Counter(side.verdict for side in sides)
    return {"cells": len(sides)} | {verdict.value: found[verdict] for verdict in Verdict}


def exit_code(runs: Sequence[Run]) -> int:
    """0 as declared, 3 harness failure (also: no runs at all), 1 broken or disagreeing, 2 not known."""
    if not runs or any(run.failure for run in runs):
        return 3
    scenarios = collect(runs)
    astray = [side for scenario in scenarios for side in scenario.all_sides() if not side.as_declared]
    if any(side.verdict in DECISIVE for side in astray) or disagreements(scenarios):
        return 1
    # What is left astray is UNKNOWN, UNTESTED or OUTSIDE where something else was declared: nothing was learnt.
    return 2 if astray or any(run.unfired for run in runs) else 0

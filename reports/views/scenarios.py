"""Scenarios in full: what each world says of every guarantee, why, and what happened in every run.

A scenario is rendered by itself, because the page keeps it packed until it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from markupsafe import Markup

from reports.charts.group.load import Load, load_charts
from reports.charts.group.ranks import Lanes, rank_charts
from reports.charts.kv_timeline import Mirror, mirrors_of
from reports.charts.notable import Moment, moments_of
from reports.charts.svg import drawing, line, tag
from reports.charts.timeline import Chart, sequence_chart
from reports.charts.topology import Picture, topology_chart
from reports.collect import PlayedScenario, Promise
from reports.formats import clock, count, duration
from reports.matrix import Half, anchor, grade_of, half_of, worst
from scenarios.history.run import Run
from scenarios.history.sides import Side, disagree
from scenarios.history.verdicts import Verdict

MOST_EVIDENCE = 6
BAR = 132.0  # pixels that stand for the bound
#: Calm runs have nothing near which a message would matter more: fewer of them say the same.
CAP, CALM_CAP = 150, 60


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence, ready to print."""

    text: str
    where: str  # "0.412 s, worker.1", or empty
    times: str  # "19 ms of 100 ms allowed", or empty
    bar: Markup | None


class RunFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One guarantee on one run."""

    world: str
    half: Half
    run: str  # the run's anchor
    choice: str  # which of the twin's outcomes, where it played several
    witnesses: str
    reasons: list[Reason]
    times: str
    bar: Markup | None


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the matrix in full."""

    anchor: str
    promise: Promise
    halves: list[Half]
    findings: list[RunFinding]
    disagree: bool
    grade: str


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    anchor: str
    world: str
    choice: str
    ended: str
    seconds: str
    failure: str | None
    faults: list[str]
    unfired: list[str]
    kills: bool  # the lab itself, as the play asks
    replay: str
    moments: list[Moment]
    topology: Picture | None
    loads: list[Load]
    ranks: list[Lanes]
    chart: Chart
    mirrors: list[Mirror]
    torn: list[str]
    leftovers: list[str]


class ScenarioView(msgspec.Struct, frozen=True, kw_only=True):
    scenario: PlayedScenario
    anchor: str
    declared: list[Detail]  # promised, canary, or worth a look
    held: list[Detail]  # held without a promise
    quiet: list[Detail]  # untested, outside or unknown where nothing was promised
    runs: list[RunView]
    astray: int
    grade: str


def scenario_view(scenario: PlayedScenario, words: Mapping[str, Promise], anchors: Mapping[int, str],
                  several: set[tuple[str, str]], replay_command: Callable[[Run], str]) -> ScenarioView:
    """`anchors`: of runs, by their identity; `several`: (scenario, world) that was played more than once."""
    declared, held, quiet = [], [], []
    for guarantee, promise in words.items():
        ordered = scenario.of_guarantee(guarantee)
        if not ordered:
            continue
        detail = _detail(scenario, promise, ordered, anchors, several)
        if detail.disagree or any(side.expected is not None or not side.as_declared for side in ordered):
            declared.append(detail)
        elif any(side.verdict is Verdict.HELD for side in ordered):
            held.append(detail)
        else:
            quiet.append(detail)
    declared.sort(key=lambda detail: ["bad", "open", ""].index(detail.grade))
    runs = [_run(run, anchors, (scenario.name, run.play.world) in several, replay_command) for run in scenario.runs]
    grades = [detail.grade for detail in declared] + ["bad" if r.failure else "open" if r.unfired else "" for r in runs]
    return ScenarioView(
        scenario=scenario, anchor=f"s{scenario.number}", declared=declared, held=held, quiet=quiet, runs=runs,
        astray=sum(map(bool, grades)), grade=worst(grades))


def _detail(scenario: PlayedScenario, promise: Promise, sides: Sequence[Side], anchors: Mapping[int, str],
            several: set[tuple[str, str]]) -> Detail:
    return Detail(
        anchor=anchor(scenario, promise.id), promise=promise, halves=[half_of(side) for side in sides],
        findings=[_finding(side, index, anchors, (scenario.name, side.world) in several)
                  for side in sides for index in range(len(side.cells))],
        disagree=disagree(sides), grade=grade_of(sides))


def _finding(side: Side, index: int, anchors: Mapping[int, str], several: bool) -> RunFinding:
    run, cell = side.cells[index]
    alone = msgspec.structs.replace(side, verdict=cell.verdict, cells=[(run, cell)])
    origin = run.history.began_at
    reasons = []
    for evidence in cell.evidence[:MOST_EVIDENCE]:
        where = [clock(evidence.at - origin)] if evidence.at is not None else []
        where += [evidence.node] if evidence.node else []
        same = (evidence.bound, evidence.measured) == (cell.bound, cell.measured)
        times, bar = ("", None) if same else _times(evidence.bound, evidence.measured)
        reasons.append(Reason(text=evidence.text, where=", ".join(where), times=times, bar=bar))
    if len(cell.evidence) > MOST_EVIDENCE:
        reasons.append(Reason(text=f"and {len(cell.evidence) - MOST_EVIDENCE} more", where="", times="", bar=None))
    times, bar = _times(cell.bound, cell.measured)
    return RunFinding(world=side.world, half=half_of(alone), run=anchors[id(run)],
                   choice=f"outcome {run.play.choice}" if several else "",
                   witnesses="no witness" if not cell.witnesses else count(cell.witnesses, "witness", "witnesses"),
                   reasons=reasons, times=times, bar=bar)


def _times(bound: float | None, measured: float | None) -> tuple[str, Markup | None]:
    """Measured against the bound, as words and as a bar whose tick is the bound."""
    if measured is None:
        return (f"{duration(bound)} allowed", None) if bound is not None else ("", None)
    if bound is None or bound <= 0:
        return f"{duration(measured)} measured", None
    late = measured > bound
    words = f"{duration(measured)} of {duration(bound)} allowed" + (": too late" if late else "")
    scale = BAR / max(bound, measured)
    full = max(1.5, measured * scale)
    parts = [tag("rect", x=1, y=4, width=BAR, height=6, rx=3, class_="track"),
             tag("rect", x=1, y=4, width=full, height=6, rx=3, class_="late" if late else "fill"),
             line(1.0 + bound * scale, 0.0, 1.0 + bound * scale, 14.0, "tick")]
    return words, drawing(BAR + 3.0, 14.0, words, "bar", parts)


def _run(run: Run, anchors: Mapping[int, str], several: bool, replay_command: Callable[[Run], str]) -> RunView:
    fired = {receipt.id: receipt.fired for receipt in run.judgement.faults} if run.judgement else {}
    moments = moments_of(run)
    return RunView(
        anchor=anchors[id(run)], world=run.play.world, choice=f"outcome {run.play.choice}" if several else "",
        ended=run.judgement.ended if run.judgement else "not judged",
        seconds=duration(run.seconds),
        failure=run.failure, unfired=run.unfired, replay=replay_command(run), moments=moments[:40],
        kills=run.play.options.kill_all_then_restart,
        faults=[f"{fault.id}: {fault.fate.value} at {fault.site}, crossing {fault.nth}"
                + (f", {fault.times} times" if fault.times > 1 else "")
                + ("" if fired.get(fault.id) else " (did not fire)") for fault in run.play.plan.faults],
        topology=topology_chart(run), loads=load_charts(run), ranks=rank_charts(run),
        chart=sequence_chart(run, CAP if run.play.plan.faults else CALM_CAP, anchors[id(run)]), mirrors=mirrors_of(run),
        torn=[f"{journal.node}, life {journal.life}" for journal in run.journals if journal.torn],
        leftovers=list(run.lab.leftovers))

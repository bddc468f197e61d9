"""One self-contained HTML page: the answer, the matrix, every cell's reasons, every run's chart.

Promises of this file:
- The page asks nobody for anything: no font, script, style or image from outside.
- It is whole without JavaScript; the script only copies commands, opens what a link points into, and moves
  through the matrix with the arrow keys.
- Every text that comes from a run is escaped: a run may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from reports.answer import Answer, Trouble, answer
from reports.charts.detection_times import detections_of, strip
from reports.charts.kv_timeline import Mirror, mirrors_of
from reports.charts.notable import Moment, moments_of
from reports.charts.svg import drawing, line, tag
from reports.charts.timeline import Chart, sequence_chart
from reports.collect import PlayedScenario, Promise, collect, guarantees_of
from reports.formats import clock, count, duration, listed
from reports.matrix import GLYPHS, Half, anchor, grade_of, half_of, matrix, worst
from reports.measured import Score, measured
from reports.results import agreement, counts
from reports.unseen import blind_of, places_of
from scenarios.history.run import Run
from scenarios.history.sides import Side, disagree
from scenarios.history.verdicts import Verdict
from scenarios.worlds.registry import in_order, known

TEMPLATES = Path(__file__).parent / "templates"
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
    chart: Chart
    mirrors: list[Mirror]
    torn: list[str]
    leftovers: list[str]


class ScenarioView(msgspec.Struct, frozen=True, kw_only=True):
    scenario: PlayedScenario
    anchor: str
    name: str
    declared: list[Detail]  # promised, canary, or worth a look
    held: list[Detail]  # held without a promise
    quiet: list[Detail]  # untested, outside or unknown where nothing was promised
    runs: list[RunView]
    astray: int
    grade: str


def write_page(runs: Sequence[Run], promises: Mapping[str, Promise], out: Path,
               replay_command: Callable[[Run], str], unplayed: int = 0) -> None:
    """Write the report, whole or not at all."""
    temporary = out.with_name(out.name + ".part")
    temporary.write_text(render(runs, promises, replay_command, unplayed), encoding="utf-8")
    temporary.replace(out)


def render(runs: Sequence[Run], promises: Mapping[str, Promise], replay_command: Callable[[Run], str],
           unplayed: int = 0) -> str:
    """The page as text. `unplayed`: plays that were asked for and are not among the runs."""
    scenarios = collect(runs)
    said = answer(runs, unplayed)
    judged = guarantees_of(scenarios, promises)
    several = {(s.name, world) for s in scenarios for world in s.worlds if len(s.of(world)) > 1}
    words = {promise.id: promise for promise in judged}
    anchors = {id(run): f"r{s.number}-{place}" for s in scenarios for place, run in enumerate(s.runs, 1)}
    views = [_scenario(s, words, anchors, several, replay_command) for s in scenarios]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.globals.update(count=count, duration=duration, clock=clock, listed=listed, world_word=_world_word,
                               short=short_name, GLYPHS=GLYPHS, Verdict=Verdict,
                               share=_share, within=_within)
    bounds = [run.play.config.bounds.detection_s for run in runs
              if any(fault.fate.value == "kill" for fault in run.play.plan.faults)]
    return environment.get_template("page.html").render(
        answer=said, troubles=[_trouble(t, anchors, replay_command) for t in said.troubles],
        tiles=_tiles(runs, said), matrix=matrix(scenarios, judged), scenarios=views,
        strip=strip(detections_of(scenarios, lambda run: "#" + anchors[id(run)]), min(bounds, default=None)),
        ledger=[_ledger(promise, scenarios) for promise in judged], agreement=agreement(runs),
        measured=measured(), places=places_of(runs), blind=blind_of(scenarios, judged),
        worlds=[known(name) for name in in_order(run.play.world for run in runs)], versions=_versions(runs),
        css=_inline("style.css"), script=_inline("page.js"))


def _inline(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file


def short_name(name: str) -> str:
    """A test function's name as words, for a narrow column."""
    return name.removeprefix("test_").replace("_", " ")


def _share(score: Score) -> str:
    return f"{100 * score.share:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _within(world: str) -> str:
    return known(world).within


def _world_word(world: str) -> str:
    return known(world).word


def _scenario(scenario: PlayedScenario, words: Mapping[str, Promise], anchors: Mapping[int, str],
              several: set[tuple[str, str]], replay_command: Callable[[Run], str]) -> ScenarioView:
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
        scenario=scenario, anchor=f"s{scenario.number}", name=short_name(scenario.name), declared=declared, held=held,
        quiet=quiet, runs=runs,
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
        chart=sequence_chart(run, CAP if run.play.plan.faults else CALM_CAP, anchors[id(run)]), mirrors=mirrors_of(run),
        torn=[f"{journal.node}, life {journal.life}" for journal in run.journals if journal.torn],
        leftovers=list(run.lab.leftovers))


def _trouble(trouble: Trouble, anchors: Mapping[int, str], replay_command: Callable[[Run], str]) -> dict[str, Any]:
    return {"kind": trouble.kind, "head": trouble.head, "text": trouble.text, "name": trouble.scenario.name,
            "href": "#" + (trouble.anchor or anchors[id(trouble.run)]), "replay": replay_command(trouble.run)}


def _tiles(runs: Sequence[Run], said: Answer) -> list[dict[str, Any]]:
    """The counts under the answer: number, what it counts, how it is painted."""
    numbers, worlds = counts(runs), agreement(runs)
    promised, canaries, faults = numbers["promised"], numbers["canaries"], numbers["faults"]
    tiles = [{"number": f"{promised['HELD']:,}", "of": f"of {promised['cells']:,}", "what": "promises held",
              "look": "held"} if promised["cells"] else
             {"number": "0", "of": "", "what": "promises made", "look": "none"}]
    for verdict, what, look_ in (("BROKEN", "broken", "broken"), ("UNKNOWN", "unknown", "unknown"),
                                 ("UNTESTED", "promised but untested", "unknown"),
                                 ("OUTSIDE", "promised but outside", "unknown")):
        if promised[verdict] or (promised["cells"] and verdict != "OUTSIDE"):
            tiles.append({"number": f"{promised[verdict]:,}", "of": "", "what": what,
                          "look": look_ if promised[verdict] else "none"})
    if numbers["broken_without_a_promise"]:
        tiles.append({"number": f"{numbers['broken_without_a_promise']:,}", "of": "",
                      "what": "broken where nothing was promised", "look": "broken"})
    for name, held in numbers["guarantees_held"].items():
        if not known(name).virtual_time and numbers["guarantees_promised"]:
            tiles.append({"number": f"{held:,}", "of": f"of {numbers['guarantees_promised']:,}",
                          "what": f"guarantees witnessed and held {known(name).within}", "look": "none"})
    compared = worlds["agreed"] + worlds["disagreed"]
    tiles += [
        {"number": f"{worlds['agreed']:,}", "of": f"of {compared:,}",
         "what": "compared cells on which the worlds agree",
         "look": "broken" if worlds["disagreed"] else "none"},
        {"number": f"{faults['planned'] - faults['not_fired']:,}", "of": f"of {faults['planned']:,}",
         "what": "planned faults fired", "look": "unknown" if faults["not_fired"] else "none"},
        {"number": f"{canaries['as_declared']:,}", "of": f"of {canaries['declared']:,}",
         "what": "canary cells as declared",
         "look": "broken" if canaries["as_declared"] < canaries["declared"] else "declared"},
        {"number": f"{said.code}", "of": "", "what": "exit code", "look": "none"},
    ]
    return tiles


def _ledger(promise: Promise, scenarios: Sequence[PlayedScenario]) -> dict[str, Any]:
    """Where one guarantee was promised, and how it went in each world."""
    places = [(s, s.sides[promise.id]) for s in scenarios if promise.id in s.sides]
    worlds = in_order({world for _, sides in places for world in sides})
    tally = []
    for world in worlds:
        mine = [sides[world] for _, sides in places if world in sides and sides[world].promised]
        held = sum(side.verdict is Verdict.HELD for side in mine)
        tally.append({"world": world, "held": held, "promised": len(mine), "good": held == len(mine)})
    return {"promise": promise, "tally": tally,
            "promised_in": [s for s, sides in places if any(side.promised for side in sides.values())],
            "bad": any(not side.as_declared for _, sides in places for side in sides.values())}


def _versions(runs: Sequence[Run]) -> list[str]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, version in run.play.versions.items():
            found.setdefault(name, set()).add(version)
    return [f"{name} {' / '.join(sorted(versions))}" for name, versions in sorted(found.items())]

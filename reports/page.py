"""One self-contained HTML page: the answer, the matrix, every cell's reasons, every run's chart.

Promises of this file:
- The page asks nobody for anything: no font, script, style or image from outside.
- What was found is plain HTML: the answer, what needs a person, the matrix, the guarantees. What happened in a scenario
  (evidence, moments, charts) lies packed in the same file, and a script unpacks it when it is opened.
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
from reports.charts.topology import CHANNELS
from reports.collect import PlayedScenario, Promise, collect, guarantees_of
from reports.formats import clock, count, duration, listed
from reports.matrix import GLYPHS, matrix
from reports.measured import Score, measured
from reports.provenance import line_of, origin_of, rows_of
from reports.results import SCHEMA, agreement, counts
from reports.views.beside import besides
from reports.views.causes import Cause, causes
from reports.views.packing import block, packed
from reports.views.scenarios import scenario_view
from reports.views.templates import environment, inline
from reports.views.unseen import Touched, blind_of, places_of, touched_by
from scenarios.history.run import Run
from scenarios.history.verdicts import Verdict
from scenarios.worlds.registry import in_order, known

#: Causes that are shown at once; and scenarios with something to look at, up to which they are.
MOST_CAUSES, MOST_OPEN = 10, 5


def in_turn(count: int, work: Callable[[int], Any]) -> list[Any]:
    return [work(number) for number in range(count)]


#: How many there are, what to do for the number of each -> what came of it, in their order.
Each = Callable[[int, Callable[[int], Any]], list[Any]]


class Filed(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says of a scenario at once, and its evidence, packed."""

    anchor: str
    grade: str
    astray: int
    packet: str
    touched: list[Touched]  # by each run


def write_page(runs: Sequence[Run], promises: Mapping[str, Promise], out: Path,
               replay_command: Callable[[Run], str], unplayed: int = 0, each: Each = in_turn) -> None:
    """Write the report, whole or not at all."""
    temporary = out.with_name(out.name + ".part")
    temporary.write_text(render(runs, promises, replay_command, unplayed, each), encoding="utf-8")
    temporary.replace(out)


def render(runs: Sequence[Run], promises: Mapping[str, Promise], replay_command: Callable[[Run], str],
           unplayed: int = 0, each: Each = in_turn) -> str:
    """The page as text. `unplayed`: plays that were asked for and are not among the runs. `each`: who does what
    there is to do for each scenario; several may, at once.
    """
    scenarios = collect(runs)
    said = answer(runs, unplayed)
    judged = guarantees_of(scenarios, promises)
    several = {(s.name, world) for s in scenarios for world in s.worlds if len(s.of(world)) > 1}
    words = {promise.id: promise for promise in judged}
    anchors = {id(run): f"r{s.number}-{place}" for s in scenarios for place, run in enumerate(s.runs, 1)}
    templates = _templates()
    evidence = templates.get_template("scenario.html")

    def filed(number: int) -> Filed:
        view = scenario_view(scenarios[number], words, anchors, several, replay_command)
        return Filed(anchor=view.anchor, grade=view.grade, astray=view.astray, packet=packed(evidence.render(s=view)),
                     touched=[touched_by(run) for run in scenarios[number].runs])

    files = each(len(scenarios), filed)
    bounds = [run.play.config.bounds.detection_s for run in runs
              if any(fault.fate.value == "kill" for fault in run.play.plan.faults)]
    origin = origin_of(runs)
    return templates.get_template("page.html").render(
        answer=said, causes=[_cause(cause, f"k{number}", anchors, replay_command)
                             for number, cause in enumerate(causes(said.troubles), 1)],
        most_causes=MOST_CAUSES, origin=line_of(origin), origins=rows_of(origin, SCHEMA),
        tiles=_tiles(runs, said), matrix=matrix(scenarios, judged), scenarios=list(zip(files, scenarios, strict=True)),
        opened=_opened(files), evidence=Markup(block({file.anchor: file.packet for file in files})),  # noqa: S704
        strip=strip(detections_of(scenarios, lambda run: anchors[id(run)]), min(bounds, default=None)),
        ledger=[_ledger(promise, scenarios) for promise in judged], agreement=agreement(runs),
        besides=besides(runs),
        measured=measured(), channels=CHANNELS,
        places=places_of(touched for file in files for touched in file.touched), blind=blind_of(scenarios, judged),
        worlds=[known(name) for name in in_order(run.play.world for run in runs)],
        css=inline("style.css"), script=inline("page.js"))


def _templates() -> jinja2.Environment:
    templates = environment()
    templates.globals.update(count=count, duration=duration, clock=clock, listed=listed, world_word=_world_word,
                             short=short_name, GLYPHS=GLYPHS, Verdict=Verdict, share=_share, within=_within)
    return templates


def _opened(files: Sequence[Filed]) -> set[str]:
    """Few scenarios that need a person are open from the start; many would bury each other."""
    astray = {file.anchor for file in files if file.astray}
    return astray if len(astray) <= MOST_OPEN else set()


def short_name(name: str) -> str:
    """A test function's name as words, for a narrow column."""
    return name.removeprefix("test_").replace("_", " ")


def _share(score: Score) -> str:
    return f"{100 * score.share:.1f} % ({100 * score.low:.1f} to {100 * score.high:.1f})"


def _within(world: str) -> str:
    return known(world).within


def _world_word(world: str) -> str:
    return known(world).word


def _cause(cause: Cause, name: str, anchors: Mapping[int, str], replay_command: Callable[[Run], str],
           ) -> dict[str, Any]:
    return {"cause": cause, "anchor": name, "first": _row(cause.first, anchors),
            "replay": replay_command(cause.first.run), "rows": [_row(row, anchors) for row in cause.rows]}


def _row(trouble: Trouble, anchors: Mapping[int, str]) -> dict[str, Any]:
    """`to`: where a script leads; without one the scenario is as near as a link gets."""
    return {"name": trouble.scenario.name, "world": trouble.run.play.world, "guarantee": trouble.guarantee,
            "when": "" if trouble.at is None else clock(trouble.at), "number": trouble.scenario.number,
            "to": trouble.anchor or anchors[id(trouble.run)]}


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

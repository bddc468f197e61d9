"""JUnit XML: one test case per scenario and world, so that any CI shows what broke.

A case fails where a promise is broken, a canary was not caught or something is not known, and is an error
where the harness failed. The last line of every failure is the command that replays it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from reports.collect import Scenario, Side, collect, harness_failure, unfired
from reports.results import disagree
from scenarios.history.run import Run

#: XML 1.0 has no way to write these characters, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(runs: Sequence[Run], out: Path, replay_command: Callable[[Run], str]) -> None:
    out.write_bytes(junit(runs, replay_command))


def junit(runs: Sequence[Run], replay_command: Callable[[Run], str]) -> bytes:
    """The XML document."""
    suites = ElementTree.Element("testsuites", name="ringtwin")
    scenarios = collect(runs)
    for world in dict.fromkeys(run.play.world for run in runs):
        played = [scenario for scenario in scenarios if world in scenario.worlds]
        cases = [_case(scenario, world, replay_command) for scenario in played]
        suite = ElementTree.SubElement(
            suites, "testsuite", name=world, tests=str(len(cases)),
            failures=str(sum(case.find("failure") is not None for case in cases)),
            errors=str(sum(case.find("error") is not None for case in cases)),
            skipped="0", time=f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
        suite.extend(cases)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _case(scenario: Scenario, world: str, replay_command: Callable[[Run], str]) -> ElementTree.Element:
    runs = scenario.of(world)
    seconds = sum(run.judgement.seconds for run in runs if run.judgement)
    case = ElementTree.Element("testcase", name=_clean(scenario.name), classname=f"scenarios.{world}",
                               time=f"{seconds:.3f}")
    broken_harness = [run for run in runs if harness_failure(run)]
    if broken_harness:
        run = broken_harness[0]
        error = ElementTree.SubElement(case, "error", message=_clean(f"harness: {harness_failure(run)}"))
        error.text = _clean(f"{harness_failure(run)}\n{replay_command(run)}")
        return case
    lines, culprit = _reasons(scenario, world, runs)
    if lines:
        failure = ElementTree.SubElement(case, "failure", message=_clean(lines[0]))
        failure.text = _clean("\n".join([scenario.title, *lines, replay_command(culprit)]))
    return case


def _reasons(scenario: Scenario, world: str, runs: list[Run]) -> tuple[list[str], Run]:
    """What went wrong, a line each, and the run that shows it best."""
    lines: list[str] = []
    culprits: list[Run] = []
    for guarantee, worlds in scenario.sides.items():
        side = worlds.get(world)
        if side and not side.as_declared:
            run, text = blame(side)
            declared = f", declared {side.expected.value}" if side.expected else ""
            lines.append(f"{guarantee}: {side.verdict.value}{declared}" + (f": {text}" if text else ""))
            culprits.append(run)
        if world == "engine" and disagree(worlds.get("sim"), worlds.get("engine")):
            lines.append(f"{guarantee}: the worlds disagree, the twin says "
                         + " or ".join(verdict.value for verdict in worlds["sim"].verdicts))
            culprits.append(worlds["engine"].cells[0][0])
    for run in runs:
        if missing := unfired(run):
            lines.append(f"planned faults did not fire: {', '.join(missing)}")
            culprits.append(run)
    return lines, culprits[0] if culprits else runs[0]


def blame(side: Side) -> tuple[Run, str]:
    """The run that gave the side its verdict, and the first sentence of its evidence."""
    run, cell = next(((run, cell) for run, cell in side.cells if cell.verdict is side.verdict), side.cells[0])
    return run, cell.evidence[0].text if cell.evidence else ""


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)

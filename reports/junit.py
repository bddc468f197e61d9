"""JUnit XML: one test case per scenario and world, so that any CI shows what broke.

A case fails where a promise is broken, a canary was not caught or something is not known, and is an error
where the harness failed. The last line of every failure is the command that replays it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from reports.collect import PlayedScenario, collect
from scenarios.history.run import Run
from scenarios.history.sides import Side, dispute
from scenarios.worlds.registry import known

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
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def _case(scenario: PlayedScenario, world: str, replay_command: Callable[[Run], str]) -> ElementTree.Element:
    runs = scenario.of(world)
    seconds = sum(run.took_s for run in runs)
    case = ElementTree.Element("testcase", name=_clean(scenario.name), classname=f"scenarios.{world}",
                               time=f"{seconds:.3f}")
    broken_harness = [run for run in runs if run.failure]
    if broken_harness:
        run = broken_harness[0]
        error = ElementTree.SubElement(case, "error", message=_clean(f"harness: {run.failure}"))
        error.text = _clean(f"{run.failure}\n{replay_command(run)}")
        return case
    lines, culprit = _reasons(scenario, world, runs)
    if lines:
        failure = ElementTree.SubElement(case, "failure", message=_clean(lines[0]))
        failure.text = _clean("\n".join([scenario.title, *lines, replay_command(culprit)]))
    return case


def _reasons(scenario: PlayedScenario, world: str, runs: list[Run]) -> tuple[list[str], Run]:
    """What went wrong, a line each, and the run that shows it best."""
    lines: list[str] = []
    culprits: list[Run] = []
    for guarantee, worlds in scenario.sides.items():
        side = worlds.get(world)
        if side and not side.as_declared:
            text = reason(side)
            declared = f", declared {side.expected.value}" if side.expected else ""
            lines.append(f"{guarantee}: {side.verdict.value}{declared}" + (f": {text}" if text else ""))
            culprits.append(side.telling[0])
        found = dispute(scenario.of_guarantee(guarantee))
        if found is not None and found[1].world == world:
            allows, did = found
            lines.append(f"{guarantee}: the worlds disagree, the {known(allows.world).word} says "
                         + " or ".join(verdict.value for verdict in allows.verdicts))
            culprits.append(did.cells[0][0])
    for run in runs:
        if run.unfired:
            lines.append(f"planned faults did not fire: {', '.join(run.unfired)}")
            culprits.append(run)
    return lines, culprits[0] if culprits else runs[0]


def reason(side: Side) -> str:
    """The first sentence of the evidence for a side's verdict."""
    _, cell = side.telling
    return cell.evidence[0].text if cell.evidence else ""


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)

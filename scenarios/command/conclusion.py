"""What is made of runs when all have been played: the answer, the page, results.json, junit.xml, the exit code.

This is the one file of `scenarios` that knows `reports`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from reports import compare as comparing
from reports.answer import answer
from reports.charts import perfetto
from reports.collect import Promise, collect
from reports.junit import reason, write_junit
from reports.page import write_page
from reports.results import exit_code, readable, results, write_results
from reports.summary import write_summary
from reports.views import issue as writing
from reports.views.issue import Again, broken_in
from scenarios.command import checks
from scenarios.command.at_once import at_once
from scenarios.command.playing import replaying
from scenarios.guarantees.judge import judge
from scenarios.guarantees.registry import GUARANTEES
from scenarios.guarantees.theirs import THEIRS
from scenarios.history.names import kind_of
from scenarios.history.run import Run
from scenarios.history.verdicts import Judgement
from scenarios.lab.player import ScenarioResult, replay_command
from scenarios.worlds.base import without_collector
from scenarios.worlds.vllm.edits.mends import MENDS
from scenarios.worlds.vllm.findings import lookup as findings
from scenarios.worlds.vllm.findings.finding import Finding
from scenarios.worlds.vllm.findings.known import alike


def conclude(played: Sequence[ScenarioResult], out: Path, json_file: Path | None) -> int:
    """Write everything that is made of runs and say the answer. -> exit code"""
    runs = [one for result in played for one in result.runs]
    if not runs:
        raise checks.BadInputError("nothing was played: no scenario that was named fits; see the lines above")
    page = publish(runs, out)
    if json_file is not None:
        write_json(results(runs, out), json_file)
    said = answer(runs)
    lines = [said.title, said.sentence]
    for trouble in said.troubles[:1]:
        lines.append(replay_command(trouble.run))
    lines.append(f"report: {page}")
    click.echo("\n".join(line for line in lines if line), err=json_file == Path("-"))
    return said.code


def verdict_of(result: ScenarioResult) -> tuple[str, list[str]]:
    """A word for one play, by the rule that the report counts by, and a line for each reason."""
    if result.failure is not None:
        return "harness failed", [result.failure]
    if result.skipped is not None:
        return "not played", [result.skipped]
    astray = [side for scenario in collect(result.runs) for side in scenario.all_sides() if not side.as_declared]
    why = [f"{side.guarantee} is {side.verdict.value}"
           + (f", declared {side.expected.value}" if side.expected else "")
           + (f": {text}" if (text := reason(side)) else "") for side in astray]
    why += [f"planned and never fired: {', '.join(run.unfired)}" for run in result.runs if run.unfired]
    code = exit_code(result.runs)
    return {0: "as declared", 1: "BROKEN", 2: "not known", 3: "harness failed"}[code], why


def conclude_early(played: Sequence[ScenarioResult], asked: int, out: Path) -> None:
    """It was interrupted: what was played whole is kept, and says what is missing."""
    runs = [one for result in played for one in result.runs]
    if runs:
        page = publish(runs, out, unplayed=asked - len(played))
        click.echo(f"played {len(played)} of {asked}; report of these: {page}", err=True)


@without_collector()
def publish(runs: Sequence[Run], out: Path, page: Path | None = None, unplayed: int = 0) -> Path:
    """Page, results.json, junit.xml, and a job summary where GitHub asks for one. -> the page"""
    page = page or out / "report" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_page(runs, promises(), page, replay_command, unplayed, at_once)
    write_results(runs, out / "results.json", out, unplayed)
    write_junit(runs, out / "junit.xml", replay_command)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        write_summary(runs, Path(summary), replay_command)
    return page


def promises() -> dict[str, Promise]:
    from scenarios.guarantees.registry import GUARANTEES

    return {entry.id: Promise(id=entry.id, sentence=entry.sentence, source=entry.source, chapter=entry.chapter,
                              blind_in=entry.blind_words) for entry in GUARANTEES.values()}


@without_collector()
def conclude_again(runs: Sequence[Run], page: Path, json_file: Path | None, unplayed: int) -> int:
    """Judge runs anew, from their records alone, and write one page of them. -> exit code

    `unplayed`: runs that are not whole. Where nothing worse is found, they are what is not known.
    """
    def judged(number: int) -> Judgement | None:
        one = runs[number]
        return judge(one.play, one.lab, one.journals) if one.lab.failure is None else None

    found = [Run(one.path, one.play, one.lab, one.journals, judgement)
             for one, judgement in zip(runs, at_once(len(runs), judged), strict=True)]
    checks.writable(page.parent)
    write_page(found, promises(), page, replay_command, unplayed, at_once)
    if json_file is not None:
        write_json(results(found, unplayed=unplayed), json_file)
    said = answer(found, unplayed)
    click.echo(f"{said.title}\n{said.sentence}\nreport: {page}", err=json_file == Path("-"))
    return said.code


def write_json(found: Any, file: Path) -> None:
    """To this file; to stdout where it is called -."""
    if file == Path("-"):
        click.echo(readable(found).decode())
        return
    checks.writable(file.parent)
    file.write_bytes(readable(found) + b"\n")



def compare(before: Path, after: Path, page: Path, json_file: Path | None) -> int:
    """Say what turned between two results, and write it as a page. -> 1 where a cell turned worse"""
    found = comparing.compared(comparing.load_results(before), comparing.load_results(after))
    checks.writable(page.parent)
    page.write_text(comparing.page(found, str(before), str(after)))
    if json_file is not None:
        write_json(found, json_file)
    click.echo("\n".join([*comparing.lines(found), f"page: {page}"]), err=json_file == Path("-"))
    return int(bool(found.of(comparing.Way.WORSE)))


def issue(run: Run, output: Path | None, times: int, control: bool, out: Path) -> int:
    """Write a bug report of a run, to stdout or `output`, and what came of it when it was played again. -> exit code"""
    if run.judgement is None:
        run = Run(run.path, run.play, run.lab, run.journals, judge(run.play, run.lab, run.journals))
    finding = findings.of_run(run)
    if control and finding is None:
        raise checks.BadInputError(f"{run.path}: no finding of the lab's, so there is no control of it")
    plays = [((), times)] + ([((finding.control,), times or 1)] if control and finding is not None else [])
    counted = [Again(times=many, edits=edits, broken=sum(any(map(broken_in, result.runs)) for result in replaying.again(
        run.play, many, out, edits))) for edits, many in plays if many]
    try:
        text = writing.issue(run, _about(run, finding), counted)
    except ValueError as error:
        raise checks.BadInputError(f"{error}; an issue says what is") from None
    if output is None:
        click.echo(text, nl=False)
        return 0
    checks.writable(output.parent)
    output.write_text(text, encoding="utf-8")
    click.echo(f"{output}: to be read, and sent by you, or not")
    return 0


def _about(run: Run, finding: Finding | None) -> writing.About:
    theirs, play = THEIRS.get(run.play.world, {}), run.play
    broken = [cell.guarantee for cell in writing.broken_in(run)]
    sources = {name: theirs[name].source if name in theirs else f"{entry.sentence} ({entry.source})"
               for name in broken for entry in (GUARANTEES[name],)}
    known = {one.number: one.says for one in (*(finding.known if finding else ()), *alike(
        broken, [fault.fate.value for fault in play.plan.faults],
        [kind_of(fault.victim or fault.site.partition("/")[0]) for fault in play.plan.faults]))}
    about = writing.About(sources=sources, replay=replay_command(run), alike=list(known.items()))
    if finding is None:
        return about
    program = findings.program_of(finding)
    return msgspec.structs.replace(
        about, title=finding.title, mechanism=finding.mechanism, private=finding.by_http,
        sources={**sources, **dict.fromkeys(finding.breaks, finding.source)}, control=MENDS[finding.control].sentence,
        program=program.text, command=program.command)


def export(run: Run, output: Path) -> int:
    """Write one run for a viewer of traces. -> exit code"""
    checks.writable(output.parent)
    output.write_bytes(perfetto.trace(run))
    click.echo(f"{output}: open it in https://ui.perfetto.dev or chrome://tracing")
    return 0

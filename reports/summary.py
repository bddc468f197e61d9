"""The GitHub job summary: the answer, what needs attention, and a table, in Markdown.

Every text of a run is written so that Markdown and HTML show it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from reports.answer import answer
from reports.collect import PlayedScenario, collect, disagreements
from reports.matrix import GLYPHS
from reports.views.causes import causes
from scenarios.history.run import Run
from scenarios.history.verdicts import Verdict
from scenarios.worlds.registry import known

MOST_CAUSES = 20
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~>$@:-])")
_SIGN = {"held": "✅", "broken": "❌", "unknown": "❓", "harness": "⚠️"}


def write_summary(runs: Sequence[Run], out: Path, replay_command: Callable[[Run], str]) -> None:
    """Append, because a job may have written its own lines before."""
    with out.open("a", encoding="utf-8") as file:
        file.write(summary(runs, replay_command))


def summary(runs: Sequence[Run], replay_command: Callable[[Run], str]) -> str:
    said = answer(runs)
    lines = [f"## {_SIGN[said.state]} Ringtwin: {_plain(said.title)}", "", _plain(said.sentence), ""]
    found = causes(said.troubles)
    for cause in found[:MOST_CAUSES]:
        where = cause.sentence if len(cause.rows) > 1 else cause.first.scenario.name
        lines += [f"- **{_plain(cause.head)}** in {_plain(where)}: {_plain(cause.text)}",
                  "", _code(replay_command(cause.first.run)), ""]
    if len(found) > MOST_CAUSES:
        lines += [f"{len(found) - MOST_CAUSES} more are in the report.", ""]
    lines += _table(collect(runs))
    return "\n".join(lines) + "\n"


def _table(scenarios: Sequence[PlayedScenario]) -> list[str]:
    if not scenarios:
        return []
    split = {(scenario.name, did.guarantee) for scenario, _, did in disagreements(scenarios)}
    worlds = list(dict.fromkeys(world for scenario in scenarios for world in scenario.worlds))
    titles = [f"{known(world).word}: promises" for world in worlds]
    lines = ["| scenario | " + " | ".join(titles) + " | worlds |", "|---" * (len(worlds) + 2) + "|"]
    for scenario in scenarios:
        differ = sum((scenario.name, guarantee) in split for guarantee in scenario.sides)
        lines.append(f"| {_plain(scenario.name)} | " + " | ".join(_tally(scenario, world) for world in worlds)
                     + f" | {f'disagree on {differ}' if differ else 'agree' if len(scenario.worlds) > 1 else ''} |")
    return [*lines, ""]


def _tally(scenario: PlayedScenario, world: str) -> str:
    sides = [side for side in scenario.all_sides() if side.world == world]
    words = []
    for verdict in Verdict:
        number = sum(side.promised and side.verdict is verdict for side in sides)
        if number:
            words.append(f"{GLYPHS[verdict]} {number} {verdict.value}")
    loose = sum(side.expected is None and not side.as_declared for side in sides)
    if loose:
        words.append(f"{GLYPHS[Verdict.BROKEN]} {loose} BROKEN, not promised")
    canaries = [side for side in sides if side.canary]
    if canaries:
        words.append(f"canary {sum(side.as_declared for side in canaries)} of {len(canaries)} as declared")
    return ", ".join(words)


def _plain(text: str) -> str:
    """Text that Markdown must not read as markup, on one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    """An indented fence longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    body = "\n".join("  " + line for line in text.splitlines())
    return f"  {fence}sh\n{body}\n  {fence}"

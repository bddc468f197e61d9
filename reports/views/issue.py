"""A bug report of one run, as Markdown: what was expected and who says so, what was seen, how to see it again.

Promises
- What is said to have been seen is what the run's records say, with their times; nothing is told that they do not hold.
- A matter of security, perhaps, is marked as one, says where to tell it in private, and has nothing to replay.
- The text is written, and sent nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from reports.charts.notable import lives_of, moments_of
from reports.formats import clock, count
from scenarios.history.operations import Operation
from scenarios.history.run import Run
from scenarios.history.verdicts import Cell, Verdict

#: Of what happened, and of evidence for one promise.
MOST_MOMENTS, MOST_EVIDENCE = 25, 6
PRIVATE = ("> **This may be a matter of security**: a client of the HTTP server can bring it about. Tell it in private "
           "first, as\n> the project's security policy asks for (of vLLM: the repository's tab *Security*, *Report a "
           "vulnerability*, which opens\n> a draft advisory on GitHub). What would bring it about is left out of this "
           "text.")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of it beside the run. Empty where nothing is."""

    title: str = ""
    sources: Mapping[str, str] = {}  # by guarantee: where it is promised
    mechanism: str = ""
    control: str = ""  # the mend's sentence
    program: str = ""  # shows it without the lab
    command: str = ""  # that runs this program
    replay: str = ""  # the command that plays the run again
    alike: Sequence[tuple[str, str]] = ()  # public number, what it says
    private: bool = False


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """The same played so often: how often it was broken again. `edits`: with functions changed."""

    times: int
    broken: int
    edits: Sequence[str] = ()


def issue(run: Run, about: About, again: Sequence[Again] = ()) -> str:
    """Of a run in which some promise is broken. Raises ValueError where none is."""
    broken = broken_in(run)
    if not broken:
        raise ValueError(f"nothing is broken in {run.name}")
    parts = [f"# {about.title or _title(run, broken)}", PRIVATE if about.private else "", _versions(run),
             _expected(broken, about), _seen(run, broken), _why(about), _reproduction(run, about), _often(again),
             _alike(about)]
    return "\n\n".join(part for part in parts if part) + "\n"


def broken_in(run: Run) -> list[Cell]:
    cells = run.judgement.cells if run.judgement else []
    return [cell for cell in cells if cell.verdict is Verdict.BROKEN]


def _title(run: Run, broken: Sequence[Cell]) -> str:
    names = ", ".join(cell.guarantee for cell in broken)
    return f"{names} broken: {run.play.title or run.play.scenario}"


def _versions(run: Run) -> str:
    play, said = run.play, run.play.provenance
    rows = [f"- {name} {version}" for name, version in sorted(play.versions.items()) if version]
    if said is not None:
        rows += [f"- {said.system}, {said.machine}, {count(said.cores, 'core')}", f"- played {said.began_at}"]
    if play.options.edits:
        rows.append(f"- functions changed for this play: {', '.join(play.options.edits)}")
    return "\n".join(["## Versions", "", *(rows or ["- not known: the run does not say"])])


def _expected(broken: Sequence[Cell], about: About) -> str:
    lines = ["## What was expected", ""]
    for cell in broken:
        source = about.sources.get(cell.guarantee, "")
        lines.append(f"- **{cell.guarantee}**" + (f": {source}" if source else ""))
    return "\n".join(lines)


def _seen(run: Run, broken: Sequence[Cell]) -> str:
    origin = run.history.began_at
    lines = ["## What was seen", ""]
    for cell in broken:
        for evidence in cell.evidence[:MOST_EVIDENCE]:
            at = "" if evidence.at is None else f"{clock(evidence.at - origin)}: "
            lines.append(f"- {cell.guarantee}: {at}{_plain(evidence.text)}")
        if len(cell.evidence) > MOST_EVIDENCE:
            lines.append(f"- {cell.guarantee}: and {len(cell.evidence) - MOST_EVIDENCE} more")
    lines += ["", "What happened, in order (from the first record of the run):", ""]
    moments = moments_of(run)
    lines += [f"- {clock(moment.at)}: {_plain(moment.text)}" for moment in moments[:MOST_MOMENTS]]
    if len(moments) > MOST_MOMENTS:
        lines.append(f"- and {len(moments) - MOST_MOMENTS} more")
    lines += ["", "How its processes ended:", ""]
    lines += [f"- {life.node}: {_end(life.ended, life.died)}" for life in lives_of(run)]
    lines += ["", f"What its callers were told: {_told(run.history.operations)}."]
    if run.lab.leftovers:
        lines += ["", f"What was left behind: {count(len(run.lab.leftovers), 'thing')}, among them "
                      + ", ".join(f"`{_plain(one)}`" for one in run.lab.leftovers[:3]) + "."]
    return "\n".join(lines)


def _end(ended: float | None, died: str | None) -> str:
    if ended is None:
        return "still there when nobody looked any more"
    return f"{clock(ended)}, {died or 'on its own feet'}"


def _told(operations: Sequence[Operation]) -> str:
    if not operations:
        return "nothing was asked"
    said = Counter(_outcome(one) for one in operations)
    return ", ".join(f"{number} of {len(operations)} {word}" for word, number in sorted(said.items()))


def _outcome(one: Operation) -> str:
    return "nothing to its end" if one.outcome is None else f"{one.outcome} ({one.error})" if one.error else one.outcome


def _why(about: About) -> str:
    if not about.mechanism:
        return ""
    control = f"\n\nA mend that makes it vanish shows that: {about.control}" if about.control else ""
    return f"## Where it comes from\n\n{about.mechanism}{control}"


def _reproduction(run: Run, about: About) -> str:
    if about.private:
        return ""
    lines = ["## How to see it again", ""]
    if about.program:
        lines += ["Without the lab, with vLLM and a stand-in for the model that this project has:", "", "```sh",
                  about.command, "```", "", "```python", about.program.rstrip(), "```", ""]
    lines += ["With the lab:", "", "```sh", about.replay, "```"]
    if run.play.plan.faults:
        plan = msgspec.json.format(msgspec.json.encode(run.play.plan), indent=2).decode()
        lines += ["", "Its plan:", "", "```json", plan, "```"]
    return "\n".join(lines)


def _often(again: Sequence[Again]) -> str:
    if not again:
        return ""
    lines = ["## How often", ""]
    for one in again:
        how = f"with {', '.join(one.edits)} changed" if one.edits else "as it is"
        lines.append(f"- played {count(one.times, 'time')} {how}: broken {one.broken} of {one.times}")
    return "\n".join(lines)


def _alike(about: About) -> str:
    lines = ["## Whether it is known", ""]
    if not about.alike:
        return "\n".join([*lines, "It looks like none of those that the lab knows of."])
    return "\n".join([*lines, "It looks like these; whether it is one of them has to be looked at:", "",
                      *(f"- {number}: {says}" for number, says in about.alike)])


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")

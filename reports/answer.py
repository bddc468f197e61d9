"""The answer in a sentence, and what needs a person's attention, worst first.

The page and the job summary say the same because both say this.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reports.collect import PlayedScenario, collect, disagreements
from reports.formats import count, listed
from reports.junit import reason
from reports.matrix import anchor
from reports.results import agreement, counts, exit_code
from scenarios.history.run import Run
from scenarios.history.sides import Side
from scenarios.history.verdicts import Verdict
from scenarios.worlds.registry import in_order, known

#: The exit code where something is not known; and how each one is painted.
NOT_KNOWN = 2
_STATES = {0: "held", 1: "broken", NOT_KNOWN: "unknown", 3: "harness"}


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a reader has to look at. `kind` names its look: broken, disagree, unknown, harness."""

    kind: str
    rank: int  # 0 is the worst
    what: str  # without the guarantee and the world: "is BROKEN"
    head: str
    text: str
    scenario: PlayedScenario
    run: Run
    guarantee: str = ""
    at: float | None = None  # since the run began
    anchor: str | None = None  # of the cell


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    code: int  # the exit code
    state: str  # held, broken, unknown or harness: how the answer is painted
    title: str
    sentence: str
    troubles: list[Trouble]


def answer(runs: Sequence[Run], unplayed: int = 0) -> Answer:
    """`unplayed`: plays that were asked for and did not come about; what they would have shown nobody knows."""
    scenarios, code = collect(runs), exit_code(runs)
    found, title = troubles(scenarios), _title(runs, scenarios, code)
    if unplayed:
        code = code or NOT_KNOWN
        said = title[0].lower() + title[1:]
        title = f"Interrupted: {count(unplayed, 'play')} did not come about. Of the others: {said}"
    return Answer(code=code, state=_STATES[code], title=title, sentence=_sentence(runs), troubles=found)


def _title(runs: Sequence[Run], scenarios: Sequence[PlayedScenario], code: int) -> str:
    sides = [side for scenario in scenarios for side in scenario.all_sides()]
    if not runs:
        return "Nothing was played"
    if code == 3:
        failed = sum(run.failure is not None for run in runs)
        return f"The lab itself failed in {count(failed, 'run')}: this is no answer about the engine"
    if code == 0:
        if any(side.promised for side in sides):
            return "Every promise held"
        return "Everything is as declared" if any(side.canary for side in sides) else \
            "Nothing was promised, and nothing that was judged broke"
    parts = []
    astray = [side for side in sides if side.verdict is Verdict.BROKEN and not side.as_declared]
    broken, unasked = sum(side.promised for side in astray), sum(not side.promised for side in astray)
    missed = sum(side.canary and not side.as_declared and side.verdict is Verdict.HELD for side in sides)
    split = len(disagreements(scenarios))
    open_ = sum(not side.as_declared and side.verdict not in (Verdict.BROKEN, Verdict.HELD) for side in sides)
    if broken:
        parts.append(f"{count(broken, 'promise')} broken")
    if unasked:
        parts.append(f"{count(unasked, 'guarantee')} broke where nothing was promised")
    if missed:
        parts.append(f"{count(missed, 'canary', 'canaries')} not caught")
    if split:
        parts.append(f"the worlds disagree on {count(split, 'cell')}")
    if open_:
        parts.append(f"{count(open_, 'promise')} without an answer")
    if not parts:
        parts.append(f"{count(sum(len(run.unfired) for run in runs), 'planned fault')} did not fire")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def _sentence(runs: Sequence[Run]) -> str:
    if not runs:
        return "No run was given, so nothing is known."
    numbers, worlds = counts(runs), agreement(runs)
    promised, canaries = numbers["promised"], numbers["canaries"]
    played = [known(name) for name in in_order(run.play.world for run in runs)]
    where = listed(world.within for world in played) if len(played) > 1 else f"in one world ({played[0].word})"
    parts = [
        f"{count(numbers['guarantees_promised'], 'guarantee was', 'guarantees were')} promised in "
        f"{count(numbers['scenarios'], 'scenario')}, played {where}: of {count(promised['cells'], 'promise')} made, "
        f"{_tally(promised)}" if promised["cells"] else
        f"Nothing was promised in {count(numbers['scenarios'], 'scenario')}, played {where}"
    ]
    if numbers["broken_without_a_promise"]:
        more = " more" if promised["cells"] else ""
        parts.append(f"{numbers['broken_without_a_promise']}{more} broke where nothing was promised")
    if len(played) > 1:
        compared = worlds["agreed"] + worlds["disagreed"]
        where = listed(f"{entry['guarantee']} of {entry['scenario']}" for entry in worlds["disagreements"])
        parts.append(f"the worlds disagree on {worlds['disagreed']} of {compared:,} cells that both decided"
                     + f" ({where})" if worlds["disagreed"] else
                     f"the worlds agree on all {compared:,} cells that both decided")
    if canaries["declared"]:
        every = canaries["as_declared"] == canaries["declared"]
        parts.append(f"all {count(canaries['declared'], 'canary cell')} turned out as declared" if every else
                     f"only {canaries['as_declared']} of {count(canaries['declared'], 'canary cell')} "
                     "turned out as declared")
    if numbers["faults"]["not_fired"]:
        parts.append(f"{count(numbers['faults']['not_fired'], 'planned fault')} did not fire")
    return "; ".join(parts) + "."


def _tally(promised: dict[str, int]) -> str:
    held, cells = promised[Verdict.HELD.value], promised["cells"]
    rest = [f"{promised[verdict.value]:,} {words}" for verdict, words in (
        (Verdict.BROKEN, "broken"), (Verdict.UNKNOWN, "unknown"), (Verdict.UNTESTED, "untested"),
        (Verdict.OUTSIDE, "outside their envelope")) if promised[verdict.value]]
    if held == cells:
        return "all held and none is broken, unknown or untested"
    return f"{held:,} held, {listed(rest)}"


def troubles(scenarios: Sequence[PlayedScenario]) -> list[Trouble]:
    """The worst first, then in the order of the scenarios."""
    found: list[Trouble] = []
    for scenario in scenarios:
        for run in scenario.runs:
            if run.failure:
                found.append(Trouble(kind="harness", rank=0, what="The lab failed", text=run.failure, scenario=scenario,
                                     run=run, head=f"The lab failed in the {_world(run)}"))
            elif missing := run.unfired:
                found.append(Trouble(kind="unknown", rank=4, what="A planned fault did not fire", scenario=scenario,
                                     run=run, head=f"Did not fire in the {_world(run)}: {listed(missing)}",
                                     text="a planned fault that did not fire makes the run say nothing"))
        for side in scenario.all_sides():
            if not side.as_declared and not all(run.failure for run, _ in side.cells):
                found.append(_astray(scenario, side))
    for scenario, allows, did in disagreements(scenarios):
        found.append(Trouble(
            kind="disagree", rank=2, what="the worlds disagree", head=f"The worlds disagree on {did.guarantee}",
            scenario=scenario, run=did.cells[0][0], guarantee=did.guarantee, anchor=anchor(scenario, did.guarantee),
            text=f"the {known(allows.world).word} says {' or '.join(v.value for v in allows.verdicts)}, "
                 f"the {known(did.world).word} {' and '.join(v.value for v in did.verdicts)}"))
    return sorted(found, key=lambda trouble: (trouble.rank, trouble.scenario.number))


def _astray(scenario: PlayedScenario, side: Side) -> Trouble:
    run, cell = side.telling
    bad = side.verdict is Verdict.BROKEN or (side.canary and side.verdict is Verdict.HELD)
    declared = f", declared {side.expected.value}" if side.canary and side.expected else ""
    at = cell.evidence[0].at if cell.evidence else None
    return Trouble(
        kind="broken" if bad else "unknown", rank=1 if bad else 3, scenario=scenario, run=run, text=reason(side),
        guarantee=side.guarantee, anchor=anchor(scenario, side.guarantee), what=f"is {side.verdict.value}{declared}",
        at=None if at is None else at - run.history.began_at,
        head=f"{side.guarantee} is {side.verdict.value} in the {_world(run)}{declared}")


def _world(run: Run) -> str:
    return known(run.play.world).word

"""PlayedScenarios times guarantees, all worlds in one cell, in the order of the registry: the twin on the left.

Colour is never alone: every verdict has a glyph, a word for screen readers, and promised cells a frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from reports.collect import PlayedScenario, Promise
from scenarios.history.names import edge_of, kind_of
from scenarios.history.sides import Side, disagree
from scenarios.history.verdicts import DECISIVE, Verdict
from scenarios.worlds.registry import in_order, known

#: Glyphs that every system font has and that differ in shape, not only in colour.
GLYPHS = {
    Verdict.HELD: "✓",
    Verdict.BROKEN: "×",
    Verdict.UNTESTED: "○",
    Verdict.OUTSIDE: "–",
    Verdict.UNKNOWN: "?",
}
_UNFIT = re.compile(r"[^A-Za-z0-9-]")


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """One world's part of a cell, a half where there are two. `css` names its look, `words` says all of it."""

    world: str
    glyph: str
    css: str
    words: str


class Square(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: empty halves where a world did not judge the guarantee. Its row and its column say of what it tells."""

    halves: list[Half | None]
    promised: bool
    canary: bool
    disagree: bool
    grade: str  # "bad": broken, missed or in dispute; "open": not known; "": as declared
    words: str


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    scenario: PlayedScenario
    squares: list[Square | None]
    grade: str
    states: list[str]  # "bad" and "open": it may be both
    processes: list[str]  # kinds of those that its faults strike
    fates: list[str]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    promises: list[Promise]
    chapters: list[tuple[str, int]]  # title, number of columns
    columns: list[str]  # the guarantees' part of an anchor
    rows: list[MatrixRow]
    worlds: list[str]

    @property
    def processes(self) -> list[str]:
        return sorted({process for row in self.rows for process in row.processes})

    @property
    def fates(self) -> list[str]:
        return sorted({fate for row in self.rows for fate in row.fates})


def anchor(scenario: PlayedScenario, guarantee: str) -> str:
    """The id of a cell's detail in the page. Ids must not hold spaces, whatever a guarantee is called."""
    return f"c{scenario.number}-{fit(guarantee)}"


def fit(guarantee: str) -> str:
    return _UNFIT.sub("-", guarantee)


def matrix(scenarios: Sequence[PlayedScenario], promises: Sequence[Promise]) -> Matrix:
    worlds = in_order({run.play.world for scenario in scenarios for run in scenario.runs})
    rows = []
    for scenario in scenarios:
        squares = [_square(scenario, promise.id, worlds) for promise in promises]
        rows.append(_row(scenario, squares))
    chapters = [(chapter, len(list(group))) for chapter, group in groupby(promises, key=lambda p: p.chapter)]
    return Matrix(promises=list(promises), chapters=chapters, columns=[fit(promise.id) for promise in promises],
                  rows=rows, worlds=worlds)


def _row(scenario: PlayedScenario, squares: list[Square | None]) -> MatrixRow:
    grades = {"bad" if run.failure else "open" for run in scenario.runs if run.failure or run.unfired}
    for guarantee in scenario.sides:
        sides = scenario.of_guarantee(guarantee)
        grades |= {grade_of([side]) for side in sides} | {grade_of(sides)}
    faults = [fault for run in scenario.runs for fault in run.play.plan.faults]
    return MatrixRow(
        scenario=scenario, squares=squares, grade=worst(square.grade for square in squares if square),
        states=sorted(grades - {""}),
        processes=sorted({kind_of(fault.victim or _crosser(fault.site)) for fault in faults}),
        fates=sorted({fault.fate.value for fault in faults}))


def _crosser(site: str) -> str:
    """Who crosses a site: of an edge its sender or its receiver, of anything else its owner."""
    on_edge = edge_of(site)
    if on_edge is None:
        return site.partition("/")[0]
    _, edge, operation = on_edge
    return str(edge.target if operation == "receive" else edge.source)


def _square(scenario: PlayedScenario, guarantee: str, worlds: Sequence[str]) -> Square | None:
    sides = scenario.of_guarantee(guarantee)
    if not sides:
        return None
    by_world = {side.world: side for side in sides}
    halves = [half_of(by_world[world]) if world in by_world else None for world in worlds]
    split = disagree(sides)
    said = [half.words for half in halves if half]
    return Square(
        halves=halves, disagree=split,
        promised=any(side.promised for side in sides), canary=any(side.canary for side in sides),
        grade=grade_of(sides), words="; ".join(said) + ("; the worlds disagree" if split else ""))


def grade_of(sides: Sequence[Side]) -> str:
    """How urgent one guarantee of one scenario is."""
    astray = [side for side in sides if not side.as_declared]
    if disagree(sides) or any(side.verdict in DECISIVE for side in astray):
        return "bad"
    return "open" if astray else ""


def worst(grades: Iterable[str]) -> str:
    found = set(grades)
    return "bad" if "bad" in found else "open" if "open" in found else ""


def half_of(side: Side) -> Half:
    return Half(world=side.world, glyph=GLYPHS[side.verdict], css=look(side), words=side_words(side))


def look(side: Side) -> str:
    """One CSS class for verdict and declaration: a declared break is not painted like an undeclared one."""
    verdict = side.verdict.value.lower()
    if side.canary and side.as_declared:
        return f"{verdict} declared"
    if not side.as_declared:
        return f"{verdict} astray"
    return f"{verdict} promised" if side.promised else verdict


def side_words(side: Side) -> str:
    """The side as a phrase: 'engine HELD, promised'."""
    words = f"{known(side.world).word} {side.verdict.value}"
    if len(side.verdicts) > 1:
        words += f" (its runs say {' and '.join(verdict.value for verdict in side.verdicts)})"
    if side.canary and side.expected:
        words += ", as declared" if side.as_declared else f", declared {side.expected.value}"
    elif side.promised:
        words += ", promised"
    return words

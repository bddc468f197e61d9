"""What needs a person, by what went wrong: what is near-equal is one entry, however often it happened.

Promises of this file:
- No trouble is left out: each is a row of exactly one entry.
- Two broken promises share an entry only where the guarantee is the same and their evidence differs in nothing but
  numbers, names of processes and what stands in quotes. What is merely not known is one entry for all guarantees:
  a fault that did not fire leaves all that its scenario promises without an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from reports.answer import Trouble
from reports.formats import count, listed
from scenarios.worlds.registry import in_order, known

#: What differs between two tellings of one cause, and what takes its place; the longest first.
_VARIES = (
    (re.compile(r"\[[^\]]*\]"), "[]"),
    (re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`"), "''"),
    (re.compile(r"\([^()]*=[^()]*\)"), "()"),  # a fault in full: its site and crossing
    (re.compile(r"\b[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"\b(frontend|core|worker|subscriber)[.\d]*(@\d+)?"), r"\1"),
    (re.compile(r"[+-]?\d([\d,]*\d)?(\.\d+)?( [mµ]?s\b)?"), "#"),
    (re.compile(r"((?:#|''|f# \(\))(?:, | and | or ))+"), ""),  # one or several of a list
)


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Troubles of one cause, the first one telling of all."""

    kind: str
    head: str
    text: str
    rows: list[Trouble]

    @property
    def first(self) -> Trouble:
        return self.rows[0]

    @property
    def guarantees(self) -> list[str]:
        return list(dict.fromkeys(row.guarantee for row in self.rows if row.guarantee))

    @property
    def plays(self) -> int:
        return len({id(row.run) for row in self.rows})

    @property
    def sentence(self) -> str:
        """7 plays of 4 scenarios: twin 3, engine 4"""
        runs = {id(row.run): row.run for row in self.rows}
        often = Counter(run.play.world for run in runs.values())
        scenarios = len({row.scenario.number for row in self.rows})
        worlds = ", ".join(f"{known(world).word} {often[world]}" for world in in_order(often))
        return f"{count(len(runs), 'play')} of {count(scenarios, 'scenario')}: {worlds}"


def causes(troubles: Sequence[Trouble]) -> list[Cause]:
    """The worst first; of those that are as bad, the one with the most rows."""
    groups: dict[tuple[str, ...], list[Trouble]] = {}
    for trouble in troubles:
        whose = "" if trouble.kind == "unknown" else trouble.guarantee
        groups.setdefault((trouble.kind, trouble.what, whose, shape(trouble.text)), []).append(trouble)
    found = [Cause(kind=rows[0].kind, head=_head(rows), text=rows[0].text, rows=rows) for rows in groups.values()]
    return sorted(found, key=lambda cause: (cause.first.rank, -len(cause.rows)))


def shape(text: str) -> str:
    """What stays of a reason where it happens again, elsewhere."""
    for varies, instead in _VARIES:
        text = varies.sub(instead, text)
    return text


def _head(rows: Sequence[Trouble]) -> str:
    if len(rows) == 1:
        return rows[0].head
    guarantees = list(dict.fromkeys(row.guarantee for row in rows if row.guarantee))
    what = rows[0].what
    if not guarantees:
        return what
    if rows[0].kind == "disagree":
        return f"The worlds disagree on {guarantees[0]}"
    if len(guarantees) == 1:
        return f"{guarantees[0]} {what}"
    return f"{count(len(rows), 'promise')} of {listed(guarantees, 4)}: {what.removeprefix('is ')}"

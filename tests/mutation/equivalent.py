"""Survivors that no play can tell from the engine as it is, each with the reason why no input can differ."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutation.score import Outcome


class Equivalent(NamedTuple):
    file: str
    operator: str
    old: str  # the text that is changed
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = ()


def why_equivalent(outcome: Outcome) -> str | None:
    here = outcome.file, outcome.operator, outcome.old
    return next((entry.reason for entry in EQUIVALENT if (entry.file, entry.operator, entry.old) == here), None)

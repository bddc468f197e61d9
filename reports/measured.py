"""How much of what goes wrong the lab sees: the last figures that were measured of it, each with what measured it.

`measured.json` lies beside this file. The mutation score and the sweep write it when they are asked to (`--publish`);
nobody writes it by hand.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("measured.json")


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of mutants that the lab saw, of those that are not equivalent; `low` to `high` is 95 % sure."""

    share: float
    low: float
    high: float


class MutationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Small bugs planted into the engine's pure files. `unplayed`: no scenario runs their line."""

    command: str
    commit: str
    date: str  # ISO
    of: int  # mutants that there are
    mutants: int  # that were planted
    killed: int
    trivial: int
    equivalent: int
    unplayed: int
    score: Score
    score_without_trivial: Score
    parts: dict[str, Score]  # by folder of the engine


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    places: int
    crossings: int
    plays: int


class SweepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of every kind at every crossing, in the twin. `pairs`: plays of two neighbouring crossings."""

    command: str
    commit: str
    date: str
    phases: list[PhaseFigures]
    plays: int
    pairs: int
    red: int


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    mutation: MutationFigures | None = None
    sweep: SweepFigures | None = None


def measured(file: Path = FILE) -> Measured:
    """Nothing, where nothing was measured."""
    return msgspec.json.decode(file.read_bytes(), type=Measured) if file.exists() else Measured()


def publish(figures: MutationFigures | SweepFigures, file: Path = FILE) -> None:
    """Put these in the place of the former ones."""
    name = "mutation" if isinstance(figures, MutationFigures) else "sweep"
    now = msgspec.structs.replace(measured(file), **{name: figures})
    file.write_bytes(msgspec.json.format(msgspec.json.encode(now), indent=1) + b"\n")

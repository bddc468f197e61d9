"""Plans that once turned a play red: one file each, played again as scenarios of their own.

    {"title": "...", "phase": "calm", "faults": [...], "promises": ["ends-once"]}

The phase is one of `scenarios.lab.sweep.phases`; the faults come on top of its own.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.errors import RingtwinError
from faults.plan import Fault, Plan
from scenarios.guarantees.registry import guarantee
from scenarios.lab.family import Case
from scenarios.lab.sweep import Phase, phases

FOLDER = Path(__file__).parents[1] / "corpus"


class CorpusError(RingtwinError):
    """A file of the corpus cannot be played. The message names it."""


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    phase: str
    faults: tuple[Fault, ...]
    promises: tuple[str, ...]


def corpus(folder: Path = FOLDER) -> list[Case]:
    """All files, by name, each as a row of a family."""
    by_name = {phase.name: phase for phase in phases()}
    return [_case(path, by_name) for path in sorted(folder.glob("*.json"))]


def _case(path: Path, by_name: dict[str, Phase]) -> Case:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Found)
        phase = by_name[found.phase]
        promises = tuple(guarantee(name) for name in found.promises)
    except (msgspec.DecodeError, KeyError) as error:
        raise CorpusError(f"{path}: {error}") from None
    return Case(f"test_{path.stem}", found.title, Plan((*phase.plan.faults, *found.faults)), promises, play={
        "topology": phase.topology, "workload": phase.workload, "config": phase.config, "options": phase.options})

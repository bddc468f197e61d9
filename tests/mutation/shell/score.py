"""Mutants of shells, one after the other in one copy of the project, played there until the first red.

    killed      a guarantee broke that no scenario declares to break
    trivial     it broke in the calm play
    apart       the lab or the process tree did not come to a verdict: red for another reason than a promise
    survived    nothing was seen
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.plant import apply, own_memory, planted, rewrite
from tests.mutants.table import SHORT_GUARD
from tests.mutation.operators import Mutant, mutated, source_of
from tests.mutation.plays import CALM, ROOT
from tests.mutation.score import Fate, Outcome, outcome_of, running
from tests.mutation.shell.plays import EngineScene, Said, play_until_red

#: What a mutant may take: so many scenarios, so long. A start that hangs is called so after a minute.
MOST_PLAYS, MUTANT_S = 30, 150.0
#: The scenario in which nobody does anything for a while.
AT_REST = "test_an_idle_engine_rests"
#: How those are called in which a program asks for what is documented, and how many of them are played at most.
PROGRAMS, MOST_PROGRAMS = "test_a_program_", 3


@contextmanager
def bed() -> Iterator[Path]:
    """A copy of the project in which mutants are planted, one after the other."""
    with planted((SHORT_GUARD,)) as tree:
        yield tree


def judged_on_engine(mutant: Mutant, scenes: list[EngineScene], tree: Path) -> Outcome:
    chosen = _telling(mutant.file, running(mutant, scenes))
    began = time.monotonic()
    fate, by, because, plays = Fate.UNPLAYED, "", "no scenario runs it", 0
    if chosen:
        _plant(tree, mutant.file, mutated(source_of(mutant.file, ROOT), mutant))
        try:
            said, printed = play_until_red(tree, [scene.name for scene in chosen], MUTANT_S)
        finally:
            _plant(tree, mutant.file, source_of(mutant.file, ROOT))
            for folder in ("shm", "t", "out"):
                shutil.rmtree(tree / folder, ignore_errors=True)
            (tree / "shm").mkdir()
            (tree / "said.jsonl").unlink(missing_ok=True)
        fate, by, because = _fate(said, len(chosen), printed)
        plays = len(said)
    return outcome_of(mutant, began, fate, by, because, plays)


def _telling(file: str, scenes: list[EngineScene]) -> list[EngineScene]:
    """Those that see most, then by turns one that runs most lines of this file, and one that runs most lines of all
    files that none of them does: what a line brings about is seen where something comes of it.
    """
    by_lines = sorted(scenes, key=lambda scene: -len(scene.lines.get(file, ())))
    first = [scene for name in (CALM, AT_REST) for scene in scenes if scene.name == name]
    programs = [scene for scene in by_lines if scene.name.startswith(PROGRAMS)][:MOST_PROGRAMS]
    chosen = {scene.name: scene for scene in (*first, *programs)}
    runs = {scene.name: {(name, line) for name, lines in scene.lines.items() for line in lines} for scene in scenes}
    seen = set().union(*(runs[name] for name in chosen))
    while len(chosen) < min(MOST_PLAYS, len(scenes)):
        left = [scene for scene in by_lines if scene.name not in chosen]
        best = left[0] if len(chosen) % 2 else max(left, key=lambda scene: len(runs[scene.name] - seen))
        chosen[best.name] = best
        seen |= runs[best.name]
    return list(chosen.values())


def _plant(tree: Path, file: str, source: bytes) -> None:
    rewrite(tree / file, source)
    for edit in own_memory(tree):
        if edit.file == file:
            apply(edit, tree)


def _fate(said: list[Said], asked: int, printed: str) -> tuple[Fate, str, str]:
    red = next((one for one in said if one.red), None)
    if red is not None:
        return Fate.TRIVIAL if red.name == CALM else Fate.KILLED, red.name, red.red
    failed = next((f"{one.name}: {one.failure}"[:200] for one in said if one.failure), "")
    if failed or len(said) < asked:
        return Fate.APART, "", failed or f"ended after {len(said)} of {asked} plays: {printed[-300:]}"
    return Fate.SURVIVED, "", ""

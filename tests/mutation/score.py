"""One mutant, one child: planted, played by what runs its line, then with random faults, until the first red.

    killed      a guarantee broke that no scenario declares to break
    trivial     it broke in the calm play
    apart       the twin itself fell over, or it ran out of time or memory: red for another reason than a promise
    survived    nothing was seen
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import time
import traceback
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tests.mutation.equivalent import why_equivalent
from tests.mutation.operators import Mutant
from tests.mutation.plant import NotPlantableError, plant
from tests.mutation.plays import CALM, Scene, random_plays, red

#: What a mutant may take of this machine: processor time, memory.
MUTANT_S, MEMORY_BYTES = 60, 4 << 30


class Fate(StrEnum):
    KILLED = "killed"
    TRIVIAL = "trivial"
    APART = "apart"
    SURVIVED = "survived"
    UNPLAYED = "unplayed"  # no scenario runs its line


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one mutant. `by`: the scenario, `because`: the guarantee or the error."""

    id: str
    file: str
    line: int
    function: str
    operator: str
    old: str
    new: str
    equivalent: str = ""  # the reason, where it is known to be
    fate: Fate
    by: str = ""
    because: str = ""
    plays: int = 0
    seconds: float = 0.0


def judged(mutant: Mutant, scenes: list[Scene], counts: dict[str, dict[str, int]], root: Path, *, plans: int,
           seed: int) -> Outcome:
    """In a child of this process, so that nothing of the mutant stays here."""
    chosen = running(mutant, scenes)
    began = time.monotonic()
    fate, by, because, plays = _in_a_child(mutant, chosen, counts, root, plans, seed) if chosen else (
        Fate.UNPLAYED, "", "no scenario runs it", 0)
    return outcome_of(mutant, began, fate, by, because, plays)


def outcome_of(mutant: Mutant, began: float, fate: Fate, by: str, because: str, plays: int) -> Outcome:
    """`began`: when it was looked at first, by the monotonic clock."""
    return Outcome(id=mutant.id, file=mutant.file, line=mutant.line, function=mutant.function,
                   operator=mutant.operator, old=mutant.old[:200], new=mutant.new[:200],
                   equivalent=why_equivalent(mutant) or "", fate=fate, by=by, because=because, plays=plays,
                   seconds=round(time.monotonic() - began, 3))


class Running(Protocol):
    """A scenario: what it takes, and which lines of which files it runs."""

    @property
    def name(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def lines(self) -> dict[str, set[int]]: ...


OfScene = TypeVar("OfScene", bound=Running)


def running(mutant: Mutant, scenes: list[OfScene]) -> list[OfScene]:
    """Those that run its lines: the calm one first, then the fastest."""
    chosen = [scene for scene in scenes if mutant.line in scene.lines.get(mutant.file, ())]
    # A statement that goes over several lines is run by its first one, or by one inside of it.
    chosen = chosen or [scene for scene in scenes if scene.lines.get(mutant.file, set()) & set(_lines(mutant))]
    if not chosen and mutant.old == "yield":  # what makes a loop of a function that waits for nothing; never reached
        chosen = [scene for scene in scenes if mutant.line - 1 in scene.lines.get(mutant.file, ())]
    return sorted(chosen, key=lambda scene: (scene.name != CALM, scene.seconds))


def _lines(mutant: Mutant) -> range:
    return range(mutant.line, mutant.line + mutant.old.count("\n") + 1)


def _in_a_child(mutant: Mutant, *asked: Any) -> tuple[Fate, str, str, int]:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        _child(write, mutant, *asked)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if said:
        result: tuple[Fate, str, str, int] = pickle.loads(said)
        return result
    return Fate.APART, "", f"ended by {os.waitstatus_to_exitcode(status)}", 0


def _child(write: int, mutant: Mutant, *asked: Any) -> None:
    signal.setitimer(signal.ITIMER_PROF, MUTANT_S)  # processor time: other work beside it changes nothing
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.setrecursionlimit(2000)
    try:
        result = _played(mutant, *asked)
    except NotPlantableError as error:
        result = Fate.APART, "", f"cannot be planted: {error}", 0
    except BaseException:
        result = Fate.APART, "", traceback.format_exc()[-400:], 0
    os.write(write, pickle.dumps(result))
    os._exit(0)


def _played(mutant: Mutant, chosen: list[Scene], counts: dict[str, dict[str, int]], root: Path, plans: int,
            seed: int) -> tuple[Fate, str, str, int]:
    plant(mutant, root)
    plays, fell = 0, ""
    names = [scene.name for scene in chosen if scene.name in counts]
    at_random = ((play.scenario, play) for play in islice(random_plays(names, counts, seed), plans))
    for name, play in chain(((scene.name, scene.play) for scene in chosen), at_random):
        plays += 1
        try:
            guarantee = red(play)
        except Exception as error:
            fell = fell or f"{name}: {type(error).__name__}: {error}"[:200]
            continue
        if guarantee is not None:
            return Fate.TRIVIAL if name == CALM else Fate.KILLED, name, guarantee, plays
    return (Fate.APART, "", fell, plays) if fell else (Fate.SURVIVED, "", "", plays)

"""What probes say of a play is what a tracer sees; and they go."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from scenarios.worlds.sim import play_once
from tests.mutation.operators import mutants_of
from tests.mutation.plant import forget
from tests.mutation.plays import CALM, ROOT, scenes
from tests.mutation.probes import RAN, Probes

FILES = ("engine/core/scheduler.py", "engine/ipc/queue.py", "engine/core/life.py")
MUTANTS = [mutant for file in FILES for mutant in mutants_of(file, ROOT)]
PLAYS = [scene.play for scene in scenes() if scene.name in (CALM, "test_worker_dies_while_the_others_answer")]


def traced() -> dict[str, set[int]]:
    """What these plays run of the files, as Python itself tells it."""
    paths, seen = {str(ROOT / file): file for file in FILES}, {file: set[int]() for file in FILES}

    def enter(frame: Any, event: str, about: Any) -> Any:
        file = paths.get(frame.f_code.co_filename)
        return None if file is None else line

    def line(frame: Any, event: str, about: Any) -> Any:
        seen[paths[frame.f_code.co_filename]].add(frame.f_lineno)
        return line

    forget()
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        for play in PLAYS:
            play_once(play)
    finally:
        sys.settrace(before)
    return seen


def test_they_see_each_line_that_a_tracer_sees_and_hardly_another() -> None:
    seen, probes = traced(), Probes()
    with probes.within(MUTANTS, ROOT):
        for play in PLAYS:
            play_once(play)
        told = probes.ran()
    with_mutants = {file: {mutant.line for mutant in MUTANTS if mutant.file == file} for file in FILES}
    for file, lines in with_mutants.items():
        assert len(seen[file] & lines) > 30
        assert seen[file] & lines <= told[file]
    assert sum(len(told[file] & lines - seen[file]) for file, lines in with_mutants.items()) <= 5


def test_what_was_told_once_is_told_again_of_the_next_play() -> None:
    probes = Probes()
    with probes.within(MUTANTS, ROOT):
        told = []
        for _ in range(2):
            play_once(PLAYS[0])
            told.append(probes.ran())
        assert told[0] == told[1] and probes.ran() == {}


def test_they_go() -> None:
    play = PLAYS[0]
    with Probes().within(MUTANTS, ROOT):
        assert hasattr(builtins, RAN)
    assert not hasattr(builtins, RAN)
    play_once(play)

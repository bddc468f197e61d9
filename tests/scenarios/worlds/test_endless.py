"""A loop that does not end is a hang in the twin, too: BROKEN, and it says whose it is."""

from __future__ import annotations

import signal
import threading

import msgspec
import pytest

from engine.core.engine_core import EngineCore
from engine.core.scheduler import Scheduler
from engine.effects import Now, Take
from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.judge import judge
from scenarios.history.play import Play
from scenarios.history.verdicts import Judgement, Verdict
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import recorded
from scenarios.worlds import sim
from scenarios.worlds.sim import play_once


def played() -> Judgement:
    play = Play(
        scenario="endless", title="", world="sim", topology=tensor_parallel(2), plan=Plan(), promises=(),
        workload=msgspec.to_builtins(recorded("pair").played()), config=lab_config(tensor_parallel_size=2))
    simulation, lab = play_once(play)
    return judge(play, lab, simulation.journal_files())


def spins(self) -> None:
    while True:
        pass


def hardly_waits(self):
    while True:
        yield Take("nothing", (yield Now()) + 1e-9)


def asks_for_ever(self):
    while True:
        yield Now()


@pytest.mark.parametrize(("owner", "name", "loop"), [
    (Scheduler, "schedule", spins), (EngineCore, "_went_idle", hardly_waits), (EngineCore, "_step", asks_for_ever)],
    ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_loop_is_a_hang_that_names_its_process(monkeypatch, owner, name, loop) -> None:
    monkeypatch.setattr(sim, "PLAY_S", 0.5)
    monkeypatch.setattr(owner, name, loop)
    judgement = played()
    law = next(cell for cell in judgement.cells if cell.guarantee == "nothing-without-cause")
    assert (law.verdict, judgement.ended) == (Verdict.BROKEN, "hang")
    assert any("a thread ran without end (core.0): thread-ended: thread main" in one.text for one in law.evidence), law


def test_a_play_that_ends_leaves_nothing_of_its_watch() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    assert played().ended == "clean"
    assert (signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL)) == (before, (0.0, 0.0))


def test_beside_the_main_thread_a_play_is_played_unwatched() -> None:
    found: list[Judgement] = []
    thread = threading.Thread(target=lambda: found.append(played()))
    thread.start()
    thread.join()
    assert found[0].ended == "clean"

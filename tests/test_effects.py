"""Every effect is answered in every world: a loop that asks for one more would else end where nobody tried it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import engine.effects
import engine.process.consensus.effects
import sim.process.effects
from engine.effects import Describe, Effect, Now
from engine.process.living import EngineProcess
from engine.process.real_ports import RealPorts
from engine.process.shell import Process
from engine.topology import core, tensor_parallel
from sim.process.answers.table import ANSWERS
from sim.simulation import Simulation

#: The twin's threads answer this themselves: it never waits, and is asked for most.
BY_THE_THREAD = {Now}
#: What only a process of an engine does: it has rings and a model, and decides together with others.
OF_GROUPS = {kind for kind in vars(engine.process.consensus.effects).values()
             if isinstance(kind, type) and issubclass(kind, Effect) and kind is not Effect}
OF_AN_ENGINE = OF_GROUPS | {engine.effects.CreateRing, engine.effects.OpenRing, engine.effects.MakeWorker,
                            engine.effects.ReadModel}


def effects_of(module: object) -> set[type[Effect]]:
    return {kind for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, Effect) and kind is not Effect
            and kind.__module__ == module.__name__}


@pytest.fixture
def ports() -> Iterator[RealPorts]:
    opened = RealPorts(core())
    yield opened
    opened.close()


def test_a_process_of_an_engine_answers_every_effect_and_nothing_else(ports: RealPorts) -> None:
    process = EngineProcess(ports)
    answered = set(process.answers)
    process.close()
    assert answered == effects_of(engine.effects) | OF_GROUPS


def test_any_other_process_answers_all_but_those_of_an_engine(ports: RealPorts) -> None:
    process = Process(ports)
    answered = set(process.answers)
    process.close()
    assert answered == effects_of(engine.effects) - OF_AN_ENGINE


def test_the_twin_answers_every_effect_and_those_of_its_own() -> None:
    assert set(ANSWERS) | BY_THE_THREAD == effects_of(engine.effects) | OF_GROUPS | effects_of(sim.process.effects)
    assert not set(ANSWERS) & BY_THE_THREAD


def test_each_effect_says_what_it_is_answered_with() -> None:
    """Its answer is the promise between the worlds."""
    silent = [kind.__name__ for kind in effects_of(engine.effects) | OF_GROUPS | effects_of(sim.process.effects)
              if "->" not in (kind.__doc__ or "") and "Does not return" not in (kind.__doc__ or "")]
    assert not silent


def test_what_takes_long_to_tell_is_put_together_only_where_somebody_records(ports: RealPorts) -> None:
    def never() -> dict[str, object]:
        raise AssertionError("nobody records")

    process = Process(ports)
    process.answers[Describe](Describe("step", never))
    process.close()

    told = []
    for recording in (False, True):
        sim = Simulation(tensor_parallel(2), record=recording)
        sim.start_process("core.0", lambda process: (yield Describe("step", lambda: told.append(1) or {})))
        sim.run()
    assert told == [1]

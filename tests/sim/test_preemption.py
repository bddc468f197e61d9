"""A loop on a thread that loses its processor does what it did, and others go on between its effects."""

from __future__ import annotations

from typing import Any

import pytest

from engine.effects import Loop, Now, Observe
from engine.errors import QueueCancelledError
from engine.topology import tensor_parallel
from sim.process.effects import Sleep
from sim.process.preemption import Preemption
from sim.simulation import Simulation


def _asks(told: list[Any]) -> Loop[str]:
    try:
        for number in range(3):
            told.append((yield Observe(str(number), {})))
        return "done"
    finally:
        told.append("left")


def _effects(loop: Loop[Any], answers: list[Any]) -> tuple[list[Any], Any]:
    """-> what it asked for, standstills left out, and its result"""
    asked, effect = [], next(loop)
    while True:
        if not isinstance(effect, Sleep):
            asked.append(effect)
        try:
            effect = loop.send(None if isinstance(effect, Sleep) else answers.pop(0))
        except StopIteration as stop:
            return asked, stop.value


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_no_effect_is_left_out_doubled_or_answered_by_another_ones_answer(share: float) -> None:
    told: list[Any] = []
    asked, result = _effects(Preemption(1, share=share).amid(_asks(told)), ["a", "b", "c"])
    assert [effect.name for effect in asked] == ["0", "1", "2"]
    assert (told, result) == (["a", "b", "c", "left"], "done")


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_an_error_reaches_the_loop_where_it_is_and_what_it_raises_comes_out(share: float) -> None:
    told: list[Any] = []
    loop = Preemption(1, share=share).amid(_asks(told))
    next(loop)
    with pytest.raises(QueueCancelledError, match="over"):
        loop.throw(QueueCancelledError("over"))
    assert told == ["left"]


def test_who_is_closed_leaves_its_loop() -> None:
    told: list[Any] = []
    loop = Preemption(1).amid(_asks(told))
    next(loop)
    loop.close()
    assert told == ["left"]


def test_others_go_on_meanwhile_and_the_same_seed_gives_the_same_play() -> None:
    def beats() -> Loop[None]:
        for _ in range(200):
            yield Observe("beat", {})
            yield Now()

    def played(seed: int) -> list[tuple[str, float]]:
        simulation = Simulation(tensor_parallel(2), scheduler=Preemption(seed, share=0.3))
        for name in ("worker.0", "worker.1"):
            simulation.start_process(name, lambda _: beats())
        simulation.run()
        records = [(r.at, f.node) for f in simulation.journal_files() for r in f.records if r.site == "beat"]
        return [(node, at) for at, node in sorted(records)]

    order = [node for node, _ in played(3)]
    assert order.count("worker.0") == order.count("worker.1") == 200
    assert sum(one != other for one, other in zip(order, order[1:], strict=False)) > 20
    assert played(3) == played(3) != played(4)

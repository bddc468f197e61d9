"""What members of a group bring in the twin, and what becomes of it when one of them dies."""

from __future__ import annotations

from typing import Any

import pytest

from engine.effects import Call
from engine.errors import CollectiveError
from engine.topology import Engine, side_by_side, worker
from faults.journal import Kind
from sim.kernel.choices import Choices, enumerate_choices
from sim.kernel.kernel import Kernel
from sim.process.effects import Enter
from sim.simulation import Simulation
from sim.transport.consensus import Frames, Gathering


class Thread:
    """Counts how often it is woken."""

    stands_still = False

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def wake_after(self, delay_s: float) -> None:
        raise AssertionError("nobody asks for that")


def two(kernel: Kernel, *brings: int, turn: int = 1) -> tuple[Gathering, list[Thread]]:
    gathering, threads = Gathering(kernel, "dp", 2), [Thread(), Thread()]
    for place in brings:
        gathering.bring(f"core.{place}", place, turn, [place], threads[place])
    return gathering, threads


def test_an_answer_comes_to_all_some_time_after_the_last_part() -> None:
    kernel = Kernel()
    gathering, threads = two(kernel, 1, 0)
    assert gathering.answer(1) is None
    kernel.time.advance(10.0)
    assert gathering.answer(1) == [[0], [1]] and [one.woken for one in threads] == [1, 1]
    assert kernel.now == kernel.costs.collective_s


def test_what_one_brought_that_died_before_the_last_came_is_lost_for_good() -> None:
    kernel = Kernel()
    gathering, threads = two(kernel, 1)
    gathering.died("core.1")
    gathering.bring("core.0", 0, 1, [0], threads[0])
    kernel.time.advance(10.0)
    assert gathering.answer(1) is None and threads[0].woken == 0


def test_what_is_on_its_way_at_a_death_may_arrive_or_not() -> None:
    def play(choices: Choices) -> Frames | None:
        kernel = Kernel(choices=choices)
        gathering, _ = two(kernel, 0, 1)
        gathering.died("core.1")
        kernel.time.advance(10.0)
        return gathering.answer(1)

    assert [answer for _, answer in enumerate_choices(play)] == [None, [[0], [1]]]


def test_who_stands_still_when_the_last_comes_keeps_the_answer_from_all() -> None:
    kernel = Kernel()
    gathering, threads = two(kernel, 0)
    threads[0].stands_still = True
    gathering.bring("core.1", 1, 1, [1], threads[1])
    kernel.time.advance(10.0)
    assert gathering.answer(1) is None and threads[1].woken == 0
    threads[0].stands_still = False
    assert gathering.answer(1) == [[0], [1]] and threads[1].woken == 1


def test_what_stood_still_and_died_then_is_lost() -> None:
    kernel = Kernel()
    gathering, threads = two(kernel, 0)
    threads[0].stands_still = True
    gathering.bring("core.1", 1, 1, [1], threads[1])
    kernel.time.advance(10.0)
    gathering.died("core.0")
    assert gathering.answer(1) is None and threads[1].woken == 0


@pytest.mark.parametrize("stranger", ["core.7", "worker.0"])
def test_the_death_of_a_stranger_is_nothing_to_it(stranger: str) -> None:
    kernel = Kernel()
    gathering, _ = two(kernel, 0, 1)
    gathering.died(stranger)
    kernel.time.advance(10.0)
    assert gathering.answer(1) is not None


# -- workers of engines that step together


def play_steps(shared: bool, *places: list[tuple[int, int]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """-> what each rank came to, and what the crossings of the first one say"""
    nodes = [worker(0, engine=engine) for engine in range(len(places))]
    sim = Simulation(side_by_side(*(Engine(tp=2) for _ in places)))
    group = sim.host.collective("dp.0", nodes, 1.0, shared=shared)
    over: dict[str, Any] = {}

    def main(process: Any) -> Any:
        try:
            for at in places[process.node.engine]:
                yield Enter(group, 1, "keep_step", at)
            over[process.name] = "in step"
        except CollectiveError as error:
            over[process.name] = str(error)
        yield Call("stay", (), {})

    def stay(*arguments: Any) -> None:
        return None

    for node in nodes:
        sim.start_process(node, main).call_handler = stay
    sim.run()
    said = [record.data for record in sim.process("worker.0").records if record.kind is Kind.CROSSING]
    return over, said


@pytest.mark.parametrize("shared", [True, False])
def test_workers_of_engines_in_step_go_on(shared: bool) -> None:
    over, said = play_steps(shared, [(0, 1), (0, 2)], [(0, 1), (0, 2)])
    assert over == {"worker.0": "in step", "worker.1.0": "in step"}
    assert said == [{"operation": "keep_step", "wave": 0, "step": step} for step in (1, 2)]


@pytest.mark.parametrize("shared", [True, False])
def test_workers_of_engines_out_of_step_are_all_told_who_is_where(shared: bool) -> None:
    over, _ = play_steps(shared, [(0, 1), (0, 2)], [(0, 1), (0, 3)], [(0, 1), (0, 2)])
    assert over == dict.fromkeys(("worker.0", "worker.1.0", "worker.2.0"), "the engines are out of step: worker.1.0 is "
                                 "at wave 0, step 3, the others at wave 0, step 2")


def test_a_worker_whose_engine_skips_a_forward_is_named_at_the_time_out() -> None:
    over, _ = play_steps(True, [(0, 1), (0, 2)], [(0, 1)])
    assert "worker.1.0" in over["worker.0"], over

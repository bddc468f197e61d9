"""What members of a group bring in the twin, and what becomes of it when one of them dies."""

from __future__ import annotations

import pytest

from sim.kernel.choices import Choices, enumerate_choices
from sim.kernel.kernel import Kernel
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


@pytest.mark.parametrize("stranger", ["core.7", "worker.0"])
def test_the_death_of_a_stranger_is_nothing_to_it(stranger: str) -> None:
    kernel = Kernel()
    gathering, _ = two(kernel, 0, 1)
    gathering.died(stranger)
    kernel.time.advance(10.0)
    assert gathering.answer(1) is not None

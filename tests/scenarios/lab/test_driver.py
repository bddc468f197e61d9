"""What a workload's driver does when the engine dies under it."""

from __future__ import annotations

from scenarios.workloads import recorded
from scenarios.workloads.workload import Command, Driver, add


def _begun() -> tuple[Driver, Command, Command]:
    """Paused, two requests, and a step that is asked for. -> it, the pause, the step"""
    driver = Driver(recorded("pair").then(add(0), add(1), steps=1))
    pause, *adds, steps = driver.start()
    assert (pause.method, [one.kind for one in adds], steps.method) == ("pause_scheduler", ["add"] * 2, "run_steps")
    return driver, pause, steps


def test_calls_are_still_answered_while_the_last_words_of_an_engine_are_waited_for() -> None:
    driver, pause, steps = _begun()
    assert driver.ended("r0") == driver.ended("r1") == driver.died(told=False) == []
    assert driver.answered(steps.ticket, True) == []
    assert [command.kind for command in driver.answered(pause.ticket, True)] == ["finish"]
    assert driver.unanswered == 0


def test_what_a_dead_engine_never_answers_keeps_nobody_and_is_counted() -> None:
    driver, _, steps = _begun()
    assert driver.ended("r0") == driver.ended("r1") == driver.died(told=False) == []
    assert driver.answered(steps.ticket, True) == []
    assert [command.kind for command in driver.died()] == ["finish"]
    assert driver.unanswered == 1
    assert driver.died() == []

"""The two calls of a step on one rank, and what a rank does behind a step that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.topology import Mark
from engine.worker.phases import Phases
from engine.worker.worker_loop import Rank
from tests.engine.core.loops import Hand


def test_what_was_executed_is_sampled_once() -> None:
    phases = Phases[str]()
    phases.execute()
    phases.keep("logits")
    assert [phases.sample(), phases.sample()] == ["logits", None]
    phases.execute()


def test_nothing_is_executed_on_top_of_what_was_not_sampled() -> None:
    phases = Phases[str]()
    phases.execute()
    phases.keep("logits")
    with pytest.raises(RuntimeError, match="has not been sampled"):
        phases.execute()
    assert phases.sample() == "logits", "the step before it is still there"


def test_after_an_execute_that_failed_there_is_nothing_to_sample() -> None:
    phases = Phases[str]()
    phases.execute()
    assert phases.sample() is None
    phases.execute()


class Worker:
    def __init__(self) -> None:
        self.done: list[str] = []

    def execute_model(self, step: Any) -> None:
        self.done.append(f"execute {step.step}")
        if step.step == 1:
            raise ValueError("a device fell off")

    def sample_tokens(self, grammar_output: None) -> None:
        self.done.append("sample")

    def check_health(self) -> str:
        return "well"


def call(hand: Hand, rank: Rank, method: str, *args: Any) -> Any:
    return hand.run(rank.call(7, method, args, {}))


def execute(hand: Hand, rank: Rank, step: int) -> None:
    call(hand, rank, "execute_model", SimpleNamespace(step=step))


def test_behind_a_step_that_failed_a_rank_executes_no_other_one_and_answers_all_else() -> None:
    hand, rank = Hand(), Rank()
    worker = hand.worker = Worker()
    execute(hand, rank, 0)
    with pytest.raises(ValueError, match="fell off"):
        execute(hand, rank, 1)
    for _ in range(2):
        call(hand, rank, "sample_tokens", None)
        with pytest.raises(RuntimeError, match=r"behind one that failed \(ValueError: a device fell off\)"):
            execute(hand, rank, 2)
    assert worker.done == ["execute 0", "execute 1", "sample", "sample"]
    assert call(hand, rank, "check_health") == "well"
    assert [mark for mark, _ in hand.marks] == [Mark.EXECUTING.value] * 7, "also where it refuses"
    assert [said.get("step") for _, said in hand.marks] == [0, 1, None, 2, None, 2, None]


def test_behind_a_call_that_could_not_be_read_no_step_is_executed() -> None:
    hand, rank = Hand(), Rank()
    hand.worker = Worker()
    rank.lost("unreadable RPC: torn")
    rank.lost("later")
    with pytest.raises(RuntimeError, match=r"behind one that failed \(unreadable RPC: torn\)"):
        execute(hand, rank, 0)
    assert hand.worker.done == []


def test_a_call_that_is_no_step_may_fail_and_steps_go_on() -> None:
    hand, rank = Hand(), Rank()
    hand.worker = Worker()
    with pytest.raises(AttributeError):
        call(hand, rank, "no_such_method")
    execute(hand, rank, 0)
    assert hand.worker.done == ["execute 0"]

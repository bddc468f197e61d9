"""The checker that replays steps must refuse what a wrong scheduler would send."""

from __future__ import annotations

import pytest

from engine.messages import CachedRequestData, NewRequestData, SamplingParams, SchedulerOutput
from tests.engine.core.scheduler_fakes import WorkerView, next_token

PARAMS = SamplingParams()


def new(name: str, tokens: list[int], blocks: list[int], computed: int = 0) -> NewRequestData:
    return NewRequestData(name, tokens, len(tokens), PARAMS, blocks, computed)


def make_step(*, first: list[NewRequestData] = (), known: list[CachedRequestData] = (), counts: dict[str, int],
              finished: list[str] = (), preempted: list[str] = ()) -> SchedulerOutput:
    return SchedulerOutput(0, list(first), list(known), counts, list(finished), list(preempted))


@pytest.fixture
def view() -> WorkerView:
    """A worker that has computed `a`: tokens 1, 2, 3 in blocks 0 and 1 of two tokens each."""
    view = WorkerView(num_blocks=6, block_size=2, budget=8, max_num_seqs=4)
    result = view.execute(make_step(first=[new("a", [1, 2, 3], [0, 1])], counts={"a": 3}))
    assert result.sampled == {"a": [next_token([1, 2, 3])]}
    return view


def test_a_block_shared_for_the_same_tokens_is_accepted(view):
    result = view.execute(make_step(first=[new("b", [1, 2, 9], [0, 2], 2)], counts={"b": 1}))
    assert result.sampled == {"b": [next_token([1, 2, 9])]}


@pytest.mark.parametrize("wrong, message", [
    (make_step(first=[new("b", [7, 7, 9], [0, 2], 2)], counts={"b": 1}), "reads slot"),
    (make_step(first=[new("b", [1, 2, 9], [4, 2], 2)], counts={"b": 1}), "reads slot"),
    (make_step(first=[new("b", [9, 9], [0])], counts={"b": 2}), "which .* read"),
    (make_step(first=[new("b", [9, 9, 9], [2])], counts={"b": 3}), "too few or too many blocks"),
    (make_step(first=[new("a", [1], [2])], counts={"a": 1}), "is new, but known here"),
    (make_step(known=[CachedRequestData("a", [4], [], 2)], counts={"a": 1}), "a gap or an overlap"),
    (make_step(known=[CachedRequestData("a", [], [], 3)], counts={"a": 1}), "beyond the known tokens"),
    (make_step(counts={}, finished=["b"]), "not known here"),
    (make_step(counts={}, finished=["a"], preempted=["a"]), "not known here"),
    (make_step(counts={"a": 1}), "told once"),
    (make_step(first=[new("b", [1] * 9, [2, 3, 4, 5, 0])], counts={"b": 9}), "more tokens than the budget"),
], ids=["other-prefix", "never-computed", "writes-a-held-block", "too-few-blocks", "new-twice", "gap",
        "tokens-missing", "finished-unknown", "ended-twice", "scheduled-untold", "over-budget"])
def test_a_wrong_step_is_refused(view, wrong, message):
    with pytest.raises(AssertionError, match=message):
        view.execute(wrong)

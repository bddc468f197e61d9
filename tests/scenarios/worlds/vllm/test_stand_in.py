"""The stand-in for a model: what follows a prompt, and that no wrong slot goes unnoticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.workloads.workload import recorded
from scenarios.worlds.vllm.references import with_references
from scenarios.worlds.vllm.stand_in.requests import Requests
from scenarios.worlds.vllm.stand_in.words import SPECIAL_TOKENS, continuation, words

VOCABULARY, BLOCK = 561, 4
PROMPT = [5, 9, 200, 7, 44, 3, 17, 8, 90, 11]


def step(scheduled: dict[str, int], *, new: dict[str, tuple[list[int], list[int], int]] = {},  # noqa: B006
         cached: dict[str, tuple[int, list[int] | None]] = {}, resumed: tuple[str, ...] = (),  # noqa: B006
         said: dict[str, int] = {}, finished: tuple[str, ...] = ()) -> Any:  # noqa: B006
    """As vLLM's `SchedulerOutput`. `new`: prompt, blocks, computed; `cached`: computed, new blocks."""
    return SimpleNamespace(
        finished_req_ids=set(finished), num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[SimpleNamespace(req_id=name, prompt_token_ids=prompt, block_ids=(blocks,),
                                            num_computed_tokens=computed)
                            for name, (prompt, blocks, computed) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), resumed_req_ids=set(resumed),
            new_block_ids=[None if blocks is None else (blocks,) for _, blocks in cached.values()],
            num_computed_tokens=[computed for computed, _ in cached.values()],
            num_output_tokens=[said.get(name, 0) for name in cached]))


def decoded(requests: Requests, name: str, blocks: list[int], count: int) -> list[int]:
    """A prompt in one step, then a token a step."""
    found = requests.execute(step({name: len(PROMPT)}, new={name: (PROMPT, blocks, 0)}))[name]
    while len(found) < count:
        found += requests.execute(step({name: 1}, cached={name: (len(PROMPT) + len(found) - 1, None)}))[name]
    return found


def test_tokens_follow_from_the_prompt_alone() -> None:
    assert decoded(Requests(BLOCK, VOCABULARY), "a", [3, 0, 7, 5, 1], 8) == continuation(PROMPT, 8, VOCABULARY)


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30), st.integers(1, 30))
def test_no_token_ends_a_request(prompt: list[int], count: int) -> None:
    assert all(SPECIAL_TOKENS <= token < VOCABULARY for token in continuation(prompt, count, VOCABULARY))


@given(st.lists(st.integers(0, 1 << 20), max_size=20), st.integers(0, 20))
def test_words_go_on_where_they_were_left(tokens: list[int], place: int) -> None:
    first = words(tokens[:place])
    assert words(tokens) == first + words(tokens[place:], first[-1] if first else 0)


def test_a_prompt_in_pieces_says_nothing_before_its_last() -> None:
    requests = Requests(BLOCK, VOCABULARY)
    assert requests.execute(step({"a": 6}, new={"a": (PROMPT, [2, 1, 4], 0)})) == {"a": []}
    assert requests.execute(step({"a": 4}, cached={"a": (6, None)})) == {"a": continuation(PROMPT, 1, VOCABULARY)}


def test_a_prefix_is_found_in_the_blocks_of_another() -> None:
    requests = Requests(BLOCK, VOCABULARY)
    decoded(requests, "a", [2, 1, 4], 2)
    shared = requests.execute(step({"b": len(PROMPT) - 8}, new={"b": (PROMPT, [2, 1, 6], 8)}))
    assert shared == {"b": continuation(PROMPT, 1, VOCABULARY)}


@pytest.mark.parametrize("blocks", [[1, 2, 6], [2, 9, 6], [9, 1, 6]], ids=["out of order", "blank", "blank at first"])
def test_a_wrong_block_is_a_wrong_token(blocks: list[int]) -> None:
    requests = Requests(BLOCK, VOCABULARY)
    decoded(requests, "a", [2, 1, 4], 2)
    wrong = requests.execute(step({"b": len(PROMPT) - 8}, new={"b": (PROMPT, blocks, 8)}))["b"]
    assert wrong != continuation(PROMPT, 1, VOCABULARY)


def test_a_slot_that_was_overwritten_is_a_wrong_token() -> None:
    requests = Requests(BLOCK, VOCABULARY)
    decoded(requests, "a", [2, 1, 4], 1)
    requests.execute(step({"b": 4}, new={"b": ([50, 51, 52, 53], [4], 0)}))  # somebody is given a block in use
    after = requests.execute(step({"a": 1}, cached={"a": (len(PROMPT), None)}))["a"]
    assert after != continuation(PROMPT, 2, VOCABULARY)[1:]


def test_who_is_resumed_says_again_what_nobody_heard() -> None:
    requests = Requests(BLOCK, VOCABULARY)
    said = decoded(requests, "a", [2, 1, 4, 5], 3)
    again = requests.execute(step({"a": len(PROMPT) + 2}, cached={"a": (0, [7, 8, 9, 10])}, resumed=("a",),
                                  said={"a": 2}))
    assert again["a"] == [said[2]]


def test_who_has_finished_is_forgotten() -> None:
    requests = Requests(BLOCK, VOCABULARY)
    decoded(requests, "a", [2, 1, 4], 2)
    requests.execute(step({}, finished=("a",)))
    assert not len(requests)


def test_a_word_is_the_same_in_every_process() -> None:
    code = "from scenarios.worlds.vllm.stand_in.words import words; print(words([5, 9]))"
    told = subprocess.run([sys.executable, "-c", code],
                          capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert json.loads(told.stdout) == words([5, 9])


def test_references_are_as_long_as_was_asked_for_and_end_where_they_are_told() -> None:
    workload = recorded("eight-mixed").played()
    made = with_references(workload, VOCABULARY, 400)
    for request in made.requests:
        params = request.params
        if not params.stop_token_ids and not request.end_token_ids:
            assert len(request.reference_token_ids) == params.max_tokens
            assert request.reference_token_ids == continuation(
                request.prompt_token_ids, params.max_tokens or 0, VOCABULARY)
    short = with_references(workload, VOCABULARY, len(workload.requests[0].prompt_token_ids) + 2)
    assert len(short.requests[0].reference_token_ids) == 2

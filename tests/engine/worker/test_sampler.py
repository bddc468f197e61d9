"""What is drawn follows the distribution that temperature, top-k and top-p leave, and nothing but seed and position."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import SamplingParams
from engine.worker.sampler import Draw, probabilities, sample, seed_of, uniform

LOGITS = torch.tensor([2.0, 0.5, 1.5, -1.0, 1.0, 0.0])


def drawn(params: SamplingParams, count: int = 20_000) -> dict[int, float]:
    """Frequencies of `count` draws of one seed at consecutive positions."""
    tokens = sample(LOGITS.expand(count, -1).clone(), [Draw(params, 11, position) for position in range(count)])
    return {token: hits / count for token, hits in Counter(tokens).items()}


@pytest.mark.parametrize(("params", "allowed"), [
    (SamplingParams(temperature=1.0), {0, 1, 2, 3, 4, 5}),
    (SamplingParams(temperature=0.5), {0, 1, 2, 3, 4, 5}),
    (SamplingParams(temperature=1.0, top_k=3), {0, 2, 4}),
    (SamplingParams(temperature=1.0, top_k=100), {0, 1, 2, 3, 4, 5}),
    (SamplingParams(temperature=1.0, top_p=0.7), {0, 2, 4}),
    (SamplingParams(temperature=1.0, top_p=0.01), {0}),
    (SamplingParams(temperature=2.0, top_k=4, top_p=0.6), {0, 2}),
])
def test_draws_follow_the_distribution_of_the_tokens_that_are_left(params: SamplingParams, allowed: set[int]) -> None:
    weights = {token: float((LOGITS / params.temperature).exp()[token]) for token in allowed}
    found = drawn(params)
    assert set(found) == allowed
    for token, weight in weights.items():
        assert found[token] == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_temperature_zero_and_a_tiny_one_take_the_most_probable() -> None:
    assert set(drawn(SamplingParams(temperature=0.0), 10)) == {0}
    assert set(drawn(SamplingParams(temperature=1e-30), 1000)) == {0}


@settings(max_examples=100, deadline=None)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 5000), st.integers(1, 8), st.randoms())
def test_a_draw_depends_on_its_own_row_alone(seed: int, position: int, others: int, rng) -> None:
    params = SamplingParams(temperature=1.2, top_k=5, top_p=0.9)
    draw = Draw(params, seed, position)
    alone = sample(LOGITS[None].clone(), [draw])
    rows = [Draw(SamplingParams(temperature=rng.choice([0.0, 0.7])), rng.getrandbits(60), 3) for _ in range(others)]
    place = rng.randrange(others + 1)
    rows.insert(place, draw)
    logits = torch.stack([LOGITS if i == place else LOGITS.flip(0) for i in range(others + 1)])
    assert sample(logits, rows)[place] == alone[0]


def test_a_banned_token_is_never_chosen() -> None:
    greedy, hot = SamplingParams(), SamplingParams(temperature=5.0)
    assert sample(LOGITS[None].clone(), [Draw(greedy, 0, 0, (0,))]) == [2]
    tokens = sample(LOGITS.expand(500, -1).clone(), [Draw(hot, 0, p, (0, 2)) for p in range(500)])
    assert set(tokens) == {1, 3, 4, 5}


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_position() -> None:
    numbers = [uniform(seed, position) for seed in (0, 1, -1, 1 << 40) for position in range(2500)]
    assert len(set(numbers)) == len(numbers)
    assert all(0.0 <= number < 1.0 for number in numbers)
    tenths = Counter(int(number * 10) for number in numbers)
    assert all(800 < tenths[tenth] < 1200 for tenth in range(10))


def test_a_request_without_a_seed_has_one_of_its_own_that_survives_preemption() -> None:
    params = SamplingParams(temperature=1.0)
    assert seed_of(params, "a", 0) == seed_of(params, "a", 0)
    assert len({seed_of(params, "a", 0), seed_of(params, "b", 0), seed_of(params, "a", 1)}) == 3
    assert seed_of(SamplingParams(temperature=1.0, seed=5), "a", 0) == 5


def test_what_top_p_keeps_reaches_it_and_would_not_without_its_last_token() -> None:
    logits = torch.randn(50, 200, generator=torch.Generator().manual_seed(3)) * 3
    kept, order = probabilities(logits, [Draw(SamplingParams(temperature=1.0, top_p=0.8), 0, 0)] * 50)
    assert torch.equal(order.sort(dim=-1).values, torch.arange(200).expand(50, -1))
    for row in kept:
        left = row[row > 0]
        assert left.sum() >= 0.8 > left[:-1].sum()

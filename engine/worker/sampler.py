"""Chooses tokens from logits.

Promises: greedy is the argmax; temperature, top-k and top-p cut in that order; a draw depends on the logits,
the seed and the position alone, not on the batch, the step or the device. So a request that is preempted and
computed again, or served beside others, draws the same tokens again.

There is no generator with a state: the uniform number of a draw is a hash of (seed, position), and the token
is where that number falls in the cumulated probabilities, most probable first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.messages import SamplingParams

_MASK = (1 << 64) - 1


class Draw(NamedTuple):
    """One row of logits and how its token is chosen."""

    params: SamplingParams
    seed: int  # see `seed_of`
    position: int  # of the token to be chosen: how many tokens are known before it
    banned: tuple[int, ...] = ()  # tokens that must not be chosen (min_tokens not reached)


def seed_of(params: SamplingParams, request_id: str, engine_seed: int) -> int:
    """The request's own seed, or one of its id: the same after a preemption, another for each request."""
    if params.seed is not None:
        return params.seed
    return int.from_bytes(hashlib.blake2b(f"{engine_seed}/{request_id}".encode(), digest_size=8).digest())


def uniform(seed: int, position: int) -> float:
    """In [0, 1): splitmix64 of the seed, stepped once, and the position."""
    state = seed & _MASK
    for word in (0, position):
        state = (state + 0x9E3779B97F4A7C15 * (word + 1)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """logits [n, vocabulary] float32, one row per draw -> n token ids."""
    for row, draw in enumerate(draws):
        if draw.banned:
            logits[row, list(draw.banned)] = float("-inf")
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    random_rows = [row for row, draw in enumerate(draws) if draw.params.temperature > 0.0]
    if random_rows:
        chosen = draws if len(random_rows) == len(draws) else [draws[row] for row in random_rows]
        part = logits if len(random_rows) == len(draws) else logits[random_rows]
        for row, token in zip(random_rows, _sample_random(part, chosen), strict=True):
            tokens[row] = token
    return tokens


def probabilities(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (probabilities, token ids), both [n, vocabulary], most probable first; what is cut off has 0.

    A row's probabilities add up to what top-p kept, not to 1.
    """
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    vocabulary = logits.shape[-1]
    # Divided in double: a tiny temperature must give greedy, not infinities.
    scaled, order = logits.double().div(column([draw.params.temperature for draw in draws])).sort(
        dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocabulary, device=logits.device)
    scaled.masked_fill_(ranks >= column([draw.params.top_k or vocabulary for draw in draws]), float("-inf"))
    kept = (scaled - scaled[:, :1]).softmax(dim=-1)
    # A token stays while those before it have not yet reached top-p: the most probable always does.
    before = kept.cumsum(dim=-1) - kept
    limits = [draw.params.top_p if draw.params.top_p < 1.0 else 2.0 for draw in draws]
    return kept.masked_fill_(before >= column(limits), 0.0), order


def _sample_random(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    kept, order = probabilities(logits, draws)
    cumulated = kept.cumsum(dim=-1)
    points = torch.tensor([uniform(draw.seed, draw.position) for draw in draws], dtype=torch.float64,
                          device=logits.device)[:, None] * cumulated[:, -1:]
    # Rounding may put the point on the total: the last token that is kept bounds the choice.
    last = (kept > 0.0).sum(dim=-1, keepdim=True) - 1
    choice = torch.minimum((cumulated <= points).sum(dim=-1, keepdim=True), last)
    return order.gather(-1, choice)[:, 0].tolist()

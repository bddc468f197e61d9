"""The layers of a Llama, cut for one rank.

Promises: with W ranks, rank r's column-parallel layer computes its 1/W of the outputs and needs no talk; its
row-parallel layer takes 1/W of the inputs and adds up over the ranks. So each pair of them costs one
all_reduce, and the result is the same on every rank.

    hidden [T, hidden] --column--> [T, wide / W] --row--> partial [T, hidden] --all_reduce--> [T, hidden]

T is the number of tokens in the step, of all requests together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from engine.model_config import ModelConfig


class Shard(NamedTuple):
    """Which part of the whole a rank holds."""

    rank: int
    world_size: int

    def of(self, total: int) -> slice:
        """Rank r's share of `total` things. Where they do not divide, the last shares run over the end."""
        size = -(-total // self.world_size)
        return slice(self.rank * size, (self.rank + 1) * size)

    def of_kv_heads(self, kv_heads: int) -> slice:
        """Its key-value heads: a share, or, where ranks are more than heads, the one that its queries use."""
        if kv_heads >= self.world_size:
            return self.of(kv_heads)
        head = self.rank * kv_heads // self.world_size
        return slice(head, head + 1)


def scaled(part: slice, size: int) -> slice:
    """The rows that belong to a slice of heads of `size` rows each."""
    return slice(part.start * size, part.stop * size)


class ColumnParallelLinear:
    """weight [out / W, in]; x [T, in] -> [T, out / W]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class RowParallelLinear:
    """weight [out, in / W]; x [T, in / W] -> [T, out], summed over the ranks. The bias is added once, after."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: Any) -> None:
        self.weight = weight
        self.bias = bias
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        total = self.group.all_reduce(functional.linear(x, self.weight))
        return total if self.bias is None else total + self.bias


class RMSNorm:
    """x [T, hidden] -> [T, hidden]. Computed in float32 whatever x is, as transformers does."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        # x / sqrt(mean(x * x) + eps), with both sides of the root times the width: one length is all that is computed.
        # On a CPU `functional.rms_norm` is a dozen small steps, and three times as slow on a small model.
        self._least = torch.tensor(math.sqrt(len(weight) * eps), dtype=torch.float32, device=weight.device)
        self._root = math.sqrt(len(weight))
        self._scaled = weight * self._root if weight.dtype is torch.float32 else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot(self._least)
        if self._scaled is not None:
            return (x / length).mul_(self._scaled)
        return self.weight * (x / length).mul_(self._root).to(x.dtype)


def inverse_frequencies(model: ModelConfig) -> torch.Tensor:
    """[head_dim / 2] float32, after `rope_scaling` (default, linear, llama3)."""
    frequencies = 1.0 / model.rope_theta ** (torch.arange(0, model.head_dim, 2, dtype=torch.float32) / model.head_dim)
    scaling = model.rope_scaling
    if not scaling:
        return frequencies
    slowed = frequencies / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return slowed
    # llama3: slow waves are stretched, fast ones are kept, and those between are blended.
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * slowed + kept * frequencies


class RotaryEmbedding:
    """Turns queries and keys by their positions. The tables hold every position below `length`."""

    def __init__(self, model: ModelConfig, length: int, dtype: torch.dtype, device: str) -> None:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * inverse_frequencies(model)
        # The sign of the half that is turned backwards lies in the table, so that a roll does the rest.
        self.cos = torch.cat([angles.cos(), angles.cos()], dim=-1).to(device=device, dtype=dtype)
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=-1).to(device=device, dtype=dtype)
        self._half = model.head_dim // 2

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] -> cos, sin [T, 1, head_dim]; looked up once a step and used by every layer."""
        return self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]

    def turn(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """heads [T, n, head_dim] -> the same, turned."""
        return (heads * cos).addcmul_(heads.roll(self._half, -1), sin)

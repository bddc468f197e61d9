"""One rank's place in the pipeline: what it takes from the stage before it, and hands to the next one.

Promises: what goes from stage to stage follows from the scheduler's outputs alone, so nothing tells its own shape: the
hidden states of the step's tokens, [T, hidden], and back to the first stage the tokens that the last one sampled, one
for each request whose scheduled tokens reached its end. With several ranks a stage each of them sends its share of the
columns, and those of the next stage gather them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.topology import Grid


class IntermediateTensors(NamedTuple):
    """What a stage leaves for the next one."""

    hidden_states: torch.Tensor  # [T, hidden]


class Stage:
    """Of rank `rank`; `group` is its `ProcessGroup`, or one that counts."""

    def __init__(self, group: Any, grid: Grid, rank: int, hidden_size: int, dtype: torch.dtype, device: str) -> None:
        self.count = grid.pp
        self.is_first, self.is_last = grid.stage(rank) == 0, grid.stage(rank) == grid.pp - 1
        self.is_output = rank == grid.output_rank
        self._group, self._dtype, self._device = group, dtype, device
        self._shares = grid.tp if hidden_size % grid.tp == 0 else 1
        self._share = rank % grid.tp if self._shares > 1 else 0
        self._columns = hidden_size // self._shares

    def receive(self, step: int, tokens: int) -> IntermediateTensors:
        """What the stage before this one has left of a step with so many tokens."""
        mine = torch.empty((tokens, self._columns), dtype=self._dtype, device=self._device)
        mine = self._group.receive("hidden_states", step, mine)
        return IntermediateTensors(mine if self._shares == 1 else self._group.all_gather(mine, -1))

    def send(self, step: int, left: IntermediateTensors) -> None:
        """To the next stage."""
        self._group.send("hidden_states", step, left.hidden_states.tensor_split(self._shares, -1)[self._share])

    def tell_samples(self, step: int, tokens: list[int]) -> None:
        """What the last stage has sampled, to the first one."""
        self._group.send("sampled_tokens", step, torch.tensor(tokens, dtype=torch.int64, device=self._device))

    def hear_samples(self, step: int, count: int) -> list[int]:
        told = torch.empty(count, dtype=torch.int64, device=self._device)
        tokens: list[int] = self._group.receive("sampled_tokens", step, told).tolist()
        return tokens

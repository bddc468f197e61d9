"""Collectives among real processes: the right sums and parts, bitwise alike on every rank."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from engine.worker.distributed import STAR_BYTES, ProcessGroup, choose_backend
from tests.engine.worker.model_driver import in_child


def contribution(rank: int, size: int) -> torch.Tensor:
    return torch.randn(3, size, generator=torch.Generator().manual_seed(rank))


def collect(rank: int, world_size: int, folder: str, size: int, answers) -> None:
    group = ProcessGroup(rank, world_size, f"file://{folder}/meeting", "cpu", 20.0)
    mine = contribution(rank, size)
    summed = group.all_reduce(mine.clone())
    joined = group.all_gather(mine.t(), 0)
    told = group.broadcast(mine.clone())
    group.barrier()
    group.close()
    group.close()
    answers.put((rank, summed.numpy(), joined.numpy(), told.numpy()))


@pytest.mark.parametrize("size", [64, STAR_BYTES // 8])
@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_get_the_same_sum_parts_and_broadcast(tmp_path: Path, world_size: int, size: int) -> None:
    def call() -> None:
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        ranks = [fork.Process(target=collect, args=(rank, world_size, str(tmp_path), size, answers), daemon=True)
                 for rank in range(world_size)]
        for rank in ranks:
            rank.start()
        told = [answers.get(timeout=30) for _ in ranks]
        for rank in ranks:
            rank.join(30)
            assert rank.exitcode == 0
        parts = [contribution(rank, size) for rank in range(world_size)]
        for _, summed, joined, broadcast in told:
            assert (summed == told[0][1]).all(), "ranks differ"
            torch.testing.assert_close(torch.from_numpy(summed), sum(parts))
            assert torch.equal(torch.from_numpy(joined), torch.cat([part.t() for part in parts], dim=0))
            assert torch.equal(torch.from_numpy(broadcast), parts[0])

    in_child(call)


def test_a_world_of_one_needs_no_torch_distributed() -> None:
    group = ProcessGroup(0, 1, "", "cpu", 1.0)
    tensor = torch.ones(2)
    assert group.all_reduce(tensor) is tensor
    assert group.all_gather(tensor) is tensor
    assert group.backend == "none"
    assert not torch.distributed.is_initialized()
    group.barrier()
    group.close()


def test_ranks_on_cpu_meet_over_gloo() -> None:
    assert choose_backend("cpu", 2) == "gloo"

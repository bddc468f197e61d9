"""Collectives among real processes: the right sums and parts, bitwise alike on every rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from engine.errors import CollectiveError
from engine.worker.parallel.coordinator import STAR_BYTES
from engine.worker.parallel.distributed import ProcessGroup, choose_backend
from engine.worker.parallel.shared_memory import SLOT_BYTES
from tests.engine.worker.model_driver import in_child


def contribution(rank: int, size: int) -> torch.Tensor:
    return torch.randn(3, size, generator=torch.Generator().manual_seed(rank))


def collect(rank: int, world_size: int, folder: str, size: int, answers, communicator) -> None:
    group = ProcessGroup(rank, world_size, f"file://{folder}/meeting", "cpu", 20.0, communicator)
    assert group.carrier == communicator
    mine = contribution(rank, size)
    summed = group.all_reduce(mine.clone())
    joined = group.all_gather(mine.t(), 0)
    told = group.broadcast(mine.clone())
    group.barrier()
    group.close()
    group.close()
    answers.put((rank, summed.numpy(), joined.numpy(), told.numpy()))


@pytest.mark.parametrize("communicator", ["shm", "gloo"])
@pytest.mark.parametrize("size", [64, STAR_BYTES // 8, SLOT_BYTES // 3])
@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_get_the_same_sum_parts_and_broadcast(tmp_path: Path, world_size: int, size: int,
                                                        communicator: str) -> None:
    def call() -> None:
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        ranks = [fork.Process(target=collect, args=(rank, world_size, str(tmp_path), size, answers, communicator),
                              daemon=True)
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


def broken(rank: int, folder: str, how: str, answers) -> None:
    group = ProcessGroup(rank, 3, f"file://{folder}/meeting", "cpu", 20.0, "shm")
    group.tp._shared.timeout_s = 0.5 if how == "never comes" else 20.0
    group.all_reduce(torch.ones(8))
    enter, brings = group.all_reduce, torch.ones(8)
    if rank == 1 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rank == 1 and how == "never comes":
        signal.pause()
    elif rank == 1 and how == "enters another":
        enter = group.all_gather
    elif rank == 1:
        brings = torch.ones(9)
    began = time.monotonic()
    try:
        enter(brings)
    except CollectiveError as error:
        answers.put((rank, str(error), time.monotonic() - began))


@pytest.mark.parametrize(("how", "ranks", "words"), [
    ("dies", (0, 2), "rank 1 died before it entered"),
    ("never comes", (0, 2), "rank 1 did not enter within 0.5 s"),
    ("enters another", (0, 1, 2), "rank 0 enters all_reduce with 32 bytes, rank 1 enters all_gather with 32 bytes"),
    ("brings more", (0, 1, 2), "rank 1 enters all_reduce with 36 bytes"),
])
def test_ranks_that_share_memory_are_told_who_is_not_there(tmp_path: Path, how: str, ranks: tuple[int, ...],
                                                           words: str) -> None:
    def call() -> None:
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()
        children = [fork.Process(target=broken, args=(rank, str(tmp_path), how, answers), daemon=True)
                    for rank in range(3)]
        for child in children:
            child.start()
        told = {rank: (text, took_s) for rank, text, took_s in (answers.get(timeout=30) for _ in ranks)}
        assert sorted(told) == list(ranks)
        for text, took_s in told.values():
            assert words in text
            assert took_s < 10  # not the bound of the group, which is 20 s
        for child in children:
            child.terminate()
            child.join(30)

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

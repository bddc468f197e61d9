"""On a machine with GPUs: engines compute there what transformers does, and nccl carries what ranks tell each other.

Ranks that share a GPU tell it through memory. With one GPU nccl has a group of one, which is asked what several are.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config import EngineConfig
from engine.frontend.llm import LLM
from engine.model_config import read_model_config
from engine.topology import Grid
from engine.worker.parallel.coordinator import GroupCoordinator
from engine.worker.parallel.distributed import ProcessGroup
from scenarios.command.checks import gpus
from scenarios.lab.settings import MODEL
from tests.engine.engine_lab import config, wrong_answers

GPUS = gpus()
SIZE = 70_000
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="there is no GPU")]


class Several(int):
    """So many ranks, which are not taken for one, whose operations are none."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return other != 1 and int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other


def contribution(rank: int) -> torch.Tensor:
    return torch.randn(3, SIZE, generator=torch.Generator().manual_seed(rank)).to(f"cuda:{rank}")


def of_one(folder: str) -> GroupCoordinator:
    dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=0, world_size=1,
                            device_id=torch.device("cuda:0"))
    made = GroupCoordinator([0], 0, "nccl", None, dist.new_group([0], backend="gloo"), 60.0)
    made.world_size = Several(1)
    return made


def collect(rank: int, world_size: int, folder: str, answers: Any) -> None:
    torch.cuda.set_device(rank)
    group = of_one(folder) if world_size == 1 else ProcessGroup(
        rank, world_size, f"file://{folder}/meeting", f"cuda:{rank}", 60.0).tp
    assert group.backend == "nccl"
    mine = contribution(rank)
    summed, joined = group.all_reduce(mine.clone()), group.all_gather(mine.t(), 0)
    told = group.broadcast(mine.clone())
    group.barrier()
    assert group.tell([rank, 7]) == [[other, 7] for other in range(world_size)]
    answers.put((rank, *(tensor.cpu().numpy() for tensor in (summed, joined, told))))
    group.close()
    dist.destroy_process_group()


def pass_on(rank: int, world_size: int, folder: str, answers: Any) -> None:
    torch.cuda.set_device(rank)
    group = ProcessGroup(rank, world_size, f"file://{folder}/meeting", f"cuda:{rank}", 60.0, tp=1)
    for step in range(6):  # more than there are buffers
        group.send("tokens", step, contribution(rank) + step)
        found = group.receive("tokens", step, torch.empty(3, SIZE, device=f"cuda:{rank}"))
    answers.put((rank, found.cpu().numpy()))
    group.close()


def told_by(target: Any, world_size: int, folder: Path) -> list[Any]:
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    ranks = [spawn.Process(target=target, args=(rank, world_size, str(folder), answers), daemon=True)
             for rank in range(world_size)]
    for rank in ranks:
        rank.start()
    told = sorted((answers.get(timeout=120) for _ in ranks), key=lambda answer: answer[0])
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    return told


def test_nccl_gives_all_ranks_the_same_sum_parts_and_broadcast(tmp_path: Path) -> None:
    world_size = min(GPUS, 2)
    parts = [contribution(rank).cpu() for rank in range(world_size)]
    for _, summed, joined, broadcast in told_by(collect, world_size, tmp_path):
        torch.testing.assert_close(torch.from_numpy(summed), sum(parts))
        assert torch.equal(torch.from_numpy(joined), torch.cat([part.t() for part in parts], dim=0))
        assert torch.equal(torch.from_numpy(broadcast), parts[0])


@pytest.mark.skipif(GPUS < 2, reason="nccl refuses two ranks on one GPU")
def test_nccl_brings_each_stage_what_the_one_before_it_sent(tmp_path: Path) -> None:
    for rank, found in told_by(pass_on, 2, tmp_path):
        assert torch.equal(torch.from_numpy(found), contribution(1 - rank).cpu() + 5)


def settings(grid: Grid, **changes: Any) -> EngineConfig:
    return config(tp=grid.tp, pipeline_parallel_size=grid.pp, device="auto", start_method="spawn", **changes)


@pytest.mark.parametrize("promised", [False, True])
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 1), Grid(1, 2)], ids=["one rank", "two ranks", "two stages"])
def test_64_prompts_equal_transformers(grid: Grid, promised: bool) -> None:
    with LLM(config=settings(grid, scheduler={"async_scheduling": promised})) as llm:
        assert wrong_answers(llm) == []


def test_ranks_that_share_a_gpu_share_its_memory() -> None:
    fraction, model = 0.02, read_model_config(MODEL)
    with LLM(config=settings(Grid(2, 1), cache={"num_gpu_blocks": None, "memory_fraction": fraction})) as llm:
        blocks = llm.client.num_gpu_blocks
    block_bytes = 2 * 8 * model.num_hidden_layers * model.num_key_value_heads // 2 * model.head_dim * 4  # of a rank
    share = fraction * torch.cuda.get_device_properties(0).total_memory / -(-2 // GPUS)
    assert 0.5 * share < blocks * block_bytes <= share

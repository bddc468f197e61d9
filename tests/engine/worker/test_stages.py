"""What goes from stage to stage among real processes: in order, whole, bounded, and by whose fault it does not come."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import CollectiveError, ConfigError
from engine.ipc.message_queue import MessageQueue
from engine.model_config import check_parallel, layers_of_stage, read_model_config
from engine.topology import Grid
from engine.worker.parallel.distributed import ProcessGroup
from engine.worker.parallel.pipe import PIECE_BYTES
from engine.worker.parallel.stages import IntermediateTensors, Stage
from scenarios.lab.settings import MODEL
from tests.engine.worker.model_driver import in_child

LARGE = PIECE_BYTES // 4 + 3  # floats: more than one piece, and not a whole number of them


def joined(rank: int, size: int, tp: int, folder: str, communicator: Any = "auto",
           timeout_s: float = 20.0) -> ProcessGroup:
    return ProcessGroup(rank, size, f"file://{folder}/meeting", "cpu", timeout_s, communicator, tp)


def all_of(folder: Path, count: int, work: Callable[..., Any], *arguments: Any,
           answers: int | None = None) -> dict[int, Any]:
    """-> what each rank said; where not all of them do, they stay until so many have."""
    told: dict[int, Any] = {}

    def one(rank: int, queue: Any) -> None:
        queue.put((rank, work(rank, str(folder), *arguments)))
        if answers is not None:
            signal.pause()

    def call() -> None:
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        ranks = [fork.Process(target=one, args=(rank, queue), daemon=True) for rank in range(count)]
        for child in ranks:
            child.start()
        told.update(queue.get(timeout=30) for _ in range(count if answers is None else answers))
        for child in ranks:
            if answers is not None:
                child.kill()
            child.join(30)
        (folder / "told").write_text(repr(told))

    in_child(call)
    found: dict[int, Any] = eval((folder / "told").read_text())  # what the child has put there
    return found


# -- the arithmetic


@pytest.mark.parametrize(("grid", "tp_groups", "pp_groups", "output_rank"), [
    (Grid(1, 1), [(0,)], [(0,)], 0),
    (Grid(2, 1), [(0, 1)], [(0,), (1,)], 0),
    (Grid(1, 3), [(0,), (1,), (2,)], [(0, 1, 2)], 2),
    (Grid(2, 2), [(0, 1), (2, 3)], [(0, 2), (1, 3)], 2),
    (Grid(4, 2), [(0, 1, 2, 3), (4, 5, 6, 7)], [(0, 4), (1, 5), (2, 6), (3, 7)], 4),
])
def test_ranks_stand_stage_by_stage(grid: Grid, tp_groups: list, pp_groups: list, output_rank: int) -> None:
    assert grid.output_rank == output_rank and grid.size == sum(map(len, tp_groups))
    for stage, ranks in enumerate(tp_groups):
        assert all(grid.tp_group(rank) == ranks and grid.stage(rank) == stage for rank in ranks)
    for ranks in pp_groups:
        assert all(grid.pp_group(rank) == ranks for rank in ranks)


@pytest.mark.parametrize(("layers", "stages", "counts"), [
    (5, 1, [5]), (5, 2, [3, 2]), (5, 3, [2, 2, 1]), (5, 4, [1, 1, 2, 1]), (5, 5, [1, 1, 1, 1, 1]), (4, 2, [2, 2]),
    (7, 4, [2, 2, 2, 1]), (2, 2, [1, 1]),
])
def test_what_does_not_divide_goes_before_the_last_stage(layers: int, stages: int, counts: list[int]) -> None:
    cut = [layers_of_stage(layers, stage, stages) for stage in range(stages)]
    assert [len(part) for part in cut] == counts
    assert [layer for part in cut for layer in part] == list(range(layers))


@pytest.mark.parametrize("stages", [0, 3])
def test_more_stages_than_layers_are_refused(stages: int) -> None:
    with pytest.raises(ConfigError, match=f"pipeline_parallel_size .* 2 layers, got {stages}"):
        check_parallel(read_model_config(str(MODEL)), 1, stages)


# -- what is handed over


def hand_round(rank: int, folder: str, communicator: str) -> list[Any]:
    """Three stages in a ring, each of which sends on what it got and its own rank; large, small and nothing."""
    group, found = joined(rank, 3, 1, folder, communicator), []
    assert group.carrier == communicator
    for step, size in enumerate((LARGE, 1, 0, 5, LARGE)):
        mine = torch.full((size,), float(rank))
        if rank:
            mine += group.receive("it", step, torch.empty(size)) * 10
        group.send("it", step, mine)
        if not rank:
            back = group.receive("it", step, torch.empty(size))
            found.append((len(back), sorted(set(back.tolist()))))
    group.world.barrier()  # who leaves drops what it has still to send
    group.close()
    group.close()
    return found


@pytest.mark.parametrize("communicator", ["shm", "gloo"])
def test_what_is_sent_is_received_whole_and_in_order(tmp_path: Path, communicator: str) -> None:
    told = all_of(tmp_path, 3, hand_round, communicator)
    assert told[0] == [(LARGE, [12.0]), (1, [12.0]), (0, []), (5, [12.0]), (LARGE, [12.0])]


def run_ahead(rank: int, folder: str) -> list[float]:
    """The first sends as many as may be on their way before the other one takes any; none is lost or overwritten."""
    group = joined(rank, 2, 1, folder)
    if rank == 0:
        for step in range(4):
            group.send("it", step, torch.tensor([float(step)]))
        group.world.barrier()
        for step in range(4, 20):
            group.send("it", step, torch.tensor([float(step)]))
        return []
    group.world.barrier()
    return [group.receive("it", step, torch.empty(1)).item() for step in range(20)]


def test_who_sends_runs_ahead_and_nothing_is_overwritten(tmp_path: Path) -> None:
    assert all_of(tmp_path, 2, run_ahead)[1] == [float(step) for step in range(20)]


def share_out(rank: int, folder: str) -> list[list[float]]:
    """Two ranks a stage: each hands over half of the columns, and the next stage has all of them."""
    grid = Grid(2, 2)
    group = joined(rank, 4, 2, folder)
    stage = Stage(group, grid, rank, 4, torch.float32, "cpu")
    hidden = torch.arange(8.0).view(2, 4)
    if stage.is_first:
        stage.send(3, IntermediateTensors(hidden))
        return [[float(token) for token in stage.hear_samples(3, 2)]]
    stage.tell_samples(3, [5, 1 << 20])
    return stage.receive(3, 2).hidden_states.tolist()


def test_each_rank_hands_over_its_share_and_all_is_gathered(tmp_path: Path) -> None:
    told = all_of(tmp_path, 4, share_out)
    assert told[0] == told[1] == [[5.0, float(1 << 20)]]
    assert told[2] == told[3] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def broadcast(rank: int, folder: str) -> list[Any]:
    group = joined(rank, 4, 2, folder)
    for one in (group.world, group.tp, group.pp):
        one.make_broadcaster(MessageQueue)
    told = [one.broadcast_object({"from": rank} if one.rank_in_group == 0 else None)
            for one in (group.world, group.tp, group.pp)]
    places = [(one.first_rank, one.next_rank, one.prev_rank) for one in (group.tp, group.pp)]
    group.world.barrier()
    group.close()
    return [[value["from"] for value in told], places]


def test_every_group_has_a_queue_that_its_first_rank_writes(tmp_path: Path) -> None:
    told = all_of(tmp_path, 4, broadcast)
    assert told == {0: [[0, 0, 0], [(0, 1, 1), (0, 2, 2)]], 1: [[0, 0, 1], [(0, 0, 0), (1, 3, 3)]],
                    2: [[0, 2, 0], [(2, 3, 3), (0, 0, 0)]], 3: [[0, 2, 1], [(2, 2, 2), (1, 1, 1)]]}
    assert not [path for path in Path("/dev/shm").iterdir() if "psm_" in path.name]


# -- what is not


def broken(rank: int, folder: str, how: str) -> tuple[str, float] | None:
    """The next stage waits for what the first one does not send."""
    group = joined(rank, 2, 1, folder, timeout_s=20.0 if how == "dies" else 0.5)
    if rank == 0:
        group.send("it", 0, torch.ones(8))
    else:
        group.receive("it", 0, torch.empty(8))
    if rank == 0 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0 and how == "never sends":
        signal.pause()
    if rank == 0:
        group.send("it", 1, torch.ones(8))
        signal.pause()
    began = time.monotonic()
    try:
        group.receive("it", 2 if how == "sends another" else 1, torch.empty(9 if how == "sends less" else 8))
    except CollectiveError as error:
        return str(error), time.monotonic() - began
    return None


@pytest.mark.parametrize(("how", "words"), [
    ("dies", "rank 0 did not send step 1: it died"),
    ("never sends", "rank 0 did not send step 1 within 0.5 s"),
    ("sends another", "rank 0 sent step 1 with 32 bytes, wanted are 32 bytes of step 2"),
    ("sends less", "rank 0 sent step 1 with 32 bytes, wanted are 36 bytes of step 1"),
])
def test_who_waits_in_vain_says_for_whom(tmp_path: Path, how: str, words: str) -> None:
    [(text, took_s)] = all_of(tmp_path, 2, broken, how, answers=1).values()
    assert words in text
    assert took_s < 10


def fill(rank: int, folder: str) -> str | None:
    """Nobody takes what is sent."""
    group = joined(rank, 2, 1, folder, timeout_s=0.5)
    if rank:
        signal.pause()
    try:
        for step in range(50):
            group.send("it", step, torch.ones(1))
    except CollectiveError as error:
        return str(error)
    return None


def test_who_sends_to_one_that_takes_nothing_says_so(tmp_path: Path) -> None:
    [text] = all_of(tmp_path, 2, fill, answers=1).values()
    assert text == "step 4 cannot be sent: rank 1 did not take what came before within 0.5 s"


def chain(rank: int, folder: str, how: str) -> str | None:
    """Rank 1 of two stages of two never comes: its like waits for it, and in the next stage one for each of them."""
    group = joined(rank, 4, 2, folder, timeout_s=0.5)
    tensor = torch.ones(4)
    try:
        if rank == 1 and how == "collective":
            signal.pause()
        if rank < 2:
            group.all_reduce(tensor)
            if rank == 1:
                signal.pause()
            group.send("it", 0, tensor)
            return "went on"
        group.receive("it", 0, tensor)
        group.all_gather(tensor)
    except CollectiveError as error:
        return str(error)
    return "went on"


def test_not_those_are_named_that_wait_themselves(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    told = all_of(first, 4, chain, "collective", answers=3)
    assert told[0] == "all_reduce, collective 1: rank 1 did not enter within 0.5 s"
    assert told[3] == "rank 1 did not send step 0 within 0.5 s"
    assert told[2] == "rank 0 did not send step 0 within 0.5 s", "at twice the bound: nobody else will say so"
    told = all_of(second, 4, chain, "pipe", answers=3)
    assert told[0] == "went on" and told[3] == "rank 1 did not send step 0 within 0.5 s"
    assert told[2] == "all_gather, collective 1: rank 3 did not enter within 0.5 s"

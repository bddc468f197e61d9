"""Ranks of engines that step together: each forward is at the same step in all of them, or they are told who is not."""

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

from engine.errors import CollectiveError
from engine.worker.parallel.across import AcrossEngines
from engine.worker.parallel.distributed import ProcessGroup
from engine.worker.parallel.lockstep import check, contribution
from engine.worker.parallel.shared_memory import Waits
from tests.engine.worker.model_driver import in_child

NAMES = ("worker.0", "worker.1.0", "worker.2.0")


def steps(*places: tuple[int, int]) -> list[list[int]]:
    return [contribution(wave, step) for wave, step in places]


@pytest.mark.parametrize(("places", "text"), [
    (((1, 4), (1, 4), (1, 5)), "worker.2.0 is at wave 1, step 5, the others at wave 1, step 4"),
    (((2, 1), (1, 9), (2, 1)), "worker.1.0 is at wave 1, step 9, the others at wave 2, step 1"),
    (((1, 3), (1, 4), (1, 5)), "worker.0 is at wave 1, step 3, worker.1.0 is at wave 1, step 4, worker.2.0 is at "),
    (((1, 4), (1, 5)), "worker.0 is at wave 1, step 4, worker.1.0 is at wave 1, step 5"),
])
def test_whoever_is_out_of_step_is_named_where_the_others_agree(places: Any, text: str) -> None:
    with pytest.raises(CollectiveError, match=f"out of step: {text}"):
        check(NAMES[:len(places)], steps(*places))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_those_in_step_are_told_nothing(size: int) -> None:
    check(NAMES[:size], steps(*[(3, 7)] * size))


# -- real ranks


def ranks(size: int, play: Callable[[int, Any], None], told_by: tuple[int, ...]) -> dict[int, Any]:
    """`play(place, tell)` in a process for each. -> what those of `told_by` told"""
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    children = [fork.Process(target=play, args=(place, lambda what, place=place: answers.put((place, what))),
                             daemon=True) for place in range(size)]
    for child in children:
        child.start()
    try:
        return dict(answers.get(timeout=30) for _ in told_by)
    finally:
        for child in children:
            child.kill()
            child.join()


@pytest.mark.parametrize("carrier", ["shm", "gloo"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_several_engines_stay_in_step(tmp_path: Path, size: int, carrier: str) -> None:
    def play(place: int, tell: Callable[[Any], None]) -> None:
        group = AcrossEngines(place, NAMES[:size], f"file://{tmp_path}/dp", 20.0, Waits(), shares=carrier == "shm")
        for step in range(200):
            group.keep_step(1, step)
        tell(group.carrier)
        group.keep_step(2, 0)  # nobody leaves before all have told
        group.close()
        group.close()

    in_child(lambda: expect(ranks(size, play, tuple(range(size))), dict.fromkeys(range(size), carrier)))


def expect(found: Any, wanted: Any) -> None:
    assert found == wanted


@pytest.mark.parametrize("carrier", ["shm", "gloo"])
@pytest.mark.parametrize(("how", "told_by", "by_shm", "by_gloo", "bound_s"), [
    ("skips a dummy", (0, 1, 2), "worker.1.0 is at wave 1, step 1, the others at wave 1, step 0", "", 5.0),
    ("dies", (0, 2), "worker.1.0 died before it entered", "wave 1, step 0 of worker.0 and worker.1.0", 10.0),
    ("never comes", (0, 2), "worker.1.0 did not enter within 1.0 s", "wave 1, step 0 of worker.0 and worker.1.0", 2.5),
])
def test_one_that_is_not_in_step_is_told_to_all(tmp_path: Path, carrier: str, how: str, told_by: tuple[int, ...],
                                                by_shm: str, by_gloo: str, bound_s: float) -> None:
    def play(place: int, tell: Callable[[Any], None]) -> None:
        group = AcrossEngines(place, NAMES, f"file://{tmp_path}/dp", 20.0, Waits(), shares=carrier == "shm")
        group.keep_step(0, 0)
        if how == "never comes":
            group.timeout_s = 1.0
            if group._shared is not None:
                group._shared.timeout_s = 1.0
        if place == 1 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif place == 1 and how == "never comes":
            signal.pause()
        began = time.monotonic()
        try:
            group.keep_step(1, int(place == 1))
        except CollectiveError as error:
            tell((str(error), time.monotonic() - began))
        signal.pause()  # it stays: nobody is told of another one's end

    def call() -> None:
        for text, took_s in ranks(3, play, told_by).values():
            assert (by_shm if carrier == "shm" or not by_gloo else by_gloo) in text
            assert took_s < bound_s

    in_child(call)


def test_two_engines_of_two_ranks_keep_step_beside_their_own_collectives(tmp_path: Path) -> None:
    """Rank r of engine e is process 2 e + r."""
    def play(process: int, tell: Callable[[Any], None]) -> None:
        engine, rank = divmod(process, 2)
        group = ProcessGroup(rank, 2, f"file://{tmp_path}/engine.{engine}", "cpu", 20.0)
        names = [f"worker.{rank}", f"worker.1.{rank}"]
        group.meet_engines(engine, names, f"file://{tmp_path}/dp.{rank}", 20.0, 20.0)
        sums = []
        for step in range(20):
            group.keep_step(0, step)
            sums.append(int(group.all_reduce(torch.tensor([process]))))
        group.keep_step(0, 20)
        try:
            group.keep_step(1 + engine, 0)
        except CollectiveError as error:
            tell((set(sums), group.dp.carrier if group.dp else "", str(error)))
        group.close()

    def call() -> None:
        told = ranks(4, play, (0, 1, 2, 3))
        assert {process: one[0] for process, one in told.items()} == {0: {1}, 1: {1}, 2: {5}, 3: {5}}
        for process, (_, carrier, text) in told.items():
            rank = process % 2
            assert carrier == "shm"
            assert text == (f"the engines are out of step: worker.{rank} is at wave 1, step 0, "
                            f"worker.1.{rank} is at wave 2, step 0")

    in_child(call)

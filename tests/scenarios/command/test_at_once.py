"""Work in several processes: the same answers, whatever becomes of the others, and nobody left."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal

import pytest

from scenarios.command.at_once import LEAST, at_once

COUNT = 3 * LEAST + 1


def test_the_answers_are_in_order_and_made_by_several():
    others = multiprocessing.active_children()
    found = at_once(COUNT, lambda number: (number, os.getpid()), cores=3)
    assert [number for number, _ in found] == list(range(COUNT))
    assert len({pid for _, pid in found}) == 3
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.parametrize("count", [0, 1, LEAST])
def test_little_work_is_done_here(count):
    assert at_once(count, lambda number: os.getpid(), cores=3) == [os.getpid()] * count


def test_what_a_killed_one_did_not_do_is_done_here():
    here = os.getpid()

    def work(number: int) -> int:
        if os.getpid() != here and number > LEAST:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert at_once(COUNT, work, cores=3) == list(range(COUNT))


def test_what_fails_there_fails_here():
    def work(number: int) -> int:
        if number == 1:
            raise ValueError("number 1")
        return number

    others = multiprocessing.active_children()
    with pytest.raises(ValueError, match="number 1"):
        at_once(COUNT, work, cores=3)
    assert set(multiprocessing.active_children()) <= set(others)
    assert gc.isenabled()


def test_megabytes_come_back():
    assert at_once(COUNT, lambda number: "x" * 200_000, cores=2) == ["x" * 200_000] * COUNT

"""What a plan does to words on the pipe between a process and whoever started it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from engine.process.children import PipeParent, readable
from engine.topology import Channel, Edge
from faults.journal import Kind
from faults.plan import Fault, Plan, corrupt, cut, delay, drop, duplicate, plan, reorder, until
from faults.real.pipes import FaultyChild, FaultyParent
from tests.faults.stage import Stage, core, worker

UP, DOWN = Edge(worker(1), core(), Channel.BIRTH), Edge(core(), worker(1), Channel.BIRTH)


class _Child:
    """What a parent has of a child, as far as its pipe goes."""

    node, pid, sentinel = worker(1), 1, -1
    ended = gone = exitcode = join = terminate = kill = staticmethod(lambda *_: None)

    def __init__(self, end: Connection) -> None:
        self._end = end
        self.fileno, self.send_recipe, self.hang_up = end.fileno, end.send_bytes, end.close

    def try_receive(self) -> bytes | None:
        return self._end.recv_bytes() if self._end.poll() else None


class Ends:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        ours, theirs = multiprocessing.Pipe()
        self.child = FaultyChild(_Child(ours), stage.ports(core()).crossings, DOWN, UP)
        self.parent = FaultyParent(PipeParent(theirs, os.getppid()), stage.ports(worker(1)).crossings, UP, DOWN)
        self._ends = ours, theirs

    def heard(self) -> list[bytes]:
        """All that can be read now."""
        found = []
        while (word := self.child.try_receive()) is not None:
            found.append(word)
        return found

    def close(self) -> None:
        self.child.close()
        for end in self._ends:
            end.close()


@pytest.fixture
def ends(tmp_path: Any) -> Iterator[Callable[..., Ends]]:
    made: list[Ends] = []

    def make(*faults: Fault) -> Ends:
        made.append(Ends(Stage(tmp_path, plan(*faults) if faults else Plan())))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("fault", "left"), [
    (None, [b"one", b"two"]), (drop(str(UP)), [b"two"]), (duplicate(str(UP)), [b"one", b"one", b"two"]),
    (reorder(str(UP)), [b"two", b"one"]), (corrupt(str(UP), byte=0), [b"\x90ne", b"two"])])
def test_a_word_meets_its_fate(ends: Callable[..., Ends], fault: Fault | None, left: list[bytes]) -> None:
    pipe = ends(*([fault] if fault else []))
    for word in (b"one", b"two"):
        pipe.parent.send(word)
    assert pipe.heard() == left


def test_a_word_that_is_late_wakes_whoever_waits_for_it(ends: Callable[..., Ends]) -> None:
    pipe = ends(delay(str(UP), until=until(seconds=0.05)))
    pipe.parent.send(b"one")
    assert pipe.heard() == []
    found: list[bytes] = []
    while not found:
        assert readable([pipe.child.fileno()], 5.0)
        found = pipe.heard()
    assert found == [b"one"]


def test_a_cut_closes_the_pipe_both_ways_behind_what_was_said(ends: Callable[..., Ends]) -> None:
    pipe = ends(cut(str(UP), nth=2))
    for word in (b"one", b"two", b"three"):
        pipe.parent.send(word)
    assert pipe.child.try_receive() == b"one"
    with pytest.raises(EOFError):
        pipe.child.try_receive()
    pipe.parent.wait_until_gone()  # and does not wait


def test_a_recipe_that_is_lost_is_waited_for_until_nobody_can_send_it(ends: Callable[..., Ends]) -> None:
    pipe = ends(drop(str(DOWN)))
    pipe.child.hang_up()
    assert pipe.parent.take(b"recipe") is None


def test_a_recipe_that_is_late_is_taken_when_its_fault_is_over(ends: Callable[..., Ends]) -> None:
    pipe = ends(delay(str(DOWN), until=until(seconds=0.05)))
    assert pipe.parent.take(b"recipe") == b"recipe"


def test_each_word_is_a_crossing_at_both_ends_and_says_what_it_is(ends: Callable[..., Ends]) -> None:
    pipe = ends()
    pipe.parent.send(b"xxxx\x81\xa4type\xa5ready")
    pipe.heard()
    (sent,) = pipe.stage.records("worker.1", Kind.CROSSING)
    (received,) = pipe.stage.records("core.0", Kind.CROSSING)
    assert (sent.site, received.site) == (f"{UP}:send", f"{UP}:receive")
    assert sent.data == received.data == {"word": "ready"} and sent.digest == received.digest

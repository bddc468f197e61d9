"""Small scenarios, one for each way in which a scenario can end. Not collected: they are played by tests."""

from __future__ import annotations

import os
import signal

from engine.topology import tensor_parallel
from faults.plan import kill, plan
from scenarios.guarantees.all import ends_once, tokens_in_order
from scenarios.history.verdicts import Verdict
from scenarios.lab.catalogue import only
from scenarios.lab.settings import lab_config
from scenarios.workloads.workload import add, recorded

NEVER = plan(kill("core.0", at="core.0/mark:step", nth=100_000))


def calm(world, **rest):
    return world.play(topology=tensor_parallel(2), workload=recorded("pair"), **rest)


def test_holds(world):
    """Two requests are answered."""
    calm(world).holds(tokens_in_order)


def test_breaks(world):
    """A canary that is not caught: nothing is wrong and BROKEN was declared."""
    calm(world).holds(tokens_in_order=Verdict.BROKEN)


def test_unknown(world):
    """The fault never fires."""
    calm(world, plan=NEVER).holds(ends_once)


def test_raises(world):
    """The scenario itself is wrong."""
    raise ZeroDivisionError("planted")


def test_ends_its_process(world):
    """Whoever plays it is gone."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_plays_nothing(world):
    """A scenario without a play says nothing."""


def test_unjudged(world):
    """A scenario that names no promise says nothing."""
    calm(world)


@only("engine", reason="the twin has no disk")
def test_elsewhere(world):
    """Only real processes can do this."""
    raise AssertionError("must not be played in the twin")


def test_needs_two(world):
    """Kills a worker that TP=1 does not have."""
    calm(world, plan=plan(kill("worker.1", at="worker.1->core.0/response:send", nth=3))).holds(ends_once)


def test_counts_steps(world):
    """Two steps, then another request."""
    world.play(topology=tensor_parallel(2), workload=recorded("pair").then(add(0), steps=2).then(add(1))).holds(
        tokens_in_order)


def test_over_tcp(world):
    """Two requests are answered over tcp."""
    calm(world, config=lab_config(sockets={"transport": "tcp"})).holds(tokens_in_order)

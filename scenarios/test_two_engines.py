"""Two complete engines in one play, each with a client of its own: what befalls one is none of the other's."""

from __future__ import annotations

import pytest

from engine.topology import Engine, Mark, side_by_side
from faults.plan import kill, marked, plan, stall, until
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    health_is_true,
    nothing_left_behind,
    tokens_match_reference,
    two_on_one_host,
    workers_in_step,
)
from scenarios.workloads import recorded

TWO = side_by_side(Engine(tp=2), Engine(tp=2))


def test_two_engines_serve_side_by_side(world):
    """Nothing goes wrong: both answer the same requests, each by its own rings and sockets."""
    run = world.play(topology=TWO, workload=recorded("eight-mixed"))
    run.holds(tokens_match_reference, workers_in_step, nothing_left_behind, two_on_one_host)


@pytest.mark.parametrize("victim", ("worker.1", "worker.1.1"))
def test_one_of_two_engines_loses_a_worker(world, victim):
    """A worker of one engine is killed: its caller is told, the other engine's requests end as if nothing had been."""
    core = "core.1" if victim == "worker.1.1" else "core.0"
    run = world.play(
        topology=TWO, workload=recorded("eight-mixed"),
        plan=plan(kill(victim, at=f"{core}->{victim}/rpc:receive", nth=21)))
    run.holds(death_is_told, ends_once, tokens_match_reference, health_is_true, nothing_left_behind, two_on_one_host)


def test_one_of_two_engines_stands_still(world):
    """The core beside is stopped for a moment in the middle of its steps: the played engine does not wait for it."""
    run = world.play(
        topology=TWO, workload=recorded("eight-mixed"),
        plan=plan(stall("core.1", at=marked("core.1", Mark.SCHEDULED), nth=5, until=until(seconds=0.3))))
    run.holds(tokens_match_reference, workers_in_step, nothing_left_behind, two_on_one_host)

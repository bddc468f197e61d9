"""Start-up under faults, and engines beside each other or after each other on one host."""

from __future__ import annotations

from engine.topology import Engine, Mark, side_by_side, tensor_parallel
from faults.plan import delay, drop, kill, marked, plan, raises, stall, terminate, truncate, until
from scenarios.guarantees.all import (
    handshake_order,
    nothing_left_behind,
    start_ends,
    tokens_match_reference,
    two_on_one_host,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import only
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

HANDSHAKE = "core.0->frontend.0/handshake"


def test_worker_dies_while_loading(world):
    """A worker is killed before it has read its weights: the whole start fails, by name."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        plan=plan(kill("worker.1", at=marked("worker.1", Mark.LOADING))))
    run.holds(start_ends, nothing_left_behind)


@only("engine", reason="the twin rings no bell that nobody waits for")
def test_core_is_asked_to_leave_as_it_leaves(world):
    """A worker cannot load, and the core is asked to leave while it ends the other one: it goes on with that."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        plan=plan(raises("worker.1", at=marked("worker.1", Mark.LOADING)),
                  terminate("core.0", at="core.0/rpc:doorbell")))
    run.holds(start_ends, nothing_left_behind)


def test_hello_is_lost(world):
    """The core's HELLO never arrives: both sides give up within the bound and say why."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        config=lab_config(bounds={"handshake_s": 1.0, "startup_s": 2.0}),
        plan=plan(drop(HANDSHAKE, nth=2)))
    run.holds(start_ends, handshake_order, nothing_left_behind)


def test_core_stands_still_before_it_says_hello(world):
    """The core stops when it is born and never goes on: its client waits for HELLO until its bound, and ends it."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        config=lab_config(bounds={"handshake_s": 1.0, "startup_s": 4.0}),
        plan=plan(stall("core.0", at=marked("core.0", Mark.BORN))))
    run.holds(start_ends, nothing_left_behind)


def test_ready_is_cut_short(world):
    """READY comes and cannot be read: that is said, and the start ends at its bound."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        config=lab_config(bounds={"handshake_s": 1.0, "startup_s": 2.0}), plan=plan(truncate(HANDSHAKE, nth=3)))
    run.holds(start_ends, handshake_order, nothing_left_behind)


def test_ready_is_late(world):
    """READY comes 0.3 s late: the start takes longer and no work is sent before it."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"),
        plan=plan(delay(HANDSHAKE, nth=3, until=until(seconds=0.3))))
    run.holds(start_ends, handshake_order, tokens_match_reference)


def test_executor_is_one_that_nobody_knows(world):
    """The configuration names an executor that there is none of: the start fails, and says which there are."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"), config=lab_config(distributed_executor_backend="ray"))
    run.holds(start_ends, nothing_left_behind)


def test_executor_of_one_rank_is_asked_for_two_stages(world):
    """The executor without worker processes runs one rank: it is refused by name, and not tried."""
    run = world.play(
        topology=tensor_parallel(1, pp=2), workload=recorded("pair"),
        config=lab_config(distributed_executor_backend="uni"))
    run.holds(start_ends, nothing_left_behind)


def test_everything_is_killed_and_started_again_beside_a_neighbour(world):
    """All processes are killed at once; the next start removes what they left and nothing of a living neighbour."""
    run = world.play(
        topology=side_by_side(Engine(tp=2), Engine(tp=2)), workload=recorded("pair"),
        options=Options(kill_all_then_restart=True))
    run.holds(nothing_left_behind, two_on_one_host)


def test_runtime_directory_has_a_long_name(world):
    """A temporary directory too long for a socket's path: the engine finds a shorter one and starts."""
    run = world.play(
        topology=tensor_parallel(2), workload=recorded("pair"), options=Options(long_runtime_dir=True))
    run.holds(start_ends, handshake_order, tokens_match_reference, nothing_left_behind)

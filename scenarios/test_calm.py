"""Nothing goes wrong: whatever holds under faults must hold here first."""

from __future__ import annotations

from engine.topology import tensor_parallel
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    edge_fifo,
    ends_once,
    handshake_order,
    nothing_left_behind,
    ring_exact_prefix,
    tokens_in_order,
    tokens_match_reference,
    workers_in_step,
)
from scenarios.workloads import Workload, abort, add, recorded


def eight_mixed() -> Workload:
    """Long, short, with shared prefixes; the cache is too small for all, one is aborted running, one waiting."""
    return (recorded("eight-mixed")
            .then(add(0, 1, 2, 3), steps=6)
            .then(add(4, 5, 6, 7), abort(2), steps=1)
            .then(abort(7)))


def test_nothing_goes_wrong(world):
    """Eight mixed requests on two workers: long, short, shared prefixes, aborts, one that forces preemption."""
    run = world.play(topology=tensor_parallel(2), workload=eight_mixed())
    run.holds(ends_once, tokens_in_order, tokens_match_reference, abort_is_final, blocks_conserved, edge_fifo,
              handshake_order, ring_exact_prefix, workers_in_step, nothing_left_behind)


def test_nothing_goes_wrong_on_one_rank(world):
    """The same requests where the worker lives in the core's own process."""
    run = world.play(topology=tensor_parallel(1), workload=eight_mixed())
    run.holds(ends_once, tokens_in_order, tokens_match_reference, abort_is_final, blocks_conserved, edge_fifo,
              handshake_order, nothing_left_behind)


def test_nothing_goes_wrong_on_four_ranks(world):
    """The same requests on four workers."""
    run = world.play(topology=tensor_parallel(4), workload=eight_mixed())
    run.holds(ends_once, tokens_in_order, tokens_match_reference, abort_is_final, blocks_conserved, edge_fifo,
              handshake_order, ring_exact_prefix, workers_in_step, nothing_left_behind)

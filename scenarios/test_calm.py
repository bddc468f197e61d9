"""Nothing goes wrong: whatever holds under faults must hold here first."""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import Plan
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
from scenarios.lab.family import Case, family
from scenarios.workloads import Workload, abort, add, recorded


def eight_mixed() -> Workload:
    """Long, short, with shared prefixes; the cache is too small for all, one is aborted running, one waiting."""
    return (recorded("eight-mixed")
            .then(add(0, 1, 2, 3), steps=6)
            .then(add(4, 5, 6, 7), abort(2), steps=1)
            .then(abort(7)))


KEPT = (
    ends_once, tokens_in_order, tokens_match_reference, abort_is_final, blocks_conserved, edge_fifo, handshake_order)

globals().update(family(__name__, (
    Case("test_nothing_goes_wrong",
         "Eight mixed requests on two workers: long, short, shared prefixes, aborts, one that forces preemption.",
         Plan(), (*KEPT, ring_exact_prefix, workers_in_step, nothing_left_behind)),
    Case("test_nothing_goes_wrong_on_one_rank",
         "The same requests where the worker lives in the core's own process.",
         Plan(), (*KEPT, nothing_left_behind), play={"topology": tensor_parallel(1)}),
    Case("test_nothing_goes_wrong_on_four_ranks",
         "The same requests on four workers.",
         Plan(), (*KEPT, ring_exact_prefix, workers_in_step, nothing_left_behind),
         play={"topology": tensor_parallel(4)}),
), topology=tensor_parallel(2), workload=eight_mixed()))

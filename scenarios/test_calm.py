"""Nothing goes wrong: whatever holds under faults must hold here first."""

from __future__ import annotations

from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    edge_fifo,
    ends_once,
    groups_agree,
    handshake_order,
    nothing_grows,
    nothing_left_behind,
    rests_when_idle,
    ring_exact_prefix,
    tokens_in_order,
    tokens_match_reference,
    workers_in_step,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import Workload, abort, add, generated, recorded


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
         Plan(), (*KEPT, ring_exact_prefix, workers_in_step, groups_agree, nothing_left_behind,
                  nothing_grows)),
    Case("test_nothing_goes_wrong_on_one_rank",
         "The same requests where the worker lives in the core's own process.",
         Plan(), (*(kept for kept in KEPT if kept is not edge_fifo), nothing_left_behind),
         play={"topology": tensor_parallel(1)}),
    Case("test_an_idle_engine_rests",
         "Two requests, then nobody asks for anything, longer than a core may stand still; a subscriber follows.",
         Plan(), (tokens_in_order, tokens_match_reference, nothing_grows, rests_when_idle), play={
             "topology": tensor_parallel(2, subscribers=1), "workload": recorded("pair"),
             "options": Options(rest_s=2.0), "config": lab_config(kv_events={"enable_kv_cache_events": True})}),
    Case("test_nothing_goes_wrong_on_four_ranks",
         "The same requests on four workers.",
         Plan(), (*KEPT, ring_exact_prefix, workers_in_step, groups_agree, nothing_left_behind),
         play={"topology": tensor_parallel(4)}),
    Case("test_nothing_goes_wrong_over_gloo",
         "The same requests, and the collectives of the workers go by gloo instead of shared memory.",
         Plan(), (tokens_match_reference, workers_in_step, groups_agree, nothing_left_behind),
         play={"config": lab_config(device_communicator="gloo")}),
    Case("test_nothing_goes_wrong_over_tcp",
         "The same requests, and the client's sockets speak tcp.",
         Plan(), (*KEPT, nothing_left_behind), play={"config": lab_config(sockets={"transport": "tcp"})}),
    Case("test_nothing_goes_wrong_without_an_event_loop",
         "A program asks for eight answers at once and waits until it has them all.",
         Plan(), (tokens_match_reference, blocks_conserved, nothing_left_behind), play={
             "workload": generated("eight-even"), "options": Options(synchronous=True)}),
), topology=tensor_parallel(2), workload=eight_mixed()))

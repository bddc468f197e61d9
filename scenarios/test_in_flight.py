"""Several steps in flight, and the two calls of which each is made."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import Plan, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    death_is_told,
    drain,
    ends_once,
    first_error_told,
    health_is_true,
    no_orphans,
    nothing_left_behind,
    ring_bounded_wait,
    rpc_any_rank_fails_fast,
    rpc_matched,
    served_in_turn,
    stall_is_told,
    steps_in_order,
    tokens_in_order,
    tokens_match_reference,
    two_phase_paired,
    workers_in_step,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_scheduling import PRESSURE, pressure
from scenarios.workloads import recorded

TWO_STEPS = lab_config(max_concurrent_batches=2, cache=PRESSURE["cache"], scheduler=PRESSURE["scheduler"])
FOUR_STEPS = lab_config(max_concurrent_batches=4, cache=PRESSURE["cache"],
                        scheduler={**PRESSURE["scheduler"], "long_prefill_token_threshold": 8})
IN_ORDER = (steps_in_order, two_phase_paired, served_in_turn, blocks_conserved, tokens_match_reference, abort_is_final)
#: Of ten calls of a worker the first two belong to the start; then each step is an odd one and an even one.
EXECUTES, SAMPLES = 11, 12

globals().update(family(__name__, (
    Case("test_two_steps_in_flight",
         "A step is scheduled before the one before it has been used: prompts in pieces, aborts, preemptions.",
         Plan(), (*IN_ORDER, rpc_matched, workers_in_step)),
    Case("test_two_steps_in_flight_on_one_rank",
         "The same, in a core that is its own worker.",
         Plan(), IN_ORDER, play={"topology": tensor_parallel(1)}),
    Case("test_four_steps_in_flight",
         "Four steps in flight, of prompts in small pieces: more calls than the ring of a worker has chunks.",
         Plan(), (*IN_ORDER, rpc_matched), play={"config": FOUR_STEPS}),
    Case("test_worker_dies_with_two_steps_in_flight",
         "A worker is killed as it takes a step, and the next one is in its ring: every request ends once.",
         plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=21)),
         (death_is_told, ends_once, steps_in_order, tokens_in_order, nothing_left_behind)),
    Case("test_core_dies_with_two_steps_in_flight",
         "The core is killed when it has scheduled a second step.",
         plan(kill("core.0", at=marked("core.0", Mark.SUBMITTED), nth=8)),
         (death_is_told, ends_once, no_orphans, nothing_left_behind)),
    Case("test_rank_fails_with_another_step_behind_it",
         "A rank that has not to answer fails in a step when the next one is in its ring already: its error is told.",
         plan(raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=15)),
         (first_error_told, rpc_any_rank_fails_fast, two_phase_paired, ends_once, nothing_left_behind)),
    Case("test_worker_stands_still_with_two_steps_in_flight",
         "A worker is stopped with a full queue: that is told by the bound of one step.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=21)),
         (stall_is_told, ends_once, ring_bounded_wait, nothing_left_behind)),
    Case("test_core_is_asked_to_leave_with_two_steps_in_flight",
         "SIGTERM with a full queue: what was accepted is answered.",
         plan(terminate("core.0", at=marked("core.0", Mark.SUBMITTED), nth=8)),
         (drain, tokens_match_reference, steps_in_order, nothing_left_behind)),
), topology=tensor_parallel(2), workload=pressure(), config=TWO_STEPS))

globals().update(family(__name__, (
    Case("test_core_dies_between_the_two_calls_of_a_step",
         "The core is killed when it has told its workers to execute a step, and not to sample it.",
         plan(kill("core.0", at=marked("core.0", Mark.SUBMITTED), nth=6)),
         (death_is_told, ends_once, no_orphans, nothing_left_behind)),
    Case("test_core_stands_still_between_the_two_calls_of_a_step",
         "The core stands still in the same place, and goes on: nobody can tell by the tokens.",
         plan(stall("core.0", at=marked("core.0", Mark.SUBMITTED), nth=6, until=until(seconds=0.3))),
         (two_phase_paired, tokens_match_reference)),
    Case("test_worker_dies_as_it_samples",
         "A worker is killed when it is about to sample a step that it has executed.",
         plan(kill("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=SAMPLES)),
         (death_is_told, ends_once, nothing_left_behind)),
    Case("test_rank_fails_as_it_samples",
         "A rank that has not to answer fails to sample a step that it has executed: its error is told.",
         plan(raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=SAMPLES)),
         (two_phase_paired, ends_once, health_is_true, nothing_left_behind)),
    Case("test_worker_fails_with_its_sample_asked_for",
         "The rank that answers fails to execute a step whose sample is asked for: that is told, not that there is "
         "nothing to sample.",
         plan(raises("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=EXECUTES)),
         (first_error_told, two_phase_paired, ends_once, nothing_left_behind)),
    Case("test_only_rank_fails_with_its_sample_asked_for",
         "The same, in a core that is its own worker.",
         plan(raises("core.0", at=marked("core.0", Mark.EXECUTING), nth=EXECUTES)),
         (first_error_told, two_phase_paired, ends_once, nothing_left_behind),
         play={"topology": tensor_parallel(1)}),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

"""Several steps in flight, and the two calls of which each is made."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import Plan, delay, exits, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    async_same_tokens,
    bad_request_isolated,
    blocks_conserved,
    calls_answered,
    death_is_told,
    drain,
    ends_once,
    first_error_told,
    health_is_true,
    no_orphans,
    nothing_left_behind,
    pause_exact,
    placeholders_conserved,
    ring_bounded_wait,
    rpc_any_rank_fails_fast,
    rpc_matched,
    served_in_turn,
    stall_is_told,
    steps_in_order,
    thread_death_told,
    tokens_in_order,
    tokens_match_reference,
    two_phase_paired,
    workers_in_step,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_scheduling import LONGEST, drawn, ends, pressure, under_pressure
from scenarios.workloads import Workload, abort, add, recorded, utility


def paused() -> Workload:
    """Twice while a request is amid its tokens."""
    return (recorded("eight-mixed").then(add(1, 2, 6, 7), steps=6)
            .then(utility("get_stats"), behind=("r6", 6))
            .then(utility("pause_scheduler"), steps=0)
            .then(utility("get_stats"), add(3), utility("ping", "ab"), steps=0)
            .then(utility("get_stats"), behind=("r6", 20))
            .then(utility("pause_scheduler"), steps=0)
            .then(utility("get_stats")))


TWO_STEPS = under_pressure(max_concurrent_batches=2)
FOUR_STEPS = under_pressure(max_concurrent_batches=4, scheduler={"long_prefill_token_threshold": 8})
IN_ORDER = (steps_in_order, two_phase_paired, served_in_turn, blocks_conserved, tokens_match_reference, abort_is_final)
PROMISED = under_pressure(scheduler={"async_scheduling": True})
FOUR_PROMISED = under_pressure(max_concurrent_batches=4, scheduler={"async_scheduling": True})
#: A core that waits too long is told of by its client a second after it should have told of its worker, and no sooner.
LONG_STALL = under_pressure(scheduler={"async_scheduling": True}, bounds={"stall_s": 2.6})
SAME = (async_same_tokens, placeholders_conserved)
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
    Case("test_scheduler_is_paused_with_two_steps_in_flight",
         "The client pauses the scheduler while tokens come and a rank is slow, asks for things, and has it go on.",
         plan(*(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth, until=until(seconds=0.02))
                for nth in range(70, 82))),
         (pause_exact, tokens_match_reference, steps_in_order, calls_answered),
         play={"workload": paused()}),
    Case("test_step_fails_while_the_scheduler_is_paused",
         "The client pauses the scheduler with two steps in flight, and a rank fails the last of them: the core says "
         "which it was.",
         plan(*(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth, until=until(seconds=0.02))
                for nth in range(70, 73)), raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=72)),
         (first_error_told, ends_once, nothing_left_behind),
         play={"workload": paused()}),
    Case("test_abort_comes_with_its_step_in_flight",
         "A rank takes its time over a step, an abort of who is in it comes meanwhile, and a request behind that.",
         plan(delay("frontend.0->core.0/requests", nth=5, times=2, until=until(seconds=0.05)),
              hang("worker.1", at="core.0->worker.1/rpc:receive", nth=13, until=until(seconds=0.3))),
         (steps_in_order, abort_is_final),
         play={"workload": recorded("pair").then(add(0, 1), steps=4).then(
             abort(1), add(0, name="again"))}),
    Case("test_requests_and_an_abort_come_with_a_step_in_flight",
         "A rank takes its time over a step, and some requests and an abort of one come at once: in their order.",
         plan(*(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth, until=until(seconds=0.05))
                for nth in range(20, 23))),
         (served_in_turn, abort_is_final, steps_in_order, tokens_match_reference, nothing_left_behind),
         play={"workload": recorded("eight-mixed").then(add(1, 2), behind=("r2", 2)).then(
             add(3, 5, 6, 7), abort(3))}),
    Case("test_rank_fails_to_sample_with_a_step_behind_it",
         "It was asked for the next one before it failed: it does not execute that, and the core asks for no other.",
         plan(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=14,
                   until=until("core.0->worker.1/rpc:send", nth=16)),
              raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=14)),
         (two_phase_paired, first_error_told, ends_once, nothing_left_behind)),
    Case("test_core_fails_before_its_first_step",
         "The core raises where it has scheduled nothing yet: there is no step to tell of.",
         plan(raises("core.0", at=marked("core.0", Mark.STEP))),
         (death_is_told, ends_once, nothing_left_behind)),
    Case("test_core_is_asked_to_leave_with_two_steps_in_flight",
         "SIGTERM with a full queue: what was accepted is answered.",
         plan(terminate("core.0", at=marked("core.0", Mark.SUBMITTED), nth=8)),
         (drain, tokens_match_reference, steps_in_order, nothing_left_behind)),
), topology=tensor_parallel(2), workload=pressure(), config=TWO_STEPS))

globals().update(family(__name__, (
    Case("test_tokens_in_flight_are_promised",
         "With async scheduling the next step is scheduled before the last one's tokens are known, among aborts and "
         "preemptions.",
         Plan(), (*IN_ORDER, *SAME, rpc_matched, workers_in_step)),
    Case("test_request_comes_while_a_pause_uses_what_is_in_flight",
         "A rank takes its time over some steps, the scheduler is paused with several in flight, and a request that "
         "comes meanwhile is not forgotten.",
         plan(*(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=nth, until=until(seconds=0.1))
                for nth in range(13, 29, 2)),
              delay("frontend.0->core.0/requests", nth=3, match={"type": "ADD"}, until=until(seconds=0.15))),
         (steps_in_order, tokens_match_reference, nothing_left_behind),
         play={"config": FOUR_PROMISED, "workload": recorded("eight-mixed").then(add(1, 2), behind=("r2", 2)).then(
             utility("pause_scheduler"), add(3), utility("get_stats"), steps=0).then(
             utility("resume_scheduler"), steps=0)}),
    Case("test_tokens_in_flight_are_promised_on_one_rank",
         "The same, in a core that is its own worker.",
         Plan(), (*IN_ORDER, *SAME), play={"topology": tensor_parallel(1)}),
    Case("test_three_steps_of_promised_tokens",
         "Three steps in flight: two tokens of a request may be promised.",
         Plan(), (*IN_ORDER, *SAME),
         play={"config": under_pressure(max_concurrent_batches=3, scheduler={"async_scheduling": True})}),
    Case("test_promised_tokens_end_streams",
         "A token that ends its stream is known when the next step is in flight already: nobody is told of that one.",
         Plan(), (*SAME, served_in_turn, bad_request_isolated),
         play={"workload": ends(), "config": lab_config(
             scheduler={"max_model_len": LONGEST, "async_scheduling": True})}),
    Case("test_promised_tokens_are_drawn",
         "Tokens that are drawn are the same on every rank, and those that are drawn without promises.",
         Plan(), (async_same_tokens, blocks_conserved),
         play={"workload": drawn(), "config": lab_config(scheduler={"async_scheduling": True})}),
    Case("test_cache_is_reset_with_tokens_in_flight",
         "Everybody has to give way while tokens are promised to them: they are computed again.",
         Plan(), (*SAME, blocks_conserved, served_in_turn),
         play={"workload": recorded("eight-mixed").then(add(0, 1, 2), steps=5).then(
             utility("resume_scheduler"), utility("reset_prefix_cache", True), add(3, 5))}),
    Case("test_request_outgrows_the_cache_with_a_promised_token",
         "It fails when it needs more than there is, and has all tokens by then, the promised one, too.",
         Plan(), (bad_request_isolated, placeholders_conserved, nothing_left_behind),
         play={"workload": recorded("eight-mixed").then(add(2, 1), steps=20).then(add(3)), "config": lab_config(
             cache={"block_size": 8, "num_gpu_blocks": 11}, scheduler={"async_scheduling": True})}),
    Case("test_worker_dies_with_promised_tokens",
         "A worker is killed as it samples a token that the step behind it computes with.",
         plan(kill("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=20)),
         (death_is_told, ends_once, tokens_in_order, nothing_left_behind)),
    Case("test_rank_fails_with_promised_tokens",
         "A rank that has not to answer fails to sample a token that the step behind it computes with.",
         plan(raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=20)),
         (two_phase_paired, ends_once, health_is_true, nothing_left_behind)),
    Case("test_rank_fails_to_sample_before_another_one_has_answered",
         "It fails in a step whose forerunner's answer is late: the core uses that, and asks for no other one.",
         plan(hang("worker.0", at=marked("worker.0", Mark.COPIED), nth=11, until=until(seconds=0.2)),
              raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=14)),
         (rpc_any_rank_fails_fast, two_phase_paired, ends_once, nothing_left_behind)),
    Case("test_rank_fails_while_the_next_step_is_handed_over",
         "The ring has room for one call and a rank is slow to read them: the core hands over a step when it hears "
         "that another rank has failed in the one before. That one is named.",
         plan(raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=14),
              hang("worker.0", at=marked("worker.0", Mark.EXECUTING), nth=14, until=until(seconds=0.3))),
         (rpc_any_rank_fails_fast, first_error_told, two_phase_paired, ends_once, nothing_left_behind),
         play={"config": under_pressure(ring={"max_chunks": 1}, scheduler={"async_scheduling": True})}),
    Case("test_copy_thread_fails",
         "The thread that answers for a worker raises: the worker lives no longer than it.",
         plan(raises("worker.0", at=marked("worker.0", Mark.COPYING), nth=9)),
         (thread_death_told, ends_once, health_is_true, nothing_left_behind)),
    Case("test_sampled_token_cannot_be_fetched",
         "What a step has sampled does not come from the device: that is what its call failed with, and the thread "
         "lives.",
         plan(raises("worker.0", at=marked("worker.0", Mark.FETCHING), nth=6)),
         (first_error_told, thread_death_told, ends_once, health_is_true, nothing_left_behind)),
    Case("test_copy_thread_ends_before_it_answers",
         "It leaves with an answer in its hand.",
         plan(exits("worker.0", at=marked("worker.0", Mark.COPIED), nth=12)),
         (thread_death_told, ends_once, nothing_left_behind)),
    Case("test_copy_thread_of_a_silent_rank_hangs",
         "The thread of a rank that has not to answer steps hangs in the only answer that it has to give.",
         plan(hang("worker.1", at=marked("worker.1", Mark.COPIED), nth=3)),
         (thread_death_told, stall_is_told, ends_once, nothing_left_behind),
         play={"workload": recorded("pair").then(add(0, 1), steps=3).then(utility("collective_rpc", "check_health"))}),
    Case("test_copy_thread_hangs",
         "The thread that answers hangs, and its worker executes one call after the other.",
         plan(hang("worker.0", at=marked("worker.0", Mark.COPYING), nth=11)),
         (thread_death_told, stall_is_told, ends_once, nothing_left_behind),
         play={"config": LONG_STALL}),
    Case("test_copy_thread_is_late",
         "It is held up for a while, with the next answers behind it: they come in their order.",
         plan(hang("worker.0", at=marked("worker.0", Mark.COPIED), nth=11, until=until(seconds=0.2))),
         (rpc_matched, steps_in_order, async_same_tokens)),
    Case("test_core_stands_still_and_answers_pile_up",
         "The core stands still with four steps in flight, whose answers are more than their ring holds: the thread "
         "that gives them waits, the worker goes on.",
         plan(stall("core.0", at=marked("core.0", Mark.SUBMITTED), nth=9, until=until(seconds=0.3))),
         (rpc_matched, steps_in_order, async_same_tokens),
         play={"config": under_pressure(max_concurrent_batches=4, ring={"response_chunks": 2},
                                        scheduler={"async_scheduling": True})}),
    Case("test_worker_dies_as_it_copies",
         "A worker is killed in its copy thread, while it computes the next step.",
         plan(kill("worker.0", at=marked("worker.0", Mark.COPYING), nth=13)),
         (death_is_told, ends_once, nothing_left_behind)),
), topology=tensor_parallel(2), workload=pressure(), config=PROMISED))

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

"""Scenarios of our engine that could be played with vLLM and do not say there what they say here, and which of those
that are played there are played as a rule (pure).
"""

from __future__ import annotations

from fnmatch import fnmatchcase

_COUNTS = "its crossings count otherwise in vLLM"
_LENGTH = "vLLM bounds a request by what its cache holds, and our engine preempts it"
_UNWATCHED = "vLLM promises nothing of a core that stands still"
_ALL_GO = "vLLM gives up all engines of a client where one has died, as scenarios of its own show"
_HUB = "vLLM's coordinator is missed by nobody, as a scenario of its own shows"
_GOES_ON = "engines in step are asked to go on that have not paused, as in a scenario of its own"
_STAGES = "vLLM's runner of models that is played has no stages with a step in flight"
_OTHER_TYPE = "vLLM's client lets a rank of another type through, and what hears of requests in the core ends by it"
_NEXT_LIFE = "what is left to hear live for its next life differs from play to play there"
_STATE = "vLLM's publisher tells nobody its state"
_WAITS = "vLLM promises nothing of a message that is lost, and its callers wait for ever"
_FOUND = "what vLLM does not keep of it a scenario of its own declares"

#: By name: why not.
DIFFERENT = {
    "test_last_call_of_a_shutdown_raises": _COUNTS, "test_rank_fails_after_its_call_is_over": _COUNTS,
    "test_worker_dies_as_another_is_ready": _COUNTS, "test_rank_fails_as_it_samples": _COUNTS,
    "test_core_is_asked_to_leave": "vLLM's core aborts what it has when it is asked to leave",
    "test_urgent_requests_go_first": _LENGTH, "test_one_token_at_a_time": _LENGTH,
    "test_requests_outgrow_the_cache": _LENGTH, "test_request_that_cannot_be_served": _LENGTH,
    "test_request_outgrows_the_cache_with_a_promised_token": _LENGTH,
    "test_request_is_lost": _WAITS, "test_requests_are_damaged_on_the_way": _WAITS,
    "test_what_steers_the_scheduler_is_cut_short": _WAITS, "test_request_for_a_core_that_has_disconnected": _WAITS,
    "test_hello_is_lost": _FOUND, "test_frontend_dies": _FOUND, "test_ready_is_cut_short": _COUNTS,
    "test_ready_is_late": _COUNTS,
    "test_output_is_doubled": "a request that comes twice ends vLLM's core, which promises nothing of it",
    "test_core_is_stopped": _UNWATCHED, "test_core_stands_still_before_it_says_hello": _UNWATCHED,
    "test_core_beside_others_stands_still": _UNWATCHED, "test_one_rank_in_step_is_slow": _UNWATCHED,
    "test_rank_is_slow_with_two_steps_in_flight": _UNWATCHED,
    "test_batch_is_lost_behind_one_that_was_given_up": _UNWATCHED,
    "test_one_of_two_cores_dies": _ALL_GO, "test_first_of_two_cores_dies": _ALL_GO,
    "test_one_of_four_cores_dies": _ALL_GO, "test_both_cores_die": _ALL_GO, "test_core_beside_others_exits": _ALL_GO,
    "test_core_beside_others_is_asked_to_leave": _ALL_GO, "test_requests_for_a_core_that_is_dead": _ALL_GO,
    "test_coordinator_dies": _HUB, "test_coordinator_stands_still": _HUB,
    "test_coordinator_is_asked_to_leave_twice": _HUB,
    "test_one_request_wakes_all_ranks": _GOES_ON, "test_rank_loses_its_only_request_in_a_pause": _GOES_ON,
    "test_requests_for_cores_that_there_are_none_of": _OTHER_TYPE,
    "test_waves_of_two_stages": _STAGES, "test_worker_of_a_last_stage_dies_in_step": _STAGES,
    "test_subscriber_dies_and_is_started_again": _NEXT_LIFE,
    "test_state_of_many_blocks_is_told_in_pieces": _STATE, "test_state_comes_while_its_reader_stands_still": _STATE,
    "test_piece_of_a_state_comes_with_the_next_state": _STATE,
    "test_state_is_changed_on_its_way": _STATE, "test_end_of_an_answer_is_changed": _STATE,
}

#: What is much like something that is played, or takes long: played where it is named, and where all is (soak). Globs.
_MORE = (
    "test_vllm_is_killed_async[[]* in prefill]", "test_vllm_is_killed_async[[]worker.0*",
    "test_vllm_stage_is_killed[[]* in prefill]", "test_vllm_stage_is_killed[[]worker.0*",
    "test_vllm_worker_is_asked_to_leave[[]worker.0*", "test_vllm_worker_is_stopped[[]worker.0 in prefill]",
    "test_vllm_worker_is_stopped[[]worker.1 in decode]", "test_vllm_is_killed[[]worker.0 in prefill]",
    "test_vllm_server_loses_its_engine[[]worker.1]", "test_vllm_client_leaves_amid_its_answer",
    "test_vllm_server_loses_a_worker_that_stands_still", "test_vllm_program_waits_for_workers[[]* in prefill]",
    "test_vllm_ranks_async", "test_vllm_ranks_in_step_async", "test_vllm_events_of_a_small_cache_async",
    "test_vllm_rank_in_step_is_killed[[]core.1*", "test_vllm_refuses_extra_args*",
    "test_vllm_rank_is_killed[[]* in prefill]", "test_vllm_coordinator_is_killed[[]* in prefill]",
    "test_vllm_output_is[[]doubled]", "test_vllm_abort_is[[]late]", "test_vllm_death_notice_is[[]late]",
    "test_vllm_core_is_killed_at_a_message[[]*/requests*", "test_vllm_core_is_killed_at_a_message[[]*:send]",
    "test_vllm_connection_for_outputs_is_cut[[]9]", "test_vllm_greeting_is[[]* doubled]",
    "test_vllm_greeting_is_lost[[]READY lost]", "test_vllm_refuses_prompt_token_ids*",
    "test_vllm_is_deaf_by_cache_salt*",
    "test_vllm_ranks_relayed", "test_vllm_ranks_in_step_relayed", "test_vllm_counts_are[[]*",
    "test_vllm_report_of_counts_is*", "test_vllm_start_of_a_wave_is[[]doubled]", "test_vllm_start_of_a_wave_is_lost",
    "test_vllm_ranks_of_two_workers", "test_vllm_report_in_step_is*", "test_vllm_connection_of_events_is_cut",
    "test_vllm_connection_of_answers_is_cut",
    "test_vllm_subscription_of_a_core_is*", "test_vllm_connection_of_counts_is_cut",
    "test_vllm_worker_is_*[[]worker.1 in prefill]", "test_vllm_core_is_asked_to_leave[[]* in prefill]",
    "test_vllm_frontend_is_killed[[]* in prefill]", "test_vllm_is_killed[[]core.0 in prefill]",
    "test_vllm_worker_is_killed_at_start[[]worker.0]", "test_vllm_writer_is_stopped[[]*:reset]",
    "test_vllm_writer_is_stopped[[]*:written]", "test_vllm_writer_is_killed[[]*",
    "test_vllm_core_is_stopped_amid*", "test_vllm_core_is_killed_amid*:reset]",
    "test_vllm_core_is_killed_amid*:written]",
    "test_vllm_ring_is_changed[[]data of the answers]", "test_vllm_ring_hides_a_message[[]* broadcast]",
    "test_vllm_reader_is_killed_with*",
    "test_replayed_batch_is_lost", "test_end_of_a_replay_is_lost", "test_batch_is_lost_in_every_replay",
    "test_nobody_can_be_asked_for_a_batch", "test_reader_that_cannot_ask_rests",
    "test_last_batch_of_a_plain_publisher_is_lost", "test_batch_of_a_plain_publisher_is_cut_short",
    "test_answers_of_a_plain_publisher_hold_nothing", "test_one_of_four_ranks_in_step_dies", "test_rank_in_step_raises",
    "test_*_with_its_sample_asked_for", "test_program_polls_what_it_follows",
    "test_request_gives_way_and_may_not_end_sooner", "test_blocks_are_larger_than_prompts",
    "test_equally_urgent_requests_are_served_as_they_came", "test_conversation_goes_on",
    "test_streams_may_not_end_yet", "test_a_long_prompt_is_taken_at_once", "test_requests_for_one_core_count_there",
    "test_last_token_is_an_end", "test_last_token_is_an_end_that_is_ignored",
)
#: So many are played at most where none is named.
MOST = 120


def is_usual(scenario: str) -> bool:
    """Whether it is one of those that are played where none is named."""
    return not any(fnmatchcase(scenario, one) for one in _MORE)

"""Scenarios of our engine that could be played with vLLM and do not say there what they say here (pure)."""

from __future__ import annotations

_COUNTS = "its crossings count otherwise in vLLM"
_LENGTH = "vLLM bounds a request by what its cache holds, and our engine preempts it"
_UNWATCHED = "vLLM promises nothing of a core that stands still"
_WAITS = "vLLM promises nothing of a message that is lost, and its callers wait for ever"
_FOUND = "what vLLM does not keep of it a scenario of its own declares"

#: By name: why not.
DIFFERENT = {
    "test_last_call_of_a_shutdown_raises": _COUNTS, "test_rank_fails_after_its_call_is_over": _COUNTS,
    "test_worker_dies_as_another_is_ready": _COUNTS, "test_rank_fails_as_it_samples": _COUNTS,
    "test_core_is_asked_to_leave": "vLLM's core aborts what it has when it is asked to leave",
    "test_urgent_requests_go_first": _LENGTH, "test_one_token_at_a_time": _LENGTH,
    "test_requests_outgrow_the_cache": _LENGTH, "test_request_that_cannot_be_served": _LENGTH,
    "test_request_is_lost": _WAITS, "test_requests_are_damaged_on_the_way": _WAITS,
    "test_what_steers_the_scheduler_is_cut_short": _WAITS, "test_request_for_a_core_that_has_disconnected": _WAITS,
    "test_hello_is_lost": _FOUND, "test_frontend_dies": _FOUND, "test_ready_is_cut_short": _COUNTS,
    "test_ready_is_late": _COUNTS,
    "test_output_is_doubled": "a request that comes twice ends vLLM's core, which promises nothing of it",
    "test_core_is_stopped": _UNWATCHED, "test_core_stands_still_before_it_says_hello": _UNWATCHED,
}

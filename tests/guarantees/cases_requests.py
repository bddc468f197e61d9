"""Histories about requests and their tokens."""

from typing import Any

from engine.topology import data_parallel, headless
from faults.plan import Until
from tests.guarantees.build import OUTPUTS, REQUESTS, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent, unknown


@accepts("ends-once")
def an_aborted_request_ends_once() -> Builder:
    return history().started().request("a").called("b", 1).observes("frontend.0", "abort", request="b").ended(
        "b", "aborted")


@accepts("ends-once")
def a_second_call_with_a_live_id_is_refused_and_the_first_goes_on() -> Builder:
    return history().started().called("a").observes("frontend.0", "call", request="a", index=1).ended(
        "a", "failed", error="BadRequestError").streams("a", [7, 8, 9]).ended("a")


@rejects("ends-once")
def an_abort_that_crosses_the_finish_ends_it_twice() -> Builder:
    return history().started().request("a").ended("a", "aborted")


@rejects("ends-once")
def a_request_ends_under_another_name() -> Builder:
    return history().started().called("a").ended("a", internal="a-1")


@rejects("ends-once")
def a_request_never_ends_in_the_twin() -> Builder:
    return history().started().called("a").wait(0.01).observes("frontend.0", "closing")


@rejects("ends-once")
def a_request_is_open_for_more_than_three_times_its_bound() -> Builder:
    return history("engine").started().called("a").wait(6.5)


@rejects("ends-once")
def the_frontend_leaves_with_a_request_open() -> Builder:
    return history("engine").started().called("a").observes("frontend.0", "bye", reason="done").ends("frontend.0")


@unknown("ends-once")
def the_machine_starved_while_a_request_was_open() -> Builder:
    return history("engine").started().called("a").wait(6.5).lab(longest_starvation_s=5.0)


@unknown("ends-once")
def the_play_was_cut_short() -> Builder:
    return history("engine").started().called("a").wait(3)


@unknown("ends-once")
def a_planned_delay_never_ended() -> Builder:
    return history().started().called("a").fires("delay", f"{OUTPUTS}:receive", until=Until(seconds=9.0)).wait(99)


@silent("ends-once", "tokens-in-order", "abort-is-final", "lost-request-is-bounded", "bad-request-isolated")
def one_request_simply_finishes() -> Builder:
    return history().started().request("a")


@silent("ends-once")
def the_callers_own_process_died() -> Builder:
    return history().started().called("a").ends("frontend.0", exitcode=-9)


@outside("ends-once", "death-is-told", "stall-is-told")
def the_frontend_is_killed_by_the_plan() -> Builder:
    return history().started().called("a").fires("kill", f"{OUTPUTS}:receive")


@accepts("tokens-in-order", "tokens-match-reference")
def two_streams_are_interleaved() -> Builder:
    return history().started().called("a").called("b", 1).streams("a", [7]).streams("b", [5]).streams(
        "a", [8], offset=1).streams("b", [6], offset=1).streams("a", [9], offset=2).ended("a").ended("b")


@accepts("tokens-in-order", "lost-request-is-bounded")
def a_lost_output_ends_its_stream_with_an_error() -> Builder:
    return history().started().called("a").streams("a", [7]).fires("drop", f"{OUTPUTS}:receive").wait(0.6).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True).observes(
        "core.0", "request", request="a-0", action="abort").observes("core.0", "freed", request="a-0")


def _outputs_are_cut() -> Builder:
    """With a connection, after a token that came."""
    h = history().started().called("a").carries(OUTPUTS, "x").streams("a", [7])
    return h.fires("cut", f"{OUTPUTS}:wire", node="core.0").wait(0.1)


@accepts("tokens-in-order")
def an_output_is_lost_with_its_connection() -> Builder:
    return _outputs_are_cut().sends(OUTPUTS, "y").wait(0.6).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@accepts("tokens-in-order")
def an_output_is_lost_before_the_first_one_is_read() -> Builder:
    h = history().started().called("a").carries(OUTPUTS, "x").fires("cut", f"{OUTPUTS}:wire", node="core.0")
    return h.sends(OUTPUTS, "y").wait(0.1).streams("a", [7]).wait(0.6).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@silent("tokens-in-order")
def an_output_of_another_core_is_lost_with_its_connection() -> Builder:
    h = history(topology=data_parallel(2, tp=2), data_parallel_size=2).started().called("a").streams("a", [7])
    lost = "core.1->frontend.0/outputs"
    return h.fires("cut", f"{lost}:wire", node="core.1").sends(lost, "y").wait(0.1).ended("a")


@silent("tokens-in-order")
def a_connection_is_cut_and_no_output_is_lost() -> Builder:
    return _outputs_are_cut().carries(OUTPUTS, "y").streams("a", [8], offset=1).ended("a")


@rejects("tokens-in-order")
def a_lost_output_leaves_a_hole() -> Builder:
    return history().started().called("a").streams("a", [7]).streams("a", [9], offset=2).ended("a")


@rejects("tokens-in-order")
def a_doubled_output_is_delivered_twice() -> Builder:
    return history().started().called("a").streams("a", [7]).streams("a", [7]).ended("a")


def _three_outputs(*chunks: list[int]) -> Builder:
    h = history().started().called("a")
    return h.carries(OUTPUTS, "x", "y", "z").streams("a", *chunks).ended("a")


@rejects("tokens-in-order")
def all_tokens_of_three_messages_come_at_once() -> Builder:
    return _three_outputs([7, 8, 9])


@rejects("tokens-in-order")
def an_output_is_sent_twice() -> Builder:
    return history().request("a").carries(OUTPUTS, "x", "y", "y", "z")


@accepts("tokens-in-order")
def an_output_is_sent_again_by_who_sends_in_the_place_of_a_thread_that_failed() -> Builder:
    h = history().called("a").called("b", 1).streams("a", [7]).streams("b", [5]).streams("a", [8], offset=1)
    return h.carries(OUTPUTS, "x", "y").observes("core.0", "thread-ended", thread="output", why="failed").carries(
        OUTPUTS, "y", "z").dies("a").dies("b")


@silent("tokens-in-order")
def a_caller_that_is_slow_reads_two_tokens_at_once() -> Builder:
    return _three_outputs([7], [8, 9])


@rejects("tokens-in-order", "abort-is-final")
def tokens_come_after_the_abort() -> Builder:
    return history().started().called("a").observes("frontend.0", "abort", request="a").ended("a", "aborted").streams(
        "a", [7])


@rejects("tokens-in-order")
def tokens_of_a_request_that_nobody_called() -> Builder:
    return history().started().streams("x", [7])


@accepts("tokens-match-reference")
def a_greedy_request_equals_its_reference() -> Builder:
    return history().started().request("a").request("b", 1)


@rejects("tokens-match-reference")
def a_stream_is_cut_short_by_a_core_that_dies_by_itself() -> Builder:
    return history().started().called("a").streams("a", [7]).ends("core.0", exitcode=1).wait(0.01).dies("a")


@silent("tokens-match-reference")
def a_stream_is_cut_short_by_a_death_that_was_planned() -> Builder:
    return history().started().called("a").streams("a", [7]).fires("kill", "core.0/mark:step").wait(0.01).dies("a")


@silent("tokens-match-reference")
def the_core_dies_of_a_worker_that_stood_still() -> Builder:
    h = history().started().called("a").streams("a", [7]).fires("stall", "worker.1/mark:executing")
    return h.wait(1.0).ends("core.0", exitcode=1).wait(0.01).dies("a")


@rejects("tokens-match-reference")
def the_core_dies_of_a_payload_that_was_to_come_late_and_not_to_be_lost() -> Builder:
    h = history("engine").started().called("a").streams("a", [7]).fires(
        "delay", "core.0->worker.1/overflow:receive", until=Until(seconds=0.2))
    return h.wait(1.0).ends("core.0", exitcode=1).wait(0.01).dies("a")


@unknown("tokens-match-reference")
def a_core_on_a_starved_machine_dies_by_itself() -> Builder:
    h = history("engine").started().called("a").streams("a", [7]).ends("core.0", exitcode=1)
    return h.wait(0.01).dies("a").lab(longest_starvation_s=3.0)


@rejects("tokens-match-reference")
def one_token_differs() -> Builder:
    return history().started().request("a", tokens=[[7], [1, 9]])


@rejects("tokens-match-reference")
def a_finished_request_is_a_token_short() -> Builder:
    return history().started().request("a", tokens=[[7, 8]])


@rejects("tokens-match-reference")
def an_error_does_not_excuse_a_wrong_token() -> Builder:
    return history().started().request("a", tokens=[[7, 9]], outcome="engine-dead", error="EngineDeadError")


def _stops_at(token: int, told: int | None) -> Builder:
    """Its answer is 7, 8, 9; it was to stop at this token, and ended by its last one."""
    params = {"max_tokens": 9, "ignore_eos": True, "stop_token_ids": [token]}
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "sampling_params": params,
                              "reference_token_ids": [7, 8, 9]}]}
    return history().started().request("a", finish_reason="stop", stop_reason=told).promised(workload=workload)


def _ends_at_its_length(finish: str, **params: object) -> Builder:
    """Its answer is 7, 8, 9, no longer than it may be; 9 is an end of its model."""
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "sampling_params": {"max_tokens": 3, **params},
                              "reference_token_ids": [7, 8, 9], "end_token_ids": [9]}]}
    return history().started().request("a", finish_reason=finish).promised(workload=workload)


@accepts("tokens-match-reference")
def its_last_token_is_its_end() -> Builder:
    return _ends_at_its_length("stop")


@rejects("tokens-match-reference")
def its_last_token_is_its_end_and_it_is_told_of_its_length() -> Builder:
    return _ends_at_its_length("length")


@rejects("tokens-match-reference")
def its_last_token_is_an_end_that_it_ignores_and_it_is_told_of_that() -> Builder:
    return _ends_at_its_length("stop", ignore_eos=True)


@accepts("tokens-match-reference")
def it_is_told_which_token_ended_it() -> Builder:
    return _stops_at(9, 9)


@rejects("tokens-match-reference")
def it_is_not_told_which_token_ended_it() -> Builder:
    return _stops_at(9, None)


@rejects("tokens-match-reference")
def it_is_told_of_a_token_that_was_not_to_end_it() -> Builder:
    return _stops_at(5, 9)


@silent("tokens-match-reference")
def a_clean_prefix_that_ended_in_an_error() -> Builder:
    return history().started().request("a", tokens=[[7]], outcome="engine-dead", error="EngineDeadError")


@silent("tokens-match-reference")
def a_sampled_request_has_no_reference() -> Builder:
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "sampling_params": {"temperature": 1.0},
                              "reference_token_ids": [7, 8, 9]}]}
    return history().started().request("a", tokens=[[1, 2, 3]]).promised(workload=workload)


def _drawn(**params: Any) -> Builder:
    workload = {"requests": [{"index": 0, "prompt_token_ids": [1], "sampling_params": {"temperature": 1.0, **params},
                              "reference_token_ids": [7, 8, 9]}]}
    return history().started().promised(workload=workload).request("a", tokens=[[4, 5]])


@rejects("tokens-match-reference")
def another_token_than_the_only_one_that_may_be_drawn() -> Builder:
    return _drawn(top_k=1)


@rejects("tokens-match-reference")
def a_token_that_is_drawn_from_beyond_the_most_probable() -> Builder:
    return _drawn(top_p=1e-6)


@rejects("tokens-match-reference")
def a_token_that_is_drawn_from_beyond_the_better_half_of_two() -> Builder:
    return _drawn(top_k=2, top_p=0.5)


@silent("tokens-match-reference")
def a_token_of_two_that_may_be_drawn() -> Builder:
    return _drawn(top_k=2, top_p=0.9)


@silent("tokens-match-reference")
def one_seed_draws_the_same_twice_as_far_as_each_came() -> Builder:
    return _drawn(seed=3).request("b", tokens=[[4]])


@rejects("tokens-match-reference")
def one_seed_draws_something_else_the_next_time() -> Builder:
    return _drawn(seed=3).request("b", tokens=[[4, 6]])


@silent("tokens-match-reference")
def without_a_seed_each_draws_its_own() -> Builder:
    return _drawn().request("b", tokens=[[4, 6]])


def _aborted() -> Builder:
    return history().started().called("a").streams("a", [7]).observes("frontend.0", "abort", request="a").ended(
        "a", "aborted")


def _core_frees(h: Builder, internal: str = "a-0", action: str = "abort") -> Builder:
    h.observes("core.0", "request", request=internal, action=action)
    return h.observes("core.0", "freed", request=internal) if action == "abort" else h


def _idle(h: Builder, used: int = 0, **data: object) -> Builder:
    return h.observes("core.0", "blocks", free=8 - used, cached=2, used=used, total=8, requests=0, errors=[], **data)


@accepts("abort-is-final", "blocks-conserved")
def an_aborted_request_is_freed() -> Builder:
    return _idle(_core_frees(_aborted()))


@rejects("abort-is-final", "blocks-conserved")
def the_blocks_of_an_aborted_request_are_kept() -> Builder:
    return _idle(_aborted().observes("core.0", "request", request="a-0", action="abort"), used=3)


def _steps_go_on(h: Builder, *, heard: bool) -> Builder:
    """The caller of "b" gives it up, the core begins three more steps, and dies."""
    h.called("b", 1).carries(REQUESTS, "two")
    for step in range(3 if not heard else 0):
        h.crosses("core.0/mark:step", step=step)
    h.observes("frontend.0", "abort", request="b", internal="b-0").sends(REQUESTS, "abort").ended("b", "aborted")
    for step in range(3 if heard else 0):
        h.receives(REQUESTS, *["abort"] * (not step)).crosses("core.0/mark:step", step=step)
    return h.wait(.1).ends("core.0", exitcode=-9)


@accepts("abort-is-final")
def a_core_that_dies_before_it_has_read_of_it_has_computed_on() -> Builder:
    return _steps_go_on(_core_frees(_aborted()), heard=False)


@rejects("abort-is-final")
def a_core_that_has_read_of_it_computes_on() -> Builder:
    return _steps_go_on(_core_frees(_aborted()), heard=True)


@accepts("abort-is-final")
def an_old_abort_arrives_when_its_id_is_in_use_again() -> Builder:
    h = _aborted().called("a", internal="a-1")
    return _core_frees(h).streams("a", [7, 8, 9]).ended("a")


@rejects("abort-is-final")
def an_old_abort_kills_the_new_request_of_that_id() -> Builder:
    h = _aborted().called("a", internal="a-1")
    return _core_frees(h, "a-1").ended("a", "aborted")


@rejects("abort-is-final", "ends-once")
def the_caller_of_the_reused_id_waits_for_ever() -> Builder:
    return _core_frees(_aborted().called("a", internal="a-1"), "a-1").wait(30).observes("frontend.0", "closing")


@rejects("blocks-conserved")
def a_block_has_two_owners() -> Builder:
    return history().started().request("a").observes("core.0", "freed", request="a-0").observes(
        "core.0", "blocks", free=8, cached=0, used=0, total=8, requests=0, errors=["block 3 is free and held"])


@rejects("blocks-conserved")
def a_block_is_neither_free_nor_used() -> Builder:
    return history().started().observes("core.0", "blocks", free=7, cached=0, used=0, total=8, requests=0, errors=[])


@rejects("blocks-conserved")
def nobody_knows_how_many_blocks_are_used() -> Builder:
    return history().started().observes(
        "core.0", "blocks", free=8, cached=0, used=None, total=8, requests=0, errors=[])


@silent("blocks-conserved")
def the_core_looks_at_its_books_before_anything_ran() -> Builder:
    return _idle(history().started())


def _bad_request(h: Builder, reason: str = "the prompt has 99 tokens, the model takes 64", **data: bool) -> Builder:
    return h.observes("frontend.0", "call", request="bad", index=0).ended(
        "bad", "failed", error="BadRequestError", reason=reason, **data)


@accepts("bad-request-isolated")
def a_bad_request_fails_alone() -> Builder:
    return _bad_request(history().started().called("a")).streams("a", [7, 8, 9]).ended("a")


@rejects("bad-request-isolated")
def a_bad_request_fails_without_saying_why() -> Builder:
    return _bad_request(history().started().called("a"), reason="").ended("a")


def _a_headless_core_ends(*, behind: bool) -> Builder:
    """It is told of by its own launcher: behind the end of the client that it serves, or amid its life."""
    h = _bad_request(history(tp=1, topology=headless(2, 1), data_parallel_size=2).started().called("a"))
    h.streams("a", [7, 8, 9]).ended("a").wait(.01)
    if behind:
        h.observes("frontend.0", "closing").wait(.01)
    return h.observes("launcher.1", "engine-dead", reason="core.1 died (exit code 0): its client has closed", core=1)


@accepts("bad-request-isolated")
def a_headless_core_goes_with_its_client_behind_a_bad_request() -> Builder:
    return _a_headless_core_ends(behind=True)


@rejects("bad-request-isolated")
def a_headless_core_goes_behind_a_bad_request() -> Builder:
    return _a_headless_core_ends(behind=False)


def _grows_too_long(effect: bool, tokens: int = 9) -> Builder:
    """A cache that holds 8 x 16 has room for the tokens before the last one."""
    h = history().started().called("a").observes("frontend.0", "call", request="b", index=1, prompt=120, max_tokens=30)
    h.observes("frontend.0", "accepted", request="b", internal="b-0").streams("b", [5] * tokens)
    h.ended("b", "failed", error="BadRequestError", reason="it does not fit", may_have_taken_effect=effect)
    return h.streams("a", [7, 8, 9]).ended("a")


@accepts("bad-request-isolated")
def what_has_delivered_tokens_may_have_taken_effect() -> Builder:
    return _grows_too_long(True)


@rejects("bad-request-isolated")
def what_outgrows_the_cache_does_not_get_its_last_token() -> Builder:
    return _grows_too_long(True, 8)


@rejects("bad-request-isolated")
def what_has_delivered_tokens_says_that_it_had_no_effect() -> Builder:
    return _grows_too_long(False)


@rejects("bad-request-isolated")
def what_has_delivered_nothing_says_that_it_had_effect() -> Builder:
    return _bad_request(history().started().called("a"), may_have_taken_effect=True).ended("a")


@rejects("bad-request-isolated")
def a_bad_request_takes_its_neighbour_with_it() -> Builder:
    return _bad_request(history().started().called("a")).ended("a", "failed", error="RequestError")


@rejects("bad-request-isolated")
def a_bad_request_ends_the_thread_that_reads_them_all() -> Builder:
    return _bad_request(history().started().called("a")).called("c", 1, core=False).wait(60)


@rejects("bad-request-isolated")
def a_bad_request_kills_the_engine() -> Builder:
    return _bad_request(history().started().called("a")).observes("frontend.0", "engine-dead", reason="x").dies("a")


def _lost() -> Builder:
    return history().started().called("a", core=False).sends(REQUESTS, "x").fires("drop", f"{REQUESTS}:receive")


@accepts("lost-request-is-bounded")
def a_lost_request_ends_by_the_client_time_out() -> Builder:
    return _lost().wait(2.1).ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@rejects("lost-request-is-bounded")
def a_lost_request_is_waited_for_for_ever() -> Builder:
    return _lost().wait(60).observes("frontend.0", "closing")


@rejects("lost-request-is-bounded")
def a_lost_request_ends_far_too_late() -> Builder:
    return _lost().wait(4).ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@rejects("lost-request-is-bounded")
def a_request_is_given_up_too_soon() -> Builder:
    return _timed_out(1.9)


@silent("lost-request-is-bounded")
def a_request_is_given_up_at_its_time_out() -> Builder:
    return _timed_out(2.1)


@silent("lost-request-is-bounded")
def a_request_is_said_to_be_accepted_late_and_given_up_at_its_time_out() -> Builder:
    h = history().started().observes("frontend.0", "call", request="a", index=0, prompt=2, max_tokens=3).wait(0.01)
    return h.observes("frontend.0", "accepted", request="a", internal="a-0", core=0).wait(1.995).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


def _timed_out(after_s: float) -> Builder:
    return history().started().called("a").wait(after_s).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@rejects("lost-request-is-bounded")
def a_gap_is_given_up_too_soon() -> Builder:
    return history().started().called("a").streams("a", [7]).fires("drop", f"{OUTPUTS}:receive").wait(0.4).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True)


@rejects("lost-request-is-bounded")
def the_error_hides_that_it_may_have_taken_effect() -> Builder:
    return _lost().wait(2.1).ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=False)


@rejects("lost-request-is-bounded")
def the_core_keeps_what_the_client_gave_up() -> Builder:
    return _idle(history().started().called("a").fires("drop", f"{OUTPUTS}:receive").wait(0.6).ended(
        "a", "failed", error="RequestTimeoutError", may_have_taken_effect=True), used=3)


@unknown("lost-request-is-bounded")
def the_time_out_was_late_on_a_starved_machine() -> Builder:
    h = history("engine").started().called("a", core=False).fires("drop", f"{REQUESTS}:receive").wait(4)
    return h.ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True).lab(longest_starvation_s=3.0)

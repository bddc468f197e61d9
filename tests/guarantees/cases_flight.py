"""Histories of steps in flight."""

from engine.config import CacheConfig, SchedulerConfig
from engine.topology import Mark, mark_site
from faults.journal import Kind
from faults.plan import Until
from tests.guarantees.build import REQUESTS, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent
from tests.guarantees.cases_steps import A, step

ORDER, PAIRED, FIRST = "steps-in-order", "two-phase-paired", "first-error-told"
SAME, CONSERVED = "async-same-tokens", "placeholders-conserved"
CORE = "core.0"


def deep(tp: int = 2) -> Builder:
    return history(tp=tp, max_concurrent_batches=2).started()


def scheduled(h: Builder, *steps: int, tokens: int = 2) -> Builder:
    for number in steps:
        h.crosses(mark_site(CORE, Mark.SCHEDULED), step=number, tokens=tokens)
    return h


def used(h: Builder, *steps: int) -> Builder:
    for number in steps:
        h.crosses(mark_site(CORE, Mark.EXECUTED), step=number)
    return h


def comes_to(h: Builder, method: str, call: int = 0, *nodes: str) -> Builder:
    for node in nodes or ("worker.0", "worker.1"):
        h.crosses(mark_site(node, Mark.EXECUTING), call=call, method=method)
    return h


def pairs(h: Builder, count: int, *nodes: str) -> Builder:
    for number in range(count):
        scheduled(h, number)
        comes_to(h, "execute_model", 2 * number, *nodes)
        comes_to(h, "sample_tokens", 2 * number + 1, *nodes)
    return h


# -- their order


@accepts(ORDER)
def the_second_begins_before_the_first_is_used() -> Builder:
    h = comes_to(scheduled(deep(), 0, 1), "execute_model")
    return used(scheduled(used(comes_to(h, "execute_model"), 0), 2), 1, 2)


@accepts(ORDER)
def a_core_that_is_its_own_rank_begins_the_second_before_it_uses_the_first() -> Builder:
    h = comes_to(scheduled(deep(1), 0, 1), "execute_model", 0, CORE)
    return used(comes_to(h, "execute_model", 2, CORE), 0, 1)


@rejects(ORDER)
def the_newest_is_used_first() -> Builder:
    return used(scheduled(deep(), 0, 1), 1, 0)


@rejects(ORDER)
def one_is_used_that_nobody_scheduled() -> Builder:
    return used(scheduled(deep(), 0), 0, 1)


@rejects(ORDER)
def three_are_in_flight_where_two_may_be() -> Builder:
    return used(scheduled(deep(), 0, 1, 2), 0, 1, 2)


@rejects(ORDER)
def a_third_is_scheduled_and_none_is_ever_used() -> Builder:
    return scheduled(deep(), 0, 1, 2)


@silent(ORDER)
def no_step_begins_before_the_one_before_it_is_used() -> Builder:
    h = used(comes_to(scheduled(deep(), 0), "execute_model"), 0)
    return used(comes_to(scheduled(h, 1), "execute_model"), 1)


def aborted_in_flight(*, heard: int = 1, used_before: bool = False) -> Builder:
    """One step is in flight when the client of "a", which is in it, gives that up."""
    h = comes_to(scheduled(deep().called("a"), 0, 1), "execute_model")
    h.observes(CORE, "rpc-call", call=0, method="execute_model", output_rank=0)
    h.observes("worker.0", "step", call=0, step=0, scheduled={"a-0": 2}, new=[], cached=[], finished=[], preempted=[])
    comes_to(h, "execute_model", 2).observes("frontend.0", "abort", request="a").ended("a", "aborted")
    h.carries(REQUESTS, "an abort").wait(0.1)
    if used_before:
        used(h, 0)
    for _ in range(heard):
        h.observes(CORE, "request", request="a-0", action="abort", reason="").observes(CORE, "freed", request="a-0")
    return (h if used_before else used(h, 0)).observes(CORE, "blocks", requests=0, errors=[], kept={})


@accepts(ORDER)
def an_abort_is_heard_before_the_step_is_used() -> Builder:
    return aborted_in_flight()


@rejects(ORDER)
def a_step_is_used_although_an_abort_of_who_is_in_it_has_come() -> Builder:
    return aborted_in_flight(used_before=True)


@rejects(ORDER)
def an_abort_with_a_step_in_flight_is_not_heard() -> Builder:
    return aborted_in_flight(heard=0)


@rejects(ORDER)
def an_abort_with_a_step_in_flight_is_heard_twice() -> Builder:
    return aborted_in_flight(heard=2)


# -- their two phases


@accepts(PAIRED)
def each_step_is_executed_and_sampled() -> Builder:
    return pairs(history().started(), 3)


@accepts(PAIRED)
def an_only_rank_executes_and_samples() -> Builder:
    return pairs(history(tp=1).started(), 3, CORE)


@accepts(PAIRED)
def a_step_without_tokens_is_not_sampled() -> Builder:
    h = scheduled(pairs(history().started(), 2), 2, tokens=0)
    return comes_to(comes_to(h, "execute_model", 4), "check_health", 5)


@accepts(PAIRED)
def whoever_is_gone_does_not_sample_its_last_step() -> Builder:
    return comes_to(scheduled(pairs(history().started(), 2), 2), "execute_model", 4).ends("worker.1", exitcode=-9)


@rejects(PAIRED)
def a_step_is_executed_where_the_one_before_it_was_not_sampled() -> Builder:
    h = comes_to(scheduled(pairs(history().started(), 2), 2, 3), "execute_model", 4)
    return comes_to(h, "execute_model", 5)


@rejects(PAIRED)
def one_rank_is_spared_a_sample() -> Builder:
    h = comes_to(scheduled(pairs(history().started(), 2), 2, 3), "execute_model", 4)
    comes_to(h, "sample_tokens", 5, "worker.0")
    return comes_to(h, "execute_model", 6)


@rejects(PAIRED)
def a_step_is_sampled_twice() -> Builder:
    return comes_to(pairs(history().started(), 2), "sample_tokens", 4)


@rejects(PAIRED)
def a_step_without_tokens_is_sampled() -> Builder:
    h = comes_to(scheduled(pairs(history().started(), 2), 2, tokens=0), "execute_model", 4)
    return comes_to(h, "sample_tokens", 5)


def _fails_to_sample(*goes_on: bool, node: str = "worker.1") -> Builder:
    """The next steps: whether it executes them."""
    h = pairs(history(tp=1 if node == CORE else 2).started(), 2, node)
    record, more = ("rpc-failed", {"rank": 0}) if node == CORE else ("rpc-raised", {"method": "sample_tokens"})
    h.observes(node, record, call=3, error="ValueError: it has nothing", **more)
    for number, executes in enumerate(goes_on, 2):
        comes_to(scheduled(h, number), "execute_model", 2 * number, node)
        if not executes:
            h.observes(node, record, call=2 * number, error="RuntimeError: no step behind one that failed", **more)
        comes_to(h, "sample_tokens", 2 * number + 1, node)
    return h


@accepts(PAIRED)
def behind_a_sample_that_failed_nothing_is_executed() -> Builder:
    return _fails_to_sample(False, False)


@accepts(PAIRED)
def behind_a_sample_that_failed_a_core_executes_nothing() -> Builder:
    return _fails_to_sample(False, node=CORE)


@rejects(PAIRED)
def behind_a_sample_that_failed_a_step_is_executed() -> Builder:
    return _fails_to_sample(False, True)


@rejects(PAIRED)
def behind_a_sample_that_failed_a_core_executes_a_step() -> Builder:
    return _fails_to_sample(True, node=CORE)


@silent(PAIRED)
def there_is_but_one_step() -> Builder:
    return pairs(history().started(), 1)


# -- whose error is told

PLANTED, NOTHING = "RuntimeError: a device fell off", "RuntimeError: step 1: the workers had nothing to sample"


def fails(h: Builder, rank: int, call: int, error: str = PLANTED, method: str = "execute_model") -> Builder:
    return h.observes(f"worker.{rank}", "rpc-raised", call=call, method=method, error=error)


def asked(calls: int = 4, **values: object) -> Builder:
    h = history(**values).started().called("a")
    for call in range(calls):
        h.observes(CORE, "rpc-call", call=call, method="execute_model" if call % 2 == 0 else "sample_tokens",
                   output_rank=0)
    return h


def told(h: Builder, reason: str) -> Builder:
    return h.observes("frontend.0", "engine-dead", reason=f"core.0 said that it is leaving: {reason}").dies("a")


@accepts(FIRST)
def the_first_error_is_told_and_not_that_of_the_next_step() -> Builder:
    h = fails(fails(asked(), 1, 0), 1, 2, "RuntimeError: no step is executed")
    return told(h, f"worker.1 failed in execute_model: {PLANTED}")


@accepts(FIRST)
def an_only_ranks_error_is_told() -> Builder:
    h = asked(tp=1).observes(CORE, "rpc-failed", call=2, rank=0, error=PLANTED)
    return told(h, f"worker.0 failed in execute_model: {PLANTED}")


@accepts(FIRST)
def two_fail_at_once_and_either_is_told() -> Builder:
    h = fails(fails(asked(), 1, 0), 0, 0, "RuntimeError: the other one is gone")
    return told(h, "worker.0 failed in execute_model: RuntimeError: the other one is gone")


@accepts(FIRST)
def who_failed_first_stands_still_with_its_answer() -> Builder:
    h = fails(asked(), 1, 0).fires("stall", "worker.1/mark:executing", until=Until(seconds=6.0)).wait(1.0)
    h = fails(h, 0, 0, "CollectiveError: worker.1 did not enter")
    return told(h, "worker.0 failed in execute_model: CollectiveError: worker.1 did not enter")


@rejects(FIRST)
def the_sample_of_nothing_is_told() -> Builder:
    return told(fails(asked(), 1, 0), NOTHING)


@rejects(FIRST)
def the_next_steps_error_is_told() -> Builder:
    h = fails(fails(asked(), 1, 0), 0, 2, "RuntimeError: too late")
    return told(h, "worker.0 failed in execute_model: RuntimeError: too late")


@rejects(FIRST)
def who_failed_long_after_in_the_same_call_is_told() -> Builder:
    h = fails(fails(asked(), 1, 0).wait(1.0), 0, 0, "RuntimeError: the other one is gone")
    return told(h, "worker.0 failed in execute_model: RuntimeError: the other one is gone")


def _told_of_a_call_that_was_over(answered: bool) -> Builder:
    h = asked()
    if answered:
        h.observes(CORE, "rpc-reply", call=0, rank=0, status=0)
    return told(fails(h, 1, 0), f"worker.1 failed in a call that was over: {PLANTED}")


@accepts(FIRST)
def a_call_was_over_when_a_rank_failed_in_it() -> Builder:
    return _told_of_a_call_that_was_over(answered=True)


@rejects(FIRST)
def a_call_that_nobody_has_answered_is_told_to_have_been_over() -> Builder:
    return _told_of_a_call_that_was_over(answered=False)


@silent(FIRST)
def nothing_was_asked_for_behind_it() -> Builder:
    return told(fails(asked(1), 1, 0), f"worker.1 failed in execute_model: {PLANTED}")


@silent(FIRST)
def another_rank_died_before() -> Builder:
    h = asked().ends("worker.0", exitcode=-9)
    return told(fails(h, 1, 0), NOTHING)


@outside(FIRST)
def the_core_is_killed_when_it_should_tell() -> Builder:
    return told(fails(asked(), 1, 0), NOTHING).fires("kill", "core.0/mark:dying").ends(CORE, exitcode=-9)


# -- tokens that are promised


def promised(most: int | None = 3) -> Builder:
    """Of "a": [1, 2], answered by 7, 8, 9; two steps may be in flight."""
    h = history(cache=CacheConfig(num_gpu_blocks=6, block_size=2),
                scheduler=SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2, async_scheduling=True))
    workload = h.play().workload
    first, *rest = workload["requests"]
    params = {**first.get("sampling_params", {}), "max_tokens": most}
    return h.promised(workload={**workload, "requests": [{**first, "sampling_params": params}, *rest]}).started(
        blocks=6).called("a")


def overlapping(h: Builder, *computed: int) -> Builder:
    """The prompt, then a token at each of these places: every step is scheduled before the one before it is used."""
    step(h, new=((A, [1, 2], 2, [0], 0, 2),), used=False)
    for at in computed:
        step(h, cached=((A, [], [], at, 1),), used=False)
        used(h, 0)
    return used(h, 0)


def answered(h: Builder, *tokens: int) -> Builder:
    return h.streams("a", list(tokens)).ended("a")


@accepts(SAME)
def tokens_that_were_promised_are_those_of_the_reference() -> Builder:
    return answered(overlapping(promised(), 2, 3), 7, 8, 9)


@rejects(SAME)
def what_was_computed_with_was_another_token() -> Builder:
    return answered(overlapping(promised(), 2, 3), 7, 5, 9)


@rejects(SAME)
def a_stream_ends_before_its_time() -> Builder:
    return answered(overlapping(promised(), 2, 3), 7, 8)


@silent(SAME)
def every_token_is_known_when_the_next_step_is_scheduled() -> Builder:
    h = step(promised(), new=((A, [1, 2], 2, [0], 0, 2),))
    return answered(step(step(h, cached=((A, [7], [], 2, 1),)), cached=((A, [8], [], 3, 1),)), 7, 8, 9)


@outside(SAME)
def another_request_came_than_was_asked() -> Builder:
    h = overlapping(promised(), 2, 3).fires("corrupt", f"{REQUESTS}:receive")
    return answered(h, 7, 5, 9)


@accepts(CONSERVED)
def nothing_is_computed_beyond_its_length() -> Builder:
    return overlapping(promised(), 2, 3)


@accepts(CONSERVED)
def one_step_is_wasted_behind_a_stop() -> Builder:
    return overlapping(promised(most=9), 2, 3, 4)


@rejects(CONSERVED)
def the_token_of_its_length_is_computed_too() -> Builder:
    return overlapping(promised(), 2, 3, 4)


@rejects(CONSERVED)
def two_steps_are_wasted_behind_a_stop() -> Builder:
    return overlapping(promised(most=9), 2, 3, 4, 5)


@silent(CONSERVED)
def it_is_aborted_before_its_end() -> Builder:
    return overlapping(promised(), 2)


# -- a thread that answers

THREAD = "thread-death-told"


def copy_thread(fate: str, *, reason: str | None, after: float = .02, thread: str = "copy") -> Builder:
    """"a" is asked, the thread that answers for worker.0 meets that fate, and callers are told so (None: nothing)."""
    site = mark_site("worker.0", Mark.COPYING)
    h = history(scheduler=SchedulerConfig(async_scheduling=True)).started().called("a")
    h.record("worker.0", Kind.CROSSING, site, {"call": 3, "fate": fate, "fault": "f1"}, nth=1, thread=thread)
    h.fires(fate, site).wait(after)
    if reason is None:
        return h.wait(3.0)
    return h.observes("frontend.0", "engine-dead", reason=reason).dies("a").observes("frontend.0", "closing")


DIED, LATE = "worker.0 (pid 12) died", "no answer to sample_tokens from worker.0 by its deadline"


@accepts(THREAD)
def a_thread_that_ends_takes_its_worker_along() -> Builder:
    return copy_thread("raise", reason=DIED)


@accepts(THREAD)
def a_thread_that_hangs_is_told_by_the_bound_of_a_step() -> Builder:
    return copy_thread("hang", reason=LATE, after=1.02)


@rejects(THREAD)
def a_thread_that_has_ended_is_told_as_one_that_hangs() -> Builder:
    return copy_thread("raise", reason=LATE, after=1.02)


@rejects(THREAD)
def a_thread_that_hangs_is_never_told() -> Builder:
    return copy_thread("hang", reason=None)


@rejects(THREAD)
def a_thread_that_has_left_is_never_told() -> Builder:
    return copy_thread("exit", reason=None)


@rejects(THREAD)
def another_worker_is_told() -> Builder:
    return copy_thread("raise", reason="worker.1 (pid 12) died")


def _with_a_word_lost(after: float = 0.0) -> Builder:
    """The core leaves, and what it says of that is damaged: callers learn of its end alone."""
    h = copy_thread("raise", reason="core.0 said that it is leaving (ENGINE_CORE_DEAD)", after=.02 + after)
    return h.fires("corrupt", "core.0->frontend.0/birth:receive")


@accepts(THREAD)
def nobody_can_be_named_where_the_word_of_it_was_damaged() -> Builder:
    return _with_a_word_lost()


@rejects(THREAD)
def the_end_is_told_late_where_the_word_of_it_was_damaged() -> Builder:
    return _with_a_word_lost(3.0)


@silent(THREAD)
def another_thread_has_failed() -> Builder:
    return copy_thread("raise", reason=DIED, thread="main")


@silent(THREAD)
def the_whole_process_is_killed() -> Builder:
    return copy_thread("kill", reason=DIED)


@silent(THREAD)
def it_goes_on_in_time() -> Builder:
    site = mark_site("worker.0", Mark.COPYING)
    h = history(scheduler=SchedulerConfig(async_scheduling=True)).started().called("a")
    h.record("worker.0", Kind.CROSSING, site, {"call": 3, "fate": "hang", "fault": "f1"}, nth=1, thread="copy")
    return h.fires("hang", site).wait(.1).releases().streams("a", [7, 8, 9]).ended("a")


@outside(THREAD)
def the_core_is_killed_that_should_tell() -> Builder:
    return copy_thread("raise", reason=DIED).fires("kill", mark_site(CORE, Mark.SCHEDULED))


# -- a scheduler that was paused

PAUSE = "pause-exact"


def pausing(*, late: str | None = None, phase: str = "execute_model", amid: bool = True,
            goes_on: float = .05) -> Builder:
    """"a" has tokens, the scheduler is paused, and goes on later. `late`: a rank that comes to a step meanwhile."""
    h = deep().called("a")
    if amid:
        h.streams("a", [7])
    h.observes("frontend.0", "ask", method="pause_scheduler", ticket=4)
    comes_to(h, "execute_model", 3)
    h.observes("frontend.0", "utility", method="pause_scheduler", ticket=4, args=[], result=3, failure="")
    if late:
        comes_to(h, phase, 5, late)
    h.wait(goes_on).observes("frontend.0", "ask", method="resume_scheduler", ticket=5)
    comes_to(h, "execute_model", 5)
    return h.streams("a", [8, 9], offset=1).ended("a")


@accepts(PAUSE)
def nobody_executes_a_step_until_it_goes_on() -> Builder:
    return pausing()


@accepts(PAUSE)
def what_is_asked_of_ranks_meanwhile_is_no_step() -> Builder:
    return comes_to(pausing(), "check_health", 7)


@accepts(PAUSE)
def who_serves_once_more_counts_its_calls_anew() -> Builder:
    h = pausing().observes("frontend.0", "ask", method="pause_scheduler", ticket=4)
    h.observes("frontend.0", "ask", method="resume_scheduler", ticket=5)
    h.observes("frontend.0", "utility", method="pause_scheduler", ticket=4, args=[], result=3, failure="")
    return comes_to(h, "execute_model", 9)


@rejects(PAUSE)
def a_rank_comes_to_a_step_that_was_in_flight() -> Builder:
    return pausing(late="worker.1")


@rejects(PAUSE)
def the_rank_that_is_waited_for_samples_a_step_that_was_in_flight() -> Builder:
    return pausing(late="worker.0", phase="sample_tokens")


@accepts(PAUSE)
def a_rank_that_nobody_waits_for_samples_the_last_step_late() -> Builder:
    return pausing(late="worker.1", phase="sample_tokens")


@silent(PAUSE)
def nobody_had_a_token_yet() -> Builder:
    return pausing(amid=False)


@silent(PAUSE)
def steps_were_asked_for_before_it_was_answered() -> Builder:
    h = deep().called("a").streams("a", [7])
    h.observes("frontend.0", "ask", method="pause_scheduler", ticket=4)
    h.observes("frontend.0", "ask", method="run_steps", ticket=5)
    h.observes("frontend.0", "utility", method="pause_scheduler", ticket=4, args=[], result=3, failure="")
    return comes_to(h, "execute_model", 5)


@silent(PAUSE)
def it_was_never_answered() -> Builder:
    h = deep().called("a").streams("a", [7]).observes("frontend.0", "ask", method="pause_scheduler", ticket=4)
    h.observes("frontend.0", "utility", method="pause_scheduler", ticket=4, args=[], result=None, failure="late")
    return comes_to(h, "execute_model", 5)


@silent(PAUSE)
def the_core_was_asked_to_leave_meanwhile() -> Builder:
    h = deep().called("a").observes("frontend.0", "ask", method="pause_scheduler", ticket=4)
    h.observes("frontend.0", "utility", method="pause_scheduler", ticket=4, args=[], result=3, failure="")
    return comes_to(h.observes(CORE, "draining", running=1, waiting=0, deadline=3.0), "execute_model", 5)


@outside(PAUSE)
def a_call_is_overtaken() -> Builder:
    return pausing(late="worker.1").fires("reorder", f"{REQUESTS}:receive")

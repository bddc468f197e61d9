"""Calls of an engine that is not ours: each has its own answer, or its own failure."""

from __future__ import annotations

from engine.config import CacheConfig, SchedulerConfig
from engine.topology import data_parallel
from tests.guarantees.build import Builder, history
from tests.guarantees.cases import accepts, rejects, silent
from tests.guarantees.cases_steps import a_is_served

CALLS = "calls-answered"
FAILED = "call failed: as asked: {}"


def vllm() -> Builder:
    return history(world="vllm").started()


def asked(h: Builder, ticket: int, method: str, *args: object) -> Builder:
    return h.observes("frontend.0", "ask", method=method, ticket=ticket, args=list(args))


def answered(h: Builder, ticket: int, method: str, *args: object, result: object = None, failure: str = "") -> Builder:
    return h.observes("frontend.0", "utility", method=method, ticket=ticket, args=list(args), result=result,
                      failure=failure)


def called(h: Builder, ticket: int, *args: object, result: object = None, failure: str = "") -> Builder:
    """A call of the workers, and what came of it."""
    return answered(asked(h, ticket, "collective_rpc", *args), ticket, "collective_rpc", *args, result=result,
                    failure=failure)


def left(h: Builder) -> Builder:
    return h.wait(9.0).observes("frontend.0", "bye", reason="done").ends("frontend.0")


@accepts(CALLS)
def a_call_fails_and_the_next_one_has_its_own_answer() -> Builder:
    return called(called(vllm(), 1, "fails", None, 1, failure=FAILED.format(1)), 2, "told", None, 2, result=[2, 2])


@accepts(CALLS)
def what_cannot_be_sent_is_said() -> Builder:
    return called(vllm(), 1, "odd", None, failure="it cannot be encoded")


@accepts(CALLS)
def a_call_that_is_late_is_told_of_its_time_out() -> Builder:
    return called(vllm(), 1, "told", 0.2, 1, failure="RPC call to told timed out.")


@accepts(CALLS)
def a_call_that_was_open_at_a_death_is_told() -> Builder:
    h = asked(vllm(), 1, "collective_rpc", "told", None, 1).fires("kill", "worker.0/mark:executing", node="core.0")
    return left(answered(h.wait(0.1), 1, "collective_rpc", "told", None, 1, failure="the engine is dead"))


@silent(CALLS)
def a_call_is_answered_and_none_has_failed() -> Builder:
    return called(vllm(), 1, "told", None, 1, result=[1, 1])


@silent(CALLS)
def what_the_lab_asks_for_itself_is_nothing_to_it() -> Builder:
    return left(asked(vllm(), 1, "resume_scheduler"))


@rejects(CALLS)
def a_call_that_was_open_at_a_death_hears_nothing() -> Builder:
    return left(asked(vllm(), 1, "collective_rpc", "told", None, 1).fires(
        "kill", "worker.0/mark:executing", node="core.0"))


@rejects(CALLS)
def a_call_has_the_answer_to_the_one_before_it() -> Builder:
    h = called(vllm(), 1, "told", 0.2, 1, failure="RPC call to told timed out.")
    return called(h, 2, "told", None, 2, result=[2, 1])


@rejects(CALLS)
def a_call_has_the_failure_of_the_one_before_it() -> Builder:
    h = called(vllm(), 1, "fails", None, 1, failure=FAILED.format(1))
    return called(h, 2, "told", None, 2, failure=FAILED.format(1))


@rejects(CALLS)
def a_call_that_was_to_fail_has_the_failure_of_another() -> Builder:
    h = called(vllm(), 1, "fails", None, 1, failure=FAILED.format(1))
    return called(h, 2, "fails", None, 2, failure=FAILED.format(1))


@rejects(CALLS)
def a_request_is_told_of_the_failure_of_a_call() -> Builder:
    h = called(vllm(), 1, "fails", None, 1, failure=FAILED.format(1))
    return h.called("a").ended("a", "failed", reason=FAILED.format(1), error="RequestError")


@rejects(CALLS)
def a_call_that_failed_ends_the_engine() -> Builder:
    h = called(vllm(), 1, "fails", None, 1, failure=FAILED.format(1))
    return h.called("a").dies("a")


@rejects(CALLS)
def a_call_fails_though_nothing_befell_it() -> Builder:
    return called(vllm(), 1, "told", None, 1, failure="out of memory")


@rejects(CALLS)
def what_cannot_be_answered_is_answered() -> Builder:
    return called(vllm(), 1, "fails", None, 1, result=[None, None])


# -- of several cores, of an engine that is ours


def served_by_two() -> Builder:
    return history(tp=1, topology=data_parallel(2, tp=1), data_parallel_size=2,
                   cache=CacheConfig(num_gpu_blocks=6, block_size=2),
                   scheduler=SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2)).started(blocks=6)


def _of_two(told: object, failure: str = "", *, second_fails: bool = False) -> Builder:
    """Two cores say 1 and 2, or the second one that it cannot; their client hears this."""
    h = asked(history(tp=1, topology=data_parallel(2, tp=1), data_parallel_size=2).started(), 1, "get_stats")
    for core in (1, 0):
        fails = second_fails and core == 1
        h.observes("frontend.0", "answer", core=core, method="get_stats", args=[], result=None if fails else core + 1,
                   failure="it cannot" if fails else None)
    return answered(h, 1, "get_stats", result=told, failure=failure)


@silent(CALLS)
def of_two_cores_the_first_one_s_answer_is_told() -> Builder:
    return _of_two(1)


@silent(CALLS)
def of_two_cores_the_failure_of_one_is_told() -> Builder:
    return _of_two(None, "it cannot", second_fails=True)


@rejects(CALLS)
def of_two_cores_the_second_one_s_answer_is_told() -> Builder:
    return _of_two(2)


def _resumed(unsent: bool) -> Builder:
    """By a call that the second one is not sent, and so nobody hears its answer, or by the next one."""
    h = asked(served_by_two().called("a"), 1, "pause_scheduler")
    h.observes("frontend.0", "answer", core=0, method="pause_scheduler", args=[], failure=None, result=0)
    asked(h, 2, "resume_scheduler")
    if unsent:
        h.observes("frontend.0", "unroutable", request=None, utility="resume_scheduler", edge="requests")
    asked(a_is_served(h, 2), 3, "resume_scheduler")
    h.observes("frontend.0", "answer", core=0, method="resume_scheduler", args=[], failure=None, result=2)
    return answered(h, 3, "resume_scheduler", result=2)


@silent(CALLS)
def one_of_two_goes_on_by_a_call_that_the_other_one_was_not_sent() -> Builder:
    return _resumed(unsent=True)


@rejects(CALLS)
def one_of_two_goes_on_before_it_is_resumed() -> Builder:
    return _resumed(unsent=False)


@rejects(CALLS)
def of_two_cores_the_failure_of_one_is_kept_back() -> Builder:
    return _of_two(1, second_fails=True)

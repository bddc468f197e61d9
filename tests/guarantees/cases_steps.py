"""Histories about steps, and about calls of the core."""

from engine.config import CacheConfig, SchedulerConfig
from engine.messages import Outcome
from tests.guarantees.build import OUTPUTS, REQUESTS, WORKLOAD, Builder, history
from tests.guarantees.cases import accepts, outside, rejects, silent

TURN, CALLS, BLOCKS = "served-in-turn", "calls-answered", "blocks-conserved"
#: Of "a": [1, 2], answered by 7, 8, 9. Of "b": [3], answered by 5, 6. Blocks hold two tokens.
A, B = "a-0", "b-0"


def engine(blocks: int = 6, tokens: int = 4, seqs: int = 2, reuse: bool = True) -> Builder:
    return history(
        cache=CacheConfig(num_gpu_blocks=blocks, block_size=2, enable_prefix_caching=reuse),
        scheduler=SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=seqs)).started(blocks=blocks)


def step(h: Builder, *, new: tuple = (), cached: tuple = (), finished: tuple = (), preempted: tuple = (),
         scheduled: dict | None = None, number: int | None = None, used: bool = True,
         node: str = "worker.0") -> Builder:
    """`new`: (request, tokens, of its prompt, blocks, computed, tokens in it); `cached` without the third.

    Not `used`: its results come later.
    """
    calls = h.records.get(("core.0", 0), [])
    call = sum(record.site == "rpc-call" for record in calls) if number is None else number
    counted = {request: count for request, *_, count in (*new, *cached)} if scheduled is None else scheduled
    h.observes("core.0", "rpc-call", call=call, method="execute_model", output_rank=0)
    h.observes(node, "step", call=call, step=call, scheduled=counted, new=[list(one[:-1]) for one in new],
               cached=[list(one[:-1]) for one in cached], finished=list(finished), preempted=list(preempted))
    return h.crosses("core.0/mark:executed", step=call) if used else h


def idle(h: Builder, free: int, cached: int, requests: int = 0, running: int = 0, waiting: int = 0, tables: int = 0,
         untold: bool = False, total: int = 6) -> Builder:
    return h.observes("core.0", "blocks", free=free, cached=cached, used=total - free, total=total, requests=requests,
                      errors=[], untold=untold, kept={"running": running, "waiting": waiting, "tables": tables})


def both(**changes: int) -> Builder:
    """Two requests for an engine that serves one at a time."""
    return engine(**{"seqs": 1, **changes}).called("a").called("b", 1)


def a_is_served(h: Builder, last: int = 3) -> Builder:
    """Three steps, in blocks 0 and 1."""
    step(h, new=((A, [1, 2], 2, [0], 0, 2),))
    if last > 1:
        step(h, cached=((A, [7], [1], 2, 1),))
    if last > 2:
        step(h, cached=((A, [8], [], 3, 1),))
    return h


def b_is_served(h: Builder, *blocks: int, ended: tuple = (A,)) -> Builder:
    """Behind "a", and to its end."""
    step(h, new=((B, [3], 1, [blocks[0]], 0, 1),), finished=ended)
    step(h, cached=((B, [5], [], 1, 1),))
    return step(h, finished=(B,))


@accepts(TURN)
def one_waits_until_the_other_has_ended() -> Builder:
    return b_is_served(a_is_served(both()), 2).streams("a", [7, 8, 9]).ended("a").streams("b", [5, 6]).ended("b")


@rejects(TURN)
def a_request_that_came_twice_is_taken_twice() -> Builder:
    h = both().fires("duplicate", "frontend.0->core.0/requests:receive").observes(
        "core.0", "request", request=A, action="add", reason="")
    return b_is_served(a_is_served(h), 2).streams("a", [7, 8, 9]).ended("a").streams("b", [5, 6]).ended("b")


@accepts(TURN)
def a_long_prompt_is_computed_in_parts_within_the_budget() -> Builder:
    h = step(both(tokens=1, seqs=2), new=((A, [1, 2], 2, [0], 0, 1),))
    step(h, cached=((A, [], [], 1, 1),))
    return step(h, cached=((A, [7], [1], 2, 1),))


@accepts(TURN)
def the_youngest_gives_way_and_comes_back_with_what_it_had() -> Builder:
    h = step(both(blocks=2, seqs=2), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))
    step(h, cached=((A, [7], [1], 2, 1),), preempted=(B,))
    step(h, cached=((A, [8], [], 3, 1),))
    return step(h, new=((B, [3, 5], 1, [1], 0, 2),), finished=(A,))


def _twin_gives_way() -> Builder:
    """Two that ask the same have left their beginning in blocks 0 and 1; one gave way, and the other needs no more."""
    h = engine(blocks=3).called("a").called("again", 0, internal="a-1")
    step(h, new=((A, [1, 2], 2, [0], 0, 2), ("a-1", [1, 2], 2, [1], 0, 2)))
    step(h, cached=((A, [7], [2], 2, 1),), preempted=("a-1",))
    return step(h, cached=((A, [8], [], 3, 1),))


@accepts(TURN)
def one_is_left_waiting_whose_beginning_lies_in_the_last_free_block() -> Builder:
    """Another block holds it, too, and is in use: which of them is found is the engine's choice."""
    return step(_twin_gives_way(), new=(("a-1", [1, 2, 7], 2, [1, 2], 2, 1),), finished=(A,))


@rejects(TURN)
def one_is_left_waiting_whose_beginning_is_held_twice_when_all_is_free() -> Builder:
    return step(_twin_gives_way(), finished=(A,))


@silent(TURN)
def the_last_token_is_computed_whatever_others_have_left() -> Builder:
    h = a_is_served(engine().called("a")).ended("a").called("again", 0, internal="a-1").called("b", 1)
    step(h, new=(("a-1", [1, 2], 2, [2], 0, 2), (B, [3], 1, [3], 0, 1)), finished=(A,))
    step(h, cached=(("a-1", [7], [4], 2, 1), (B, [5], [], 1, 1)))
    return step(h, cached=(("a-1", [8], [], 3, 1),), finished=(B,))


@silent(TURN, CALLS)
def nobody_waits_and_nothing_is_asked() -> Builder:
    return a_is_served(engine().called("a"))


@silent(TURN)
def an_engine_that_tells_of_no_step() -> Builder:
    return both()


@silent(TURN)
def the_callers_request_is_not_one_of_the_workload() -> Builder:
    return step(engine().called("c", 7), new=(("c-0", [4], 1, [0], 0, 1),))


@outside(TURN)
def a_request_is_damaged_on_its_way() -> Builder:
    return both().fires("corrupt", "frontend.0->core.0/requests:receive")


def _first(**changes: object) -> Builder:
    """The first step of two requests, with one thing changed. Both fit into it."""
    asked = {"tokens": [1, 2], "prompt": 2, "blocks": [0], "computed": 0, "count": 2, "also": (B, [3], 1, [1], 0, 1),
             "more": {}, **changes}
    first = (A, asked["tokens"], asked["prompt"], asked["blocks"], asked["computed"], asked["count"])
    return step(both(seqs=2), new=(first, asked["also"]) if asked["also"] else (first,), **asked["more"])


@rejects(TURN)
def one_that_could_run_is_left_waiting() -> Builder:
    return _first(also=())


@rejects(TURN)
def one_more_than_the_limit_is_served() -> Builder:
    return step(both(), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))


@rejects(TURN)
def a_step_is_larger_than_the_budget() -> Builder:
    return step(both(seqs=2, tokens=2), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))


@rejects(TURN)
def a_step_is_smaller_than_the_budget_allows() -> Builder:
    return _first(count=1)


@rejects(TURN)
def the_second_overtakes_the_first() -> Builder:
    return step(both(), new=((B, [3], 1, [0], 0, 1),))


@rejects(TURN)
def a_request_comes_in_with_another_ones_tokens() -> Builder:
    return _first(tokens=[3, 2])


@rejects(TURN)
def a_request_comes_in_with_too_much_of_it_as_its_prompt() -> Builder:
    return _first(prompt=1)


@rejects(TURN)
def a_request_comes_in_with_a_block_too_many() -> Builder:
    return _first(blocks=[0, 2])


@rejects(TURN, BLOCKS)
def two_requests_share_a_block() -> Builder:
    return _first(blocks=[1])


@rejects(TURN)
def a_block_does_not_exist() -> Builder:
    return _first(blocks=[6])


@rejects(TURN)
def tokens_are_taken_as_computed_that_nobody_has_computed() -> Builder:
    return _first(computed=2)


@rejects(TURN)
def tokens_are_counted_for_nobody() -> Builder:
    return _first(more={"scheduled": {A: 2, B: 1, "c-0": 1}})


@rejects(TURN)
def workers_are_told_of_an_end_that_was_none() -> Builder:
    return _first(more={"finished": ("c-0",)})


@rejects(TURN)
def workers_are_told_of_a_preemption_that_was_none() -> Builder:
    return _first(more={"preempted": (A,)})


@rejects(TURN)
def workers_are_not_told_of_an_end() -> Builder:
    return step(a_is_served(both()), new=((B, [3], 1, [2], 0, 1),))


@rejects(TURN)
def workers_are_told_of_an_end_twice() -> Builder:
    h = step(a_is_served(both()), new=((B, [3], 1, [2], 0, 1),), finished=(A,))
    return step(h, cached=((B, [5], [], 1, 1),), finished=(A,))


@rejects(TURN)
def a_request_goes_on_after_its_last_token() -> Builder:
    return step(a_is_served(both()), cached=((A, [9], [2], 4, 1),))


@rejects(TURN)
def one_that_runs_is_left_out() -> Builder:
    h = _first()
    return step(h, cached=((A, [7], [2], 2, 1),))


@rejects(TURN)
def a_token_is_computed_twice() -> Builder:
    return step(a_is_served(both(), 2), cached=((A, [8], [], 2, 1),))


@rejects(TURN)
def the_workers_miss_a_token() -> Builder:
    return step(a_is_served(both(), 2), cached=((A, [], [], 3, 1),))


@rejects(TURN)
def a_request_gets_no_block_for_its_next_token() -> Builder:
    return step(a_is_served(both(), 1), cached=((A, [7], [], 2, 1),))


@rejects(TURN)
def the_oldest_gives_way() -> Builder:
    h = step(both(blocks=2, seqs=2), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))
    return step(h, cached=((B, [5], [], 1, 1),), preempted=(A,))


@rejects(TURN)
def somebody_comes_in_where_somebody_had_to_give_way() -> Builder:
    h = step(both(blocks=2, seqs=2), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))
    return step(h, new=((B, [3, 5], 1, [1], 0, 2),), preempted=(A,))


@rejects(TURN)
def who_gave_way_comes_back_without_what_it_had() -> Builder:
    h = step(both(blocks=2, seqs=2), new=((A, [1, 2], 2, [0], 0, 2), (B, [3], 1, [1], 0, 1)))
    step(h, cached=((A, [7], [1], 2, 1),), preempted=(B,))
    step(h, cached=((A, [8], [], 3, 1),))
    return step(h, new=((B, [3], 1, [1], 0, 1),), finished=(A,))


@rejects(TURN)
def an_aborted_request_is_served_on() -> Builder:
    h = a_is_served(both(), 1).observes("core.0", "request", request=A, action="abort", reason="")
    return step(h, cached=((A, [7], [1], 2, 1),))


@rejects(TURN)
def a_step_without_work() -> Builder:
    return step(b_is_served(a_is_served(both()), 2))


def _longer() -> Builder:
    """Behind "a", whose first block holds [1, 2], somebody asks for [1, 2, 7]."""
    h = a_is_served(engine(blocks=3).called("a")).ended("a")
    workload = {"name": "two", "requests": [
        {"index": 0, "prompt_token_ids": [1, 2], "sampling_params": {}, "reference_token_ids": [7, 8, 9]},
        {"index": 1, "prompt_token_ids": [1, 2, 7], "sampling_params": {}, "reference_token_ids": [8, 9]}]}
    return h.promised(workload=workload).called("b", 1).called("again", 1, internal="b-1")


@accepts(TURN)
def the_longest_beginning_is_found() -> Builder:
    return step(_longer(), new=((B, [1, 2, 7], 3, [0, 2], 2, 1), ("b-1", [1, 2, 7], 3, [0, 1], 2, 1)), finished=(A,))


@rejects(TURN)
def a_beginning_is_not_found() -> Builder:
    return step(_longer(), new=((B, [1, 2, 7], 3, [2, 1], 0, 3),), finished=(A,))


@rejects(TURN)
def a_beginning_is_found_in_another_block() -> Builder:
    return step(_longer(), new=((B, [1, 2, 7], 3, [1, 2], 2, 1),), finished=(A,))


@rejects(TURN)
def a_block_is_taken_whose_content_is_wanted_although_others_are_empty() -> Builder:
    return b_is_served(a_is_served(both()), 0)


@rejects(TURN)
def a_block_is_taken_whose_content_was_used_last() -> Builder:
    """Both of three blocks hold something: 1 is the end of the chain, 0 its beginning."""
    h = a_is_served(both(blocks=2))
    return b_is_served(h, 0)


@accepts(TURN)
def the_end_of_a_chain_goes_before_its_beginning() -> Builder:
    return b_is_served(a_is_served(both(blocks=2)), 1)


@rejects(TURN)
def a_later_request_is_taken_first() -> Builder:
    h = engine().called("a", core=False).called("b", 1)
    return step(h.observes("core.0", "request", request=A, action="add", reason=""), new=(
        (B, [3], 1, [0], 0, 1), (A, [1, 2], 2, [1], 0, 2)))


@rejects(TURN)
def a_caller_is_told_of_more_cached_tokens_than_there_were() -> Builder:
    h = a_is_served(engine().called("a"))
    return h.observes("frontend.0", "tokens", request="a", offset=0, tokens=[7], cached=2)


@accepts(BLOCKS)
def the_books_are_what_the_steps_have_left() -> Builder:
    h = a_is_served(both()).observes("core.0", "freed", request=A)
    return idle(b_is_served(h, 2).observes("core.0", "freed", request=B), 6, 3)


@accepts(BLOCKS)
def the_books_of_a_paused_engine() -> Builder:
    h = idle(a_is_served(both(), 1), 5, 1, requests=2, running=1, waiting=1, tables=1)
    step(h, cached=((A, [7], [1], 2, 1),))
    step(h, cached=((A, [8], [], 3, 1),)).observes("core.0", "freed", request=A)
    return idle(h.observes("core.0", "request", request=B, action="abort").observes(
        "core.0", "freed", request=B), 6, 2, untold=True)


@rejects(BLOCKS)
def a_block_has_gone_from_the_books() -> Builder:
    return idle(a_is_served(both(), 1), 4, 1, requests=2, running=1, waiting=1, tables=1)


@rejects(BLOCKS)
def the_books_are_wrong_where_an_answer_was_damaged() -> Builder:
    h = both().fires("corrupt", "core.0->frontend.0/outputs:receive")
    return idle(a_is_served(h, 1), 4, 1, requests=2, running=1, waiting=1, tables=1)


@rejects(BLOCKS)
def the_books_have_forgotten_what_can_be_found() -> Builder:
    return idle(a_is_served(both(), 1), 5, 0, requests=2, running=1, waiting=1, tables=1)


@rejects(BLOCKS)
def the_books_count_who_waits_among_those_who_run() -> Builder:
    return idle(a_is_served(both(), 1), 5, 1, requests=2, running=2, waiting=0, tables=1)


@rejects(BLOCKS)
def the_cache_is_reset_while_a_request_holds_blocks() -> Builder:
    return a_is_served(both(), 1).observes("core.0", "reset", done=True, preempts=False)


@accepts(BLOCKS)
def the_cache_is_reset_when_all_have_given_way() -> Builder:
    h = a_is_served(both(), 1).observes("core.0", "reset", done=True, preempts=True)
    idle(h, 6, 0, requests=2, waiting=2, untold=True)
    step(h, new=((A, [1, 2, 7], 2, [3, 4], 0, 3),), preempted=(A,)).observes("core.0", "freed", request=A)
    for request in (A, B):
        h.observes("core.0", "request", request=request, action="abort")
    return idle(step(h.observes("core.0", "freed", request=B), finished=(A,)), 6, 1)


@rejects(BLOCKS)
def the_cache_is_not_reset_although_nobody_holds_a_block() -> Builder:
    return a_is_served(engine().called("a")).observes("core.0", "reset", done=False, preempts=False)


def asks(h: Builder, method: str, *args: object, result: object = None, failure: str = "") -> Builder:
    return h.observes("frontend.0", "utility", method=method, args=list(args), result=result, failure=failure)


def paused(h: Builder) -> Builder:
    return asks(h, "pause_scheduler", result=0)


@accepts(CALLS)
def exactly_as_many_steps_as_were_asked_for() -> Builder:
    return asks(a_is_served(paused(both()), 2), "run_steps", 2, result=2)


@accepts(CALLS)
def fewer_steps_where_nothing_is_left_to_do() -> Builder:
    return asks(b_is_served(a_is_served(paused(both())), 2), "run_steps", 20, result=6)


@accepts(CALLS)
def what_cannot_be_done_is_refused_by_name() -> Builder:
    h = asks(a_is_served(both()), "no_such_call", failure="unknown utility")
    return asks(asks(h, "run_steps", 0, failure="at least 1"), "ping", 7, 3, failure="texts")


@silent(CALLS)
def pings_come_back() -> Builder:
    h = asks(asks(a_is_served(both()), "ping", "x", result="x"), "ping", "x", 3, result="xxx")
    h = asks(asks(h, "collective_rpc", "check_health", result=[None, None]), "ping")
    return asks(h, "collective_rpc", "get_num_blocks", 2, result=[6, 6])


@outside(CALLS)
def a_call_is_doubled_on_its_way() -> Builder:
    return paused(both()).fires("duplicate", "frontend.0->core.0/requests:receive")


def unanswered(h: Builder, steps: int) -> Builder:
    return asks(h.wait(3), "run_steps", steps, failure="no answer in time; it may have taken effect")


@accepts(CALLS)
def an_answer_is_lost_and_the_steps_were_made() -> Builder:
    h = unanswered(b_is_served(a_is_served(paused(both())), 2), 20)
    return asks(step(h.called("c", 1), new=(("c-0", [3], 1, [3], 0, 1),)), "run_steps", 1, result=7)


@silent(CALLS)
def an_answer_is_lost_and_steps_are_still_to_come() -> Builder:
    h = unanswered(a_is_served(paused(both()), 1), 3)
    return asks(step(h, cached=((A, [7], [1], 2, 1),)), "pause_scheduler", result=2)


@rejects(CALLS)
def an_answer_is_lost_and_the_next_call_makes_a_step_too_much() -> Builder:
    h = step(unanswered(a_is_served(paused(both()), 1), 1), cached=((A, [7], [1], 2, 1),))
    return asks(step(h, cached=((A, [8], [], 3, 1),)), "run_steps", 1, result=3)


@rejects(CALLS)
def more_steps_are_made_than_a_call_without_an_answer_asked_for() -> Builder:
    return unanswered(a_is_served(paused(both()), 2), 1)


@rejects(CALLS)
def one_step_more_than_was_asked_for() -> Builder:
    return asks(a_is_served(paused(both())), "run_steps", 2, result=3)


@rejects(CALLS)
def one_step_less_although_there_is_work() -> Builder:
    return asks(a_is_served(paused(both()), 2), "run_steps", 3, result=2)


@rejects(CALLS)
def no_step_although_somebody_waits() -> Builder:
    h = asks(b_is_served(a_is_served(paused(both())), 2), "run_steps", 6, result=6).called("c", 1)
    return asks(h, "run_steps", 1, result=6)


def _asked_for_beside(others: int) -> Builder:
    """One step is asked for while those of another call are run, which is answered when two were made."""
    h = asks(a_is_served(paused(both()), 2), "run_steps", 1, failure="run_steps: steps are being run already")
    return asks(h, "run_steps", others, result=2)


@accepts(CALLS)
def steps_are_asked_for_while_others_are_run() -> Builder:
    return _asked_for_beside(2)


@rejects(CALLS)
def of_the_others_one_more_is_made() -> Builder:
    return _asked_for_beside(1)


def _too_long_behind(steps: int) -> Builder:
    """Of 12 tokens, for a cache that holds two: it is said so after so many steps of somebody else."""
    h = engine(blocks=3, seqs=1).called("a")
    request = {"index": 2, "prompt_token_ids": [1] * 12, "sampling_params": {"max_tokens": 1},
               "reference_token_ids": [5]}
    h.promised(workload={**WORKLOAD, "requests": [*WORKLOAD["requests"], request]})
    step(h, new=((A, [1, 2], 2, [0], 0, 2),)).called("c", 2)
    told = [lambda: step(h, cached=((A, [7], [1], 2, 1),)), lambda: step(h, cached=((A, [8], [], 3, 1),))]
    for number, make in enumerate(told, 1):
        make()
        if number == steps:
            h.observes("core.0", "freed", request="c-0")
    return h.ended("c", Outcome.FAILED, error="BadRequestError")


@silent(TURN)
def who_can_never_be_served_is_told_so_with_the_next_step() -> Builder:
    return _too_long_behind(1)


@rejects(TURN)
def who_can_never_be_served_waits_for_somebody_else() -> Builder:
    return _too_long_behind(2)


def _books_of_a_prompt_that_nobody_can_serve(damaged: bool) -> Builder:
    """The core reads another prompt than was sent for "b", refuses it, and is idle behind "a"."""
    h = engine(seqs=1).sends(REQUESTS, "pause").receives(REQUESTS, "pause").called("a", core=False)
    h.sends(REQUESTS, "a").observes("frontend.0", "call", request="b", index=1, prompt=1, max_tokens=2)
    h.observes("frontend.0", "accepted", request="b", internal=B).sends(REQUESTS, "b").receives(REQUESTS, "a")
    if damaged:
        h.fires("corrupt", f"{REQUESTS}:receive", nth=3)
    h.receives(REQUESTS, "b")
    for request in (A, B):
        h.observes("core.0", "request", request=request, action="add", reason="")
    h = a_is_served(h).observes("core.0", "freed", request=A).observes("core.0", "freed", request=B)
    return idle(h, 6, 2, untold=True)


@accepts(BLOCKS)
def what_the_core_has_read_of_a_damaged_request_is_not_known() -> Builder:
    return _books_of_a_prompt_that_nobody_can_serve(damaged=True)


@rejects(BLOCKS)
def the_books_have_nobody_who_was_asked_for() -> Builder:
    return _books_of_a_prompt_that_nobody_can_serve(damaged=False)


@rejects(CALLS)
def a_step_is_made_while_it_is_paused() -> Builder:
    h = asks(a_is_served(paused(both()), 2), "run_steps", 2, result=2)
    step(h, cached=((A, [8], [], 3, 1),))
    return asks(step(h, new=((B, [3], 1, [2], 0, 1),), finished=(A,)), "run_steps", 1, result=4)


@silent(CALLS)
def an_old_answer_comes_behind_a_new_one() -> Builder:
    h = both().fires("delay", "core.0->frontend.0/outputs:receive")
    return asks(paused(a_is_served(h, 2)), "pause_scheduler", result=2)


@rejects(CALLS)
def a_second_pause_tells_of_more_steps() -> Builder:
    return asks(paused(a_is_served(both(), 2)), "pause_scheduler", result=2)


@rejects(CALLS)
def more_steps_are_told_than_were_made() -> Builder:
    return asks(a_is_served(paused(both()), 2), "run_steps", 3, result=3)


@rejects(CALLS)
def a_pause_tells_of_steps_that_were_not_made() -> Builder:
    return asks(asks(a_is_served(paused(both()), 2), "run_steps", 2, result=2), "pause_scheduler", result=1)


@accepts(CALLS)
def who_goes_on_is_told_of_the_steps_so_far() -> Builder:
    return asks(asks(a_is_served(paused(both()), 2), "run_steps", 2, result=2), "resume_scheduler", result=2)


@rejects(CALLS)
def who_goes_on_is_told_of_other_steps() -> Builder:
    return asks(asks(a_is_served(paused(both()), 2), "run_steps", 2, result=2), "resume_scheduler", result=1)


@rejects(CALLS)
def who_goes_on_is_told_nothing_of_steps() -> Builder:
    return asks(a_is_served(both(), 1), "resume_scheduler", result=None)


@rejects(CALLS)
def a_pause_tells_nothing_of_steps() -> Builder:
    return asks(a_is_served(both(), 1), "pause_scheduler", result=None)


@rejects(CALLS)
def what_cannot_be_done_is_done() -> Builder:
    return asks(both(), "run_steps", 0)


@rejects(CALLS)
def a_ping_is_answered_with_another_ones_payload() -> Builder:
    return asks(both(), "ping", "x", result="y")


@rejects(CALLS)
def a_ping_comes_back_once_too_often() -> Builder:
    return asks(both(), "ping", "x", 3, result="xxxx")


@rejects(CALLS)
def one_rank_does_not_answer_for_itself() -> Builder:
    return asks(both(), "collective_rpc", "check_health", result=[None])


@rejects(CALLS)
def a_rank_counts_other_blocks() -> Builder:
    return asks(both(), "collective_rpc", "get_num_blocks", result=[6, 5])


@rejects(CALLS)
def a_queue_is_left_out() -> Builder:
    return asks(both(), "get_queue_stats", result=[{"ring": "rpc", "end": "writer"}])


@rejects(CALLS)
def nothing_is_told_of_queues() -> Builder:
    return asks(both(), "get_queue_stats", result=None)


@rejects(CALLS)
def the_core_says_that_nobody_waits() -> Builder:
    return asks(asks(a_is_served(paused(both()), 1), "run_steps", 1, result=1), "get_stats", result=[1, 0, 5, 6])


@rejects(CALLS)
def the_core_says_nothing_of_what_its_steps_have_left() -> Builder:
    return asks(asks(a_is_served(paused(both()), 1), "run_steps", 1, result=1), "get_stats", result=None)


@accepts(CALLS)
def the_core_says_what_its_steps_have_left() -> Builder:
    return asks(asks(a_is_served(paused(both()), 1), "run_steps", 1, result=1), "get_stats", result=[1, 1, 5, 6])


@rejects(CALLS)
def a_reset_is_told_that_was_none() -> Builder:
    h = a_is_served(both(), 1).observes("core.0", "reset", done=False, preempts=False)
    return asks(h, "reset_prefix_cache", result=True)


@silent(CALLS)
def a_play_that_did_not_record_what_was_asked() -> Builder:
    return both().ended("a", Outcome.FINISHED).observes("frontend.0", "utility", method="ping", result=1, failure="")


def events(h: Builder) -> Builder:
    """A core that publishes one batch for the step that filled a block."""
    h = a_is_served(h, 1)
    h.observes("core.0", "kv-published", seq=0, took=0.0)
    return idle(h, 5, 1, requests=2, running=1, waiting=1, tables=1)


def publishing() -> Builder:
    h = history(subscribers=1, cache=CacheConfig(num_gpu_blocks=6, block_size=2),
                scheduler=SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=1))
    return h.started(blocks=6).called("a").called("b", 1)


@silent(BLOCKS)
def each_change_of_the_cache_is_handed_over() -> Builder:
    return events(publishing()).observes("core.0", "kv-cache", hashes=[1])


@rejects(BLOCKS)
def a_change_of_the_cache_is_not_handed_over() -> Builder:
    h = idle(a_is_served(publishing(), 1), 5, 1, requests=2, running=1, waiting=1, tables=1)
    return h.observes("core.0", "kv-cache", hashes=[1])


@rejects(BLOCKS)
def more_batches_than_changes() -> Builder:
    h = a_is_served(publishing(), 1).observes("core.0", "kv-published", seq=0, took=0.0)
    h = idle(h.observes("core.0", "kv-published", seq=1, took=0.0), 5, 1, requests=2, running=1, waiting=1, tables=1)
    return h.observes("core.0", "kv-cache", hashes=[1])


@rejects(BLOCKS)
def its_cache_has_more_than_its_steps_have_left() -> Builder:
    return events(publishing()).observes("core.0", "kv-cache", hashes=[1, 2])


@rejects(BLOCKS)
def it_says_nothing_of_its_cache() -> Builder:
    return events(publishing())


@rejects(BLOCKS)
def it_says_nothing_of_its_books() -> Builder:
    return b_is_served(a_is_served(both()), 2)


@rejects(BLOCKS)
def a_request_is_never_said_to_be_free() -> Builder:
    return idle(b_is_served(a_is_served(both()), 2).observes("core.0", "freed", request=A), 6, 3)


@rejects(BLOCKS)
def a_request_is_said_to_be_free_twice() -> Builder:
    h = a_is_served(engine().called("a")).observes("core.0", "freed", request=A).observes("core.0", "freed", request=A)
    return idle(step(h, finished=(A,)), 6, 2)


@rejects("memory-bounded")
def the_core_takes_more_than_it_may() -> Builder:
    h = history()
    for name in "abcde":
        h.called(name).ended(name)
    return h


@silent("memory-bounded")
def the_core_takes_one_after_another() -> Builder:
    h = history()
    for name in "abcde":
        h.called(name).observes("core.0", "freed", request=f"{name}-0").ended(name)
    return h


@rejects("handshake-order")
def the_core_never_says_that_it_is_ready() -> Builder:
    h = history().started()
    h.records["core.0", 0] = [record for record in h.records["core.0", 0] if record.site != "ready"]
    return h


@rejects("bad-frame-isolated")
def whose_request_could_be_told_is_left_to_its_time_out() -> Builder:
    h = history().called("a", core=False).observes("core.0", "bad-frame", edge="requests", error="x", request=A)
    return h.wait(2).ended("a", "failed", error="RequestTimeoutError")


def _comes_once_more() -> Builder:
    return history().called("a").fires("corrupt", "frontend.0->core.0/requests:receive").observes(
        "core.0", "bad-frame", edge="requests", error="x", request=A).wait(.1)


@accepts("bad-frame-isolated")
def what_bears_the_id_of_a_request_and_is_none_changes_nothing() -> Builder:
    return _comes_once_more().ended("a")


@rejects("bad-frame-isolated")
def what_bears_the_id_of_a_request_and_is_none_ends_it() -> Builder:
    return _comes_once_more().ended("a", "failed", error="BadRequestError")


@rejects("bad-frame-isolated")
def a_rank_is_asked_for_a_token_that_no_model_has() -> Builder:
    h = engine().called("a").fires("corrupt", "frontend.0->core.0/requests:receive")
    return step(h, new=((A, [-1, 2], 2, [0], 0, 2),))


ALIEN = {**WORKLOAD, "phases": [{"actions": [{"kind": "raw", "args": ["00", b"\x92\xa5alien\x07".hex()]}]}]}


def _alien(answered: bool) -> Builder:
    h = history().promised(workload=ALIEN).called("a").observes("core.0", "bad-frame", edge="requests", error="x")
    return (h.observes("core.0", "request", request="alien", action="refused") if answered else h).ended("a")


@accepts("bad-frame-isolated")
def a_malformed_request_that_says_whose_it_is_is_refused() -> Builder:
    return _alien(True)


@rejects("bad-frame-isolated")
def a_malformed_request_that_says_whose_it_is_is_dropped() -> Builder:
    return _alien(False)


def _leaves(told: str) -> Builder:
    h = history().started().called("a").fires("raise", "core.0/mark:step")
    h.observes("core.0", "dying", reason="boom", queued=0).observes("frontend.0", "dead-notice")
    return h.observes("frontend.0", "engine-dead", reason=f"left (ENGINE_CORE_DEAD){told}").dies("a")


@accepts("dead-notice")
def a_core_leaves_and_its_callers_are_told_why() -> Builder:
    return _leaves(": boom")


@rejects("dead-notice")
def a_core_leaves_and_nobody_is_told_why() -> Builder:
    return _leaves("")


def _gives_up(told: str) -> Builder:
    h = history().observes("frontend.0", "starting").fires("kill", "worker.1/mark:born")
    h.observes("core.0", "dying", reason="StartupError: worker.1 died", queued=0)
    h.observes("frontend.0", "start-failed", error="StartupError", reason=told)
    return h.ends("core.0", "worker.0", "worker.1")


@accepts("start-ends")
def a_core_gives_up_its_start_and_says_why() -> Builder:
    return _gives_up("worker.1 died")


@rejects("start-ends")
def a_core_gives_up_its_start_without_a_word() -> Builder:
    return _gives_up("worker.1 and core.0 died while starting")


# -- a stream that goes on behind a hole


def _goes_on(since_the_next_s: float) -> Builder:
    """An output of "a" is lost, the next ones come, and so long after the first of them it is given up."""
    h = engine().called("a").streams("a", [7]).fires("drop", f"{OUTPUTS}:receive").sends(OUTPUTS, "second")
    for place, token in enumerate((8, 9, 9)):
        h = step(h, cached=((A, [token], [], 3 + place, 1),))
    h.carries(OUTPUTS, "third").wait(since_the_next_s / 2).carries(OUTPUTS, "fourth").wait(since_the_next_s / 2)
    return h.ended("a", "failed", error="RequestTimeoutError", may_have_taken_effect=True).observes(
        "core.0", "request", request=A, action="abort", reason="").observes("core.0", "freed", request=A)


@accepts("lost-request-is-bounded")
def a_stream_that_goes_on_is_given_up_by_the_first_output_behind_the_hole() -> Builder:
    return _goes_on(0.6)


@rejects("lost-request-is-bounded")
def a_stream_that_goes_on_is_given_up_by_the_last_output_behind_the_hole() -> Builder:
    return _goes_on(1.4)

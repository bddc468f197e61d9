"""Who is served when: few blocks, small budgets, streams that end by themselves, and what a client asks of the core."""

from __future__ import annotations

import msgspec

from engine.topology import Mark, tensor_parallel
from faults.plan import Plan, drop, duplicate, hang, marked, plan, reorder, terminate, until
from scenarios.guarantees.all import (
    abort_is_final,
    bad_request_isolated,
    blocks_conserved,
    calls_answered,
    dead_notice,
    drain,
    ends_once,
    memory_bounded,
    nothing_left_behind,
    priority_kept,
    served_in_turn,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import ENDED, Workload, abort, add, asked, continued, generated, prioritised, recorded, utility

REQUESTS = "frontend.0->core.0/requests"
#: Three at once, of whom not all have room to grow.
PRESSURE = {"cache": {"num_gpu_blocks": 20}, "scheduler": {"max_num_batched_tokens": 24, "max_num_seqs": 3}}


def under_pressure(**changes):
    """As `lab_config`. Nobody gives up who waits for others: a step beside other plays may take a tenth of a second."""
    return lab_config(cache=PRESSURE["cache"], scheduler={**PRESSURE["scheduler"], **changes.pop("scheduler", {})},
                      bounds={"request_s": 12.0, **changes.pop("bounds", {})}, **changes)


BY_PRIORITY = under_pressure(scheduler={"policy": "priority"})


def pressure(name: str = "eight-growing") -> Workload:
    """Shared beginnings, a prompt of many steps, aborts of who runs, waits and gave way; then some of it over again."""
    return (recorded(name)
            .then(add(1, 2, 6, 3, 4), steps=8).then(add(7, 5), abort(6), steps=10)
            .then(utility("get_stats"), add(6, name="later"), abort(3), steps=9)
            .then(add(3, name="again"), add(1, name="once more")))


def no_sooner() -> Workload:
    """One may end from its thirtieth token on, and does so at its thirty-fourth; all give way when it has some."""
    found = recorded("eight-growing")
    found = asked(found, 6, stop_token_ids=[found.requests[6].reference_token_ids[33]], min_tokens=30)
    return found.then(add(6, 1), steps=20).then(utility("reset_prefix_cache", True), add(3))


def urgent() -> Workload:
    """Who comes later is often more urgent; some are as urgent as others, one that runs is aborted."""
    return (prioritised(recorded("eight-growing"), 0, 5, 3, 3, 1, 3, 2, 4)
            .then(add(1, 7), steps=3).then(add(6), steps=12).then(add(2, 3, 5, 4), steps=8)
            .then(add(1, name="again"), abort(5), steps=6).then(add(5, name="once more")))


def calls() -> Workload:
    """All that can be asked of a core, and what cannot."""
    return (recorded("eight-even")
            .then(add(0, 1, 2, 3), steps=3)
            .then(utility("get_stats"), utility("get_queue_stats"), utility("reset_prefix_cache"),
                  utility("ping", "ab", 3), utility("ping"), utility("ping", 7, 2),
                  utility("ping", "ab", 0), utility("ping", "", 2),
                  utility("ping", "abc", 1 << 19), utility("collective_rpc", "get_num_blocks", 3),
                  utility("collective_rpc", "check_health"), utility("collective_rpc", "execute_model"),
                  utility("collective_rpc", "check_health", 0), utility("run_steps", 0), utility("no_such_call"),
                  steps=2)
            .then(utility("reset_prefix_cache", True), utility("get_stats"), steps=2)
            .then(utility("get_stats"), steps=40)
            .then(add(2, name="again"), utility("ping", 1, times=20), steps=1)
            .then(add(3, name="once more"), abort("again")))


def refused() -> Workload:
    """Steps are asked for that nobody can make, while requests run."""
    found = (recorded("eight-even").then(add(0, 1), behind=("r0", 2))
             .then(utility("run_steps", 0), add(2), behind=("r2", ENDED)).then(utility("run_steps", -3), add(3)))
    return msgspec.structs.replace(found, free=True)


def conversation() -> Workload:
    """What was answered is asked about: a whole block of it, blocks and a piece, one token less than a block."""
    found = recorded("eight-growing")
    for index, tokens in ((6, 35), (1, 11), (6, 34), (7, 8), (5, 15)):
        found = continued(found, index, tokens)
    return (found.then(add(6, 1, 7, 5), behind=("r6", ENDED)).then(add(8, 9, 10), behind=("r9", 1))
            .then(add(11, 12)))


def ends() -> Workload:
    """Some are as long as the model takes, one is too long, one stops at a token that might not have come sooner."""
    found = recorded("eight-even")
    for index in range(8):
        found = asked(found, index, longest=LONGEST)
    answer = found.requests[2].reference_token_ids
    return asked(found, 2, longest=LONGEST, stop_token_ids=[answer[10]], min_tokens=10)


def drawn() -> Workload:
    """Some are drawn by chance, with one choice or with all of them, beside greedy ones; one asks the same again."""
    found = recorded("eight-even")
    for index, params in {0: {"top_k": 1}, 1: {"top_p": 1e-9}, 2: {"top_k": 2, "top_p": 0.5},
                          3: {"top_k": 1, "top_p": 0.5}, 4: {}, 6: {"top_k": 5},
                          7: {"top_p": 0.9, "top_k": 40}}.items():
        found = asked(found, index, temperature=1.5, seed=(index + 4) % 8, **params)
    return found.then(add(*range(8)), steps=4).then(add(4, name="again"), add(7, name="once more"))


LONGEST = 35

globals().update(family(__name__, (
    Case("test_few_blocks_and_a_small_budget",
         "Requests that share beginnings, more than may run, in a cache that is too small for those who do.",
         Plan(), (served_in_turn, blocks_conserved, calls_answered, tokens_match_reference, abort_is_final),
         play={"topology": tensor_parallel(2, subscribers=1),
               "config": under_pressure(kv_events={"enable_kv_cache_events": True})}),
    Case("test_request_gives_way_and_may_not_end_sooner",
         "Who has given way has had some of its tokens: those that it must have are not counted anew.",
         Plan(), (served_in_turn, tokens_match_reference),
         play={"workload": no_sooner()}),
    Case("test_last_token_is_an_end_that_is_ignored",
         "A request that goes on behind ends has one for the last token that it may have: it ends by its length.",
         Plan(), (served_in_turn, tokens_match_reference),
         play={"workload": asked(recorded("eight-growing"), 3, max_tokens=11).then(add(3, 1)),
               "topology": tensor_parallel(1)}),
    Case("test_last_token_is_an_end",
         "The last token that they may have ends two requests: they end by that, and not by their length.",
         Plan(), (served_in_turn, tokens_match_reference),
         play={"workload": asked(asked(recorded("kept-going"), 4, max_tokens=8), 5, max_tokens=12).then(add(4, 5, 6)),
               "topology": tensor_parallel(1)}),
    Case("test_blocks_are_larger_than_prompts",
         "Requests of different length end in their first block: none looks at what another one has there.",
         Plan(), (tokens_match_reference, blocks_conserved),
         play={"workload": recorded("eight-growing").then(add(1, 5, 7)),
               "config": lab_config(cache={"block_size": 64, "num_gpu_blocks": 16})}),
    Case("test_urgent_requests_go_first",
         "Requests with priorities, more than may run: who is more urgent comes in first, and gives way last.",
         Plan(), (priority_kept, served_in_turn, blocks_conserved, tokens_match_reference, abort_is_final),
         play={"workload": urgent(), "config": BY_PRIORITY}),
    Case("test_equally_urgent_requests_are_served_as_they_came",
         "Of those that are as urgent as others some come when there is less of a queue.",
         Plan(), (priority_kept, served_in_turn, tokens_match_reference),
         play={"workload": prioritised(recorded("eight-even"), 1, 1, 1, 0, 1, 1, 1, 1).then(
             add(0, 1, 2, 3), behind=("r1", 2)).then(add(4, 5), behind=("r2", 2)).then(add(6)),
               "config": lab_config(scheduler={"max_num_seqs": 1, "policy": "priority"})}),
    Case("test_equally_urgent_requests_keep_their_turn_when_they_give_way",
         "All are as urgent, more than the cache holds: who has given way comes again before whoever came behind it.",
         Plan(), (served_in_turn, blocks_conserved, tokens_match_reference),
         play={"workload": prioritised(pressure(), *[1] * 8), "config": BY_PRIORITY}),
    Case("test_steps_that_are_refused_change_nothing",
         "A call for a number of steps that there is not is refused, and those who run go on.",
         Plan(), (calls_answered, tokens_match_reference), play={"workload": refused()}),
    Case("test_urgent_requests_go_first_when_one_is_late",
         "The same, and the message of an urgent request comes after those that were sent behind it.",
         plan(reorder(REQUESTS, match={"type": "ADD"}, nth=5)),
         (priority_kept, blocks_conserved, tokens_match_reference),
         play={"workload": urgent(), "config": BY_PRIORITY}),
    Case("test_a_program_asks_for_urgent_answers",
         "A program asks for eight answers at once and says which of them are more urgent; two are made at a time.",
         Plan(), (priority_kept, served_in_turn, tokens_match_reference), play={
             "topology": tensor_parallel(1), "workload": prioritised(generated("eight-even"), 3, 2, 2, 5, 0, 1, 1, 0),
             "options": Options(synchronous=True),
             "config": lab_config(scheduler={"max_num_seqs": 2, "policy": "priority"})}),
    Case("test_conversation_goes_on",
         "Who was answered asks on, with the answer in the question: blocks of it are there, and are not made again.",
         Plan(), (served_in_turn, blocks_conserved, tokens_match_reference),
         play={"topology": tensor_parallel(2, subscribers=1), "workload": conversation(),
               "config": lab_config(cache={"num_gpu_blocks": 64}, kv_events={"enable_kv_cache_events": True})}),
    Case("test_long_prompts_leave_room",
         "Of a long prompt no step computes more than a threshold: short requests come in beside it.",
         Plan(), (served_in_turn, blocks_conserved, tokens_match_reference),
         play={"workload": recorded("eight-growing"),
               "config": lab_config(scheduler={"max_num_batched_tokens": 64, "long_prefill_token_threshold": 20})}),
    Case("test_a_long_prompt_is_taken_at_once", "In one step, with more tokens than attend together.", Plan(),
         (tokens_match_reference, blocks_conserved),
         play={"workload": recorded("long-prompt").then(add(0, 1)), "config": lab_config(
             scheduler={"max_num_batched_tokens": 1024}, cache={"num_gpu_blocks": 96})}),
    Case("test_one_token_at_a_time",
         "Blocks of one token, steps of one token, one request at a time, and nothing is kept of it.",
         Plan(), (served_in_turn, blocks_conserved, tokens_match_reference),
         play={"workload": recorded("eight-growing").then(add(1, 7), steps=4).then(add(1, name="again")),
               "config": lab_config(cache={"block_size": 1, "num_gpu_blocks": 30, "enable_prefix_caching": False},
                                    scheduler={"max_num_batched_tokens": 1, "max_num_seqs": 1})}),
    Case("test_streams_end_by_themselves",
         "By a token that ends them, by the length that was asked for, by the model's; one is longer from the start.",
         Plan(), (tokens_match_reference, served_in_turn, bad_request_isolated),
         play={"workload": ends(), "config": lab_config(scheduler={"max_model_len": LONGEST})}),
    Case("test_streams_may_not_end_yet",
         "Answers that would end by themselves, or by a token that ends them, and may not yet: another one is chosen.",
         Plan(), (tokens_match_reference, served_in_turn),
         play={"workload": recorded("kept-going").then(add(*range(7))), "config": lab_config()}),
    Case("test_tokens_are_drawn",
         "Tokens that are drawn: where one may be chosen it is that one, and one seed draws the same again.",
         Plan(), (tokens_match_reference, blocks_conserved), play={"workload": drawn(), "config": lab_config()}),
    Case("test_requests_outgrow_the_cache",
         "Requests need more tokens than the whole cache holds: they fail alone when they come so far, or wait there.",
         Plan(), (bad_request_isolated, served_in_turn, blocks_conserved),
         play={"workload": recorded("pair").then(add(1, 0), steps=7).then(
             utility("reset_prefix_cache", True), add(1, name="again")),
             "config": lab_config(cache={"num_gpu_blocks": 5})}),
    Case("test_request_that_no_cache_could_hold_comes_twice",
         "Its message is doubled, and its prompt is longer than the whole cache: it is taken once, and fails alone.",
         plan(duplicate(REQUESTS, nth=2)), (bad_request_isolated, blocks_conserved, ends_once),
         play={"workload": recorded("eight-growing").then(add(0, 1), steps=2).then(add(2)),
               "config": lab_config(cache={"num_gpu_blocks": 24})}),
    Case("test_calls_of_the_core",
         "Each call is answered with what it asked for, or with why that cannot be done; in between steps are counted.",
         plan(*(hang("frontend.0", at=f"{REQUESTS}:send", nth=nth, until=until(seconds=0.2)) for nth in (6, 49))),
         (calls_answered, served_in_turn, blocks_conserved, tokens_match_reference),
         play={"topology": tensor_parallel(2), "workload": calls(),
               "config": lab_config(cache={"num_gpu_blocks": 32})}),
    Case("test_steps_are_asked_for_while_steps_are_run",
         "A call for steps comes while those of another one are run: it fails by name, and the other one is answered.",
         Plan(), (calls_answered, tokens_match_reference, blocks_conserved),
         play={"workload": recorded("pair").then(add(0, 1), utility("run_steps", 12), steps=3).then(
             utility("collective_rpc", "check_health", 0)), "config": lab_config()}),
    Case("test_core_is_asked_to_leave_at_once",
         "SIGTERM to a core that may not take its time: who runs and who waits is told so, and then of the end.",
         plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=6)),
         (drain, dead_notice, ends_once, blocks_conserved, nothing_left_behind),
         play={"config": under_pressure(bounds={"drain_s": 0.0}), "options": Options(await_death_s=5.0)}),
    Case("test_abort_is_lost_and_the_core_is_full",
         "An ABORT never arrives: the core still counts who was aborted, and refuses the next one by name.",
         plan(drop(REQUESTS, match={"type": "ABORT"})),
         (memory_bounded, ends_once, tokens_match_reference),
         play={"workload": recorded("pair").then(add(0, 1), steps=3).then(abort(0), steps=1).then(add(0, name="again")),
               "config": lab_config(limits={"max_requests": 2})}),
), topology=tensor_parallel(1), workload=pressure(), config=under_pressure()))

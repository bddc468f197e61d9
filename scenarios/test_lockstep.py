"""Cores that step together, and what their coordinator carries between them."""

from __future__ import annotations

from typing import Any

from engine.topology import Mark, data_parallel, headless
from faults.plan import (
    Plan,
    delay,
    drop,
    duplicate,
    exits,
    hang,
    kill,
    marked,
    plan,
    raises,
    reorder,
    stall,
    terminate,
    until,
)
from scenarios.guarantees.all import (
    abort_is_final,
    blocks_conserved,
    calls_answered,
    death_is_told,
    dp_burst_spreads,
    dp_collectives_equal,
    dp_coordinator_death_is_told,
    dp_coordinator_in_turn,
    dp_death_ends_group,
    dp_handshakes_agree,
    dp_missing_is_named,
    dp_quiet_when_idle,
    dp_rank_in_turn,
    dp_start_needs_all,
    dp_view_converges,
    dp_wave_monotone,
    dp_work_wakes_all,
    drain,
    ends_once,
    handshake_order,
    health_is_true,
    no_orphans,
    nothing_left_behind,
    pause_exact,
    rests_when_idle,
    served_in_turn,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import eight
from scenarios.workloads import ENDED, Workload, abort, add, recorded, utility

#: Whoever waits for another rank gives up before anybody takes it for one that stands still.
CONFIG = lab_config(bounds={"collective_s": 0.8})
EVERY = {steps: lab_config(bounds={"collective_s": 0.8}, data_parallel={"sync_interval": steps})
         for steps in (1, 16, 32)}


def waves(**more: Any) -> Workload:
    """Three times at work, and at rest or nearly so in between: each request wakes who had none."""
    return recorded("eight-mixed").then(add(0), behind=("r0", ENDED)).then(
        add(1), behind=("r1", ENDED)).then(add(2, 3, 4), **more)


def paused() -> Workload:
    """At work, then at rest while more is asked, and on."""
    return recorded("eight-mixed").then(add(0), behind=("r0", 4)).then(
        utility("pause_scheduler"), steps=0).then(add(1, 2), utility("get_stats"), steps=0).then(add(3))


def rested() -> Workload:
    """At work, surely at rest, and at work again, for one request each."""
    found = recorded("eight-mixed").then(add(0), behind=("r0", ENDED)).then(
        utility("pause_scheduler"), steps=0).then(utility("resume_scheduler"), steps=0)
    for _ in range(20):
        found = found.then(utility("get_stats"), steps=0)
    return found.then(add(1))


def left_idle() -> Workload:
    """Each rank has a request, steps are counted, and in a pause one of them loses its only one."""
    return recorded("eight-mixed").then(add(0, 1), steps=2).then(abort("r1"), steps=2).then(add(2))


def counted() -> Workload:
    """Requests wait, and later all are done; and each time nothing changes for a while."""
    return recorded("eight-mixed").then(utility("pause_scheduler"), steps=0).then(
        add(0, 1, 2, 3), utility("get_stats"), steps=0).then(utility("resume_scheduler"), steps=0).then(
        add(4), behind=("r4", ENDED)).then(utility("get_stats"), steps=0).then(add(5))


def begun() -> Workload:
    """Requests wait, and later one of them has begun at each core; and each time nothing changes for a while."""
    return recorded("eight-mixed").then(utility("pause_scheduler"), steps=0).then(
        add(0, 1, 2, 3), utility("get_stats"), steps=0).then(steps=1).then(utility("get_stats"), steps=0).then(
        utility("resume_scheduler"), steps=0).then(add(4))


CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, nothing_left_behind)
#: Where a core runs one request at a time, streams come between each other by luck alone.
ONE_BY_ONE = tuple(promise for promise in CALM if promise is not tokens_in_order)
IN_STEP = (*CALM, dp_collectives_equal, dp_rank_in_turn)
RESTS = (tokens_match_reference, blocks_conserved, nothing_left_behind, dp_collectives_equal, dp_work_wakes_all,
         dp_coordinator_in_turn, dp_rank_in_turn)
LOST = (death_is_told, ends_once, health_is_true, nothing_left_behind)
HUB, TO_FIRST, TO_SECOND = "coordinator.0", "coordinator.0->core.0/wave", "coordinator.0->core.1/wave"
START = {"type": "START_DP_WAVE"}
NOTICES, CALLS = "coordinator.0->frontend.0/stats", {"type": "UTILITY", "method": "get_stats"}
#: What two ranks have of four requests that wait, as it is told the first time; and calls take so long to arrive.
COUNTED = {"type": "NOTICE", "counts": [[2, 0, 0.0], [2, 0, 0.0]]}
SLOW_CALLS = tuple(delay("frontend.0->core.1/requests", nth=nth, match=CALLS, until=until(seconds=1.0))
                   for nth in (1, 2))
DENSE = {"topology": data_parallel(2, coordinated=True)}

globals().update(family(__name__, (
    Case("test_two_ranks_step_together",
         "Two cores execute as many steps, dummy ones where they have no work: tokens come as from one.",
         Plan(), (*IN_STEP, abort_is_final, calls_answered, dp_burst_spreads), play={"workload": eight()}),
    Case("test_two_ranks_of_two_workers_step_together",
         "The same with two workers each.",
         Plan(), (*IN_STEP, abort_is_final, calls_answered),
         play={"topology": data_parallel(2, tp=2, lockstep=True), "workload": eight()}),
    Case("test_four_ranks_step_together",
         "The same with four cores.",
         Plan(), IN_STEP, play={"topology": data_parallel(4, lockstep=True), "workload": eight()}),
    Case("test_one_request_wakes_all_ranks",
         "A request comes to a group at rest, and one more when it rests again, or nearly so.",
         Plan(), (*IN_STEP, dp_work_wakes_all)),
    Case("test_ranks_come_to_rest",
         "Nothing is left to do: all ranks rest, until a request wakes them; and again, longer than anybody may stand "
         "still.",
         Plan(), (*RESTS, dp_quiet_when_idle, rests_when_idle),
         play={"workload": rested(), "options": Options(rest_s=2.0)}),
    Case("test_ranks_come_to_rest_by_every_step",
         "They ask each other at each step whether anything is left to do.",
         Plan(), (*RESTS, dp_quiet_when_idle), play={"workload": rested(), "config": EVERY[1]}),
    Case("test_ranks_come_to_rest_by_every_sixteenth_step",
         "As it is configured where nobody says otherwise.",
         Plan(), (*RESTS, dp_quiet_when_idle), play={"workload": rested(), "config": EVERY[16]}),
    Case("test_ranks_come_to_rest_by_every_thirty_second_step",
         "As it was configured before.",
         Plan(), (*RESTS, dp_quiet_when_idle), play={"workload": rested(), "config": EVERY[32]}),
    Case("test_headless_core_in_step_believes_in_more_ranks",
         "Its launcher believes in one rank more: it steps together with as many as the head has.",
         Plan(), (tokens_match_reference, nothing_left_behind, dp_handshakes_agree, dp_collectives_equal), play={
             "topology": headless(2, 1, lockstep=True), "options": Options(differs={"data_parallel_size": 3})}),
    Case("test_ranks_pause_and_go_on_together",
         "A pause between steps: nobody steps until all go on.",
         Plan(), (tokens_match_reference, tokens_in_order, blocks_conserved, dp_collectives_equal, pause_exact),
         play={"workload": paused()}),
    *(Case(f"test_rank_is_asked_to_pause_later[{core}]",
           "All-reduces lie between what two ranks are asked, and one of them has nothing to do: they pause together.",
           plan(delay(f"frontend.0->core.{core}/requests", match={"type": "UTILITY", "method": "pause_scheduler"},
                      until=until(marked(f"core.{core}", Mark.EXECUTED if core == 0 else Mark.DUMMY), 16))),
           (tokens_match_reference, blocks_conserved, dp_collectives_equal, dp_rank_in_turn),
           play={"workload": paused()}) for core in (0, 1)),
    Case("test_rank_loses_its_only_request_in_a_pause",
         "It tells its workers of the end, which is no step that the others make, and makes as many as were asked for.",
         Plan(), (tokens_match_reference, blocks_conserved, nothing_left_behind, dp_collectives_equal, abort_is_final,
                  calls_answered), play={"workload": left_idle()}),
    Case("test_coordinator_carries_the_counts_of_two_cores",
         "Cores that do not step together tell what they have to do, and their client is told of it.",
         Plan(), (*CALM, calls_answered), play={**DENSE, "workload": eight()}),
    Case("test_start_to_a_rank_is_lost",
         "START of a wave does not reach a rank: it is said again.",
         plan(drop(TO_SECOND, nth=1, match=START)), (*IN_STEP, dp_work_wakes_all)),
    Case("test_start_to_a_rank_is_late",
         "START comes when its wave is over: it starts nothing.",
         plan(delay(TO_SECOND, nth=1, match=START, until=until(seconds=0.3))), CALM),
    Case("test_start_comes_to_ranks_at_rest",
         "START comes when its wave is over and nobody runs: it starts nothing.",
         plan(delay(TO_SECOND, nth=1, match=START, until=until(marked("core.1", Mark.RESUMED)))),
         (*RESTS, dp_wave_monotone), play={"workload": rested()}),
    Case("test_start_to_a_rank_is_doubled",
         "START comes twice.",
         plan(duplicate(TO_SECOND, nth=1, match=START)), CALM),
    Case("test_start_to_the_rank_that_has_asked_for_it_is_lost",
         "START never reaches the rank whose report it answers, which hears from all others that its report was heard.",
         plan(drop(TO_FIRST, nth=1, match={**START, "wave": 0}, times=60),
              hang("core.1", at=marked("core.1", Mark.DUMMY), nth=3, until=until(seconds=0.1))),
         (*IN_STEP, dp_work_wakes_all)),
    Case("test_rank_is_late_in_a_wave_that_has_begun",
         "A rank is late at the first all-reduce of a wave: whoever has asked for it, and was heard, asks no more.",
         plan(hang("core.1", at="core.1/consensus:enter", nth=1, until=until(seconds=0.2))), IN_STEP),
    Case("test_report_of_a_start_is_lost",
         "The coordinator does not hear that a rank has work: it is told again.",
         plan(drop("core.0->coordinator.0/report", nth=1, match={"start_wave": 0})), (*IN_STEP, dp_work_wakes_all)),
    Case("test_report_of_a_start_is_lost_three_times",
         "It is told again and again, and no sooner than it has to be.",
         plan(drop("core.0->coordinator.0/report", nth=1, match={"start_wave": 0}, times=3)),
         (tokens_match_reference, dp_rank_in_turn, dp_work_wakes_all), play={
             "workload": recorded("eight-mixed").then(add(0)),
             "config": lab_config(bounds={"collective_s": 0.8}, data_parallel={"changed_s": 0.15})}),
    Case("test_report_of_a_wave_s_end_is_lost",
         "The coordinator does not hear that a wave has ended: the next one begins all the same.",
         plan(drop("core.0->coordinator.0/report", nth=1, match={"wave_complete": 0})), CALM),
    Case("test_report_of_a_wave_s_end_is_doubled",
         "It hears so twice.",
         plan(duplicate("core.0->coordinator.0/report", nth=1, match={"wave_complete": 0})), CALM),
    Case("test_notices_to_a_client_are_lost_and_late",
         "A client hears of counts and waves late, or not at all: no request waits for that.",
         plan(drop("coordinator.0->frontend.0/stats", nth=1, times=3),
              delay("coordinator.0->frontend.0/stats", nth=4,
                    until=until("coordinator.0->frontend.0/stats:receive", 8))),
         CALM, play={"workload": waves(behind=("r4", ENDED)).then(add(5))}),
    Case("test_counts_to_a_client_are_lost",
         "A client does not hear that requests wait: it is told again, though nothing has changed.",
         plan(drop(NOTICES, nth=1, match=COUNTED), *SLOW_CALLS), (*CALM, dp_view_converges),
         play={**DENSE, "workload": counted()}),
    Case("test_counts_change_as_requests_begin",
         "A client does not hear that requests wait, and is told again; and that some run now, which are no fewer.",
         plan(drop(NOTICES, nth=1, match=COUNTED), *SLOW_CALLS), (*ONE_BY_ONE, dp_view_converges),
         play={**DENSE, "workload": begun(), "config": lab_config(scheduler={"max_num_seqs": 1})}),
    Case("test_counts_of_ranks_in_step_are_late",
         "A client hears late that requests wait, when it knows already: it does not forget what came meanwhile.",
         plan(delay(NOTICES, nth=1, match=COUNTED, until=until(seconds=0.3)), *SLOW_CALLS),
         (*CALM, dp_view_converges), play={"workload": counted()}),
    Case("test_counts_to_a_client_are_overtaken",
         "A client hears of the next count first.",
         plan(reorder(NOTICES, nth=1, match=COUNTED), *SLOW_CALLS), (*CALM, dp_view_converges),
         play={**DENSE, "workload": counted()}),
    Case("test_subscription_of_a_rank_is_late",
         "A rank has subscribed late: no core is ready before.",
         plan(delay("core.1->coordinator.0/wave", nth=1, until=until(seconds=0.3))),
         (dp_start_needs_all, handshake_order, start_ends, tokens_match_reference)),
    Case("test_subscription_of_a_rank_is_doubled",
         "A rank's subscription comes twice: it counts once.",
         plan(duplicate("core.0->coordinator.0/wave", nth=1),
              delay("core.1->coordinator.0/wave", nth=1, until=until(seconds=0.2))),
         (dp_start_needs_all, handshake_order, start_ends, tokens_match_reference)),
    Case("test_subscription_and_its_answer_are_lost",
         "A rank's subscription is lost, and what the coordinator says to the other one: either is asked for again.",
         plan(drop("core.1->coordinator.0/wave", nth=1), drop(TO_FIRST, nth=1)),
         (dp_start_needs_all, handshake_order, start_ends, tokens_match_reference)),
    Case("test_coordinator_dies",
         "The coordinator is killed while ranks step together: that ends all, by its name.",
         plan(kill(HUB, at=marked("core.0", Mark.EXECUTED), nth=5)),
         (*LOST, dp_death_ends_group, dp_coordinator_death_is_told)),
    Case("test_coordinator_is_asked_to_leave_twice",
         "SIGTERM to the coordinator, and again on its way out: it goes on to leave in order, and all end.",
         plan(terminate(HUB, at=marked("core.0", Mark.EXECUTED), nth=5),
              terminate(HUB, at="coordinator.0->frontend.0/birth:send", nth=2)),
         (*LOST, dp_death_ends_group, nothing_left_behind)),
    Case("test_coordinator_of_dense_cores_dies",
         "The coordinator of cores that do not step together is killed: they serve on.",
         plan(kill(HUB, at=marked("core.0", Mark.EXECUTED), nth=5)), (*CALM, dp_coordinator_death_is_told),
         play={**DENSE, "workload": recorded("eight-mixed"), "options": Options(await_death_s=1.0)}),
    Case("test_coordinator_is_all_that_is_left",
         "The cores and their client are killed while it is held: it leaves, and takes along what they all had.",
         plan(stall(HUB, at=marked("core.0", Mark.EXECUTED), nth=11, until=until(seconds=0.2)),
              *(kill(node, at=marked("core.0", mark), nth=12) for node, mark in (
                  ("core.1", Mark.SCHEDULED), ("frontend.0", Mark.SUBMITTED), ("core.0", Mark.EXECUTED)))),
         (no_orphans, nothing_left_behind), play={"topology": data_parallel(2, tp=1, coordinated=True)}),
    Case("test_coordinator_stands_still",
         "The coordinator is stopped while ranks step together: that is told within its bound.",
         plan(stall(HUB, at=marked("core.0", Mark.EXECUTED), nth=5)), (ends_once, nothing_left_behind)),
    Case("test_coordinator_dies_as_it_starts",
         "The coordinator is killed before it is ready: the start fails by its name.",
         plan(kill(HUB, at=marked(HUB, Mark.BORN))), (start_ends, nothing_left_behind)),
    Case("test_rank_dies_in_a_wave",
         "One of two ranks is killed amid a step: all requests end, and nobody stays in an all-reduce.",
         plan(kill("core.1", at=marked("core.1", Mark.DUMMY), nth=3)), (*LOST, dp_death_ends_group)),
    Case("test_one_of_four_ranks_in_step_dies",
         "One of four ranks is killed: that ends all.",
         plan(kill("core.2", at=marked("core.2", Mark.DUMMY), nth=4)), LOST,
         play={"topology": data_parallel(4, lockstep=True)}),
    Case("test_rank_dies_with_a_wave",
         "A rank is killed just as all have agreed that the wave is over.",
         plan(kill("core.0", at=marked("core.0", Mark.WAVE_DONE))), LOST),
    Case("test_rank_dies_at_an_all_reduce",
         "A rank is killed where it enters what the other one waits in.",
         plan(kill("core.1", at="core.1/consensus:enter", nth=2)), LOST),
    Case("test_rank_stands_still_at_an_all_reduce",
         "A rank is stopped there: the other one says who is missing.",
         plan(stall("core.1", at="core.1/consensus:enter", nth=2)),
         (dp_missing_is_named, ends_once, nothing_left_behind)),
    Case("test_one_of_three_ranks_stands_still_at_an_all_reduce",
         "A rank is stopped there: both others say that it is the one that is missing.",
         plan(stall("core.1", at="core.1/consensus:enter", nth=2)),
         (dp_missing_is_named, ends_once, nothing_left_behind), play={"topology": data_parallel(3, lockstep=True)}),
    Case("test_one_of_three_ranks_dies_at_an_all_reduce",
         "A rank is killed there, and both others know it at once.",
         plan(kill("core.2", at="core.2/consensus:enter", nth=2)), LOST,
         play={"topology": data_parallel(3, lockstep=True)}),
    Case("test_rank_stands_still_while_it_waits_in_an_all_reduce",
         "A rank that waits for the other one is stopped: that one is missing to it then.",
         plan(stall("core.1", at="core.0/consensus:enter", nth=2)), (ends_once, nothing_left_behind)),
    Case("test_rank_dies_while_it_waits_in_an_all_reduce",
         "A rank that waits for the other one is killed.",
         plan(kill("core.1", at="core.0/consensus:enter", nth=2)), LOST),
    Case("test_worker_dies_while_its_rank_waits_in_an_all_reduce",
         "A rank that waits for the other one loses a worker: it gives up, and the other one is told so when it comes.",
         plan(hang("core.0", at=marked("core.0", Mark.SUBMITTED), nth=4, until=until(seconds=0.2)),
              kill("worker.1.1", at="core.1/consensus:enter", nth=2)), LOST,
         play={"topology": data_parallel(2, tp=2, lockstep=True)}),
    Case("test_rank_is_late_at_an_all_reduce",
         "A rank comes late: the other one waits for it.",
         plan(hang("core.1", at="core.1/consensus:enter", nth=2, until=until(seconds=0.4))), CALM),
    Case("test_rank_dies_in_a_forward",
         "A rank is killed where it enters what each forward has.",
         plan(kill("core.1", at="core.1/collective:enter", nth=6)), LOST),
    Case("test_worker_of_a_rank_in_step_dies",
         "A worker of one rank is killed: that ends all.",
         plan(kill("worker.1.1", at="worker.1.1/collective:enter", nth=30)), LOST,
         play={"topology": data_parallel(2, tp=2, lockstep=True)}),
    Case("test_rank_in_step_raises",
         "A rank fails by itself.",
         plan(raises("core.1", at=marked("core.1", Mark.DUMMY), nth=3)), (*LOST, dp_death_ends_group)),
    Case("test_rank_in_step_is_asked_to_leave",
         "SIGTERM to one of two ranks: it leaves when the wave is over, and that ends the group.",
         plan(terminate("core.1", at=marked("core.1", Mark.DUMMY), nth=3)),
         (drain, ends_once, nothing_left_behind)),
    Case("test_rank_is_asked_to_leave_amid_steps_of_all",
         "SIGTERM to a rank while all run a number of steps: it rests behind the same one.",
         plan(terminate("core.1", at=marked("core.1", Mark.SCHEDULED), nth=1)), (ends_once, nothing_left_behind),
         play={"workload": eight()}),
    Case("test_client_of_ranks_in_step_dies",
         "The client is killed: both ranks and the coordinator go.",
         plan(kill("frontend.0", at="core.0->frontend.0/outputs:receive", nth=3)), (no_orphans,)),
    Case("test_one_rank_in_step_is_slow",
         "A rank takes its time over some steps: the other one waits for it.",
         plan(*(hang("core.1", at=marked("core.1", Mark.DUMMY), nth=nth, until=until(seconds=0.03))
                for nth in range(2, 8))), CALM),
    Case("test_one_rank_in_step_starts_late",
         "A rank is slow to be ready: nothing is sent to either before.",
         plan(delay("core.1->frontend.0/handshake", nth=3, until=until(seconds=0.3))),
         (handshake_order, start_ends, tokens_match_reference)),
    Case("test_coordinator_exits",
         "The coordinator leaves by itself while ranks step together.",
         plan(exits(HUB, at="core.0->coordinator.0/report:receive", nth=2)), (ends_once, nothing_left_behind)),
), topology=data_parallel(2, lockstep=True), workload=waves(), config=CONFIG))

"""Two cores that step together, at what seldom happens to them: calls at the wrong moment, and words that cross."""

from __future__ import annotations

from engine.topology import Mark, data_parallel
from faults.plan import Plan, corrupt, delay, drop, hang, marked, plan, until
from scenarios.guarantees.all import (
    blocks_conserved,
    calls_answered,
    dp_collectives_equal,
    dp_coordinator_in_turn,
    dp_rank_in_turn,
    dp_wave_monotone,
    dp_work_wakes_all,
    nothing_left_behind,
    pause_exact,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_lockstep import START, TO_SECOND, rested
from scenarios.workloads import ENDED, Workload, add, for_ranks, recorded, utility

PROMISED = (tokens_match_reference, blocks_conserved, nothing_left_behind, dp_collectives_equal, dp_rank_in_turn)
#: Of tokens nothing, as the bytes of a message were changed.
MISREAD = (blocks_conserved, nothing_left_behind, dp_collectives_equal, dp_rank_in_turn, dp_work_wakes_all)
PAUSE, RESUME = utility("pause_scheduler"), utility("resume_scheduler")


def at_the_wrong_moment() -> Workload:
    """In one breath: steps out of no pause, to pause twice, and to go on amid that; and the other way round."""
    return recorded("eight-mixed").then(add(0, 1), behind=("r0", 4)).then(
        utility("run_steps", 2), PAUSE, PAUSE, utility("run_steps", 2), utility("run_steps", 1), RESUME, steps=0).then(
        RESUME, utility("run_steps", 2), RESUME, PAUSE, steps=0).then(add(2))


def for_nothing() -> Workload:
    """Steps for which there is nothing, out of a pause; what comes then waits for its own."""
    return recorded("eight-mixed").then(PAUSE, steps=0).then(utility("get_stats"), steps=2).then(
        add(0), utility("get_stats"), steps=0).then(add(1))


globals().update(family(__name__, (
    Case("test_ranks_are_asked_at_the_wrong_moment",
         "To pause while they are about to, and to go on while they do: one call after another, at the same places.",
         Plan(), PROMISED, play={"workload": at_the_wrong_moment()}),
    Case("test_ranks_run_steps_for_which_there_is_nothing",
         "They rest behind none, and hold what comes.",
         Plan(), (*PROMISED, calls_answered, pause_exact), play={"workload": for_nothing()}),
    Case("test_end_of_a_wave_is_told_when_the_next_one_runs",
         "The report of a rank's work overtakes that of the end of the wave before.",
         plan(delay("core.0->coordinator.0/report", nth=1, match={"wave_complete": 0}, until=until(seconds=0.2))),
         (*PROMISED, dp_coordinator_in_turn, dp_work_wakes_all), play={"workload": rested()}),
    Case("test_report_of_a_start_comes_when_its_wave_is_over",
         "It is passed on, and starts nothing.",
         plan(delay("core.0->coordinator.0/report", nth=1, match={"start_wave": 0},
                    until=until(marked("core.0", Mark.WAVE_DONE), 2))),
         (*PROMISED, dp_coordinator_in_turn, dp_wave_monotone), play={"workload": rested()}),
    Case("test_report_of_a_start_is_lost_behind_a_late_start",
         "A start of the wave before comes behind the request that began the next one: it answers no report.",
         plan(delay(TO_SECOND, nth=1, match=START, until=until(seconds=0.2)),
              hang("core.1", at=marked("core.1", Mark.IDLE), nth=2, until=until(seconds=0.3)),
              drop("core.1->coordinator.0/report", nth=1, match={"start_wave": 1})),
         MISREAD, play={"workload": for_ranks(recorded("eight-mixed"), {0: 0, 1: 1}).then(
             add(0), behind=("r0", ENDED)).then(add(1))}),
    Case("test_report_of_a_start_is_read_as_the_end_of_a_later_wave",
         "The coordinator believes the group far ahead: who has work wakes the others all the same.",
         plan(corrupt("core.0->coordinator.0/report", nth=1, match={"start_wave": 0}, byte=34)),
         MISREAD, play={"workload": rested()}),
    Case("test_counts_are_read_as_the_start_of_a_later_wave",
         "It believes that this one runs.",
         plan(corrupt("core.0->coordinator.0/report", nth=2, byte=45)), MISREAD, play={"workload": rested()}),
), topology=data_parallel(2, lockstep=True), config=lab_config(bounds={"collective_s": 0.8})))

"""Cores that step together with several steps in flight: the next one is scheduled while the last one runs."""

from __future__ import annotations

from engine.topology import Mark, data_parallel
from faults.plan import Plan, hang, kill, marked, plan, raises, until
from scenarios.guarantees.all import (
    dp_death_ends_group,
    dp_quiet_when_idle,
    dp_work_wakes_all,
    pause_exact,
    placeholders_conserved,
    served_in_turn,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.test_data_parallel import eight
from scenarios.test_lockstep import IN_STEP, LOST, RESTS, paused, rested, waves

BOUNDS = {"collective_s": 0.8}
CONFIG = lab_config(bounds=BOUNDS, scheduler={"async_scheduling": True})
ONE_BY_ONE = tuple(one for one in IN_STEP if one is not served_in_turn)  # nobody waits for a place
STAGES = data_parallel(2, pp=2, lockstep=True)

globals().update(family(__name__, (
    Case("test_two_ranks_step_together_with_two_steps_in_flight",
         "Each schedules the next step while the last one runs: both have as many, and tokens come as from one.",
         Plan(), (*IN_STEP, placeholders_conserved), play={"workload": eight()}),
    Case("test_two_ranks_of_two_workers_step_together_with_two_steps_in_flight",
         "The same with two workers each.",
         Plan(), IN_STEP, play={"topology": data_parallel(2, tp=2, lockstep=True), "workload": eight()}),
    Case("test_two_ranks_of_two_stages_step_together",
         "The same with two stages each, whose steps follow each other.",
         Plan(), IN_STEP, play={"topology": STAGES, "workload": eight()}),
    Case("test_waves_with_two_steps_in_flight",
         "Three waves: a rank without work runs dummy batches between steps of the other one, and both come to rest.",
         Plan(), (*RESTS, dp_quiet_when_idle), play={"workload": rested()}),
    Case("test_waves_of_two_stages",
         "The same with two stages each.",
         Plan(), (*ONE_BY_ONE, dp_work_wakes_all), play={"topology": STAGES}),
    Case("test_ranks_pause_with_two_steps_in_flight",
         "What is in flight ends, then all rest; and go on together.",
         Plan(), (*ONE_BY_ONE, pause_exact), play={"workload": paused()}),
    Case("test_rank_is_slow_with_two_steps_in_flight",
         "A rank takes its time over some steps: the other one waits for it.",
         plan(*(hang("core.1", at=marked("core.1", Mark.STEP), nth=nth, until=until(seconds=0.05))
                for nth in range(3, 7))), ONE_BY_ONE),
    Case("test_rank_dies_with_two_steps_in_flight",
         "A rank is killed with a step in flight and one to come: all end, by its name.",
         plan(kill("core.1", at=marked("core.1", Mark.EXECUTED), nth=3)), (*LOST, dp_death_ends_group),
         play={"workload": eight()}),
    Case("test_rank_raises_with_two_steps_in_flight",
         "The same where it fails by itself.",
         plan(raises("core.1", at=marked("core.1", Mark.STEP), nth=5)), (*LOST, dp_death_ends_group),
         play={"workload": eight()}),
    Case("test_worker_of_a_last_stage_dies_in_step",
         "A worker of a last stage is killed: that ends both ranks.",
         plan(kill("worker.1.1", at=marked("worker.1.1", Mark.EXECUTING), nth=5)), LOST, play={"topology": STAGES}),
    Case("test_worker_fails_where_ranks_come_together",
         "A worker of a last stage fails in the forward before an all-reduce: its core hears of it before it waits.",
         plan(raises("worker.1", at="worker.1/collective:enter", nth=8)), LOST,
         play={"topology": STAGES}),
), topology=data_parallel(2, lockstep=True), config=CONFIG, workload=waves()))

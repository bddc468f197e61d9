"""A process is alive and makes no progress: that is noticed, and treated as death."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import hang, marked, plan, raises, reorder, stall, until
from scenarios.guarantees.all import (
    dead_notice,
    death_is_told,
    ends_once,
    groups_agree,
    health_is_true,
    nothing_left_behind,
    ring_bounded_wait,
    rpc_any_rank_fails_fast,
    stall_is_told,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import abort, add, recorded, utility

#: Two steps, then more calls of the workers at once than there are chunks in a ring.
OVER_GLOO = lab_config(device_communicator="gloo")
MANY_CALLS = recorded("pair").then(add(0), steps=2).then(utility("collective_rpc", "check_health", 9))

globals().update(family(__name__, (
    Case("test_core_is_stopped",
         "The core is stopped (SIGSTOP) between two steps and never goes on.",
         plan(stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=8)),
         (stall_is_told, health_is_true, ends_once, nothing_left_behind)),
    Case("test_worker_is_stopped",
         "A worker is stopped after it read a step and never goes on.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=21)),
         (stall_is_told, health_is_true, ends_once, ring_bounded_wait, nothing_left_behind)),
    Case("test_core_is_slow_and_not_dead",
         "Two outputs swap, then the core stands still three times, each time for less than anybody's patience.",
         plan(reorder("core.0->frontend.0/outputs", nth=5), *(
             stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=nth, until=until(seconds=1.1))
             for nth in (8, 11, 14))),
         (tokens_match_reference, tokens_in_order), play={"workload": recorded("pair")}),
    Case("test_a_thread_stands_still_in_a_busy_core",
         "The thread that reads requests hangs, and the core has work for a while: its heart stands still, too.",
         plan(hang("core.0", at="frontend.0->core.0/requests:receive", nth=11),
              *(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=20 + turn, until=until(seconds=lasts))
                for turn, lasts in enumerate((0.4, 0.4, 0.4)))),
         (stall_is_told, ends_once, health_is_true, nothing_left_behind),
         play={"workload": recorded("eight-even").then(add(*range(8)), behind=("r0", 2)).then(
             abort(7), add(0, name="late"))}),
    Case("test_worker_hangs_behind_many_calls",
         "A worker reads no further call while more are made of it than a ring holds: the core waits until its bound.",
         plan(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=9)),
         (stall_is_told, ring_bounded_wait, nothing_left_behind), play={"workload": MANY_CALLS}),
    Case("test_core_hangs_before_many_answers",
         "The core's main thread stands still, and its workers have more to answer than a ring holds: they give up.",
         plan(hang("core.0", at="core.0->worker.0/rpc:send", nth=14)),
         (stall_is_told, death_is_told, health_is_true, nothing_left_behind),
         play={"workload": MANY_CALLS, "config": lab_config(ring={"response_chunks": 2})}),
    Case("test_collective_hangs",
         "One rank never enters a collective: the others sit in it, and the step's deadline ends that.",
         plan(hang("worker.1", at="worker.1/collective:enter", nth=20)),
         (stall_is_told, ends_once, groups_agree, nothing_left_behind)),
    Case("test_collective_hangs_over_gloo",
         "The same, and the others wait for it in gloo.",
         plan(hang("worker.1", at="worker.1/collective:enter", nth=20)),
         (stall_is_told, ends_once, groups_agree, nothing_left_behind), play={"config": OVER_GLOO}),
    Case("test_collective_hangs_beyond_its_bound",
         "One rank of four never enters a collective, and the bound of collectives is the first to come: the others "
         "say who is missing.",
         plan(hang("worker.2", at="worker.2/collective:enter", nth=20)),
         (stall_is_told, ends_once, groups_agree, nothing_left_behind),
         play={"topology": tensor_parallel(4), "config": lab_config(bounds={"collective_s": 0.4})}),
    Case("test_silent_rank_raises",
         "`execute_model` raises on the rank that nobody waits for, while the other one waits in a collective.",
         plan(raises("worker.1", at="worker.1/collective:enter", nth=20)),
         (rpc_any_rank_fails_fast, ends_once, nothing_left_behind)),
    Case("test_silent_rank_raises_when_its_step_is_over",
         "The rank that nobody waits for is late with the last step, and raises: the core has nothing to do by then.",
         plan(hang("worker.1", at="core.0->worker.1/rpc:receive", nth=35, until=until(seconds=0.3)),
              raises("worker.1", at=marked("worker.1", Mark.EXECUTING), nth=35)),
         (dead_notice, health_is_true, nothing_left_behind),
         play={"workload": recorded("pair"), "options": Options(await_death_s=5.0)}),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

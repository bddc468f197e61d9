"""A process is alive and makes no progress: that is noticed, and treated as death."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import hang, marked, plan, raises, stall, until
from scenarios.guarantees.all import (
    ends_once,
    health_is_true,
    nothing_left_behind,
    ring_bounded_wait,
    rpc_any_rank_fails_fast,
    stall_is_told,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

globals().update(family(__name__, (
    Case("test_core_is_stopped",
         "The core is stopped (SIGSTOP) between two steps and never goes on.",
         plan(stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=8)),
         (stall_is_told, health_is_true, ends_once, nothing_left_behind)),
    Case("test_worker_is_stopped",
         "A worker is stopped after it read a step and never goes on.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=12)),
         (stall_is_told, health_is_true, ends_once, ring_bounded_wait, nothing_left_behind)),
    Case("test_core_is_slow_and_not_dead",
         "The core stands still twice, each time for less than a request's patience: nobody is given up.",
         plan(stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=8, until=until(seconds=0.9)),
              stall("core.0", at=marked("core.0", Mark.SCHEDULED), nth=14, until=until(seconds=0.9))),
         (tokens_match_reference, tokens_in_order),
         play={"config": lab_config(bounds={"request_s": 1.5})}),
    Case("test_collective_hangs",
         "One rank never enters a collective: the others sit in it, and the step's deadline ends that.",
         plan(hang("worker.1", at="worker.1/collective:enter", nth=20)),
         (stall_is_told, ends_once, nothing_left_behind)),
    Case("test_silent_rank_raises",
         "`execute_model` raises on the rank that nobody waits for, while the other one waits in a collective.",
         plan(raises("worker.1", at="worker.1/collective:enter", nth=20)),
         (rpc_any_rank_fails_fast, ends_once, nothing_left_behind)),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

"""A process dies, or leaves on its own feet: everybody who waits is told, and nothing is left."""

from __future__ import annotations

from engine.topology import Mark, tensor_parallel
from faults.plan import delay, exits, hang, kill, marked, plan, raises, stall, terminate, until
from scenarios.guarantees.all import (
    dead_notice,
    death_is_told,
    drain,
    ends_once,
    health_is_true,
    no_orphans,
    nothing_left_behind,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, generated, recorded, utility

REQUESTS = "frontend.0->core.0/requests"
OUTPUTS = "core.0->frontend.0/outputs"
#: Behind two requests that run, so many outputs that the core has them in its hands when it goes.
MANY_OUTPUTS = recorded("eight-mixed").then(add(*range(8)), steps=2).then(utility("ping", "x" * 100, times=2000))
LARGE_OUTPUTS = recorded("pair").then(add(0, 1), steps=2).then(utility("ping", "x", 100_000, times=400))

globals().update(family(__name__, (
    Case("test_worker_dies_while_the_others_answer",
         "One of two workers is killed after it read the step and before it answered.",
         plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=12)),
         (death_is_told, ends_once, health_is_true, nothing_left_behind)),
    Case("test_answering_worker_dies",
         "The worker whose answer counts is killed with the answer ready and not yet written.",
         plan(kill("worker.0", at="worker.0->core.0/response:send", nth=12)),
         (death_is_told, ends_once, nothing_left_behind)),
    Case("test_core_dies_in_mid_step",
         "The core is killed between scheduling a step and sending it.",
         plan(kill("core.0", at=marked("core.0", Mark.SCHEDULED), nth=8)),
         (death_is_told, ends_once, no_orphans, health_is_true, nothing_left_behind)),
    Case("test_core_dies_on_one_rank",
         "The core is killed where the worker lives inside of it.",
         plan(kill("core.0", at=marked("core.0", Mark.EXECUTED), nth=8)),
         (death_is_told, ends_once, nothing_left_behind), play={"topology": tensor_parallel(1)}),
    Case("test_core_raises_behind_a_full_queue",
         "The core raises with 2,000 outputs queued and a frontend that is stopped until then.",
         plan(stall("frontend.0", at=marked("core.0", Mark.SCHEDULED), nth=3,
                    until=until(marked("core.0", Mark.DYING))),
              raises("core.0", at=marked("core.0", Mark.EXECUTED), nth=3)),
         (dead_notice, ends_once, nothing_left_behind), play={"workload": MANY_OUTPUTS}),
    Case("test_core_exits_behind_a_slow_reader",
         "The core leaves by sys.exit with 40 MB of outputs unsent and a frontend that stands still for a moment.",
         plan(stall("frontend.0", at=marked("core.0", Mark.SCHEDULED), nth=3, until=until(seconds=1.0)),
              exits("core.0", at=marked("core.0", Mark.EXECUTED), nth=3)),
         (dead_notice, ends_once, nothing_left_behind), play={"workload": LARGE_OUTPUTS}),
    Case("test_output_thread_fails",
         "The thread that sends outputs fails with one in its hand: the main thread sends it, the rest and the notice.",
         plan(raises("core.0", at=f"{OUTPUTS}:send", nth=10)),
         (dead_notice, death_is_told, ends_once, nothing_left_behind)),
    Case("test_core_is_asked_to_leave",
         "SIGTERM while requests run: they finish, the notice comes behind their last tokens.",
         plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=10)),
         (drain, dead_notice, tokens_match_reference, nothing_left_behind),
         play={"options": Options(await_death_s=5.0)}),
    Case("test_request_comes_while_the_core_drains",
         "A request arrives when the core has been told to leave: it is refused, those that run finish.",
         plan(terminate("core.0", at=marked("core.0", Mark.STEP), nth=3),
              delay(REQUESTS, nth=8, match={"type": "ADD"}, until=until(marked("core.0", Mark.DRAINING)))),
         (drain, dead_notice, ends_once, tokens_match_reference, nothing_left_behind),
         play={"options": Options(await_death_s=5.0)}),
    Case("test_core_is_asked_to_leave_and_has_no_time",
         "SIGTERM, little time to drain, and a request that comes too late: it is refused, the running ones aborted.",
         plan(delay("frontend.0->core.0/requests", nth=3, match={"type": "ADD"}, until=until(seconds=0.05)),
              terminate("core.0", at=marked("core.0", Mark.STEP), nth=3)),
         (drain, dead_notice, ends_once, nothing_left_behind),
         play={"workload": recorded("long").then(add(0, 1, 2)), "config": lab_config(bounds={"drain_s": 0.1}),
               "options": Options(await_death_s=5.0)}),
    Case("test_core_dies_while_a_worker_is_stopped",
         "A worker is stopped for good when the core is killed: the client ends it, and has not to be closed for that.",
         plan(stall("worker.1", at="core.0->worker.1/rpc:receive", nth=12),
              kill("core.0", at="core.0->worker.0/rpc:receive", nth=12)),
         (no_orphans, death_is_told, nothing_left_behind), play={"options": Options(rest_s=4.5)}),
    Case("test_core_dies_while_its_client_is_about_to_send",
         "The client stands still with a request in its hand, and the core is killed meanwhile: that is what it tells.",
         plan(kill("core.0", at=f"{REQUESTS}:receive", nth=2),
              hang("frontend.0", at=f"{REQUESTS}:send", nth=3, until=until(seconds=1.0))),
         (ends_once, nothing_left_behind), play={"workload": recorded("pair")}),
    Case("test_core_hangs_on_its_way_out_and_a_worker_is_stopped",
         "The engine is closed, its core stands still as it leaves and a worker for good: the client ends them both.",
         plan(stall("worker.1", at=marked("core.0", Mark.DRAINING)), hang("core.0", at=marked("core.0", Mark.DYING))),
         (no_orphans, nothing_left_behind), play={"workload": recorded("pair")}),
    Case("test_frontend_dies_and_the_core_hangs_on_its_way_out",
         "The frontend is killed, and its core's main thread stands still as it leaves: the engine goes all the same.",
         plan(kill("frontend.0", at=f"{OUTPUTS}:receive", nth=10), hang("core.0", at=marked("core.0", Mark.DYING))),
         (no_orphans, nothing_left_behind)),
    Case("test_frontend_dies",
         "The frontend is killed in the middle of its streams: its engine goes with it.",
         plan(kill("frontend.0", at=f"{OUTPUTS}:receive", nth=10)),
         (no_orphans, nothing_left_behind)),
    Case("test_worker_dies_while_a_program_waits",
         "A worker is killed while a program without an event loop waits for eight answers: that ends its wait.",
         plan(kill("worker.1", at="core.0->worker.1/rpc:receive", nth=12)),
         (ends_once, death_is_told, health_is_true, nothing_left_behind), play={
             "workload": generated("eight-even"), "options": Options(synchronous=True)}),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

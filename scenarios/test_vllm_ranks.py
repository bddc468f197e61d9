"""Several engines of one client of vLLM's, each with all of the model: side by side, or in step with a coordinator.

Of engines in step the stand-in's model says that it has experts, and all their ranks meet in each step. What is
declared broken is a finding: the same on every play of that version, and red here as soon as it is another one.
"""

from __future__ import annotations

import msgspec

from engine.topology import Topology, data_parallel
from faults.plan import Fault, Plan, cut, drop, hang, kill, plan, terminate, until
from scenarios.guarantees.all import (
    death_is_told,
    dp_burst_spreads,
    ends_once,
    health_is_true,
    nothing_without_cause,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family, fated
from scenarios.lab.settings import lab_config
from scenarios.workloads import ENDED, Workload, add, for_ranks, recorded, utility

THERE = Only(world="vllm", reason="these are vLLM's processes")
ASYNC = {"config": lab_config(scheduler={"async_scheduling": True})}
DENSE, DENSE_OF_TWO = data_parallel(2, coordinated=True), data_parallel(2, tp=2, coordinated=True)
IN_STEP, IN_STEP_OF_TWO = data_parallel(2, lockstep=True), data_parallel(2, tp=2, lockstep=True)
#: Marks of the first core at which whoever is hit is hit.
MOMENTS = {"prefill": ("core.0/mark:executed", 1), "decode": ("core.0/mark:scheduled", 6)}
#: What the coordinator says and hears, through a relay. Counts are advice; of those in step nobody says twice that
#: there is work: what is lost there is waited for, and vLLM promises nothing of that.
COUNTS, START = "coordinator.0->frontend.0/stats", "coordinator.0->core.1/wave"
REPORT, SUBSCRIPTION = "core.0->coordinator.0/report", "core.1->coordinator.0/wave"
A_START = {"type": "START_DP_WAVE"}
#: A start that is stuck is seen so sooner.
SOON = {"config": lab_config(bounds={"startup_s": 8.0})}
TOLD = (ends_once, death_is_told, health_is_true)
TOKENS = (tokens_match_reference, tokens_in_order)
#: Through a relay, streams of a few requests each may come one after the other.
SAME = (tokens_match_reference,)

def _free(workload: Workload) -> Workload:
    """No step is counted: engines in step have none of their own."""
    return msgspec.structs.replace(workload, free=True)


ALL = _free(recorded("eight-growing"))


#: All ask for one engine. What another one has is aborted when it is given up, or is done by then:
#: `test_vllm_rank_is_killed_beside_a_busy_one`.
OF_ONE = for_ranks(ALL, dict.fromkeys(range(len(ALL.requests)), 0))


def _rested() -> Workload:
    """A request, then surely none, then one more: it comes to ranks at rest."""
    found = recorded("eight-growing").then(add(0), behind=("r0", ENDED))
    for _ in range(25):
        found = found.then(utility("is_paused"), steps=0)
    return _free(found.then(add(1)))


def _hit(make: type[Fault] | object, value: str) -> Plan:
    """`value`: "core.1 in decode"."""
    victim, _, moment = value.partition(" in ")
    site, nth = MOMENTS[moment]
    return plan(make(victim, at=site, nth=nth))  # type: ignore[operator]


def _in(topology: Topology, workload: Workload = ALL, **more: object) -> dict[str, object]:
    return {"topology": topology, "workload": workload, **more}


CORES = ("core.0 in prefill", "core.0 in decode", "core.1 in prefill", "core.1 in decode")

globals().update(family(__name__, (
    Case("test_vllm_ranks", "Requests are spread over two engines: all finish with the stand-in's tokens.", Plan(),
         (*TOKENS, dp_burst_spreads), only=THERE, play=_in(DENSE)),
    Case("test_vllm_ranks_async", "The same with a step in flight.", Plan(), TOKENS, only=THERE,
         play=_in(DENSE, **ASYNC)),
    Case("test_vllm_ranks_of_two_workers", "The same with two workers each.", Plan(), TOKENS, only=THERE,
         play=_in(DENSE_OF_TWO)),
    Case("test_vllm_ranks_in_step", "Two engines step together, by dummy batches where they have no work.", Plan(),
         TOKENS, only=THERE, play=_in(IN_STEP)),
    Case("test_vllm_ranks_in_step_async", "The same with a step in flight.", Plan(), TOKENS, only=THERE,
         play=_in(IN_STEP, **ASYNC)),
    Case("test_vllm_ranks_in_step_of_two_workers", "The same with two workers each.", Plan(), TOKENS, only=THERE,
         play=_in(IN_STEP_OF_TWO)),
    Case("test_vllm_ranks_rest", "Engines in step come to rest, and one request wakes all of them.", Plan(),
         (tokens_match_reference,), only=THERE, play=_in(IN_STEP, _rested())),
    Case("test_vllm_rank_is_killed", "An engine of two is killed, and the other one rests: its client gives up both, "
         "and callers are told.",
         lambda value: _hit(kill, value), TOLD, each=("core.0 in prefill", "core.0 in decode"), only=THERE,
         play=_in(DENSE, OF_ONE)),
    Case("test_vllm_rank_in_step_is_killed", "The same of engines in step: the other one waits for it in a collective.",
         lambda value: _hit(kill, value), TOLD, each=("core.0 in decode", "core.1 in prefill"), only=THERE,
         play=_in(IN_STEP)),
    Case("test_vllm_worker_of_a_rank_is_killed", "A worker of one engine is killed: both are given up.",
         lambda value: _hit(kill, value), TOLD, each=("worker.1.0 in decode",), only=THERE, play=_in(IN_STEP_OF_TWO)),
    Case("test_vllm_rank_is_killed_beside_a_busy_one", "An engine is killed while the other one is amid a step of "
         "0.4 s: callers of the other one are told that their requests were aborted, which nobody has asked for, and "
         "the engine is called healthy until the other one has left.",
         plan(kill("core.1", at="core.0/mark:scheduled", nth=6),
              hang("core.0", at="core.0/mark:scheduled", nth=7, until=until(seconds=0.4))),
         (), only=THERE, broken=(nothing_without_cause,), play=_in(DENSE)),
    Case("test_vllm_coordinator_is_killed", "The coordinator of engines that do not step together is killed: they go "
         "on without its counts.", lambda value: _hit(kill, value), TOKENS,
         each=("coordinator.0 in prefill", "coordinator.0 in decode"), only=THERE, play=_in(DENSE)),
    Case("test_vllm_coordinator_in_step_is_killed", "The coordinator of engines in step is killed: nobody is told, and "
         "a request to one of them at rest waits for the other ones, which nobody wakes.",
         _hit(kill, "coordinator.0 in decode"), (), only=THERE, broken=(ends_once,), play=_in(IN_STEP, _rested())),
    Case("test_vllm_ranks_go_on_that_have_not_paused", "Engines in step at rest are asked to go on, behind a request: "
         "the one that has it ignores that, the other one waits in a collective of its own, and both for ever.",
         Plan(), (), only=THERE, broken=(ends_once,),
         play=_in(IN_STEP, _free(recorded("eight-growing").then(add(0), utility("resume_scheduler"))))),
    Case("test_vllm_rank_is_killed_at_start", "An engine is killed while another one starts: the start ends.",
         lambda victim: plan(kill(victim, at="core.0/mark:loading")), (start_ends,), each=("core.1", "coordinator.0"),
         only=THERE, play=_in(IN_STEP)),
    Case("test_vllm_rank_is_asked_to_leave", "An engine of two gets SIGTERM amid requests, and the other one rests: "
         "each ends.",
         lambda value: _hit(terminate, value), (ends_once,), each=("core.0 in decode",), only=THERE,
         play=_in(DENSE, OF_ONE)),
    Case("test_vllm_ranks_relayed", "Nothing goes wrong through the relay: all is as without it.", Plan(), SAME,
         only=THERE, play=_in(DENSE, options=Options(relayed=True))),
    Case("test_vllm_ranks_in_step_relayed", "The same of engines in step.", Plan(), SAME, only=THERE,
         play=_in(IN_STEP, options=Options(relayed=True))),
    Case("test_vllm_counts_are", "What the client is told of counts: all is served, spread by what it believes.",
         fated(COUNTS), SAME, each=("lost", "doubled", "late", "cut short"), only=THERE, play=_in(DENSE)),
    Case("test_vllm_connection_of_counts_is_cut", "The client's connection to the coordinator ends.",
         plan(cut(COUNTS)), SAME, only=THERE, play=_in(DENSE)),
    Case("test_vllm_report_of_counts_is", "What a core tells of its counts: they are advice.", fated(REPORT, nth=2),
         (), each=("lost", "doubled", "overtaken"), only=THERE, play=_in(DENSE)),
    Case("test_vllm_start_of_a_wave_is", "An engine at rest is woken late, or twice: all step on together.",
         fated(START, match=A_START), (), each=("late", "doubled"), only=THERE,
         play=_in(IN_STEP, _rested())),
    Case("test_vllm_start_of_a_wave_is_lost", "An engine at rest is not woken.", plan(drop(START, match=A_START)),
         (), only=THERE, play=_in(IN_STEP, _rested())),
    Case("test_vllm_report_in_step_is", "What a core tells of its step.", fated(REPORT, nth=2),
         (), each=("doubled", "late", "cut short"), only=THERE, play=_in(IN_STEP, _rested())),
    Case("test_vllm_subscription_of_a_core_is", "A core subscribes, and the coordinator hears that late, or twice.",
         fated(SUBSCRIPTION), (start_ends,), each=("late", "doubled"), only=THERE, play=_in(IN_STEP)),
    Case("test_vllm_subscription_of_a_core_is_lost", "A core's subscription is lost: the coordinator waits for it, and "
         "the documented time-out of a start does not end that.", plan(drop(SUBSCRIPTION)), (), only=THERE,
         broken=(start_ends,), play=_in(IN_STEP, **SOON)),
), topology=DENSE, workload=ALL))

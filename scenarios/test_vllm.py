"""vLLM's own processes, each hit by each signal at each moment: what it promises of that, and what 0.33.0 keeps.

What is declared broken is a finding: the same on every play of that version, and red here as soon as it is another one.
"""

from engine.topology import tensor_parallel
from faults.plan import Fault, Plan, hang, kill, plan, stall, terminate
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    health_is_true,
    no_orphans,
    stall_is_told,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import recorded

THERE = Only(world="vllm", reason="these are vLLM's processes")
ASYNC = lab_config(scheduler={"async_scheduling": True})
#: A start that is stuck is seen so sooner.
SOON = lab_config(bounds={"startup_s": 8.0})
#: The core's marks at which whoever is hit is hit.
MOMENTS = {"prefill": ("core.0/mark:executed", 1), "decode": ("core.0/mark:scheduled", 6)}
ENGINE = ("core.0", "worker.0", "worker.1")
#: Dies or leaves with an error, and takes its engine along.
TOLD = (ends_once, death_is_told, health_is_true)


def _hit(make: type[Fault] | object, value: str) -> Plan:
    """`value`: "worker.1 in decode"."""
    victim, _, moment = value.partition(" in ")
    site, nth = MOMENTS[moment]
    return plan(make(victim, at=site, nth=nth))  # type: ignore[operator]


def _each(*victims: str) -> tuple[str, ...]:
    return tuple(f"{victim} in {moment}" for victim in victims for moment in MOMENTS)


globals().update(family(__name__, (
    Case("test_vllm_calm", "Nothing goes wrong: all requests finish with the stand-in's tokens.", Plan(),
         (tokens_match_reference, tokens_in_order), only=THERE),
    Case("test_vllm_calm_async", "The same with the next step scheduled before the last one's tokens are known.",
         Plan(), (tokens_match_reference, tokens_in_order), only=THERE, play={"config": ASYNC}),
    Case("test_vllm_calm_spawned", "The same with processes that are started anew, as `vllm serve` starts them.",
         Plan(), (tokens_match_reference,), only=THERE, play={"config": lab_config(start_method="spawn")}),
    Case("test_vllm_calm_stages", "Two stages of one rank each.", Plan(), (tokens_match_reference,), only=THERE,
         play={"topology": tensor_parallel(1, pp=2)}),
    Case("test_vllm_calm_stages_of_ranks", "Two stages of two ranks each.", Plan(), (tokens_match_reference,),
         only=THERE, play={"topology": tensor_parallel(2, pp=2)}),
    Case("test_vllm_calm_four_ranks", "Four ranks.", Plan(), (tokens_match_reference,), only=THERE,
         play={"topology": tensor_parallel(4)}),
    Case("test_vllm_cache_is_too_small", "Requests are preempted and computed again: no token changes.", Plan(),
         (tokens_match_reference,), only=THERE, play={
             "config": lab_config(cache={"num_gpu_blocks": 12}, scheduler={"max_model_len": 80})}),
    Case("test_vllm_is_killed", "A process of the engine is killed: each request ends, each caller is told.",
         lambda value: _hit(kill, value), TOLD, each=_each(*ENGINE), only=THERE),
    Case("test_vllm_is_killed_async", "The same with a step in flight.", lambda value: _hit(kill, value), TOLD,
         each=_each(*ENGINE), only=THERE, play={"config": ASYNC}),
    Case("test_vllm_stage_is_killed", "The same of two stages.", lambda value: _hit(kill, value), TOLD,
         each=_each(*ENGINE), only=THERE, play={"topology": tensor_parallel(1, pp=2)}),
    Case("test_vllm_worker_is_killed_at_start", "A worker is killed before the weights are read: the start ends.",
         lambda victim: plan(kill(victim, at=f"{victim}/mark:loading")), (start_ends,), each=("worker.0", "worker.1"),
         only=THERE),
    Case("test_vllm_core_is_killed_at_start", "The core is killed while its forked workers come up, and one of them "
         "waits for a rank that does not come: they keep open what would tell the caller of the core's end, so the "
         "caller waits as long as they live, and they live for ever.",
         plan(hang("worker.0", at="worker.0/mark:born"), kill("core.0", at="worker.1/mark:born")), (), only=THERE,
         broken=(start_ends, no_orphans), play={"config": SOON}),
    Case("test_vllm_worker_is_asked_to_leave", "A worker gets SIGTERM, as where a system stops: its engine ends, told.",
         lambda value: _hit(terminate, value), (ends_once, health_is_true), each=_each("worker.0", "worker.1"),
         only=THERE),
    Case("test_vllm_core_is_asked_to_leave", "The core gets SIGTERM amid requests: each ends.",
         lambda value: _hit(terminate, value), (ends_once,), each=_each("core.0"), only=THERE),
    Case("test_vllm_worker_is_stopped", "A worker stands still: the step's time-out ends the engine, and callers "
         "are told; the workers of an engine that is over stay.",
         lambda value: _hit(stall, value), (ends_once, stall_is_told), each=_each("worker.0", "worker.1"), only=THERE,
         broken=(no_orphans,)),
    Case("test_vllm_frontend_is_killed", "The caller's process is killed: core and workers live on without it.",
         lambda value: _hit(kill, value), (), each=_each("frontend.0"), only=THERE, broken=(no_orphans,)),
    Case("test_vllm_is_killed_at_rest", "Killed when all is done: whoever asks for the health is told.",
         lambda victim: plan(kill(victim, at="core.0/mark:executed", nth=20)), (health_is_true,),
         each=("core.0", "worker.1"), only=THERE, play={"options": Options(await_death_s=3.0)}),
), topology=tensor_parallel(2), workload=recorded("eight-growing")))

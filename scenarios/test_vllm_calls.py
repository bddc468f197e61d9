"""Calls of vLLM's core and workers beside its requests: what befalls one is its caller's to hear, and nobody else's.

A call is open while the plan hits who executes it; or it fails, is late, or has an answer that cannot be sent. What is
declared broken is a finding, as in `test_vllm`.
"""

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan, Until, kill, plan, stall
from scenarios.guarantees.all import (
    calls_answered,
    ends_once,
    health_is_true,
    nothing_without_cause,
    tokens_match_reference,
)
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.workloads import Action, add, recorded, utility

THERE = Only(world="vllm", reason="these are calls of vLLM's client")
EIGHT = recorded("eight-growing")
ALL = range(len(EIGHT.requests))


def rpc(name: str, *words: int, late_s: float | None = None) -> Action:
    """`late_s`: its time-out."""
    return utility("collective_rpc", name, late_s, *words)


def _behind(*calls: Action) -> dict[str, object]:
    """All requests, behind these calls, each of which is answered before the next one is made."""
    workload = EIGHT
    for call in calls:
        workload = workload.then(call, steps=0)
    return {"workload": workload.then(add(*ALL))}


def _amid(call: Action, *then: int) -> dict[str, object]:
    """One request that has made two steps, this call, and then these requests."""
    workload = EIGHT.then(add(0), steps=2).then(call, steps=0)
    return {"workload": workload.then(add(*then)) if then else workload}


def _during(call: Action) -> dict[str, object]:
    """This call while a request runs that has begun to answer."""
    return {"workload": msgspec.structs.replace(EIGHT, free=True).then(add(6), behind=("r6", 3)).then(call)}


def _beside(call: Action) -> dict[str, object]:
    """All requests and this call at once, and nobody counts steps."""
    return {"workload": msgspec.structs.replace(EIGHT, free=True).then(add(*ALL), call)}


#: Two steps, of two calls each, and then the one that was asked for.
_THEN = 5

globals().update(family(__name__, (
    Case("test_vllm_call_fails_alone", "All workers fail a call: its caller is told why, and requests are served.",
         Plan(), (calls_answered, tokens_match_reference), only=THERE, play=_amid(rpc("fails", 1), *ALL[1:])),
    Case("test_vllm_first_request_behind_a_call_that_failed", "All workers fail a call before any request is made: "
         "what the first one asks of the workers is told of that failure, so it fails.", Plan(), (), only=THERE,
         play=_behind(rpc("fails", 1)), broken=(calls_answered,)),
    Case("test_vllm_call_is_open_when_its_core_dies", "The core is killed while its workers execute a call: the "
         "request that is open is told, and who waits for the call hears nothing.",
         plan(kill("core.0", at="worker.0/mark:executing", nth=_THEN)), (ends_once, health_is_true), only=THERE,
         play=_amid(rpc("told", 1)), broken=(calls_answered,)),
    Case("test_vllm_call_is_open_when_its_worker_dies", "A worker is killed while it executes a call: all are told.",
         plan(kill("worker.1", at="worker.1/mark:executing", nth=_THEN)), (ends_once, calls_answered, health_is_true),
         only=THERE, play=_amid(rpc("told", 1))),
    Case("test_vllm_pause_is_open_when_a_worker_dies", "A pause waits for what runs when a worker is killed: the "
         "request is told, and who waits for the pause hears nothing.",
         plan(kill("worker.1", at="core.0/mark:scheduled", nth=25)), (ends_once, health_is_true), only=THERE,
         play=_during(utility("pause_generation", "wait")), broken=(calls_answered,)),
    Case("test_vllm_call_is_late", "A worker stands still for longer than a call may take: its caller is told so, and "
         "the next call is given the answer to that one.",
         plan(stall("worker.1", at="worker.1/mark:executing", until=Until(seconds=0.6))), (), only=THERE,
         play=_behind(rpc("told", 1, late_s=0.2), rpc("told", 2)), broken=(calls_answered,)),
    Case("test_vllm_call_behind_one_that_failed", "All workers fail a call, and the next call is told of it, too.",
         Plan(), (tokens_match_reference,), only=THERE, play=_behind(rpc("fails", 1), rpc("told", 2)),
         broken=(calls_answered,)),
    Case("test_vllm_call_fails_in_two_stages", "The same of two stages: the next step reads that failure, and ends the "
         "engine.", Plan(), (), only=THERE, play={**_behind(rpc("fails", 1)), "topology": tensor_parallel(1, pp=2)},
         broken=(calls_answered, nothing_without_cause)),
    Case("test_vllm_answer_cannot_be_sent", "What the workers answer cannot be sent: neither that call nor any request "
         "beside it hears anything more.", Plan(), (), only=THERE, play=_beside(rpc("odd")),
         broken=(calls_answered, ends_once)),
    Case("test_vllm_is_closed_amid_a_request", "The engine is shut down while a request runs: its core ends it "
         "and says so, and who waits for it hears nothing.", Plan(), (), only=THERE,
         play=_during(utility("shutdown")), broken=(ends_once,)),
), topology=tensor_parallel(2), workload=EIGHT))

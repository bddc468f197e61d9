"""vLLM's HTTP server, by streams of completions: what its clients hear of what befalls its engine, or of each other.

What is declared broken is a finding, as in `test_vllm`.
"""

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan, kill, plan, stall
from scenarios.guarantees.all import (
    bad_request_isolated,
    ends_once,
    health_is_true,
    nothing_without_cause,
    stall_is_told,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import abort, add, oddly, recorded, utility

THERE = Only(world="vllm", reason="this is vLLM's server")
EIGHT = recorded("eight-growing")
#: Two that cannot be sent to the core, and then one that could be.
TWICE = msgspec.structs.replace(oddly(EIGHT, 0, temperature="one", top_k="beyond 64 bits"), free=True).then(
    add(0, name="bad-1"), behind=("bad-1", 99)).then(add(0, name="bad-2"), behind=("bad-2", 99)).then(add(1))

#: One client says what it will send and no more, others are served, it goes away, and one more is served.
HALF = msgspec.structs.replace(EIGHT, free=True).then(utility("begin_a_request"), add(*range(7)),
                                                          behind=("r6", 99)).then(
    utility("leave_amid_a_request"), add(7))
globals().update(family(__name__, (
    Case("test_vllm_server_is_calm", "Nothing goes wrong: eight streams, each with the stand-in's tokens.", Plan(),
         (tokens_match_reference, tokens_in_order), only=THERE),
    Case("test_vllm_server_loses_its_engine", "A process of the engine is killed amid streams: each client is told, "
         "and so is who asks for the health.", lambda victim: plan(kill(victim, at="core.0/mark:scheduled", nth=6)),
         (ends_once, health_is_true), each=("core.0", "worker.1"), only=THERE),
    Case("test_vllm_client_leaves_amid_its_answer", "One client goes away in the middle of its stream: the others read "
         "theirs to the end.", Plan(), (ends_once, tokens_match_reference), only=THERE, play={
             "workload": msgspec.structs.replace(EIGHT, free=True).then(add(*range(8)), behind=("r6", 3)).then(
                 abort("r6"))}),
    Case("test_vllm_client_leaves_amid_its_request", "One client sends the head of a request, is silent, and goes "
         "away: the others are served.", Plan(), (tokens_match_reference,), only=THERE, play={"workload": HALF}),
    Case("test_vllm_server_loses_a_worker_that_stands_still", "A worker stands still behind the server: the step's "
         "time-out ends the engine, and each client is told.", plan(stall("worker.1", at="core.0/mark:scheduled",
         nth=6)), (ends_once, stall_is_told), only=THERE),
    Case("test_vllm_server_counts_what_it_never_sent", "Two requests that cannot be sent to the core have failed: with "
         "room for two, all that come later are refused.", Plan(), (), only=THERE, play={
             "config": lab_config(limits={"max_requests": 2}), "workload": TWICE},
         broken=(bad_request_isolated, nothing_without_cause)),
), topology=tensor_parallel(2), workload=EIGHT, options=Options(over_http=True)))

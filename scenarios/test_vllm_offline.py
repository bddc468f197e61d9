"""vLLM's `LLM`: a program without an event loop, which generates and waits, and an engine that something befalls.

It has no other word of its engine's end than an error of the call in which it waits. What is declared broken is a
finding, as in `test_vllm`.
"""

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Fault, Plan, kill, plan
from scenarios.guarantees.all import (
    calls_answered,
    death_is_told,
    ends_once,
    start_ends,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.workloads import add, generated, oddly, recorded, utility

THERE = Only(world="vllm", reason="this is vLLM's LLM")
EIGHT = recorded("eight-growing")
MOMENTS = {"prefill": ("core.0/mark:executed", 1), "decode": ("core.0/mark:scheduled", 6)}
TOLD = (ends_once, death_is_told)


def _hit(make: type[Fault] | object, value: str) -> Plan:
    """`value`: "worker.1 in decode"."""
    victim, _, moment = value.partition(" in ")
    site, nth = MOMENTS[moment]
    return plan(make(victim, at=site, nth=nth))  # type: ignore[operator]


def _each(*victims: str) -> tuple[str, ...]:
    return tuple(f"{victim} in {moment}" for victim in victims for moment in MOMENTS)


#: One that cannot be sent, and then, by another call, one that could be.
AGAIN = msgspec.structs.replace(oddly(EIGHT, 0, seed="beyond 64 bits"), free=True).then(
    add(0), behind=("r0", 99)).then(add(1))

globals().update(family(__name__, (
    Case("test_vllm_program_is_served", "Nothing goes wrong: all that was asked for is given.", Plan(),
         (tokens_match_reference,), only=THERE),
    Case("test_vllm_program_waits_for_workers", "A worker is killed while a program waits: that ends its wait.",
         lambda value: _hit(kill, value), TOLD, each=_each("worker.1"), only=THERE),
    Case("test_vllm_program_waits_for_a_core", "The core is killed while a program waits: it waits for ever, though "
         "its client has noted the death.", _hit(kill, "core.0 in decode"), (), only=THERE, broken=TOLD),
    Case("test_vllm_program_starts_and_a_worker_is_killed", "A worker is killed before the weights are read: the start "
         "ends.", plan(kill("worker.1", at="worker.1/mark:loading")), (start_ends,), only=THERE),
    Case("test_vllm_program_asks_and_the_core_is_killed", "The core is killed while its workers execute a program's "
         "call: it waits for ever.", plan(kill("core.0", at="worker.0/mark:executing")), (), only=THERE,
         play={"workload": EIGHT.then(utility("collective_rpc", "told", None, 1))}, broken=(calls_answered,)),
    Case("test_vllm_program_goes_on_after_an_error", "A call of generate has failed of a request that cannot be sent: "
         "the next one waits for that request for ever.", Plan(), (), only=THERE, play={"workload": AGAIN},
         broken=(ends_once,)),
), topology=tensor_parallel(2), workload=generated("eight-growing"), options=Options(synchronous=True)))

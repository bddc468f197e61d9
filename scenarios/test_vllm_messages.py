"""vLLM's own messages between its frontend and its core, each lost, late, doubled, changed or cut off on its way.

They pass a relay of the lab's. Judged is what vLLM promises of that, which is little: it watches processes, not
messages. What is declared broken is a finding: the same on every play of that version.
"""

from engine.topology import tensor_parallel
from faults.plan import Plan, drop, plan
from scenarios.guarantees.all import (
    ends_once,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.workloads import recorded

THERE = Only(world="vllm", reason="these are vLLM's messages")
DEATH = {"type": "ENGINE_CORE_DEAD"}

globals().update(family(__name__, (
    Case("test_vllm_calm_relayed", "Nothing goes wrong through the relay: all is as without it.", Plan(),
         (ends_once, tokens_match_reference, tokens_in_order), only=THERE, play={"options": Options(relayed=True)}),
    Case("test_vllm_request_is_lost", "A request never comes to the core: the others end.",
         plan(drop("frontend.0->core.0/requests", match={"type": "ADD"}, nth=3)), (), only=THERE),
), topology=tensor_parallel(2), workload=recorded("eight-mixed")))

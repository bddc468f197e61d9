"""vLLM's own messages between its frontend and its core, each lost, late, doubled, changed or cut off on its way.

They pass a relay of the lab's. Judged is what vLLM promises of that, which is little: it watches processes, not
messages, so who waits for a lost one waits for ever; here callers give such requests up. What is declared broken is a
finding: the same on every play of that version.
"""

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan, cut, drop, kill, plan, stall
from scenarios.guarantees.all import (
    death_is_told,
    ends_once,
    health_is_true,
    start_ends,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.history.play import Options
from scenarios.lab.catalogue import Only
from scenarios.lab.family import FATES, Case, family, fated
from scenarios.lab.settings import lab_config
from scenarios.workloads import abort, add, recorded, utility

THERE = Only(world="vllm", reason="these are vLLM's messages")
REQUESTS, OUTPUTS = "frontend.0->core.0/requests", "core.0->frontend.0/outputs"
ANNOUNCED = "core.0->frontend.0/requests"
HELLO, INIT = "core.0->frontend.0/handshake", "frontend.0->core.0/handshake"
ADD, ABORT, NOTICE = {"type": "ADD"}, {"type": "ABORT"}, {"type": "ENGINE_CORE_DEAD"}
#: More than any message has: all of it passes before the connection ends.
WHOLE = 1 << 20
#: What has no end by then is given up by its caller.
GIVEN_UP = {"workload": recorded("eight-growing").then(add(*range(8)), steps=70).then(abort(*range(8)))}
#: A request is aborted amid the others' tokens, and a call follows when all is done.
ABORTED = {"workload": recorded("eight-growing").then(add(*range(8)), steps=4).then(abort(6), steps=70).then(
    utility("reset_prefix_cache"))}
#: A start that is stuck is seen so sooner.
SOON = {"config": lab_config(bounds={"startup_s": 8.0})}
#: Of the handshake, by what it is called there.
GREETINGS = {"HELLO": (HELLO, 1), "INIT": (INIT, 1), "READY": (HELLO, 2), "announcement": (ANNOUNCED, 1)}


def _greeting(value: str) -> Plan:
    """`value`: "HELLO doubled"."""
    word, _, fate = value.partition(" ")
    edge, nth = GREETINGS[word]
    return plan(FATES[fate](edge, nth=nth))


def _cut(edge: str, nth: int, passes: int) -> Plan:
    """`passes`: bytes of that message."""
    return plan(msgspec.structs.replace(cut(edge, nth=nth), byte=passes))


globals().update(family(__name__, (
    Case("test_vllm_calm_relayed", "Nothing goes wrong through the relay: all is as without it.", Plan(),
         (tokens_match_reference, tokens_in_order), only=THERE, play={"options": Options(relayed=True)}),
    Case("test_vllm_request_is", "One request on its way to the core: whose it is may wait, others are served.",
         fated(REQUESTS, match=ADD, nth=3), (), each=("lost", "doubled"), only=THERE, play=GIVEN_UP),
    Case("test_vllm_output_is", "One message of outputs: nobody numbers them, so what is in it is missed by nobody.",
         fated(OUTPUTS, nth=8), (), each=("lost", "doubled"), only=THERE, play=GIVEN_UP),
    Case("test_vllm_output_cannot_be_read", "The client cannot read a message: all that it serves fails.",
         fated(OUTPUTS, nth=8), (), each=("cut short",), only=THERE),
    Case("test_vllm_abort_is", "An ABORT: its caller has gone, nothing else changes.", fated(REQUESTS, match=ABORT),
         (), each=("lost", "late"), only=THERE, play=ABORTED),
    Case("test_vllm_connection_for_requests_is_cut", "A connection ends behind the last message that the core is sent "
         "before all is done.", _cut(REQUESTS, 11, WHOLE), (tokens_match_reference,), only=THERE),
    Case("test_vllm_connection_for_outputs_is_cut", "A connection ends behind so many bytes of a message of outputs, "
         "and is made again.", lambda passes: _cut(OUTPUTS, 5, passes), (), each=(9, WHOLE), only=THERE, play=GIVEN_UP),
    Case("test_vllm_death_notice_is", "The core says that it dies, and nobody hears it so: the end of its process "
         "tells it, too.", lambda value: plan(kill("worker.1", at="core.0/mark:scheduled", nth=5), FATES[value](
             OUTPUTS, match=NOTICE)), (ends_once, death_is_told, health_is_true), each=("lost", "late"),
         only=THERE),
    Case("test_vllm_core_is_killed_at_a_message", "A core is killed as a message of it, or to it, is under way.",
         lambda site: plan(kill("core.0", at=site, nth=6)), (ends_once, death_is_told, health_is_true),
         each=(f"{REQUESTS}:receive", f"{OUTPUTS}:send", f"{OUTPUTS}:receive"), only=THERE),
    Case("test_vllm_greeting_is", "A word of the start, late or twice: the start ends, one way or the other.",
         _greeting, (start_ends,), each=("HELLO late", "HELLO doubled", "INIT cut short", "READY doubled",
                                         "announcement cut short"), only=THERE),
    Case("test_vllm_greeting_is_lost", "A word of the start is lost: its time-out is documented, and bounds only what "
         "comes after that word, so the start waits.", _greeting, (), each=("HELLO lost", "READY lost"),
         only=THERE, broken=(start_ends,), play=SOON),
    Case("test_vllm_announcement_is_lost", "The core's first word on its socket is lost: the documented time-out "
         "ends the start.", plan(drop(ANNOUNCED)), (start_ends,), only=THERE, play=SOON),
    Case("test_vllm_start_is_stuck", "A worker stands still while it loads: the documented time-out of a start does "
         "not end it.", lambda victim: plan(stall(victim, at=f"{victim}/mark:loading")), (),
         each=("worker.0",), only=THERE, broken=(start_ends,), play=SOON),
), topology=tensor_parallel(2), workload=recorded("eight-growing")))

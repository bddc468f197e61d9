"""Large buffers of a message travel as frames of their own, behind its body: calm, lost, swapped, cut short, changed.

A prompt is a buffer of its request; what a call is given and answers may have several.
"""

from __future__ import annotations

import msgspec

from engine.topology import data_parallel, tensor_parallel
from faults.plan import Plan, corrupt, cut, omit, plan, swap, truncate
from scenarios.guarantees.all import (
    bad_frame_isolated,
    blocks_conserved,
    calls_answered,
    client_routed,
    ends_once,
    frames_intact,
    large_apart,
    lost_request_is_bounded,
    nothing_left_behind,
    served_in_turn,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, recorded, utility

REQUESTS, OUTPUTS = "frontend.0->core.0/requests", "core.0->frontend.0/outputs"
SMALL = {"own_frame_bytes": 64}
#: For plans whose losses only a request's own time-out can end.
SOON = lab_config(sockets=SMALL, bounds={"request_s": 1.2})
#: Two buffers of one length, which nothing but what they hold tells apart.
TWO = [list(range(100, 120)), list(range(200, 220))]
PAIR_OF_BUFFERS = recorded("eight-mixed").then(add(0, 1, 2), utility("ping", TWO), steps=3).then(
    add(3, 4, 5), utility("ping", TWO), steps=2).then(add(6, 7))
#: Of so many numbers that they travel without a copy.
LARGE = list(range(17_000))
NUMBERS = list(range(20))
KINDS = [NUMBERS, ["text"] * 20, {"some": NUMBERS, "more": [NUMBERS, {"of": NUMBERS}]}, [1 << 40] * 20,
         [[[[[[[NUMBERS, [NUMBERS]]]]]]]], [*NUMBERS, "text"], NUMBERS[:16], NUMBERS[:15]]
MANY = [NUMBERS] * 70
THE_CALL = {"type": "UTILITY", "method": "ping"}
ITS_ANSWER = {"utility_output.result": [[], []]}
A_PROMPT = {"type": "ADD"}
CALM = (tokens_match_reference, tokens_in_order, served_in_turn, blocks_conserved, nothing_left_behind)
ALONE = (bad_frame_isolated, blocks_conserved, nothing_left_behind)
ENDS = (*ALONE, ends_once)

globals().update(family(__name__, (
    Case("test_prompts_travel_beside_their_requests",
         "Each prompt of 16 tokens and more is a frame of its own; short ones stay in the body.",
         Plan(), CALM),
    Case("test_prompts_of_two_clients_travel_beside_their_requests",
         "The same of two clients that share two cores, over tcp.",
         Plan(), (*CALM, client_routed), play={
             "topology": data_parallel(2, tp=1, clients=2, coordinated=True),
             "config": lab_config(sockets={**SMALL, "transport": "tcp"})}),
    Case("test_calls_and_answers_have_buffers",
         "What a call is given, and what it answers, has two buffers: they come back as they were.",
         Plan(), (*CALM, calls_answered), play={"workload": PAIR_OF_BUFFERS}),
    Case("test_call_has_values_of_all_kinds",
         "Texts, maps, numbers too large for a buffer, and lists in lists: what is large among them travels beside it.",
         Plan(), (*CALM, calls_answered, large_apart), play={
             "workload": recorded("eight-mixed").then(add(*range(8)), utility("ping", KINDS), steps=3).then()}),
    Case("test_call_has_more_buffers_than_a_message_may_have",
         "What is beyond stays in the body.",
         Plan(), (*CALM, calls_answered, large_apart), play={
             "workload": recorded("eight-mixed").then(add(*range(8)), utility("ping", MANY), steps=3).then()}),
    Case("test_buffers_travel_without_a_copy",
         "Numbers of 68 KB each way, many at once: each buffer lives until the socket has sent it.",
         Plan(), (frames_intact, tokens_match_reference, nothing_left_behind),
         play={"workload": recorded("pair").then(add(0, 1), utility("ping", LARGE, times=12), steps=2).then()}),
    Case("test_prompt_is_lost_beside_its_request",
         "The frame of one prompt never arrives: that request fails at once, by name, and the others are served.",
         plan(omit(REQUESTS, nth=3, match=A_PROMPT)), ENDS),
    Case("test_prompt_and_request_are_swapped",
         "A prompt comes in the place of its request's body: nobody can tell whose it is, and its caller gives it up.",
         plan(swap(REQUESTS, nth=3, match=A_PROMPT)), (*ENDS, lost_request_is_bounded)),
    Case("test_prompt_is_cut_short",
         "A prompt loses its end, at whole numbers and between them: those requests fail at once, by name.",
         plan(truncate(REQUESTS, nth=1, byte=400, match=A_PROMPT), truncate(REQUESTS, nth=3, byte=61, match=A_PROMPT)),
         ENDS),
    Case("test_prompt_is_changed_on_its_way",
         "One byte of a prompt is flipped: what its body says of it does not fit, and nobody is served another prompt.",
         plan(corrupt(REQUESTS, nth=3, match=A_PROMPT), corrupt(REQUESTS, nth=4, byte=0, match=A_PROMPT)), ENDS),
    Case("test_buffers_of_a_call_are_swapped",
         "Two buffers of one length change places: the call is dropped and told of, and nobody answers the wrong one.",
         plan(swap(REQUESTS, match=THE_CALL)), ALONE, play={"workload": PAIR_OF_BUFFERS}),
    Case("test_buffer_of_a_call_is_lost",
         "One of a call's two buffers never arrives.",
         plan(omit(REQUESTS, match=THE_CALL)), ALONE, play={"workload": PAIR_OF_BUFFERS}),
    Case("test_buffers_of_an_answer_are_swapped",
         "Two buffers of an answer change places: its client drops it, and who asked is told in time.",
         plan(swap(OUTPUTS)), ALONE, play={"workload": PAIR_OF_BUFFERS}),
    Case("test_buffer_of_an_answer_is_lost",
         "One of an answer's two buffers never arrives.",
         plan(omit(OUTPUTS, match=ITS_ANSWER)), ALONE, play={"workload": PAIR_OF_BUFFERS}),
    Case("test_buffer_of_an_answer_is_cut_short",
         "One of an answer's two buffers loses its end.",
         plan(truncate(OUTPUTS, match=ITS_ANSWER)), ALONE, play={"workload": PAIR_OF_BUFFERS}),
    Case("test_connection_is_cut_amid_the_frames_of_a_request",
         "A connection ends when the body of a request has passed and half of its prompt: no part of it arrives.",
         plan(msgspec.structs.replace(cut(REQUESTS, nth=4), byte=150)), (lost_request_is_bounded, ends_once)),
    Case("test_outputs_without_a_frame",
         "A message of outputs comes without its one frame: who misses tokens is told so.",
         plan(omit(OUTPUTS, nth=12)), (*ENDS, lost_request_is_bounded)),
), topology=tensor_parallel(1), workload=recorded("eight-mixed"), config=SOON))

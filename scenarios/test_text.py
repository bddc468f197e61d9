"""What callers read and what they may ask: text, stop strings, and requests that cannot be served."""

from __future__ import annotations

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan, delay, duplicate, plan, reorder, until
from scenarios.guarantees.all import (
    bad_request_isolated,
    ends_once,
    text_is_of_tokens,
    tokens_in_order,
    tokens_match_reference,
)
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, asked, recorded

OUTPUTS = "core.0->frontend.0/outputs:receive"
TOLD = (text_is_of_tokens, tokens_in_order, tokens_match_reference)
#: Two of them are asked for all that is said, also what is no text: one that such a token ends, one that it does not.
#: One ends before the word that is complete first, though another one that the same token completes begins sooner; and
#: one may have come to the first letter of a stop word, or to its eighth, which is the same.
TEXTS = asked(asked(asked(asked(recorded("texts"), 7, skip_special_tokens=False), 14, skip_special_tokens=False),
                    0, stop=["r token", "tok"]), 3, stop=["eno#", "#no", ". Darius is our#", " Greta is#", "r reader#"])

globals().update(family(__name__, (
    Case("test_text_is_shown_as_it_comes",
         "Prompts given as text, stop strings across tokens, stop tokens, ends of sequence, halves of characters.",
         Plan(), TOLD),
    Case("test_text_survives_doubled_and_swapped_outputs",
         "Messages of outputs arrive twice, in each other's place, or behind ten others: the text is the same.",
         plan(delay(OUTPUTS, nth=5, until=until(seconds=0.05)), duplicate(OUTPUTS, nth=6), duplicate(OUTPUTS, nth=8),
              reorder(OUTPUTS, nth=10), reorder(OUTPUTS, nth=15),
              delay(OUTPUTS, nth=18, until=until(seconds=0.05))), TOLD),
), topology=tensor_parallel(1), workload=TEXTS.then(add(*range(15))),
    config=lab_config(skip_tokenizer_init=False)))


def test_requests_that_no_engine_can_serve(world):
    """Prompts and parameters that no model could serve are refused by name and never sent; the largest are served."""
    run = world.play(
        topology=tensor_parallel(1), config=lab_config(scheduler={"max_model_len": 34}),
        workload=recorded("unservable").then(add(*range(20)), add(0)))
    run.holds(bad_request_isolated, tokens_match_reference, ends_once)


def test_priorities_that_no_engine_can_serve(world):
    """Priorities that are none, and one where nobody is served by it, are refused by name and never sent."""
    pair = recorded("pair")
    refused = [("high", "priority must be a whole number"), (1 << 63, "priority must be a whole number"),
               (True, "priority must be a whole number"), (1, "the scheduler's policy is 'fcfs'")]
    asked = [msgspec.structs.replace(pair.requests[0], index=place, priority=priority, unservable=why)
             for place, (priority, why) in enumerate(refused, len(pair.requests))]
    run = world.play(
        topology=tensor_parallel(1), config=lab_config(),
        workload=msgspec.structs.replace(pair, requests=[*pair.requests, *asked]).then(add(*range(6)), add(0)))
    run.holds(bad_request_isolated, tokens_match_reference, ends_once)

"""Requests of vLLM's with a value of another kind, or size, than a field is documented to have: one amid eight others.

It may be served or refused. It may not hang, nor be felt by any other. Where the stand-in's workers would be the first
to mind a value, there is no row: they draw no tokens.
"""

import msgspec

from engine.topology import tensor_parallel
from faults.plan import Plan
from scenarios.guarantees.all import bad_request_isolated, ends_once, nothing_without_cause, tokens_match_reference
from scenarios.lab.catalogue import Only
from scenarios.lab.family import Case, family
from scenarios.lab.settings import lab_config
from scenarios.workloads import add, oddly, recorded

THERE = Only(world="vllm", reason="these are fields of vLLM's requests")
EIGHT = recorded("eight-growing")
BAD, *GOOD = range(len(EIGHT.requests))


def _amid(field: str, kind: str) -> dict[str, object]:
    """The others, one that has this field of this kind, and the others once more."""
    workload = oddly(EIGHT, BAD, **{field: kind}).then(add(*GOOD[:4]), steps=3).then(add(BAD), steps=2)
    return {"workload": workload.then(add(*GOOD[4:]))}


#: Two that cannot be sent, and then one that could be.
TWICE = msgspec.structs.replace(oddly(EIGHT, BAD, seed="beyond 64 bits"), free=True).then(
    add(BAD, name="bad-1"), behind=("bad-1", 99)).then(add(BAD, name="bad-2"), behind=("bad-2", 99)).then(add(1))


def _named(field: str, kind: str) -> str:
    return "_".join((field, *kind.split()))


ALONE = (ends_once, bad_request_isolated, tokens_match_reference)
#: Told to its caller alone.
REFUSED = (("seed", "beyond 64 bits"), ("extra_args", "a table of objects"), ("prompt_token_ids", "an empty list"),
           ("data_parallel_rank", "a negative number"))
#: What only the core's decoder minds: it reads no message any more, and all that comes later waits for ever. More of
#: them, and of the others, are played by `tests/scenarios/worlds/vllm/test_fields.py`.
DEAF = (("seed", "a fraction"), ("cache_salt", "a number"))

globals().update(family(__name__, (
    *(Case(f"test_vllm_refuses_{_named(*row)}", f"A request whose {row[0]} is {row[1]} is refused, and no other is.",
           Plan(), ALONE, only=THERE, play=_amid(*row)) for row in REFUSED),
    *(Case(f"test_vllm_is_deaf_by_{_named(*row)}", f"A request whose {row[0]} is {row[1]} hears nothing, nor does any "
           "that is sent after it.", Plan(), (), only=THERE, play=_amid(*row), broken=(ends_once,)) for row in DEAF),
    Case("test_vllm_counts_what_it_never_sent", "Two requests that cannot be sent have failed: with room for two, all "
         "that come later are refused.", Plan(), (), only=THERE, play={
             "config": lab_config(limits={"max_requests": 2}),
             "workload": TWICE}, broken=(bad_request_isolated, nothing_without_cause)),
), topology=tensor_parallel(2), workload=EIGHT))

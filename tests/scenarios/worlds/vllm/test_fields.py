"""Every field of a request of vLLM's with every kind of value that was tried: it is answered, or none is any more.

    PRODUCTS=all pytest tests/scenarios/worlds/vllm/test_fields.py        all of them; else as many as `SAMPLED` says
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from engine.topology import tensor_parallel
from scenarios.guarantees.all import bad_request_isolated, ends_once
from scenarios.guarantees.judge import judge
from scenarios.history.verdicts import Verdict
from scenarios.workloads.workload import add, oddly, recorded
from scenarios.worlds.vllm.environment import VARIABLE
from scenarios.worlds.vllm.world import VllmWorld

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter")
SAMPLED = 4
#: Refused, failed or served, and no other request feels it.
HEARD = {
    "temperature": ("a text",), "top_p": ("a text",), "top_k": ("beyond 64 bits", "beyond the vocabulary"),
    "seed": ("beyond 64 bits", "nothing", "a negative number"), "max_tokens": ("beyond 64 bits", "a negative number"),
    "stop_token_ids": ("a list of fractions", "a list beyond the vocabulary"),
    "logit_bias": ("a table of objects",), "extra_args": ("a table of objects", "half a character"),
    "allowed_token_ids": ("an empty list", "a list beyond the vocabulary"),
    "prompt_token_ids": ("an empty list", "a list of texts", "a list beyond the vocabulary", "a number", "nothing",
                         "a list of a negative number"),
    "cache_salt": ("half a character", "a long text", "an empty list"), "priority": ("beyond 64 bits",),
    "data_parallel_rank": ("a negative number", "a number", "a text"), "lora_request": ("a text",),
}
#: The core reads no message any more.
DEAF = {
    "temperature": ("a truth",), "seed": ("a fraction", "a text", "a truth"), "max_tokens": ("a truth",),
    "min_tokens": ("a truth",), "ignore_eos": ("a text", "a number", "nothing"), "n": ("a truth",),
    "stop_token_ids": ("a list of truths",), "allowed_token_ids": ("a list of truths",),
    "logit_bias": ("a table of texts",), "extra_args": ("a table by numbers",),
    "prompt_token_ids": ("a list of fractions", "a list of truths"), "cache_salt": ("a number",),
    "priority": ("a text", "a fraction", "nothing"), "session_id": ("a number",), "kv_hints": ("a text",),
    "reasoning_ended": ("a text", "a number"),
}
EVERY_ONE = [(field, kind, deaf) for deaf, table in ((False, HEARD), (True, DEAF)) for field, kinds in table.items()
             for kind in kinds]
CHOSEN = EVERY_ONE if os.environ.get("PRODUCTS") == "all" else Random(5).sample(EVERY_ONE, SAMPLED)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorld]:
    world = VllmWorld(Path(tmp_path_factory.mktemp("vllm")))
    yield world
    world.close()


@pytest.mark.parametrize(("field", "kind", "deaf"), CHOSEN, ids=lambda value: str(value).replace(" ", "-"))
def test_a_field_of_another_kind(world: VllmWorld, field: str, kind: str, deaf: bool) -> None:
    workload = oddly(recorded("eight-mixed"), 0, **{field: kind}).then(add(1, 2), steps=3).then(add(0), steps=1)
    run = world.play(topology=tensor_parallel(2), workload=workload.then(add(3, 4))).runs[0]
    cells = judge(run.play, run.lab, run.journals, only=[ends_once.id, bad_request_isolated.id]).cells
    assert [cell.guarantee for cell in cells if cell.verdict is Verdict.BROKEN] == [ends_once.id] * deaf, cells

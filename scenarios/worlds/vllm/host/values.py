"""Values of another kind, or size, than a field of a request is documented to have (in vLLM's processes).

A workload names the field and the kind of value (`scenarios.workloads.workload.oddly`); what is sent is made here, by
the process that calls vLLM, as a caller's own mistake would be.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

from engine.messages import SamplingParams

#: Fields of our parameters that vLLM has under the same names.
_PARAMS = ("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "ignore_eos")


class Odd:
    """What no encoder takes."""


#: By the name that a workload gives it.
KINDS: dict[str, Any] = {
    "a fraction": 1.5, "one": 1.0, "a text": "x", "a truth": True, "a number": 7, "nothing": None,
    "a negative number": -1,
    "beyond 64 bits": 1 << 70, "beyond the vocabulary": 1 << 40, "an object": Odd(), "half a character": "\ud800",
    "a long text": "x" * (1 << 20), "a list of fractions": [1.5, 2.5], "a list of truths": [True, False],
    "a list of texts": ["5"], "a list beyond the vocabulary": [1 << 40], "a list of a negative number": [-1],
    "an empty list": [], "a table by numbers": {1: 2}, "a table of objects": {"a": Odd()},
    "a table of fractions of tokens": {1.5: 1.0}, "a table of texts": {4: "x"},
}
#: Fields of the prompt, and arguments of `generate`; all others are parameters. Its id is what the lab knows it by.
_OF_PROMPT = frozenset({"prompt_token_ids", "cache_salt"})
_OF_CALL = frozenset({"priority", "session_id", "data_parallel_rank", "lora_request", "reasoning_ended", "kv_hints"})


class Given(NamedTuple):
    """What a caller gives: fields of the parameters and of the prompt, arguments of `generate`."""

    params: dict[str, Any]
    prompt: dict[str, Any]
    call: dict[str, Any]


def given(params: SamplingParams | dict[str, Any]) -> Given:
    """Raises KeyError for a kind that nobody knows."""
    kinds: dict[str, str] = {}
    if isinstance(params, dict):
        kinds, params = params["kinds"], msgspec.convert(params["params"], SamplingParams)
    values = {field: KINDS[kind] for field, kind in kinds.items()}
    usual = {name: getattr(params, name) for name in _PARAMS}
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in usual.items()}
    return Given({"detokenize": False, **usual, **_only(values, values.keys() - _OF_PROMPT - _OF_CALL)},
                 _only(values, _OF_PROMPT), _only(values, _OF_CALL))


def _only(values: dict[str, Any], fields: Set[str]) -> dict[str, Any]:
    return {field: value for field, value in values.items() if field in fields}

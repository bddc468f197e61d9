"""Values of another kind: the field that is named gets it, and all others what the recording says."""

from __future__ import annotations

import pytest

from scenarios.workloads.workload import oddly, recorded
from scenarios.worlds.vllm.host.values import KINDS, given


def test_a_field_of_each_sort_gets_what_is_named() -> None:
    request = oddly(recorded("pair"), 0, seed="a fraction", cache_salt="a number", priority="a text").requests[0]
    told = given(request.given)
    assert (told.params["seed"], told.prompt, told.call) == (1.5, {"cache_salt": 7}, {"priority": "x"})
    assert told.params["max_tokens"] == request.sampling_params["max_tokens"] and told.params["detokenize"] is False


def test_who_asks_for_nothing_odd_gives_what_is_recorded() -> None:
    request = oddly(recorded("pair"), 0, seed="a fraction").requests[1]
    told = given(request.given)
    assert (told.params["seed"], told.prompt, told.call) == (request.params.seed, {}, {})


def test_a_kind_that_nobody_knows_is_none() -> None:
    assert "a unicorn" not in KINDS
    with pytest.raises(KeyError):
        given(oddly(recorded("pair"), 0, seed="a unicorn").requests[0].given)

"""What a core takes over from the head of its group, and what it will not have otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import DataParallelConfig, EngineConfig
from engine.wire.adoption import MASTER_ADDRESS, SIZE, adopted, contradictions, parallel_config, with_adopted
from engine.wire.handshake import hash_of

OPTIONS = DataParallelConfig(load_balancing="hybrid", head_address="tcp://127.0.0.1:5000", size_local=2)
SPREAD = EngineConfig(model="m", data_parallel_size=4, data_parallel_rank=2, data_parallel=OPTIONS)


def test_an_engine_by_itself_agrees_on_its_sizes_and_how_several_would_belong_together() -> None:
    assert parallel_config(EngineConfig(model="m", tensor_parallel_size=2)) == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1, "coordinator": False,
            "lockstep": False, "wave_protocol": "new"}


def test_cores_that_several_start_agree_on_how_they_step_and_who_chooses_them() -> None:
    assert parallel_config(SPREAD) == {
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 4, "load_balancing": "hybrid",
        "lockstep": False, "coordinator": True, "sync_interval": 16, "wave_protocol": "new"}


def test_how_many_there_are_and_where_they_meet_is_the_head_s_to_say() -> None:
    mine = parallel_config(SPREAD)
    agreed = adopted(mine, {SIZE: 6, MASTER_ADDRESS: "ipc:///there", "sync_interval": 3, "unheard-of": 1})
    assert agreed == {**mine, SIZE: 6, MASTER_ADDRESS: "ipc:///there"}
    assert with_adopted(SPREAD, agreed).data_parallel_size == 6
    assert adopted(mine, {}) == mine


@pytest.mark.parametrize("name", [
    "tensor_parallel_size", "load_balancing", "lockstep", "sync_interval", "wave_protocol"])
def test_what_differs_is_named_with_both_values(name: str) -> None:
    mine = parallel_config(SPREAD)
    told = {**mine, name: "another"}
    assert contradictions(mine, told, "frontend.0") == f"{name} is {mine[name]!r} here, and 'another' of frontend.0"
    assert name in contradictions(told, mine, "frontend.0")


def test_all_that_differs_is_named_and_nothing_where_all_agree() -> None:
    mine = {"a": 1, "b": 2, "c": 3}
    assert contradictions(mine, {"a": 2, "b": 2, "c": 4}, "x") == "a is 1 here, and 2 of x; c is 3 here, and 4 of x"
    assert contradictions(mine, dict(mine), "x") == ""
    assert contradictions(mine, {"a": 1}, "x") == "", "one that is older does not speak of all"
    assert "d is None here" in contradictions(mine, {"d": 1}, "x")


VALUES = st.one_of(st.integers(0, 1 << 40), st.text(max_size=5), st.booleans())


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.randoms())
def test_a_hash_is_of_the_values_and_not_of_their_order(values, random) -> None:
    items = list(values.items())
    random.shuffle(items)
    assert hash_of(dict(items)) == hash_of(values)
    assert hash_of({**values, "one more": 1}) != hash_of(values)

"""Random plans are always playable, and the same seed gives the same plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from engine.topology import tensor_parallel
from faults.generate import fates_at, generate_plan
from faults.plan import Fate, PlanError, operation_of, plan_from_json, plan_to_json
from tests.faults.stage import TOPOLOGY


@given(some.integers(), some.integers(0, 20), some.integers(1, 4), some.integers(0, 2))
def test_every_plan_passes_its_own_check_and_survives_the_disk(seed, size, tp, subscribers):
    topology = tensor_parallel(tp, subscribers=subscribers)
    made = generate_plan(topology, seed, size)
    made.check(topology)
    assert len(made.faults) == size
    assert plan_from_json(plan_to_json(made)) == made == generate_plan(topology, seed, size)


def test_different_seeds_give_different_plans():
    assert len({plan_to_json(generate_plan(TOPOLOGY, seed, 3)) for seed in range(50)}) == 50


@given(some.integers(0, 1000))
def test_no_fault_asks_for_more_crossings_than_there_were(seed):
    sites = {"core.0/mark:step": 3, "core.0->frontend.0/outputs:receive": 2, "core.0/mark:idle": 0}
    made = generate_plan(TOPOLOGY, seed, 5, sites)
    assert sorted((fault.site, fault.nth) for fault in made.faults) == [
        ("core.0->frontend.0/outputs:receive", 1), ("core.0->frontend.0/outputs:receive", 2),
        ("core.0/mark:step", 1), ("core.0/mark:step", 2), ("core.0/mark:step", 3)]


def test_only_the_fates_asked_for_are_planted():
    made = generate_plan(TOPOLOGY, 1, 30, fates={Fate.DROP, Fate.KILL})
    assert {fault.fate for fault in made.faults} == {Fate.DROP, Fate.KILL}


def test_what_holds_is_let_go():
    for seed in range(30):
        for fault in generate_plan(TOPOLOGY, seed, 10, longest_s=0.2).faults:
            if fault.fate in (Fate.DELAY, Fate.STALL, Fate.HANG):
                assert fault.until is not None
                assert 0 < fault.until.seconds <= 0.2


def test_sooner_or_later_every_fate_and_every_operation_is_planted():
    faults = [fault for seed in range(800) for fault in generate_plan(TOPOLOGY, seed, 10).faults]
    assert {fault.fate for fault in faults} == set(Fate) - {Fate.PASS}
    assert {operation_of(fault.site) for fault in faults} == {operation_of(site) for site in TOPOLOGY.sites()}
    assert any(fault.victim for fault in faults)


def test_more_faults_than_crossings_is_an_error():
    with pytest.raises(PlanError, match="do not fit"):
        generate_plan(TOPOLOGY, 1, 4, {"core.0/mark:step": 3})


def test_ring_messages_cannot_be_dropped():
    assert Fate.DROP not in fates_at("core.0->worker.0/rpc:receive")
    assert Fate.DROP in fates_at("core.0->frontend.0/outputs:receive")

"""The judge counts crossings and nothing else decides."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SamplingParams, UtilityOutput
from engine.topology import Channel
from engine.wire.codec import Utility, encode_add, encode_outputs, encode_utility
from faults.damage import corrupted, swapped, truncated, without_last
from faults.generate import generate_plan
from faults.judge import Judge, is_over
from faults.match import decoded_of, matches
from faults.plan import (
    Fate,
    Fault,
    Plan,
    PlanError,
    corrupt,
    cut,
    delay,
    drop,
    kill,
    omit,
    operation_of,
    owner_of,
    plan,
    raises,
    swap,
    until,
)
from faults.sites import home_of
from tests.faults.stage import OUTPUTS, REQUESTS, TOPOLOGY

SITE = f"{OUTPUTS}:receive"


def fired(judge: Judge, site: str, times: int, decoded=None) -> list[str]:
    found = [judge.crossing(site, decoded) for _ in range(times)]
    return [fault.id if fault else "" for fault in found]


def test_a_fault_fires_at_its_nth_crossing_and_only_there():
    assert fired(Judge(plan(drop(OUTPUTS, nth=3)), "frontend.0"), SITE, 5) == ["", "", "f1", "", ""]


def test_times_means_so_many_crossings_in_a_row():
    assert fired(Judge(plan(drop(OUTPUTS, nth=2, times=3)), "frontend.0"), SITE, 5) == ["", "f1", "f1", "f1", ""]


def test_each_fault_of_a_site_counts_for_itself():
    judge = Judge(plan(drop(OUTPUTS, nth=1), drop(OUTPUTS, nth=3)), "frontend.0")
    assert fired(judge, SITE, 4) == ["f1", "", "f2", ""]


def test_of_two_faults_due_at_one_crossing_the_first_of_the_plan_wins():
    judge = Judge(plan(drop(OUTPUTS, nth=2), corrupt(OUTPUTS, nth=2)), "frontend.0")
    assert fired(judge, SITE, 3) == ["", "f1", ""]


def test_only_the_node_that_crosses_a_site_plays_its_faults():
    assert fired(Judge(plan(drop(OUTPUTS)), "core.0"), SITE, 2) == ["", ""]


def test_either_end_of_an_edge_may_play_the_cut_on_its_wire():
    site = f"{OUTPUTS}:wire"
    assert [fired(Judge(plan(cut(OUTPUTS)), node), site, 1) for node in ("core.0", "frontend.0", "worker.1")] == [
        ["f1"], ["f1"], [""]]


def test_a_site_of_a_later_life_is_played_in_that_life_only():
    site = "core.0@1->worker.1/rpc:receive"
    lives = plan(kill("worker.1", at=site))
    assert home_of(site) == ("worker.1", 1)
    assert [fired(Judge(lives, "worker.1", life), "core.0->worker.1/rpc:receive", 1) for life in (0, 1, 2)] == [
        [""], ["f1"], [""]]
    assert fired(Judge(lives, "worker.1@1"), site, 1) == ["f1"]


def test_a_site_without_a_life_means_the_first():
    assert fired(Judge(plan(drop(OUTPUTS)), "frontend.0", 1), SITE, 1) == [""]


def test_after_counts_only_crossings_behind_the_other_fault():
    first, second = drop(REQUESTS, nth=1), drop(OUTPUTS, nth=2)
    both = plan(first, msgspec.structs.replace(second, after="f1"))
    judge = Judge(both, "frontend.0")
    assert fired(judge, SITE, 3) == ["", "", ""]
    assert judge.awaited() == ("f1",)
    judge.notice("f1")
    assert judge.awaited() == ()
    assert fired(judge, SITE, 3) == ["", "f2", ""]


def test_the_crossing_at_which_a_fault_fires_does_not_count_for_those_after_it():
    both = plan(drop(OUTPUTS, nth=2), msgspec.structs.replace(drop(OUTPUTS), after="f1"))
    assert fired(Judge(both, "frontend.0"), SITE, 4) == ["", "f1", "f2", ""]


def test_match_counts_only_messages_with_these_values():
    judge = Judge(plan(drop(REQUESTS, nth=2, match={"type": "ABORT"})), "core.0")
    add, abort = [b"\x00", msgspec.msgpack.encode(["r", [1], {}])], [b"\x01", msgspec.msgpack.encode(["r"])]
    site = f"{REQUESTS}:receive"
    found = [judge.crossing(site, lambda m=message: decoded_of(Channel.REQUESTS, m))
             for message in (add, abort, add, abort, abort)]
    assert [bool(fault) for fault in found] == [False, False, False, True, False]


def test_a_message_is_decoded_only_where_a_fault_matches_on_it():
    def never():
        raise AssertionError("decoded")

    assert Judge(plan(drop(OUTPUTS, nth=9)), "frontend.0").crossing(SITE, never) is None


@pytest.mark.parametrize(("wanted", "holds"), [
    ({"outputs.0.request_id": "a-17"}, True),
    ({"outputs.request_id": "b-4"}, True),
    ({"outputs.request_id": "b*"}, True),
    ({"outputs.request_id": "c*"}, False),
    ({"outputs.new_token_ids": 8}, True),
    ({"outputs.1.new_token_ids": [8, 9]}, True),
    ({"outputs.5.request_id": "a-17"}, False),
    ({"step": 3, "engine_index": 0}, True),
    ({"step": 3, "engine_index": 1}, False),
    ({"nothing.of.it": None}, False),
])
def test_a_match_follows_dotted_names_through_structs_and_lists(wanted, holds):
    message = EngineCoreOutputs(outputs=[EngineCoreOutput("a-17", [7]), EngineCoreOutput("b-4", [8, 9])], step=3)
    assert matches(decoded_of(Channel.OUTPUTS, [msgspec.msgpack.encode(message)]), wanted) is holds


def test_a_request_matches_by_its_parameters():
    request = EngineCoreRequest("r1-77", [1, 2], SamplingParams(max_tokens=9))
    decoded = decoded_of(Channel.REQUESTS, [b"\x00", msgspec.msgpack.encode(request)])
    assert matches(decoded, {"type": "ADD", "request.request_id": "r1*", "request.sampling_params.max_tokens": 9})


@pytest.mark.parametrize("channel", list(Channel))
def test_bytes_that_are_no_message_match_nothing(channel):
    assert decoded_of(channel, [b"\x93\xff", b"\xc1"]) is None or channel is Channel.REQUESTS
    assert not matches(decoded_of(channel, [b"\x93\xff", b"\xc1"]), {"type": "ADD"})
    assert not matches(decoded_of(channel, []), {"type": "ADD"})


def test_corruption_changes_one_byte_of_the_last_frame_that_has_any():
    fault = corrupt(OUTPUTS, byte=1)
    assert corrupted([b"head", b"abc", b""], fault) == [b"head", b"a\x9dc", b""]
    assert corrupted([b"abc"], corrupt(OUTPUTS)) == [b"a\x9dc"]


def test_truncation_always_takes_something_away():
    assert truncated([b"head", b"abcd"], Fault(id="", site=SITE, fate=Fate.TRUNCATE)) == [b"head", b"ab"]
    assert truncated([b"abcd"], Fault(id="", site=SITE, fate=Fate.TRUNCATE, byte=99)) == [b"abc"]


def test_a_frame_is_lost_and_two_change_places():
    frames = [b"\x00", b"body", b"one", b"two"]
    assert without_last(frames) == [b"\x00", b"body", b"one"]
    assert swapped(frames) == [b"\x00", b"body", b"two", b"one"]
    assert without_last([b"only"]) == []
    assert frames == [b"\x00", b"body", b"one", b"two"]


def test_a_swap_counts_messages_of_two_frames_and_more():
    judge = Judge(plan(swap(OUTPUTS, nth=2)), "frontend.0")
    found = [judge.crossing(SITE, None, frames) for frames in (2, 1, 0, 3, 2)]
    assert [fault is not None for fault in found] == [False, False, False, True, False]


def test_frames_are_lost_and_swapped_where_a_message_may_have_some_beside_its_body():
    for fault in (omit(OUTPUTS), swap(OUTPUTS), omit(REQUESTS), swap(REQUESTS)):
        plan(fault).check(TOPOLOGY)
    for edge in ("core.0->frontend.0/requests", "core.0->frontend.0/handshake", "core.0->worker.1/rpc"):
        for fault in (omit(edge), swap(edge)):
            with pytest.raises(PlanError, match="cannot befall"):
                plan(fault).check(TOPOLOGY)


def test_a_message_matches_by_what_its_body_says():
    request = EngineCoreRequest("r1-77", list(range(40)), SamplingParams(max_tokens=9))
    decoded = decoded_of(Channel.REQUESTS, encode_add(request, 64))
    assert matches(decoded, {"type": "ADD", "request.request_id": "r1*", "request.prompt_token_ids": []})
    call = decoded_of(Channel.REQUESTS, encode_utility(Utility(0, 1, "ping", [list(range(40)), 3]), 64))
    assert matches(call, {"type": "UTILITY", "method": "ping", "args": [[], 3]})
    outputs = EngineCoreOutputs(utility_output=UtilityOutput(1, None, [b"x" * 64, 2]))
    assert matches(decoded_of(Channel.OUTPUTS, encode_outputs(outputs, 64)), {"utility_output.result": [[], 2]})


def test_a_hold_ends_at_the_crossing_it_waits_for_even_if_that_is_past():
    fault = delay(OUTPUTS, until=until(REQUESTS, 3))
    assert [is_over(fault, 0.0, 0.0, lambda site, n=n: n) for n in (2, 3, 4)] == [False, True, True]
    assert [is_over(delay(OUTPUTS, until=until(seconds=2.0)), 5.0, now, len) for now in (6.9, 7.0)] == [False, True]
    assert not is_over(Fault(id="", site=SITE, fate=Fate.HANG), 0.0, 1e9, len)


@given(some.integers(0, 10**6), some.lists(some.integers(0, 10**6), max_size=80))
def test_the_same_crossings_meet_the_same_fates(seed, picks):
    """Two judges of one plan agree, whatever the plan and the crossings."""
    random_plan = generate_plan(TOPOLOGY, seed, 8)
    sites = sorted({fault.site for fault in random_plan.faults}) + ["core.0/mark:step"]
    for node in map(str, TOPOLOGY.nodes):
        one, other = Judge(random_plan, node), Judge(random_plan, node)
        for pick in picks:
            site = sites[pick % len(sites)]
            assert one.crossing(site) is other.crossing(site)


@given(some.integers(0, 10**6))
def test_a_calm_walk_through_every_site_fires_every_fault_once(seed):
    random_plan = generate_plan(TOPOLOGY, seed, 6)
    found = []
    for node in map(str, TOPOLOGY.nodes):
        judge = Judge(random_plan, node)
        for site in TOPOLOGY.sites():
            if owner_of(site) == node and operation_of(site) != "wire":
                found += [fault.id for _ in range(9) if (fault := judge.crossing(site))]
    expected = sorted(fault.id for fault in random_plan.faults if operation_of(fault.site) != "wire")
    assert sorted(found) == expected


def test_an_empty_plan_only_counts():
    judge = Judge(Plan(), "core.0")
    assert fired(judge, SITE, 3) == ["", "", ""]
    assert judge.count(SITE) == 3


def test_a_raise_is_found_at_its_mark():
    judge = Judge(plan(raises("core.0", at="core.0/mark:step", nth=2)), "core.0")
    assert fired(judge, "core.0/mark:step", 3) == ["", "f1", ""]

"""What the members of a group are told, in both worlds: the same answers, and the name of whoever they wait for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  the processes are forked from this one: none of them has to import it

from engine.topology import Mark, consensus_sites, core, mark_site
from faults.plan import Fate, Fault, Plan, Until
from tests.contracts.consensus_worlds import Ask, Real, Told, Twin

#: A death is told within this, whatever the deadline. How soon it is on a quiet machine, tests/benchmarks measures.
DETECTION_S = 1.0
LONG_S, SHORT_S = 20.0, 0.5


@pytest.fixture(params=[Twin, Real], ids=["twin", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def befalls(rank: int, fate: Fate, nth: int = 2, **more: Any) -> Plan:
    """At its `nth` all-reduce."""
    return Plan((Fault(id="it", site=consensus_sites([core(rank)])[0], fate=fate, nth=nth, **more),))


def rounds(size: int, count: int = 3, **more: Any) -> dict[int, list[Ask]]:
    return {rank: [Ask(values=[rank + 1, turn], **more) for turn in range(count)] for rank in range(size)}


def answers(told: list[Told] | None) -> list[Any]:
    assert told is not None
    return [one.answer for one in told]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_members_get_the_same_answer_in_each_turn(world: Any, size: int) -> None:
    told = world.play(rounds(size, 5))
    total = size * (size + 1) // 2
    assert {rank: answers(one) for rank, one in told.items()} == dict.fromkeys(
        range(size), [[total, size * turn] for turn in range(5)])
    assert sorted(world.sites) == sorted(site for site in consensus_sites(core(rank) for rank in range(size))
                                         for _ in range(5))


def test_the_largest_is_the_largest_of_each_value_of_both_signs(world: Any) -> None:
    asks = {0: [Ask(values=[3, -7, 1 << 62], op="max")], 1: [Ask(values=[-3, -8, -1], op="max")]}
    assert {rank: answers(told) for rank, told in world.play(asks).items()} == dict.fromkeys((0, 1), [[3, -7, 1 << 62]])


@pytest.mark.parametrize("size", [2, 4])
def test_the_death_of_one_that_has_not_entered_is_told_at_once_by_name(world: Any, size: int) -> None:
    told = world.play(rounds(size, patience_s=LONG_S), befalls(1, Fate.KILL))
    assert told.pop(1) is None
    for one in told.values():
        assert one is not None and one[0].answer is not None
        assert "core.1 died" in one[1].text and one[1].error == "CollectiveError"
        assert one[1].took_s < DETECTION_S
        assert "group dp is broken: sum, turn 3 of dp: core.1 died" in one[2].text


@pytest.mark.parametrize("size", [3, 4])
def test_the_death_of_one_that_waits_inside_is_told_at_once_by_name(world: Any, size: int) -> None:
    """The last one to come kills it, just before it enters."""
    asks = rounds(size, 1, patience_s=LONG_S)
    asks[2] = [Ask(values=[3, 0], after_s=0.3, marks=True, patience_s=LONG_S)]
    plan = Plan((Fault(id="it", site=mark_site(core(2), Mark.STEP), fate=Fate.KILL, victim="core.1"),))
    told = world.play(asks, plan)
    assert told.pop(1) is None
    for rank, one in told.items():
        assert one is not None and "core.1 died in it" in one[0].text, (rank, one)
        assert one[0].took_s < DETECTION_S + (0.0 if rank == 2 else 0.3)


@pytest.mark.parametrize("fate", [Fate.STALL, Fate.HANG])
@pytest.mark.parametrize("size", [2, 4])
def test_one_that_stands_still_before_it_enters_is_named_at_the_deadline(world: Any, size: int, fate: Fate) -> None:
    told = world.play(rounds(size, 2, patience_s=SHORT_S), befalls(1, fate))
    told.pop(1)
    for one in told.values():
        assert one is not None
        assert re.fullmatch(r"sum, turn 3 of dp: core\.1 did not enter within 0\.(5|4\d*) s", one[1].text) or (
            one[1].text.startswith("sum, turn 3 of dp: core.1 did not enter, and ") and one[1].text.endswith("gave up"))
        assert SHORT_S - 0.1 < one[1].took_s < SHORT_S + DETECTION_S
    assert any("within" in one[1].text for one in told.values() if one is not None)


def test_one_that_is_stopped_inside_is_named_and_not_those_that_wait_with_it(world: Any) -> None:
    asks = rounds(3, 1, patience_s=1.0)
    asks[2] = [Ask(values=[3, 0], after_s=0.3, marks=True, patience_s=0.7)]
    plan = Plan((Fault(id="it", site=mark_site(core(2), Mark.STEP), fate=Fate.STALL, victim="core.1"),))
    told = world.play(asks, plan)
    for rank in (0, 2):
        one = told[rank]
        assert one is not None
        if one[0].answer is None:  # what it had brought may have been enough for a neighbour
            assert "core.1 entered and stands still" in one[0].text, one
            assert one[0].took_s < 1.0 + DETECTION_S


def test_one_that_comes_late_is_waited_for(world: Any) -> None:
    told = world.play(rounds(2), befalls(1, Fate.HANG, until=Until(seconds=0.3)))
    assert answers(told[0]) == answers(told[1]) == [[3, 0], [3, 2], [3, 4]]
    assert told[0][1].took_s > 0.25 and told[1][1].took_s > 0.25


def test_one_that_is_late_for_a_turn_that_the_others_gave_up_is_told_so(world: Any) -> None:
    told = world.play(rounds(2, 2, patience_s=SHORT_S), befalls(1, Fate.HANG, until=Until(seconds=SHORT_S + 0.5)))
    assert "core.1 did not enter within" in told[0][1].text
    assert told[1][1].text == "sum, turn 3 of dp: core.0 gave up"


def test_one_that_fails_before_it_enters_may_enter_later(world: Any) -> None:
    asks = rounds(2)
    asks[1].append(Ask(values=[2, 2]))
    told = world.play(asks, befalls(1, Fate.RAISE, text="planted"))
    assert [one.text for one in told[1]] == ["", "planted", "", ""]
    assert answers(told[0]) == [[3, 0], [3, 3], [3, 4]]


def test_a_cancel_ends_the_wait_of_one_and_that_ends_the_others(world: Any) -> None:
    asks = rounds(3, 2, patience_s=LONG_S)
    asks[2][1] = Ask(values=[0, 0], after_s=5.0)
    told = world.play(asks, cancel_s={1: 0.3})
    assert told[1][1].error == "QueueCancelledError" and told[1][1].text == "the core is leaving"
    assert told[1][1].took_s < 0.3 + DETECTION_S
    assert told[0][1].error == "CollectiveError" and told[0][1].took_s < 0.3 + DETECTION_S
    assert "core.1 gave up" in told[0][1].text


@pytest.mark.parametrize("other", [Ask(values=[1, 2], op="max"), Ask(values=[1])], ids=["op", "length"])
def test_members_that_enter_different_things_are_all_told_what(world: Any, other: Ask) -> None:
    asks = {0: [Ask(values=[1, 2])], 1: [other], 2: [Ask(values=[1, 2])]}
    for told in world.play(asks).values():
        assert "the members do not agree: core.0 enters turn 2 of 3, sum of 2 values, core.1 enters " in told[0].text
        assert told[0].took_s < 5.0


def test_one_that_never_joins_is_named_to_the_others(world: Any) -> None:
    told = world.play(rounds(3, 1), never=(1,), join_s=0.7)
    for rank in (0, 2):
        assert told[rank][0].text.startswith("meeting, turn 1 of dp: core.1 did not enter"), told[rank]
        assert told[rank][0].took_s < 0.7 + DETECTION_S


def test_who_leaves_after_its_turn_takes_nothing_from_those_that_still_wait_for_its_answer(world: Any) -> None:
    """All of them leave at once, each as soon as it has its own."""
    for told in world.play(rounds(4, 1)).values():
        assert answers(told) == [[10, 0]]

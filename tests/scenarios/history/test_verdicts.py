"""The one rule: how verdicts of several outcomes combine, and when worlds disagree, however many there are."""

from __future__ import annotations

import pytest

from scenarios.history.sides import comparable, dispute, sides_of
from scenarios.history.verdicts import CANARY_WORST_FIRST, UNION_FIRST, WORST_FIRST, Cell, Verdict, combined
from scenarios.worlds.registry import WORLDS, in_order, known
from tests.reports.example import BROKEN, HELD, OUTSIDE, UNKNOWN, UNTESTED, bare_run, cell


def said(*verdicts: Verdict, expected: Verdict | None = HELD) -> list[Cell]:
    return [cell("g", verdict, expected) for verdict in verdicts]


@pytest.mark.parametrize(("verdicts", "over_outcomes", "over_repeats"), [
    ((HELD, HELD), HELD, HELD),
    ((HELD, UNTESTED), HELD, UNTESTED),
    ((HELD, OUTSIDE), HELD, OUTSIDE),
    ((HELD, UNKNOWN), UNKNOWN, UNKNOWN),
    ((HELD, BROKEN), BROKEN, BROKEN),
    ((UNTESTED, OUTSIDE), UNTESTED, UNTESTED),
    ((UNTESTED, UNKNOWN), UNKNOWN, UNKNOWN),
])
def test_outcomes_bear_witness_for_each_other_and_repeats_do_not(verdicts, over_outcomes, over_repeats) -> None:
    assert combined(enumerate(said(*verdicts)))[0] is over_outcomes
    assert combined((0, one) for one in said(*verdicts))[0] is over_repeats


@pytest.mark.parametrize(("verdicts", "over_outcomes", "over_repeats"), [
    ((BROKEN, HELD), BROKEN, HELD), ((BROKEN, UNKNOWN), BROKEN, UNKNOWN), ((BROKEN, BROKEN), BROKEN, BROKEN),
])
def test_a_canary_is_caught_in_one_outcome_and_in_every_repeat(verdicts, over_outcomes, over_repeats) -> None:
    cells = said(*verdicts, expected=BROKEN)
    assert combined(enumerate(cells)) == (over_outcomes, BROKEN)
    assert combined((0, one) for one in cells) == (over_repeats, BROKEN)


def test_of_a_play_that_did_not_promise_only_a_break_counts_beside_one_that_did() -> None:
    promised, other = said(HELD), said(UNTESTED, BROKEN, expected=None)
    assert combined([(0, promised[0]), (0, other[0])]) == (HELD, HELD)
    assert combined([(0, promised[0]), (0, other[1])]) == (BROKEN, HELD)


def test_every_order_ranks_every_verdict() -> None:
    assert all(set(order) == set(Verdict) for order in (WORST_FIRST, CANARY_WORST_FIRST, UNION_FIRST))


def sides(**worlds: list[Verdict]) -> list:
    runs = [bare_run("test_x", world, cell("g", verdict), choice=choice)
            for world, verdicts in worlds.items() for choice, verdict in enumerate(verdicts)]
    found = sides_of(runs)["g"]
    return [found[world] for world in in_order(found)]


@pytest.mark.parametrize(("worlds", "between"), [
    ({"sim": [HELD], "engine": [HELD], "third": [HELD]}, None),
    ({"sim": [HELD, BROKEN], "engine": [BROKEN], "third": [BROKEN]}, None),
    ({"sim": [HELD], "engine": [HELD], "third": [BROKEN]}, ("sim", "third")),
    ({"sim": [UNTESTED], "engine": [HELD], "third": [BROKEN]}, ("engine", "third")),
    ({"sim": [HELD, BROKEN], "engine": [HELD], "third": [BROKEN]}, ("engine", "third")),
    ({"third": [BROKEN], "engine": [UNKNOWN]}, None),
])
def test_each_of_three_worlds_is_held_against_all_before_it(worlds, between) -> None:
    found = dispute(sides(**worlds))
    assert (found and (found[0].world, found[1].world)) == between


def test_worlds_can_be_compared_where_two_of_them_decided() -> None:
    assert comparable(sides(sim=[HELD], engine=[UNTESTED], third=[BROKEN]))
    assert not comparable(sides(sim=[HELD], engine=[UNTESTED], third=[UNKNOWN]))


def test_worlds_stand_in_the_order_of_the_registry_and_strangers_after_them() -> None:
    assert in_order({"other", "engine", "another", "sim"}) == ["sim", "engine", "another", "other"]
    assert known("other").obstacle() == "there is no world 'other'"


def test_a_world_that_allows_several_outcomes_stands_before_those_that_play_one() -> None:
    assert [entry.virtual_time for entry in WORLDS.values()] == sorted(
        (entry.virtual_time for entry in WORLDS.values()), reverse=True)

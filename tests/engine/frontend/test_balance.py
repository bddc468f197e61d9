"""Which rank gets the next request."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineDeadError
from engine.frontend.balance import Balance


def idle(ranks: int) -> list[tuple[int, int, float]]:
    return [(0, 0, 0.0)] * ranks


def test_without_a_coordinator_own_counts_spread_requests_and_ends_make_room():
    balance = Balance(3)
    assert [balance.choose() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    balance.ended(1)
    balance.ended(1)
    assert [balance.choose() for _ in range(2)] == [1, 1]


def test_the_rank_with_fewer_requests_is_chosen_whoever_sent_them():
    balance = Balance(3)
    balance.on_notice([(2, 2, 0.0), (0, 1, 0.0), (5, 0, 0.0)], 0, True)
    assert [balance.choose() for _ in range(4)] == [1, 1, 1, 0]


def test_a_full_cache_counts_where_requests_wait():
    balance = Balance(2)
    balance.on_notice([(1, 1, 1.0), (2, 2, 0.5)], 0, True)
    assert (balance.score(0), balance.score(1)) == (5.0, 4)
    balance.on_notice([(0, 3, 1.0), (2, 2, 0.5)], 0, True)
    assert balance.choose() == 0, "nothing waits there"


def test_own_requests_count_for_those_of_all_clients():
    balance = Balance(2, client_count=4)
    assert balance.choose() == 0
    assert (balance.score(0), balance.score(1)) == (4, 0)


@pytest.mark.parametrize(("index", "first"), [(0, 0), (1, 2), (2, 5), (3, 7)])
def test_clients_begin_at_different_ranks_and_go_on_from_there(index, first):
    balance = Balance(10, client_index=index, client_count=4)
    assert [balance.choose() for _ in range(3)] == [first, first + 1, first + 2]


def test_a_rank_that_is_asked_for_is_taken_and_counted():
    balance = Balance(3)
    assert [balance.choose(2) for _ in range(3)] == [2, 2, 2]
    assert balance.in_flight == [0, 0, 3]
    assert balance.choose() != 2


@pytest.mark.parametrize("rank", [3, -1, "1", True, 1.0])
def test_a_rank_that_is_none_is_refused_by_name(rank):
    balance = Balance(3)
    with pytest.raises(ValueError, match=f"data_parallel_rank must lie between 0 and 2, got {rank!r}"):
        balance.choose(rank)
    assert balance.in_flight == [0, 0, 0]


def test_a_dead_rank_is_never_chosen_however_idle_it_is_told_to_be():
    balance = Balance(3)
    balance.choose(1)
    balance.died(1)
    balance.on_notice([(5, 5, 0.0), (0, 0, 0.0), (9, 9, 0.0)], 0, True)
    assert {balance.choose() for _ in range(20)} == {0, 2}
    with pytest.raises(EngineDeadError, match="rank 1 is dead"):
        balance.choose(1)
    balance.died(0)
    balance.died(2)
    with pytest.raises(EngineDeadError, match="all data-parallel ranks are dead"):
        balance.choose()


def test_a_notice_of_a_wave_leaves_the_counts_as_they_are():
    balance = Balance(2)
    balance.on_notice([(7, 0, 0.0), (0, 0, 0.0)], 0, False)
    balance.on_notice(None, 3, True)
    assert (balance.wave, balance.running) == (3, True)
    assert [balance.choose() for _ in range(4)] == [1, 1, 1, 1]


def test_a_notice_of_an_older_wave_brings_its_counts_alone():
    balance = Balance(2)
    balance.on_notice(None, 3, True)
    balance.on_notice([(0, 9, 0.0), (0, 0, 0.0)], 2, False)
    assert (balance.wave, balance.running) == (3, True)
    assert balance.choose() == 1


def test_counts_of_another_number_of_ranks_are_named_and_not_used():
    balance = Balance(2)
    assert balance.on_notice([(0, 0, 0.0)], 5, True) == "counts of 1 ranks, there are 2"
    assert balance.wave == 0
    assert balance.on_notice(idle(2), 5, True) is None


def test_a_first_request_is_told_once_while_the_group_rests():
    balance = Balance(2)
    balance.on_notice(None, 3, False)
    assert balance.first_request(1) == (1, 3)
    assert balance.first_request(0) is None, "it believes now that the group runs"


def burst(ranks: int, each: int, clients: int, dice: random.Random, score: str = "new") -> Counter[int]:
    """n*k equal requests to n idle ranks by clients in turn, with counts of any age published in between."""
    views = [Balance(ranks, client_index=k, client_count=clients, score=score) for k in range(clients)]
    arrived = [[0] * ranks]  # how many requests there were at each rank, over time
    for number in range(ranks * each):
        chosen = views[number % clients].choose()
        arrived.append([count + (rank == chosen) for rank, count in enumerate(arrived[-1])])
        if dice.random() < 0.4:
            old = dice.choice(arrived[-8:])
            for view in views:
                view.on_notice([(count, 0, 0.0) for count in old], 0, True)
    return Counter(dict(enumerate(arrived[-1])))


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_burst_is_spread_whatever_counts_come_within_it(ranks, each, clients, dice):
    assert max(burst(ranks, each, clients, dice).values()) <= each + clients


def test_the_old_score_forgets_a_burst_when_counts_come_that_were_taken_before_it():
    """And the new one does not."""
    got = {}
    for score in ("old", "new"):
        balance = Balance(4, score=score)
        balance.on_notice([(0, 0, 0.0), (1, 0, 0.0), (1, 0, 0.0), (1, 0, 0.0)], 0, True)
        chosen = []
        for _ in range(12):
            chosen.append(balance.choose())
            balance.on_notice([(0, 0, 0.0), (1, 0, 0.0), (1, 0, 0.0), (1, 0, 0.0)], 0, True)
        got[score] = max(Counter(chosen).values())
    assert got == {"old": 12, "new": 3}


@given(st.integers(1, 5), st.lists(st.integers(0, 99), max_size=60))
def test_without_a_coordinator_no_rank_is_chosen_that_has_more_than_another(ranks, words):
    """Requests come, and end in any order."""
    balance, running = Balance(ranks), list[int]()
    for word in words:
        if running and word % 2:
            balance.ended(running.pop(word % len(running)))
        else:
            fewest = min(balance.in_flight)
            running.append(balance.choose())
            assert balance.in_flight[running[-1]] == fewest + 1
    assert balance.in_flight == [running.count(rank) for rank in range(ranks)]


def test_a_rank_that_nothing_can_be_sent_to_gets_its_share_of_a_burst_and_no_more():
    """Else it would always be the one with the fewest; and it is tried again, and is one of them once one has ended."""
    balance, chosen = Balance(2), list[int]()
    for _ in range(12):
        chosen.append(balance.choose())
        if chosen[-1] == 1:
            balance.ended(1, unsent=True)
    assert 4 <= chosen.count(1) <= 7
    for _ in range(chosen.count(0)):
        balance.ended(0)
    while (rank := balance.choose()) == 0:
        pass
    balance.ended(rank)
    assert balance.score(1) == 0

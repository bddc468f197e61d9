"""What the coordinator makes of what it is told. All orders of waves' messages: tests/explorer/waves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.board import Board, Notice, Odd, Ready, Start


def board(engines: int = 2, **kwargs) -> Board:
    return Board(engines, **{"changed_s": 0.1, "unchanged_s": 5.0, "settle_s": 0.05, "now": 100.0, **kwargs})


# -- subscriptions


def test_ready_is_said_when_every_rank_has_subscribed_itself():
    made = board(3)
    assert made.on_subscription(1) == []
    assert made.on_subscription(1) == [], "it was counted once"
    assert made.on_subscription(0) == []
    assert made.on_subscription(2) == [Ready()]
    assert made.on_subscription(0) == [Ready()], "who comes again waits for it again"


@given(st.lists(st.integers(-1, 4), max_size=12))
def test_ready_needs_each_rank_whatever_else_comes(ranks):
    made, came = board(3), set()
    for rank in ranks:
        if 0 <= rank < 3:
            came.add(rank)
            assert made.on_subscription(rank) == [Ready()] * (len(came) == 3)
        else:
            assert [type(said) for said in made.on_subscription(rank)] == [Odd]


# -- waves


def test_a_start_goes_to_all_but_its_sender_and_front_ends_hear_of_it_at_once():
    made = board()
    assert made.on_start_wave(1, 0) == [Start(0, 1), Notice(None, 0, True)]
    assert made.on_start_wave(0, 0) == [], "it runs"
    assert made.on_wave_complete(0, 0) == [Notice(None, 1, False)]


def test_a_start_of_a_wave_that_seems_over_is_passed_on_and_changes_nothing():
    """Its rank knows better: the number here may be one that was read wrong."""
    made = board()
    made.on_wave_complete(0, 62)
    assert made.on_start_wave(1, 0) == [Start(0, 1)]
    assert (made.wave, made.running) == (63, False)


def test_a_start_of_the_next_wave_may_come_before_the_end_of_this_one():
    made = board()
    made.on_start_wave(0, 0)
    assert made.on_start_wave(1, 1) == [Start(1, 1), Notice(None, 1, True)]
    assert made.on_wave_complete(0, 0) == []
    assert (made.wave, made.running) == (1, True)


def test_an_end_that_comes_twice_or_of_a_wave_nobody_told_of_is_counted_once():
    made = board()
    assert made.on_wave_complete(0, 2) == [Notice(None, 3, False)]
    assert made.on_wave_complete(0, 2) == []


@pytest.mark.parametrize(("wave", "exclude"), [(2, None), (3, 1)])
def test_old_a_first_request_starts_the_wave_and_a_late_one_leaves_nobody_out(wave, exclude):
    made = board(protocol="old")
    made.on_wave_complete(0, 2)
    assert made.on_first_request(1, wave) == [Start(3, exclude), Notice(None, 3, True)]
    assert made.on_first_request(0, 3) == [], "it runs"


def test_new_there_is_no_first_request():
    [said] = board().on_first_request(0, 0)
    assert isinstance(said, Odd)


@pytest.mark.parametrize("repair", [True, False])
def test_while_a_wave_runs_each_publication_repeats_its_start_to_all(repair):
    made = board(repair=repair)
    made.on_start_wave(1, 0)
    idle = ((0, 0, 0.0),) * 2
    assert made.publish(105.0) == [Notice(idle, 0, True)] + [Start(0, None)] * repair
    made.on_wave_complete(0, 0)
    assert made.publish(110.0) == [Notice(idle, 1, False)]


@pytest.mark.parametrize("what", [lambda made: made.on_start_wave(2, 0), lambda made: made.on_start_wave(-1, 0),
                                  lambda made: made.on_wave_complete(0, -1),
                                  lambda made: made.on_subscription(2),
                                  lambda made: made.on_counts(7, (1, 1, 0.0), 0, 0, 0.0),
                                  lambda made: made.on_counts(0, (1, -1, 0.0), 0, 0, 0.0),
                                  lambda made: made.on_counts(0, (1, 1, -0.5), 0, 0, 0.0)])
def test_what_cannot_be_is_named_and_changes_nothing(what):
    made = board()
    before = {name: str(value) for name, value in vars(made).items()}
    assert [type(said) for said in what(made)] == [Odd]
    assert {name: str(value) for name, value in vars(made).items()} == before


@pytest.mark.parametrize("what", [
    lambda made: made.on_start_wave(1, 0), lambda made: made.on_wave_complete(1, 0),
    lambda made: made.on_first_request(1, 0)])
def test_a_wave_is_odd_where_ranks_do_not_step_together(what):
    """Its START would be one more word that no core there knows."""
    made = board(lockstep=False)
    assert [type(said) for said in what(made)] == [Odd]
    assert (made.wave, made.running) == (0, False)


# -- counts


def test_counts_go_out_soon_if_they_changed_and_seldom_if_not():
    made = board(lockstep=False)
    assert made.publish_at == 105.0
    made.on_counts(0, (0, 0, 0.0), 0, 0, 101.0)
    assert made.publish_at == 105.0, "they are as they were"
    made.on_counts(1, (2, 1, 0.5), 0, 0, 101.0)
    assert made.publish_at == 100.1
    assert made.publish(101.0) == [Notice(((0, 0, 0.0), (2, 1, 0.5)), 0, False)]
    assert made.publish_at == 106.0


def test_in_lockstep_counts_wait_for_ranks_that_still_report_the_step_but_traffic_cannot_hold_them_back():
    made = board()
    made.on_counts(0, (1, 0, 0.0), 0, 1, 100.08)
    assert made.publish_at == pytest.approx(100.13)
    for at in (100.12, 100.14, 100.149):
        made.on_counts(1, (1, 0, 0.0), 0, 1, at)
    assert made.publish_at == pytest.approx(100.15)


def test_in_lockstep_counts_of_one_step_are_published_together():
    made = board()
    made.on_counts(0, (1, 0, 0.0), 0, 1, 100.0)
    made.on_counts(1, (2, 0, 0.0), 0, 1, 100.0)
    made.on_counts(0, (9, 0, 0.0), 0, 2, 100.0)
    [notice] = made.publish(100.1)
    assert notice.counts == ((1, 0, 0.0), (2, 0, 0.0)), "rank 1 has not told of step 2 yet"
    assert made.publish_at == pytest.approx(100.2), "there is more to tell"
    [notice] = made.publish(100.2)
    assert notice.counts == ((9, 0, 0.0), (2, 0, 0.0))


def test_counts_of_an_older_step_are_used():
    made = board()
    made.on_counts(0, (1, 0, 0.0), 1, 4, 100.0)
    assert made.on_counts(1, (2, 0, 0.0), 0, 9, 100.0) == []
    assert made.counts == [(1, 0, 0.0), (2, 0, 0.0)]
    assert made.on_counts(1, (2, 0, 0.0), 1, 4, 100.0) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 20)), max_size=20))
def test_what_is_published_in_the_end_is_what_was_told_last(told):
    """However counts come, two publications behind the last one all of them are out, within their bound."""
    made, last, now = board(3), [(0, 0, 0.0)] * 3, 100.0
    for rank, waiting, step in told:
        now += 0.01
        last[rank] = (waiting, 0, 0.0)
        made.on_counts(rank, last[rank], 0, step, now)
        assert made.publish_at <= max(now, 100.1) + 5.0
    quiet = now
    while (at := made.publish_at) < quiet + 1.0:
        notice = made.publish(at)[0]
    if told and any(last):
        notice = made.publish(made.publish_at)[0]
        assert notice.counts == tuple(last)

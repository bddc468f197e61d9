"""A rank's part in the waves of its group, event by event. All orders of them: tests/explorer/waves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.waves import Report, StartWave, WaveComplete, Waves


def waves(rank: int = 0, size: int = 2, **kwargs) -> Waves:
    return Waves(rank, size, **{"interval": 4, **kwargs})


def together(group: list[Waves], unfinished: list[bool]) -> list[list[Report]]:
    """One all-reduce of all ranks, for which all have come. -> each rank's reports"""
    assert all(rank.due for rank in group)
    assert len({(rank.wave, rank.step) for rank in group}) == 1
    votes = [rank.votes(own) for rank, own in zip(group, unfinished, strict=True)]
    add = {"sum": sum, "max": max}[group[0].op]
    return [rank.on_answer([add(column) for column in zip(*votes, strict=True)]) for rank in group]


def run(group: list[Waves], unfinished: list[bool]) -> list[list[Report]]:
    """Steps of all ranks up to the next all-reduce, and that."""
    while not group[0].due:
        for rank, own in zip(group, unfinished, strict=True):
            assert rank.may_step(own)
            rank.stepped()
    return together(group, unfinished)


def test_a_request_at_a_rank_at_rest_runs_it_and_is_reported_in_wave_0_too():
    rank = waves()
    assert not rank.may_step(False)
    assert rank.on_request(0) == [StartWave(0)]
    assert rank.running
    assert rank.may_step(False), "also if the request is aborted before its first step"
    assert rank.on_request(0) == [], "it is told once"


@pytest.mark.parametrize("believed", [3, 5, 10 ** 9])
def test_what_a_client_believed_of_the_wave_changes_nothing(believed):
    rank = waves()
    rank.wave = 5
    assert rank.on_request(believed) == [StartWave(5)]
    assert rank.wave == 5


@pytest.mark.parametrize(("protocol", "interval", "at"), [("new", 4, [1, 4, 8, 12]), ("old", 4, [4, 8, 12]),
                                                          ("new", 1, [*range(1, 13)]), ("old", 32, [])])
def test_all_reduces_come_at_steps_that_all_ranks_agree_on(protocol, interval, at):
    rank, due = waves(protocol=protocol, interval=interval), []
    rank.on_start(0, None)
    for _ in range(12):
        rank.stepped()
        if rank.due:
            due.append(rank.step)
            assert not rank.may_step(True), "nothing comes between"
            rank.on_answer([1, 0])
    assert due == at


def test_a_wave_ends_on_all_ranks_at_once_and_rank_0_reports_it():
    group = [waves(k, 3) for k in range(3)]
    group[1].on_request(0)
    for k in (0, 2):
        group[k].on_start(0, 1)
    assert run(group, [False, True, False]) == [[StartWave(0)], [], []], "rank 0 tells that a wave has begun"
    assert run(group, [False, True, False]) == [[], [], []]
    assert run(group, [False, False, False]) == [[WaveComplete(0)], [], []]
    assert [(rank.wave, rank.step, rank.running) for rank in group] == [(1, 0, False)] * 3


@pytest.mark.parametrize("protocol", ["old", "new"])
def test_a_start_of_another_wave_or_of_its_own_sender_starts_nothing(protocol):
    rank = waves(1, protocol=protocol)
    rank.wave = 2
    rank.on_start(1, None)
    rank.on_start(3, None)
    rank.on_start(2, 1)
    assert not rank.running
    rank.on_start(2, 0)
    assert rank.running


def test_a_report_is_unheard_until_a_start_or_an_all_reduce_of_its_wave():
    rank = waves(1)
    rank.on_request(0)
    assert rank.unheard == StartWave(0)
    rank.on_start(0, 1)
    assert rank.unheard is None
    rank = waves(1)
    rank.wave = 1
    rank.on_request(0)
    rank.on_start(0, None)
    assert rank.unheard == StartWave(1), "an older START says nothing"
    rank.stepped()
    assert rank.unheard == StartWave(1)
    rank.on_answer([1, 0])
    assert rank.unheard is None


def test_without_repair_nothing_is_kept():
    rank = waves(1, repair=False)
    assert rank.on_request(0) == [StartWave(0)]
    assert rank.unheard is None


def test_a_pause_is_agreed_in_one_all_reduce_and_holds_what_comes():
    group = [waves(k) for k in range(2)]
    group[1].on_request(0)
    group[0].on_start(0, 1)
    assert not group[0].pause()
    assert run(group, [False, True]) == [[], []], "of a pause nothing is reported"
    assert not group[0].paused
    assert not group[1].pause()
    assert group[1].votes(True) == [0, 1], "work that is held is none"
    assert run(group, [False, True]) == [[WaveComplete(0)], []]
    assert [rank.paused for rank in group] == [True, True]
    assert group[0].pause(), "it is already"
    assert group[0].on_request(1) == []
    group[0].on_start(1, None)
    assert not group[0].may_step(True)
    assert not group[1].may_step(True)


def test_a_rank_at_rest_that_is_to_pause_goes_along_until_all_are():
    group = [waves(k) for k in range(2)]
    for rank in group:
        assert not rank.pause()
        assert rank.may_step(False)
    run(group, [False, False])
    assert all(rank.paused for rank in group)


@pytest.mark.parametrize("unfinished", [[False, True], [False, False], [True, True]])
def test_behind_a_resume_all_ranks_run_if_one_has_work(unfinished):
    group = [waves(k) for k in range(2)]
    for rank in group:
        rank.pause()
    run(group, [False, False])
    for rank in group:
        assert rank.resume(True) == []
        assert rank.due
        assert not rank.may_step(True), "all have to resume first"
    reports = together(group, unfinished)
    assert [rank.running for rank in group] == [any(unfinished)] * 2
    assert reports == [[StartWave(1)] * any(unfinished), []]
    assert [rank.wave for rank in group] == [1, 1], "this was no wave"


def test_a_request_that_comes_between_resume_and_its_all_reduce_is_heard_though_it_is_aborted_at_once():
    group = [waves(k) for k in range(2)]
    for rank in group:
        rank.pause()
    run(group, [False, False])
    for rank in group:
        rank.resume(False)
    assert group[1].on_request(1) == [StartWave(1)]
    together(group, [False, False])
    assert [rank.running for rank in group] == [True, True]


def test_resume_means_nothing_without_a_pause():
    rank = waves()
    assert rank.resume(True) == []
    assert not rank.due


def test_without_a_coordinator_each_rank_tells_its_own_client_and_wakes_nobody():
    group = [waves(k, coordinated=False) for k in range(2)]
    assert [rank.on_request(0) for rank in group] == [[], []]
    assert run(group, [True, True]) == [[], []]
    assert run(group, [False, False]) == [[WaveComplete(0)], [WaveComplete(0)]]


def test_the_old_protocol_leaves_a_first_request_to_its_client():
    rank = waves(protocol="old")
    assert rank.on_request(0) == [], "the client was to tell"
    assert rank.may_step(True)
    assert not rank.may_step(False)
    rank.wave = 2
    assert rank.on_request(1) == [StartWave(2)], "it could not know"
    assert not rank.running, "its request runs it"
    rank.stepped()
    assert rank.running


def test_the_old_protocol_pauses_each_rank_by_itself():
    rest, busy = waves(0, protocol="old"), waves(1, protocol="old")
    busy.stepped()
    assert rest.pause()
    assert not busy.pause()
    rest.on_start(0, None)
    assert rest.may_step(False), "nothing keeps a START from it"
    assert rest.resume(True) == [StartWave(0)]


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=6), st.integers(1, 5))
def test_all_ranks_execute_as_many_steps_whoever_has_the_work(size, arrivals, interval):
    """Requests of so many steps come to ranks, in turn, each while the group is at rest or with the next one."""
    group = [Waves(k, size, interval=interval) for k in range(size)]
    left, steps = [0] * size, [0] * size
    for rank, length in arrivals:
        rank %= size
        for report in group[rank].on_request(0):
            for other in group:
                other.on_start(report.wave, rank)
        left[rank] += length
        while any(own.running for own in group):
            for k, own in enumerate(group):
                assert own.may_step(left[k] > 0)
                steps[k] += 1
                left[k] = max(0, left[k] - 1)
                own.stepped()
            if group[0].due:
                together(group, [own > 0 for own in left])
    assert left == [0] * size
    assert len(set(steps)) == 1
    assert [own.wave for own in group] == [len(arrivals)] * size

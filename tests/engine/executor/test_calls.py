"""The table of calls: a reply belongs to its call by id alone, and every call has one deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RpcError, RpcTimeoutError
from engine.executor.calls import CallTable, unreadable
from engine.messages import ReplyStatus

OK, FAILED = ReplyStatus.SUCCESS, ReplyStatus.FAILURE


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_each_reply_answers_its_own_call_in_whatever_order_ranks_and_calls_come(ranks, calls, data) -> None:
    table = CallTable(ranks)
    outputs = [data.draw(st.one_of(st.none(), st.integers(0, ranks - 1))) for _ in range(calls)]
    opened = [table.open("m", rank, 1.0) for rank in outputs]
    replies = [(rank, call.call_id) for call, only in zip(opened, outputs, strict=True)
               for rank in range(ranks) if only in (None, rank)]
    for rank, call_id in data.draw(st.permutations(replies)):
        assert table.reply(rank, call_id, OK, (rank, call_id)).call_id == call_id
    for call, only in zip(opened, outputs, strict=True):
        every = [(rank, call.call_id) for rank in range(ranks)]
        assert call.result() == (every if only is None else every[only])
    assert table.outstanding == 0


def test_a_failure_of_any_rank_ends_the_call_at_once_whoever_was_to_answer() -> None:
    table = CallTable(3)
    call = table.open("execute_model", 0, 1.0)
    assert not call.done
    table.reply(2, call.call_id, FAILED, "out of memory")
    with pytest.raises(RpcError, match=r"worker\.2 failed in execute_model: out of memory"):
        call.result()


def test_replies_after_a_failure_or_a_deadline_belong_to_nobody() -> None:
    """Rank 0 fails, rank 1 succeeds late: the next call gets its own answers."""
    table = CallTable(2)
    first = table.open("a", None, 1.0)
    table.reply(0, first.call_id, FAILED, "x")
    late = table.open("b", None, 1.0)
    table.expire(late, 1.0)
    third = table.open("c", None, 2.0)
    assert table.reply(1, first.call_id, OK, "stale") is None
    assert table.reply(0, late.call_id, OK, "stale") is None
    for rank in (0, 1):
        table.reply(rank, third.call_id, OK, f"third {rank}")
    assert third.result() == ["third 0", "third 1"]


def test_a_deadline_names_the_ranks_that_are_missing_and_comes_once() -> None:
    table = CallTable(3)
    call = table.open("step", None, 5.0)
    table.reply(1, call.call_id, OK, None)
    table.expire(call, 4.9)
    assert not call.done and call.missing == [0, 2]
    table.expire(call, 5.0)
    table.expire(call, 6.0)
    with pytest.raises(RpcTimeoutError, match=r"worker\.0, worker\.2"):
        call.result()


def test_an_answered_call_does_not_expire() -> None:
    table = CallTable(1)
    call = table.open("step", 0, 1.0)
    table.reply(0, call.call_id, OK, 7)
    table.expire(call, 100.0)
    assert call.result() == 7


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_a_rank_could_not_read_is_the_call_at_its_place_in_the_ring(place: int) -> None:
    table = CallTable(2)
    calls = [table.open(name, 0, 1.0) for name in "abc"]
    assert table.reply(1, unreadable(place), FAILED, "torn") is calls[place]
    assert [call.error is not None for call in calls] == [n == place for n in range(3)]
    assert table.reply(0, unreadable(place), FAILED, "torn") is None, "it is over"


def test_a_rank_that_could_not_read_a_call_that_another_one_answered_has_failed_late() -> None:
    table = CallTable(2)
    table.reply(0, table.open("step", 0, 1.0).call_id, OK, None)
    assert table.reply(1, unreadable(0), FAILED, "torn") is None
    assert "worker.1 failed in a call that was over: torn" in str(table.late_failure)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_does_not_exist_cannot_be_asked_to_answer(rank: int) -> None:
    with pytest.raises(ValueError, match="output_rank"):
        CallTable(2).open("m", rank, 1.0)


def test_a_failure_of_a_rank_that_comes_when_its_call_is_over_is_kept() -> None:
    """Rank 0 has answered for all; rank 1 failed all the same, and is out of step from then on."""
    table = CallTable(2)
    call = table.open("execute_model", 0, 1.0)
    table.reply(0, call.call_id, OK, "tokens")
    assert table.late_failure is None
    assert table.reply(1, call.call_id, FAILED, "boom") is None
    assert table.late_failure is not None and "boom" in str(table.late_failure)
    assert call.result() == "tokens"


def test_a_failure_of_a_rank_whose_call_has_failed_already_says_nothing_new() -> None:
    """Every rank lacks the method that a caller asked for: the call fails, and the engine goes on."""
    table = CallTable(2)
    call = table.open("no_such_method", None, 1.0)
    for rank in (0, 1):
        table.reply(rank, call.call_id, FAILED, "no such method")
    assert table.late_failure is None

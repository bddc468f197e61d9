"""The client's books, stepped by hand.

Whatever the wire does to outputs, a request ends once, with a prefix of the truth.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Bounds, LimitsConfig
from engine.errors import (
    BadFrameError,
    BadRequestError,
    EngineDeadError,
    RefusedError,
    RequestError,
    RequestTimeoutError,
    UnroutableError,
)
from engine.frontend.session import ClientSession, RequestEnd, Tokens, UtilityResult, outcome_of_error
from engine.messages import (
    ENGINE_CORE_DEAD,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    Outcome,
    SamplingParams,
    UtilityOutput,
)
from engine.wire.codec import Abort, decode_request, encode_outputs

BOUNDS = Bounds(request_s=10.0, output_gap_s=1.0)
PARAMS = SamplingParams(max_tokens=8)


def session(**limits) -> ClientSession:
    numbers = itertools.count()
    return ClientSession(LimitsConfig(**limits), BOUNDS, lambda: f"{next(numbers):08x}")


def begun(books: ClientSession, *names: str, now: float = 0.0) -> list[str]:
    return [books.add(name, [1, 2], PARAMS, now)[0] for name in names]


def output(internal: str, tokens: list[int], preceding: int, finish: FinishReason | None = None, stop=None):
    return EngineCoreOutput(internal, tokens, preceding, finish, stop)


def take(books: ClientSession, *outputs: EngineCoreOutput, now: float = 0.0) -> list:
    return books.on_frames(encode_outputs(EngineCoreOutputs(outputs=list(outputs))), now)


# -- any loss, doubling and reordering


@st.composite
def broken_wire(draw):
    """Some requests, each cut into outputs; then the frames as they arrive: some lost, doubled, in any order."""
    requests = {}
    for index in range(draw(st.integers(1, 3))):
        cuts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
        requests[index] = (cuts, draw(st.booleans()))
    frames = [(index, place) for index, (cuts, _) in requests.items() for place in range(len(cuts) + 1)]
    kept = [frame for frame in frames if draw(st.integers(0, 9)) > 1]
    doubled = kept + [frame for frame in kept if draw(st.integers(0, 4)) == 0]
    return requests, draw(st.permutations(doubled)) if draw(st.booleans()) else doubled


def outputs_of(index: int, cuts: list[int], last_apart: bool, internal: str) -> list[EngineCoreOutput]:
    """The truth of request `index` is 100 * index + 0, 1, 2, ...; its end comes with the last tokens or after them."""
    made, sent = [], 0
    for place, count in enumerate(cuts):
        final = place == len(cuts) - 1 and not last_apart
        made.append(output(internal, [100 * index + k for k in range(sent, sent + count)], sent,
                           FinishReason.LENGTH if final else None))
        sent += count
    made.append(output(internal, [], sent, FinishReason.LENGTH) if last_apart else made[-1])
    return made


@settings(max_examples=400, deadline=None)
@given(broken_wire(), st.lists(st.sampled_from(["tick", "garbage", "abort"]), max_size=3))
def test_each_request_ends_once_with_a_prefix_of_its_tokens(wire, between) -> None:
    requests, arrivals = wire
    books = session()
    names = {index: f"r{index}" for index in requests}
    internals = begun(books, *names.values())
    frames = {index: outputs_of(index, cuts, apart, internals[index]) for index, (cuts, apart) in requests.items()}
    seen = dict.fromkeys(names.values(), 0)
    ends: dict[str, list[RequestEnd]] = {name: [] for name in names.values()}

    def check(deliveries) -> None:
        for delivery in deliveries:
            name = delivery.request_id
            assert not ends[name], "nothing comes after an end"
            if isinstance(delivery, RequestEnd):
                ends[name].append(delivery)
                continue
            assert isinstance(delivery, Tokens) and delivery.offset == seen[name]
            first = 100 * int(name[1:]) + seen[name]
            assert delivery.token_ids == list(range(first, first + len(delivery.token_ids)))
            seen[name] += len(delivery.token_ids)
        assert books.kept()["requests"] == books.kept()["internal"]

    now = 0.0
    for step, (index, place) in enumerate(arrivals):
        check(take(books, frames[index][place], now=now))
        if step < len(between):
            now += 0.1
            if between[step] == "tick":
                check(books.on_tick(now)[0])
            elif between[step] == "abort":
                check(books.abort(names[index])[0])
            else:
                with pytest.raises(BadFrameError):
                    books.on_frames([b"\xc1"], now)
    arrived = set(arrivals)
    for index, (cuts, apart) in requests.items():
        needed = set(range(len(cuts) + 1)) if apart else set(range(len(cuts) - 1))
        last_here = apart or {(index, len(cuts) - 1), (index, len(cuts))} & arrived
        if last_here and all((index, place) in arrived for place in needed):
            assert len(ends[names[index]]) == 1, "all arrived, so it ended without any time-out"
            if ends[names[index]][0].finish_reason is FinishReason.LENGTH:
                assert seen[names[index]] == sum(cuts)
    check(books.on_tick(now + BOUNDS.output_gap_s + BOUNDS.request_s + 0.1)[0])
    assert all(len(found) == 1 for found in ends.values())
    assert len(books) == 0 and books.bytes_in_flight == 0 and not books.busy


def test_outputs_that_were_cut_differently_when_sent_again_fill_the_hole() -> None:
    books = session()
    (internal,) = begun(books, "r")
    assert take(books, output(internal, [3, 4], 3)) == []
    assert take(books, output(internal, [0, 1, 2, 3], 0)) == [
        Tokens("r", 0, [0, 1, 2, 3], internal_id=internal), Tokens("r", 4, [4], internal_id=internal)]
    assert books.on_tick(BOUNDS.output_gap_s + 0.5) == ([], [])


# -- loss is bounded in time


def test_a_lost_output_ends_its_request_after_the_gap_and_frees_it_in_the_core() -> None:
    books = session()
    (internal,) = begun(books, "r")
    take(books, output(internal, [2], 2), now=1.0)
    assert books.on_tick(1.0 + BOUNDS.output_gap_s) == ([], [])
    (end,), (frames,) = books.on_tick(1.1 + BOUNDS.output_gap_s)
    assert isinstance(end.error, RequestTimeoutError) and end.error.may_have_taken_effect
    assert "tokens from 0 on are missing" in str(end.error)
    assert decode_request(frames[1]) == Abort([internal])


def test_each_lost_output_is_waited_for_since_the_next_one_came() -> None:
    books = session()
    (internal,) = begun(books, "r")
    take(books, output(internal, [1], 1), now=1.0)
    take(books, output(internal, [3], 3), now=1.5)
    assert take(books, output(internal, [0], 0), now=1.8)  # that of 2 is still missing
    assert books.on_tick(1.5 + BOUNDS.output_gap_s) == ([], [])
    (end,), _ = books.on_tick(1.6 + BOUNDS.output_gap_s)
    assert "tokens from 2 on are missing" in str(end.error)


def test_silence_ends_a_request_and_every_output_begins_its_time_anew() -> None:
    books = session()
    (internal,) = begun(books, "r")
    take(books, output(internal, [0], 0), now=9.0)
    assert books.on_tick(9.0 + BOUNDS.request_s) == ([], [])
    (end,), _ = books.on_tick(9.1 + BOUNDS.request_s)
    assert isinstance(end.error, RequestTimeoutError) and end.error.may_have_taken_effect


def test_a_utility_without_an_answer_ends_at_its_own_bound() -> None:
    books = session()
    call, _ = books.utility("ping", [], 0.0)
    assert books.on_tick(BOUNDS.request_s) == ([], [])
    (result,), messages = books.on_tick(BOUNDS.request_s + 0.1)
    assert result.call_id == call and isinstance(result.error, RequestTimeoutError) and messages == []
    late = EngineCoreOutputs(utility_output=UtilityOutput(call, None, 1))
    assert books.on_outputs(late, 99.0) == []


# -- ends


def test_what_comes_late_for_an_aborted_request_never_reaches_the_one_that_took_its_name() -> None:
    books = session()
    (old,) = begun(books, "same")
    (end,), (frames,) = books.abort("same")
    assert end == RequestEnd("same", FinishReason.ABORT, internal_id=old) and decode_request(frames[1]) == Abort([old])
    (new,) = begun(books, "same")
    assert take(books, output(old, [7], 0), output(old, [], 1, FinishReason.ABORT)) == []
    assert take(books, output(new, [8], 0)) == [Tokens("same", 0, [8], internal_id=new)]


@pytest.mark.parametrize(("finish", "error", "says"), [
    (FinishReason.REFUSED, RefusedError, Outcome.REFUSED),
    (FinishReason.ERROR, RequestError, Outcome.FAILED),
    (FinishReason.ABORT, RequestError, Outcome.FAILED),
])
def test_an_end_that_the_core_chose_is_an_error_with_its_reason(finish, error, says) -> None:
    books = session()
    (internal,) = begun(books, "r")
    (end,) = take(books, output(internal, [], 0, finish, "because"))
    assert isinstance(end.error, error) and "because" in str(end.error)
    assert outcome_of_error(end.error) is says


def test_death_ends_everything_once_and_refuses_what_comes_later() -> None:
    books = session()
    begun(books, "a", "b")
    books.utility("ping", [], 0.0)
    deliveries = books.die("worker.1 died")
    assert [type(d) for d in deliveries] == [RequestEnd, RequestEnd, UtilityResult]
    assert all(isinstance(d.error, EngineDeadError) and d.error.reason == "worker.1 died" for d in deliveries)
    assert books.die("again") == [] and not books.busy
    for call in (lambda: begun(books, "c"), lambda: books.utility("ping", [], 0.0)):
        with pytest.raises(EngineDeadError, match=r"worker\.1 died"):
            call()
    assert outcome_of_error(deliveries[0].error) is Outcome.ENGINE_DEAD


def test_the_notice_is_no_output() -> None:
    books = session()
    begun(books, "r")
    assert books.on_frames([ENGINE_CORE_DEAD], 0.0) == []
    assert books.notices == {0} and len(books) == 1


def test_what_was_not_sent_certainly_took_no_effect() -> None:
    books = session()
    begun(books, "r")
    (end,) = books.unroutable("r")
    assert isinstance(end.error, UnroutableError) and not end.error.may_have_taken_effect


def test_a_call_that_was_not_sent_is_forgotten_and_took_no_effect() -> None:
    books = session()
    call_id, _ = books.utility("reset", [], 0.0)
    error = books.unroutable_call(call_id)
    assert isinstance(error, UnroutableError) and "reset" in str(error) and not error.may_have_taken_effect
    assert not books.busy
    assert books.on_tick(100.0) == ([], [])


def test_a_stop_found_here_is_finished_for_the_caller_and_aborted_in_the_core() -> None:
    books = session()
    (internal,) = begun(books, "r")
    (end,), (frames,) = books.stop("r", "END")
    assert end == RequestEnd("r", FinishReason.STOP, "END", internal_id=internal)
    assert decode_request(frames[1]) == Abort([internal])
    assert books.stop("r", "END") == books.abort("r") == ([], [])


# -- admission


def test_an_id_in_use_is_refused_without_harm() -> None:
    books = session()
    begun(books, "r")
    with pytest.raises(BadRequestError, match="in use"):
        begun(books, "r")
    assert books.kept()["requests"] == books.kept()["internal"] == 1


def test_requests_and_bytes_are_limited_and_free_again_after_an_end() -> None:
    books = session(max_requests=2)
    begun(books, "a", "b")
    with pytest.raises(RefusedError, match="the limit is 2"):
        begun(books, "c")
    books.abort("a")
    begun(books, "c")
    heavy = session(max_request_bytes=200)
    heavy.add("a", [1] * 90, PARAMS, 0.0)
    with pytest.raises(RefusedError, match="the limit is 200"):
        heavy.add("b", [1] * 90, PARAMS, 0.0)
    assert heavy.kept()["requests"] == heavy.kept()["internal"] == 1
    heavy.abort("a")
    assert not any(heavy.kept().values())


def test_all_that_is_in_flight_is_freed_by_one_message() -> None:
    books = session()
    internals = begun(books, "a", "b")
    assert [decode_request(frames) for _, frames in books.free_all()] == [Abort(internals)]
    assert len(books) == 2
    assert session().free_all() == []


# -- what is asked of a rank, and what comes of another


@pytest.mark.parametrize("rank", [2, -1, "0"])
def test_a_request_for_a_rank_that_is_none_fails_alone_and_leaves_nothing(rank) -> None:
    books = ClientSession(LimitsConfig(), BOUNDS, lambda: "1", cores=(0, 1))
    with pytest.raises(BadRequestError, match=f"data_parallel_rank must lie between 0 and 1, got {rank!r}"):
        books.add("a", [1, 2], PARAMS, 0.0, rank=rank)
    assert not any(books.kept().values()) and not books.check_integrity()
    assert books.add("a", [1, 2], PARAMS, 0.0, rank=1)[1].core == 1


def test_outputs_that_say_they_are_another_engine_s_are_a_bad_frame() -> None:
    books = session()
    [internal] = begun(books, "a")
    with pytest.raises(BadFrameError, match="outputs of engine 1 on the way of engine 0"):
        books.on_frames(encode_outputs(EngineCoreOutputs(1, [output(internal, [5], 0)])), 0.0)
    assert take(books, output(internal, [5], 0)) == [Tokens("a", 0, [5], internal_id=internal)]

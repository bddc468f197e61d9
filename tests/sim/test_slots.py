"""What a rank of the twin finds in its cache, and what it says where that is not its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import CachedRequestData, NewRequestData, SamplingParams
from sim.nodes.slots import Known, Slots

PROMPT, ANSWER, LAST = [5, 6, 7, 8, 9], [11, 12, 13], 2


def known(*said: int, blocks: tuple[int, ...] = (0, 1, 2, 3), computed: int = 0) -> Known:
    return Known(NewRequestData("a", [*PROMPT, *said], len(PROMPT), SamplingParams(), list(blocks), computed), ANSWER,
                 LAST)


def written(request: Known, slots: Slots, start: int = 0) -> list[int]:
    words = request.words_until(len(request.tokens))
    slots.write(request.blocks, start, words[start:])
    return words


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("start", range(5))
def test_what_was_written_in_pieces_is_found_whole(size: int, start: int) -> None:
    slots, request = Slots(size), known(blocks=(3, 1, 0, 2, 4))
    words = request.words_until(5)
    slots.write(request.blocks, 0, words[:start])
    assert start in (0, 5) or not slots.hold(request.blocks, words)
    slots.write(request.blocks, start, words[start:])
    assert slots.hold(request.blocks, words)


def test_a_block_of_another_request_is_not_its_own() -> None:
    slots, mine = Slots(2), known()
    other = Known(NewRequestData("b", [1, 2, 3], 3, SamplingParams(), [7, 8], 0), [], LAST)
    words = written(mine, slots)
    written(other, slots)
    for place in range(3):
        assert not slots.hold([*mine.blocks[:place], 7, *mine.blocks[place + 1:]], words)
    assert slots.hold(mine.blocks, words)


def test_the_same_tokens_behind_others_are_other_words() -> None:
    one = Known(NewRequestData("b", [1, 4, 4], 3, SamplingParams(), [0], 0), [], LAST).words_until(3)
    two = Known(NewRequestData("c", [2, 4, 4], 3, SamplingParams(), [0], 0), [], LAST).words_until(3)
    assert not set(one) & set(two)


@pytest.mark.parametrize("place", range(5))
def test_whoever_writes_into_a_block_spoils_what_stands_behind_it_there(place: int) -> None:
    slots, mine = Slots(2), known()
    words = written(mine, slots)
    slots.write(mine.blocks, place, [1])
    assert not slots.hold(mine.blocks, words)


def test_nothing_was_written_before_a_hole() -> None:
    slots, mine = Slots(4), known()
    words = mine.words_until(5)
    slots.write(mine.blocks, 2, words[2:3])
    assert not slots.hold(mine.blocks, words[:2])
    assert slots.hold(mine.blocks, words[:3]), "a word stands for all before it"


def test_it_goes_on_as_recorded_and_knows_when_it_does_not() -> None:
    request = known()
    said = []
    for _ in range(5):
        said.append(request.next_token)
        request.says(said[-1])
    assert (said, request.is_as_recorded) == ([11, 12, 13, LAST, LAST], True)
    assert known(11, 12).is_as_recorded and not known(11, 13).is_as_recorded
    again = known(11)
    again.goes_on(CachedRequestData("a", [12], [9], 6))
    assert (again.next_token, again.blocks[-1], again.computed, again.is_as_recorded) == (13, 9, 6, True)
    again.says(LAST)
    assert not again.is_as_recorded


@given(st.integers(1, 4), st.lists(st.one_of(
    st.none(), st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 3))), max_size=24))
def test_one_more_token_is_written_and_found_as_several_are(size: int, acts: list[tuple[int, int, int] | None]) -> None:
    """Whatever others write into these blocks meanwhile."""
    def begun() -> tuple[Slots, Known]:
        request = Known(NewRequestData("a", list(range(20, 33)), 13, SamplingParams(), list(range(13)), 0), [], LAST)
        return Slots(size), request

    (slots, request), (other_slots, other) = begun(), begun()
    for act in acts:
        if act is not None:
            block, place, count = act
            for some in (slots, other_slots):
                some.write([block] * 16, place, [7] * count)
        elif (have := len(request.words)) < 13:
            told = slots.write_next(request)
            words = other.words_until(have + 1)
            other_slots.write(other.blocks, have, words[have:])
            if told is None:  # then it is done as several are
                assert len(request.words) == have
                slots.write(request.blocks, have, request.words_until(have + 1)[have:])
            else:
                assert told == other_slots.hold(other.blocks, words)
        assert (slots._blocks, slots._ends, request.words) == (other_slots._blocks, other_slots._ends, other.words)

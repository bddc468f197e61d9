"""The engine's ring under every interleaving and store order of small cases, and planted flaws that must be found."""

from __future__ import annotations

import pytest

from engine.ipc.ring import EMPTY, RingReader, RingWriter
from tests.engine.ring_explorer import Explorer


@pytest.mark.parametrize(("order", "n_reader", "messages"), [
    ("SC", 1, 4), ("TSO", 1, 4), ("PSO", 1, 4), ("SC", 2, 4), ("TSO", 2, 4), ("PSO", 2, 4)])
def test_every_reader_gets_every_message_in_every_interleaving(order, n_reader, messages):
    explorer = Explorer(order, n_reader, chunks=2, messages=messages)
    assert explorer.explore() is None
    assert explorer.finished > 0, "no interleaving reached the end"


def leaving_out(kind: type, number: int) -> type:
    """The end whose `number`th fence of each operation is missing."""

    class Fenceless(kind):
        def __init__(self, layout, memory, fence, *rest):
            count = iter(range(1000))
            super().__init__(layout, memory, lambda: None if next(count) == number else fence(), *rest)

    return Fenceless


@pytest.mark.parametrize("number", [1, 2])
def test_a_writer_without_one_of_its_two_needed_fences_is_caught_under_store_reordering(number):
    explorer = Explorer("PSO", 1, chunks=2, messages=4, writer=leaving_out(RingWriter, number))
    assert "took" in (explorer.explore() or "")


def test_a_writer_without_its_fence_before_the_flag_is_right_where_stores_stay_in_order():
    assert Explorer("TSO", 1, chunks=2, messages=4, writer=leaving_out(RingWriter, 2)).explore() is None


class SkippingReader(RingReader):
    """Moves on to look for another chunk when its own is not ready (vllm#5801)."""

    def try_read(self, take):
        taken = super().try_read(take)
        if taken is EMPTY and self._position + 1 < self._max_chunks * 2:
            position, self._position = self._position, self._position + 1
            taken = super().try_read(take)
            if taken is EMPTY:
                self._position = position
        return taken


def test_a_reader_that_skips_a_slot_which_is_not_ready_is_caught():
    violation = Explorer("SC", 1, chunks=2, messages=4, reader=SkippingReader).explore()
    assert "took" in (violation or "")


class HastyReader(RingReader):
    """Sets its flag before it has taken the message."""

    def try_read(self, take):
        chunk = self._position % self._max_chunks
        if self._memory[self._own[chunk]][0] or not self._memory[self._written[chunk]][0]:
            return EMPTY
        self._memory[self._own[chunk]] = b"\x01"
        taken = take(self._memory[self._data[chunk]])
        self._position += 1
        return taken


def test_a_reader_that_frees_its_chunk_before_it_has_read_it_is_caught():
    violation = Explorer("SC", 1, chunks=1, messages=3, reader=HastyReader).explore()
    assert "took" in (violation or "")


class BackwardsReader(RingReader):
    """Looks at the written flag first and at its own second."""

    def try_read(self, take):
        chunk = self._position % self._max_chunks
        if not self._memory[self._written[chunk]][0] or self._memory[self._own[chunk]][0]:
            return EMPTY
        taken = take(self._memory[self._data[chunk]])
        self._free(self._own[chunk])
        return taken


def test_a_reader_that_looks_at_its_own_flag_second_is_caught_under_store_reordering():
    violation = Explorer("PSO", 1, chunks=2, messages=4, reader=BackwardsReader).explore()
    assert "took" in (violation or "")

"""A ring of vLLM's by its bytes: written here as its writer does."""

from __future__ import annotations

import pytest

from scenarios.worlds.vllm.rings.layout import Ring, Shape

SHAPE = Shape(2, 64, 3)
PAYLOAD = b"\x80 a pickle, which nobody reads"


class Writer:
    """`stores`: the stores to the flags that one message takes, one after the other."""

    def __init__(self) -> None:
        self.memory = bytearray(SHAPE.size)
        self.chunk = 0

    def flag(self, chunk: int, place: int) -> int:
        return SHAPE.flags_at + chunk * (1 + SHAPE.readers) + place

    def stores(self):
        memory, chunk = self.memory, self.chunk
        memory[self.flag(chunk, 0)] = 0
        yield chunk, "reset"
        start = chunk * SHAPE.chunk_bytes
        message = b"\0" + (1).to_bytes(2, "big") + len(PAYLOAD).to_bytes(4, "big") + PAYLOAD
        memory[start:start + len(message)] = message
        for reader in range(SHAPE.readers):
            memory[self.flag(chunk, 1 + reader)] = 0
            yield chunk, "readers" if reader == SHAPE.readers - 1 else ""
        memory[self.flag(chunk, 0)] = 1
        yield chunk, "written"
        self.chunk = (chunk + 1) % SHAPE.chunks

    def send(self) -> None:
        list(self.stores())

    def read(self, chunk: int, *readers: int) -> None:
        for reader in readers:
            self.memory[self.flag(chunk, 1 + reader)] = 1


@pytest.fixture
def writer() -> Writer:
    """Whose ring has gone round once, and all was read."""
    made = Writer()
    for chunk in range(SHAPE.chunks):
        made.send()
        made.read(chunk, 0, 1)
    return made


def test_it_is_known_which_store_the_last_one_was(writer: Writer) -> None:
    ring = Ring(writer.memory, SHAPE)
    for _ in range(2 * SHAPE.chunks):
        chunk = writer.chunk
        assert [ring.last_store() for _ in map(lambda told: told, writer.stores())] == [
            (chunk, "reset"), (chunk, ""), (chunk, "readers"), (chunk, "written")]
        writer.read(chunk, 0, 1)


def test_in_the_first_round_it_is_not_known() -> None:
    writer = Writer()
    ring = Ring(writer.memory, SHAPE)
    assert {ring.last_store()[1] for _ in writer.stores()} == {""}


def test_a_message_waits_for_who_has_not_read_it(writer: Writer) -> None:
    ring = Ring(writer.memory, SHAPE)
    assert ring.unread(0) == []
    writer.send()
    assert ring.unread(0) == [0, 1]
    writer.read(0, 1)
    assert ring.unread(0) == [0]


@pytest.mark.parametrize(("byte", "at"), [(0, 0), (5, 5), (-1, len(PAYLOAD) // 2)])
def test_one_byte_of_a_payload_is_changed(writer: Writer, byte: int, at: int) -> None:
    ring = Ring(writer.memory, SHAPE)
    writer.send()
    before = bytes(writer.memory)
    ring.damage(0, byte)
    [place] = [k for k, (one, other) in enumerate(zip(before, writer.memory, strict=True)) if one != other]
    assert ring.payload(0) is not None and before[place:].startswith(PAYLOAD[at:])


def test_what_is_elsewhere_has_no_payload_and_is_not_changed(writer: Writer) -> None:
    writer.memory[0] = 1
    ring, before = Ring(writer.memory, SHAPE), bytes(writer.memory)
    ring.damage(0, 0)
    assert ring.payload(0) is None and bytes(writer.memory) == before


@pytest.mark.parametrize(("reader", "left"), [(-1, []), (0, [1]), (1, [0])])
def test_a_message_is_hidden_from_readers(writer: Writer, reader: int, left: list[int]) -> None:
    ring = Ring(writer.memory, SHAPE)
    writer.send()
    ring.hide(0, reader)
    assert ring.unread(0) == left

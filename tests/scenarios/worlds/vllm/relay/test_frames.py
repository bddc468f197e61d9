"""However a stream is cut up, its messages are the same; what is no ZMTP is refused at once."""

from __future__ import annotations

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from scenarios.worlds.vllm.relay.frames import Kind, NotZmtpError, Parser, Piece, encoded

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
MESSAGES = st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=4), max_size=8)


def told(pieces: list[Piece]) -> list[tuple[Kind, list[bytes]]]:
    return [(piece.kind, [bytes(frame) for frame in piece.frames]) for piece in pieces if piece.is_message]


@given(MESSAGES, st.lists(st.integers(0, 3000), max_size=20))
def test_any_split_gives_the_same_messages_and_keeps_every_byte(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = GREETING + READY + b"".join(encoded(Kind.MESSAGE, frames) for frames in messages)
    parser, pieces, at = Parser(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        pieces += parser.feed(stream[at:cut])
        at = max(at, cut)
    assert told(pieces) == [(Kind.MESSAGE, frames) for frames in messages]
    assert b"".join(piece.raw for piece in pieces) == stream and not parser.kept


def test_a_message_that_has_not_ended_is_kept_back() -> None:
    parser, whole = Parser(), encoded(Kind.MESSAGE, [b"a", b"b" * 300])
    assert not told(parser.feed(GREETING + whole[:-1])) and parser.kept == len(whole) - 1
    assert told(parser.feed(whole[-1:])) == [(Kind.MESSAGE, [b"a", b"b" * 300])]


def test_a_subscription_is_a_message_and_is_written_as_it_came() -> None:
    for first in (b"\x01topic", b"\x00topic", b"\x01"):
        raw = encoded(Kind.SUBSCRIPTION, [first])
        (piece,) = [one for one in Parser().feed(GREETING + raw) if one.is_message]
        assert (piece.kind, piece.raw, bytes(piece.frames[0])) == (Kind.SUBSCRIPTION, raw, first)


def test_who_a_peer_says_that_it_is() -> None:
    named = READY[:-4] + b"\x00\x00\x00\x02\x00\x01"
    named = named[:1] + bytes([len(named) - 2]) + named[2:]
    assert [piece.identity for piece in Parser().feed(GREETING + named)] == [None, b"\x00\x01"]
    assert [piece.identity for piece in Parser().feed(GREETING + READY)] == [None, None]


@pytest.mark.parametrize("stranger", [
    b"GET / HTTP/1.1\r\n", bytes(64), b"\xff" + bytes(8) + b"\x00", b"\xff" + bytes(8) + b"\x7f\x01" + bytes(53),
    GREETING + b"\x08\x00", GREETING + b"\x05\x00", GREETING + b"\x02" + (1 << 40).to_bytes(8, "big")],
    ids=["http", "zeros", "no signature", "an old version", "unknown flags", "more of a command", "too large"])
def test_what_is_no_zmtp_is_refused(stranger: bytes) -> None:
    with pytest.raises(NotZmtpError):
        Parser().feed(stranger)


def test_libzmq_speaks_so() -> None:
    """What a DEALER sends to a raw socket, whole."""
    with zmq.Context() as context, context.socket(zmq.STREAM) as raw, context.socket(zmq.DEALER) as dealer:
        port = raw.bind_to_random_port("tcp://127.0.0.1")
        dealer.setsockopt(zmq.IDENTITY, b"\x07\x00")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        parser, pieces, answered = Parser(), [], False
        dealer.send_multipart([b"", b"x" * 1000])
        while not any(piece.is_message for piece in pieces):
            assert raw.poll(5000)
            peer, data = raw.recv_multipart()
            pieces += parser.feed(data) if data else []
            if not answered:
                answered = True
                raw.send_multipart([peer, GREETING + READY.replace(b"DEALER", b"ROUTER")])
        assert told(pieces) == [(Kind.MESSAGE, [b"", b"x" * 1000])]
        assert b"\x07\x00" in [piece.identity for piece in pieces]
        dealer.close(0)
        raw.close(0)

"""Core and frontend meet, stepped by hand: in order, with lost, late, doubled and foreign messages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.effects import Identity, IsAlive, Send
from engine.errors import StartupError
from engine.messages import EngineHandshakeMetadata, EngineZmqAddresses
from engine.ports import Unroutable
from engine.process.consensus.effects import Member
from engine.wire.handshake import (
    HANDSHAKE,
    REQUESTS,
    Expected,
    Greeting,
    core_hello,
    core_ready,
    core_refuse,
    frontend_handshake,
    hash_of,
)
from tests.engine.core.loops import Hand
from tests.engine.process.hands import LifeHand

METADATA = EngineHandshakeMetadata(EngineZmqAddresses(["ipc://in"], ["ipc://out"]), {"tensor_parallel_size": 2})


def hello(**more) -> list[bytes]:
    return [msgspec.msgpack.encode({"status": "HELLO", "local": True, "headless": False, **more})]


def ready(blocks: int | None = 64) -> list[bytes]:
    return [msgspec.msgpack.encode({"status": "READY", "local": True, "headless": False, "num_gpu_blocks": blocks})]


#: What a core sends, in order: (inbox, frames).
TALK = [(HANDSHAKE, [b""]), (HANDSHAKE, hello()), (HANDSHAKE, ready()), (REQUESTS, [b""])]


def frontend(messages, engines: int = 1, hello_s: float = 5.0, startup_s: float = 20.0) -> tuple[Hand, object]:
    """`messages`: (inbox, frames), (inbox, frames, at) or (inbox, frames, at, peer)."""
    hand = Hand()
    for message in messages:
        inbox, frames, at, peer = (*message, *(0.0, 0)[len(message) - 2:])
        hand.inboxes[inbox].append((at, peer, frames))
    return hand, hand.run(frontend_handshake(dict.fromkeys(range(engines), METADATA), hello_s, startup_s))


def test_both_sides_leave_with_the_same_configuration() -> None:
    """The core's own messages, carried to the frontend by hand, and its answer carried back."""
    core = Hand()
    core.inboxes[HANDSHAKE].append((0.0, 0, [msgspec.msgpack.encode(METADATA)]))
    assert core.run(core_hello(5.0)) == METADATA
    core.run(core_ready(77))
    assert core.sent[0] == (HANDSHAKE, [b""], 0), "so that the ROUTER learns the identity"
    hand, blocks = frontend([(box, frames) for box, frames, _ in core.sent] + [(REQUESTS, [b""])])
    assert blocks == {0: 77}
    assert hand.sent == [(HANDSHAKE, [msgspec.msgpack.encode(METADATA)], 0)]


@pytest.mark.parametrize(("lost", "missing"), [(1, "say HELLO"), (2, "report READY"), (3, "open its input socket")])
def test_a_lost_message_ends_in_an_error_that_names_it_at_its_bound(lost: int, missing: str) -> None:
    hand = Hand()
    for place, (inbox, frames) in enumerate(TALK):
        if place != lost:
            hand.inboxes[inbox].append((0.0, 0, frames))
    with pytest.raises(StartupError, match=f"core.0 did not {missing}"):
        hand.run(frontend_handshake({0: METADATA}, 5.0, 20.0))
    assert hand.now == (5.0 if lost == 1 else 20.0)


def test_the_empty_first_frame_may_be_lost() -> None:
    assert frontend(TALK[1:])[1] == {0: 64}


@pytest.mark.parametrize(("at", "fits"), [(19.9, True), (20.1, False)])
def test_a_late_ready_is_taken_until_the_bound_and_not_after(at: float, fits: bool) -> None:
    messages = [*TALK[:2], (HANDSHAKE, ready(), at), (REQUESTS, [b""], at)]
    if fits:
        assert frontend(messages)[1] == {0: 64}
    else:
        with pytest.raises(StartupError):
            frontend(messages)


def test_a_late_hello_is_not_waited_for_as_long_as_a_load() -> None:
    with pytest.raises(StartupError, match="HELLO"):
        frontend([(HANDSHAKE, hello(), 5.1), (HANDSHAKE, ready(), 5.2), (REQUESTS, [b""], 5.2)])


FOREIGN = [
    [b"\xc1"], [b"hello"], [b""] * 3, ready(None), [msgspec.msgpack.encode({"status": "BYE"})], [b"\x90"],
    [msgspec.msgpack.encode([1, 2, 3])], [msgspec.msgpack.encode({"status": 7})], [],
    [b"\x81\xa1x" + b"\x91" * 5000], [b"\x81\xa6status\xa2\xff\xff"], [b"\xdf\xff\xff\xff\xff"], [b"?" * 70_000],
]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(FOREIGN), st.sampled_from([0, 0, 9, None])), max_size=6),
       st.booleans())
def test_foreign_and_doubled_messages_are_ignored_and_the_start_succeeds(foreign, doubled: bool) -> None:
    messages = [(box, frames, 0.0, 0) for box, frames in TALK for _ in range(1 + doubled)]
    for place, frames, peer in foreign:
        messages.insert(place, (HANDSHAKE, frames, 0.0, peer))
    hand, blocks = frontend(messages)
    assert blocks == {0: 64}
    reported = [data for name, data in hand.observed if name == "bad-frame"]
    assert len(reported) >= sum(1 for _, frames, _ in foreign if frames not in ([b""], [b""] * 3)) - 1


@pytest.mark.parametrize("place", [1, 2])
def test_a_greeting_that_has_lost_all_its_bytes_is_told_of_and_not_taken_for_the_first_frame(place: int) -> None:
    hand = Hand()
    for number, (inbox, frames) in enumerate(TALK):
        hand.inboxes[inbox].append((0.0, 0, [b""] if number == place else frames))
    with pytest.raises(StartupError, match="core.0 did not"):
        hand.run(frontend_handshake({0: METADATA}, 5.0, 20.0))
    reported = [data["error"] for name, data in hand.observed if name == "bad-frame"]
    assert len(reported) == (2 if place == 1 else 1), "a READY that comes before HELLO is one more"


def test_ready_before_hello_does_not_count() -> None:
    with pytest.raises(StartupError, match="HELLO"):
        frontend([(HANDSHAKE, ready()), (REQUESTS, [b""])])


def test_a_restarted_core_that_says_hello_again_is_answered_again() -> None:
    hand, blocks = frontend([(HANDSHAKE, hello()), (HANDSHAKE, hello()), (HANDSHAKE, ready()), (REQUESTS, [b""])])
    assert blocks == {0: 64} and len(hand.sent) == 2
    [(_, told)] = [said for said in hand.observed if said[0] == "bad-frame"]
    assert told["error"] == "core.0 says HELLO again: its first one was doubled, or two go by this index"


def test_a_core_that_has_gone_when_it_is_answered_is_missed_where_it_is_watched() -> None:
    def gone(effect: Send) -> None:
        raise Unroutable("handshake: peer 0 is not connected")

    hand = LifeHand()
    hand.inboxes[HANDSHAKE].append((0.1, 0, hello()))
    hand.instead[Send] = gone
    with pytest.raises(StartupError, match="core.0"):
        hand.run(frontend_handshake({0: METADATA}, 5.0, 20.0))
    assert hand.now == pytest.approx(20.0)


def test_greetings_of_a_newer_core_with_more_fields_are_understood() -> None:
    assert frontend([(HANDSHAKE, hello(colour="blue")), *TALK[2:]])[1] == {0: 64}


def test_the_core_ignores_noise_and_ends_at_its_deadline_without_an_answer() -> None:
    hand = Hand()
    hand.inboxes[HANDSHAKE].extend([(0.0, 0, frames) for frames in FOREIGN])
    hand.inboxes[HANDSHAKE].append((1.0, 0, [msgspec.msgpack.encode(METADATA)]))
    assert hand.run(core_hello(5.0)) == METADATA
    silent = Hand()
    with pytest.raises(StartupError, match="did not answer"):
        silent.run(core_hello(5.0))
    assert silent.now == 5.0


# -- cores that others have started

HEAD = EngineHandshakeMetadata(EngineZmqAddresses([], []), {"data_parallel_size": 2})
ME = Member("core.1", Identity(7, 1), "beat")


class Looking(Hand):
    """It knows whether a process lives: until `gone_at`."""

    gone_at = float("inf")

    def answer(self, effect):
        return self.now < self.gone_at if isinstance(effect, IsAlive) else super().answer(effect)


def said(status: str, **more) -> list[bytes]:
    return [msgspec.msgpack.encode(Greeting(status, member=ME, **more))]


def head(expected: Expected, *messages, hand: Hand | None = None, heard=None) -> Hand:
    """Core 0 is its own and says all that it should; core 1 says these, at these times."""
    hand = hand or Looking()
    for inbox, frames in TALK:
        hand.inboxes[inbox].append((0.0, 0, frames))
    for at, inbox, frames in messages:
        hand.inboxes[inbox].append((at, 1, frames))
    more = {} if heard is None else {"heard": heard}
    assert hand.run(frontend_handshake({0: METADATA, 1: HEAD}, 5.0, 20.0, expected=expected, **more)) == {0: 64, 1: 9}
    return hand


HEADLESS, OTHERS = Expected(headless=frozenset({1})), Expected(of_others=frozenset({1}))
AWAY = {"local": False, "headless": True}


def test_a_head_waits_for_headless_cores_and_for_their_announcement() -> None:
    heard = {}
    head(HEADLESS, (1.0, HANDSHAKE, said("HELLO", **AWAY)), (3.0, HANDSHAKE, said("READY", num_gpu_blocks=9, **AWAY)),
         (3.0, REQUESTS, [b""]), heard=heard.__setitem__)
    assert heard[1].member == ME and heard[0].member is None


def test_a_core_with_a_client_of_its_own_announces_itself_to_that_one_alone() -> None:
    head(OTHERS, (1.0, HANDSHAKE, said("HELLO", local=False)),
         (3.0, HANDSHAKE, said("READY", local=False, num_gpu_blocks=9)))


def test_local_and_remote_cores_are_counted_apart() -> None:
    with pytest.raises(StartupError, match=r"core.1 did not say HELLO in time .*1 of 1 local, 0 of 1 remote"):
        head(HEADLESS)


@pytest.mark.parametrize(("expected", "place", "words"), [
    (HEADLESS, {}, "as one that was started here, and is to be headless"),
    (HEADLESS, {"local": False}, "as one with a client of its own, and is to be headless"),
    (OTHERS, AWAY, "as headless, and is to be one with a client of its own")])
def test_a_core_that_comes_otherwise_than_expected_ends_the_start_by_name(expected, place, words: str) -> None:
    with pytest.raises(StartupError, match=f"core.1 greets {words}"):
        head(expected, (1.0, HANDSHAKE, said("HELLO", **place)))


def test_who_refuses_says_why_and_that_ends_the_start() -> None:
    core = Hand()
    core.run(core_refuse(HANDSHAKE, Greeting("HELLO", member=ME, **AWAY), "sync_interval is 7 here"))
    with pytest.raises(StartupError, match="core.1 refuses: sync_interval is 7 here"):
        head(HEADLESS, (1.0, HANDSHAKE, said("HELLO", **AWAY)), (2.0, HANDSHAKE, core.sent[0][1]))


@pytest.mark.parametrize("agrees", [True, False])
def test_another_configuration_is_known_by_its_hash(agrees: bool) -> None:
    mine = hash_of(HEAD.parallel_config if agrees else {"data_parallel_size": 3})
    words = [(1.0, HANDSHAKE, said("HELLO", **AWAY)), (2.0, REQUESTS, [b""]),
             (2.0, HANDSHAKE, said("READY", num_gpu_blocks=9, parallel_config_hash=mine, **AWAY))]
    if agrees:
        head(HEADLESS, *words)
        return
    with pytest.raises(StartupError, match="core.1 has another parallel configuration"):
        head(HEADLESS, *words)


def test_a_headless_core_that_does_not_say_who_it_is_is_not_ready() -> None:
    hand = Looking()
    nobody = [msgspec.msgpack.encode(Greeting("READY", num_gpu_blocks=9, **AWAY))]
    with pytest.raises(StartupError, match="core.1 did not report READY in time"):
        head(HEADLESS, (1.0, HANDSHAKE, said("HELLO", **AWAY)), (2.0, HANDSHAKE, nobody), (2.0, REQUESTS, [b""]),
             hand=hand)
    [told] = [data["error"] for name, data in hand.observed if name == "bad-frame"]
    assert told == "READY of core.1, which was not started here and does not say who it is"


def test_a_remote_core_that_dies_while_it_starts_is_missed_at_once() -> None:
    hand = Looking()
    hand.gone_at = 3.0
    with pytest.raises(StartupError, match="core.1 died while starting"):
        head(HEADLESS, (1.0, HANDSHAKE, said("HELLO", **AWAY)), hand=hand)
    assert 3.0 <= hand.now < 5.0

"""The twin's socket model against the real libzmq: every outcome that really happens is one that the model allows.

A situation is a function of a world that returns what was observed. It is played a few times on libzmq and, for
every choice of the model (within a bound), in the twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.zmq_worlds import outcomes

REPEATS = 2
ROUTER = {"kind": "ROUTER", "bind": True}
DEALER = {"kind": "DEALER", "bind": False, "identity": b"\x00\x00"}
PUSH = {"kind": "PUSH", "bind": False}
PULL = {"kind": "PULL", "bind": True}


def numbers(found: list[tuple[int, str]]) -> list[int]:
    return [int(text) for _, text in found]


def pair(world: Any, left: dict[str, Any], right: dict[str, Any]) -> None:
    """a binds with `left`, b connects with `right`."""
    world.open("a", "s", address=world.address(), **left)
    world.open("b", "s", address=world.address(), **right)
    for node in "ab":
        assert world.await_event(node, "s", "connected")


# -- situations whose outcome is one of a list ---------------------------------------------------------------


def everything_arrives_in_order(world: Any) -> Any:
    """HWM 0 on both ends, a reader that pauses through a burst of 5,000."""
    pair(world, ROUTER, DEALER)
    sent = world.send("a", "s", 5000)
    return sent, numbers(world.drain("b", "s", 1.0, 5000)) == list(range(5000))


def no_peer_at_all(world: Any) -> Any:
    """What each kind answers where nobody is connected."""
    world.open("a", "push", kind="PUSH", bind=True, address=world.address("1"))
    world.open("a", "to", kind="PUSH", bind=False, address=world.address("2"))
    world.open("a", "router", kind="ROUTER", bind=True, address=world.address("3"))
    world.open("a", "silent", kind="ROUTER", bind=True, address=world.address("4"), mandatory=False)
    world.open("a", "pub", kind="PUB", bind=True, address=world.address("5"))
    return [world.send("a", key, 3) for key in ("push", "to", "router", "silent", "pub")]


def sent_before_the_peer_is_there(world: Any) -> Any:
    """A connecting PUSH keeps what it is given until somebody binds."""
    world.open("b", "s", address=world.address(), **PUSH)
    world.send("b", "s", 100)
    world.open("a", "s", address=world.address(), **PULL)
    return numbers(world.drain("a", "s", 0.5, 100))


def second_holder_of_an_identity(world: Any, handover: bool) -> Any:
    """Two DEALERs, one identity: whose frames the ROUTER sees, and who gets its answers."""
    pair(world, {**ROUTER, "handover": handover}, DEALER)
    world.open("c", "s", address=world.address(), **DEALER)
    world.await_event("c", "s", "connected")
    world.send("c", "s", 1, first=7)
    seen = numbers(world.drain("a", "s", 0.2, 1))
    world.send("a", "s", 1, first=9)
    return seen, numbers(world.drain("b", "s", 0.05)), numbers(world.drain("c", "s", 0.05))


def handover_refused(world: Any) -> Any:
    """The new DEALER of a taken identity speaks to nobody."""
    return second_holder_of_an_identity(world, False)


def handover_granted(world: Any) -> Any:
    """The new DEALER takes the identity over."""
    return second_holder_of_an_identity(world, True)


def dealer_dies_and_returns(world: Any) -> Any:
    """A ROUTER's queued messages end with the connection; after the death was noticed it refuses; then it serves."""
    pair(world, ROUTER, DEALER)
    world.stop("b")
    queued = world.send("a", "s", 50)
    world.kill("b")
    assert world.await_event("a", "s", "disconnected")
    refused = world.send("a", "s", 1)
    world.open("b", "s", address=world.address(), **DEALER)
    world.await_event("a", "s", "connected")
    world.send("a", "s", 3, first=100)
    return queued, refused, numbers(world.drain("b", "s", 1.0, 3))


def pull_dies_and_returns(world: Any) -> Any:
    """What a connecting PUSH sent after it noticed the death reaches the next PULL."""
    pair(world, PULL, PUSH)
    world.send("b", "s", 5)
    assert numbers(world.drain("a", "s", 1.0, 5)) == [0, 1, 2, 3, 4]
    world.kill("a")
    assert world.await_event("b", "s", "disconnected")
    world.send("b", "s", 10, first=100)
    world.open("a", "s", address=world.address(), **PULL)
    return numbers(world.drain("a", "s", 1.0, 10))


def binding_push_loses_its_pull(world: Any) -> Any:
    """A binding PUSH refuses once its only PULL is gone, and serves the next one."""
    pair(world, {**PUSH, "bind": True}, {**PULL, "bind": False})
    world.kill("b")
    assert world.await_event("a", "s", "disconnected")
    refused = world.send("a", "s", 1)
    world.open("b", "s", address=world.address(), kind="PULL", bind=False)
    world.await_event("a", "s", "connected")
    world.send("a", "s", 3)
    return refused, numbers(world.drain("b", "s", 1.0, 3))


def received_before_the_senders_death(world: Any) -> Any:
    """What had reached the reader's process stays readable after the writer's death."""
    pair(world, PULL, PUSH)
    world.send("b", "s", 3)
    first = numbers(world.drain("a", "s", 1.0, 1))
    world.send("b", "s", 1, first=9)
    rest = numbers(world.drain("a", "s", 1.0, 2))
    world.kill("b")
    return first, rest, numbers(world.drain("a", "s", 0.1))


def last_words(world: Any) -> Any:
    """Twelve small messages, close with linger, terminate, exit: all arrive."""
    pair(world, PULL, {**PUSH, "linger_s": 4.0})
    world.send("b", "s", 12)
    world.leave("b")
    return numbers(world.drain("a", "s", 1.0, 12))


def subscriber_that_comes_late(world: Any) -> Any:
    """Messages published before the subscription arrived are nobody's."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address())
    world.send("a", "s", 5)
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), topic=b"0000")
    subscribed = world.drain("a", "s", 1.0, 1)
    world.send("a", "s", 5, first=100)
    return subscribed, numbers(world.drain("b", "s", 1.0, 5))


def topics(world: Any) -> Any:
    """A SUB gets what begins with its topic, and nothing else."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address())
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), topic=b"0000001")
    world.drain("a", "s", 1.0, 1)
    world.send("a", "s", 30)
    return numbers(world.drain("b", "s", 1.0, 10))


def subscriber_returns(world: Any) -> Any:
    """An XPUB hears that the last subscriber of a topic is gone, and of the next one."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address())
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), topic=b"0")
    first = world.drain("a", "s", 1.0, 1)
    world.kill("b")
    gone = world.drain("a", "s", 1.0, 1)
    world.send("a", "s", 5)
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), topic=b"0")
    back = world.drain("a", "s", 1.0, 1)
    world.send("a", "s", 2, first=50)
    return first, gone, back, numbers(world.drain("b", "s", 1.0, 2))


def publisher_restarts(world: Any) -> Any:
    """A SUB finds the next life of its publisher by itself."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address())
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), topic=b"")
    world.drain("a", "s", 1.0, 1)
    world.kill("a")
    assert world.await_event("b", "s", "disconnected")
    world.open("a", "s", kind="XPUB", bind=True, address=world.address())
    # libzmq subscribes again in the thread that uses the SUB, so that one has to look.
    nothing = world.drain("b", "s", 0.25)
    back = world.drain("a", "s", 1.0, 1)
    world.send("a", "s", 2)
    return nothing, back, numbers(world.drain("b", "s", 1.0, 2))


def stopped_subscriber(world: Any) -> Any:
    """XPUB with its mark at 100, SUB stopped, a burst of 1,000 large enough for no buffer: the first 100 and no hole
    among them."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address(), send_hwm=100)
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), receive_hwm=100)
    world.drain("a", "s", 1.0, 1)
    world.stop("b")
    world.send("a", "s", 1000, size=60_000)
    world.go_on("b")
    found = numbers(world.drain("b", "s", 0.3))
    return found[:100] == list(range(100)), len(found) < 1000, found == sorted(set(found))


EXACT: list[Callable[[Any], Any]] = [
    everything_arrives_in_order, no_peer_at_all, sent_before_the_peer_is_there, handover_refused, handover_granted,
    dealer_dies_and_returns, pull_dies_and_returns, binding_push_loses_its_pull, received_before_the_senders_death,
    last_words, subscriber_that_comes_late, topics, subscriber_returns, publisher_restarts, stopped_subscriber,
]


@pytest.mark.parametrize("situation", EXACT, ids=lambda situation: situation.__name__)
def test_what_libzmq_does_the_model_allows(situation, real):
    allowed = outcomes(situation)
    for _ in range(REPEATS):
        world = real()
        found = situation(world)
        world.end()
        assert found in allowed, f"{situation.__doc__}\nlibzmq: {found}\nmodel: {allowed}"


# -- situations whose outcome is an amount: the model says between what and what -------------------------------


def accepted_by_a_stalled_reader(world: Any) -> int:
    """PUSH and PULL with marks of 100, nobody reads: how many of 50,000 messages are accepted."""
    pair(world, {**PULL, "receive_hwm": 100}, {**PUSH, "send_hwm": 100})
    return world.send("b", "s", 50_000, size=100)[0]


def kept_for_a_stalled_subscriber(world: Any) -> int:
    """XPUB and SUB with marks of 100, nobody reads during a burst: how many of 20,000 are read afterwards."""
    world.open("a", "s", kind="XPUB", bind=True, address=world.address(), send_hwm=100)
    world.open("b", "s", kind="SUB", bind=False, address=world.address(), receive_hwm=100)
    world.drain("a", "s", 1.0, 1)
    for burst in range(20):
        world.send("a", "s", 1000, first=1000 * burst, size=100)
    found = numbers(world.drain("b", "s", 0.3))
    assert found == sorted(set(found)) and found[:100] == list(range(100))
    return len(found)


def delivered_before_a_kill(world: Any) -> int:
    """Twelve messages, then SIGKILL of the sender: how long the prefix is that arrives."""
    pair(world, PULL, PUSH)
    world.send("b", "s", 12)
    world.kill("b")
    found = numbers(world.drain("a", "s", 0.1))
    assert found == list(range(len(found)))
    return len(found)


def lost_by_a_dying_reader(world: Any) -> int:
    """A stopped PULL is killed with 1,000 messages on their way: how many of them the next one still gets."""
    pair(world, PULL, PUSH)
    world.stop("a")
    world.send("b", "s", 1000, size=1000)
    world.kill("a")
    world.open("a", "s", address=world.address(), **PULL)
    found = numbers(world.drain("a", "s", 0.3))
    assert found == list(range(1000 - len(found), 1000))
    return len(found)


AMOUNTS: list[Callable[[Any], int]] = [
    accepted_by_a_stalled_reader, kept_for_a_stalled_subscriber, delivered_before_a_kill, lost_by_a_dying_reader,
]


@pytest.mark.parametrize("situation", AMOUNTS, ids=lambda situation: situation.__name__)
def test_an_amount_lies_within_what_the_model_allows(situation, real):
    allowed = outcomes(situation)
    for _ in range(REPEATS):
        world = real()
        found = situation(world)
        world.end()
        assert min(allowed) <= found <= max(allowed), f"{situation.__doc__}\nlibzmq: {found}\nmodel: {allowed}"


@pytest.mark.parametrize("situation", [*EXACT, *AMOUNTS], ids=lambda situation: situation.__name__)
def test_the_model_plays_every_situation(situation):
    """Also where libzmq is not installed, each situation runs in the model with every choice."""
    assert outcomes(situation)

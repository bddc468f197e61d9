"""One contract of `engine.ports.Socket`, passed by the real sockets and by the twin's."""

from __future__ import annotations

import pytest

from engine.ports import Unroutable


def hello(maker, **rest):
    """A ROUTER and a DEALER that have met."""
    router = maker.open("ROUTER", bind=True, **rest)
    dealer = maker.open("DEALER", bind=False, identity=b"\x02\x00")
    dealer.send([b"hello"])
    assert maker.receive(router) == (2, [b"hello"])
    return router, dealer


def test_nothing_there_is_none(maker):
    """`try_receive` answers None at once where no message is."""
    router, dealer = hello(maker)
    assert router.try_receive() is None and dealer.try_receive() is None


def test_messages_keep_their_order(maker):
    """500 messages of one peer arrive in the order they were sent, each once."""
    router, dealer = hello(maker)
    for number in range(500):
        router.send([b"%d" % number], 2)
    assert [maker.receive(dealer)[1] for _ in range(500)] == [[b"%d" % number] for number in range(500)]
    assert dealer.try_receive() is None


def test_frames_arrive_as_they_were(maker):
    """Empty, small and large frames of one message stay apart and intact."""
    router, dealer = hello(maker)
    frames = [b"", b"x", bytes(range(256)) * 1000, memoryview(b"view"), bytearray(b"array")]
    dealer.send(frames)
    assert [bytes(frame) for frame in maker.receive(router)[1]] == [bytes(frame) for frame in frames]


def test_a_small_buffer_may_be_reused_after_send(maker):
    """What was sent is what arrives, whatever the sender then writes into its buffer."""
    router, dealer = hello(maker)
    buffer = bytearray(b"before")
    dealer.send([buffer])
    buffer[:] = b"after!"
    assert maker.receive(router)[1] == [b"before"]


def test_an_unknown_peer_is_unroutable(maker):
    """A ROUTER says so when nobody has that identity, and still serves those it knows."""
    router, dealer = hello(maker)
    with pytest.raises(Unroutable):
        router.send([b"nobody"], 7)
    router.send([b"you"], 2)
    assert maker.receive(dealer)[1] == [b"you"]


def test_a_router_that_is_not_mandatory_drops_in_silence(maker):
    """`mandatory=False` is libzmq's default behaviour."""
    router, _ = hello(maker, mandatory=False)
    assert router.send([b"nobody"], 7) is None


def test_a_peer_that_is_not_a_router_has_the_specs_index(maker):
    """DEALER and PULL tell the one peer index that their spec gave."""
    router = maker.open("ROUTER", bind=True)
    dealer = maker.open("DEALER", bind=False, identity=b"\x00\x00", peer=5)
    dealer.send([b"hello"])
    assert maker.receive(router) == (0, [b"hello"])
    router.send([b"answer"], 0)
    assert maker.receive(dealer) == (5, [b"answer"])


def test_strangers_are_nobody_unless_wanted(maker):
    """To a ROUTER who has an identity that is no index is nobody; with `raw_identities` it hears and answers them."""
    router = maker.open("ROUTER", bind=True, address="ours")
    stranger = maker.open("DEALER", bind=False, address="ours", identity=b"stranger")
    friend = maker.open("DEALER", bind=False, address="ours", identity=b"\x01\x00")
    nameless = maker.open("DEALER", bind=False, address="ours")
    stranger.send([b"one"])
    assert maker.receive(router) == (None, [b"one"])
    nameless.send([b"two", b""])
    assert maker.receive(router) == (None, [b"two", b""])
    friend.send([b"three"])
    assert maker.receive(router) == (1, [b"three"])
    open_router = maker.open("ROUTER", bind=True, address="open", raw_identities=True)
    other = maker.open("DEALER", bind=False, address="open", identity=b"stranger")
    other.send([b"one"])
    assert maker.receive(open_router) == (b"stranger", [b"one"])
    open_router.send([b"back"], b"stranger")
    assert maker.receive(other)[1] == [b"back"]


def test_a_bound_port_is_told(maker):
    """A wildcard port is resolved in `address`, and peers can connect to it."""
    pull = maker.open("PULL", bind=True, address="tcp://127.0.0.1:*")
    assert not pull.address.endswith("*")
    push = maker.open("PUSH", bind=False, address=pull.address)
    push.send([b"there"])
    assert maker.receive(pull)[1] == [b"there"]


def test_a_port_is_bound_once(maker):
    """The second socket on a tcp address is refused."""
    first = maker.open("PULL", bind=True, address="tcp://127.0.0.1:*")
    with pytest.raises(Exception) as refusal:
        maker.open("PULL", bind=True, address=first.address)
    assert refusal.value.errno == 98


def test_close_keeps_what_may_linger(maker):
    """Messages sent before a close with linger arrive."""
    pull = maker.open("PULL", bind=True)
    push = maker.open("PUSH", bind=False, linger_s=4.0)
    for number in range(20):
        push.send([b"%d" % number])
    push.close()
    assert [maker.receive(pull)[1] for _ in range(20)] == [[b"%d" % number] for number in range(20)]


def test_each_pusher_keeps_its_order(maker):
    """A PULL with two pushers gets each one's messages in order, and all of them."""
    pull = maker.open("PULL", bind=True)
    pushers = [maker.open("PUSH", bind=False) for _ in range(2)]
    for number in range(50):
        for name, push in zip(b"ab", pushers, strict=True):
            push.send([bytes([name]) + b"%03d" % number])
    found = [maker.receive(pull)[1][0] for _ in range(100)]
    for name in (b"a", b"b"):
        assert [frame for frame in found if frame[:1] == name] == [name + b"%03d" % number for number in range(50)]


def test_an_xpub_hears_every_subscription(maker):
    """Each subscriber's subscription reaches the XPUB, also for a topic that another has already."""
    xpub = maker.open("XPUB", bind=True)
    subscribers = [maker.open("SUB", bind=False, topic=b"t") for _ in range(2)]
    assert [maker.receive(xpub)[1] for _ in subscribers] == [[b"\x01t"], [b"\x01t"]]
    xpub.send([b"topic", b"x"])
    xpub.send([b"other", b"y"])
    xpub.send([b"t", b"z"])
    for subscriber in subscribers:
        assert [maker.receive(subscriber)[1] for _ in range(2)] == [[b"topic", b"x"], [b"t", b"z"]]


def test_a_watched_end_is_over_when_nobody_is_connected_and_all_was_read(maker):
    """Each that was connected counts; what they sent before they went is still to be read."""
    pull = maker.open("PULL", bind=True, watched=True)
    assert not pull.is_over()
    one, other = (maker.open("PUSH", bind=False, linger_s=5.0) for _ in range(2))
    for push in (one, other):
        push.send([b"here"])
    assert {maker.receive(pull)[1][0] for _ in range(2)} == {b"here"}
    one.close()
    maker.until(lambda: maker.connected(pull) == 1)
    assert not pull.is_over()
    other.send([b"last"])
    other.close()
    maker.until(lambda: maker.connected(pull) == 0)
    assert not pull.is_over()
    assert maker.receive(pull)[1] == [b"last"]
    assert pull.is_over() and pull.is_over()
    another = maker.open("PUSH", bind=False)
    another.send([b"back"])
    assert maker.receive(pull)[1] == [b"back"] and not pull.is_over()


def test_a_watched_socket_knows_of_a_cut_before_it_has_what_the_next_connection_brings(maker):
    """Its publisher ends and another one binds the address: with the first word of that one the cut is known, once."""
    def hear(publisher, word):
        for _ in range(1000):
            publisher.send([word])
            if maker.receive(reader, 0.02) == (0, [word]):
                return
        raise AssertionError(f"{word!r} did not come")

    first = maker.open("PUB", bind=True)
    reader = maker.open("SUB", bind=False, watched=True)
    hear(first, b"first")
    assert not reader.was_cut()
    first.close(0)
    hear(maker.open("PUB", bind=True), b"second")
    assert reader.was_cut() and not reader.was_cut()

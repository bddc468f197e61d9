"""A cut on the wire falls between two messages, on ipc and on tcp, and ZMQ connects again by itself."""

import os
import socket
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from engine.ports import SocketSpec
from engine.process.real_ports import RealPorts
from engine.topology import Channel, NodeKind
from faults.journal import Kind
from faults.plan import cut, drop, plan, until
from faults.real.wire import GREETING_BYTES, Scanner, WireProxy, parse_address
from tests.faults.real.test_sockets import take
from tests.faults.stage import OUTPUTS, REQUESTS, Stage, core, frontend, pull, push, wait_for


def frame(body, *, more=False, command=False):
    flags = (1 if more else 0) | (4 if command else 0)
    if len(body) > 255:
        return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


STREAM = [
    (False, bytes(GREETING_BYTES)), (False, frame(b"READY", command=True)), (True, frame(b"one")),
    (True, frame(b"", more=True)), (False, frame(b"two" * 100, more=True)), (False, frame(b"")),
    (False, frame(b"PING", command=True)), (True, frame(b"x" * 70_000)), (True, frame(b"")),
]


@given(some.lists(some.integers(1, 400), max_size=30))
def test_messages_begin_where_they_begin_however_the_bytes_are_cut_up(sizes):
    stream, wanted, at = b"", [], 0
    for is_start, data in STREAM:
        if is_start:
            wanted.append(len(stream))
        stream += data
    scanner, found = Scanner(), []
    for size in [*sizes, len(stream)]:
        found += [at + offset for offset in scanner.feed(stream[at:at + size])]
        at += size
    assert found == wanted


def test_addresses():
    assert parse_address("tcp://127.0.0.1:5") == (2, ("127.0.0.1", 5))
    assert parse_address("tcp://[::1]:5") == (10, ("::1", 5))
    assert parse_address("ipc:///tmp/x") == (1, "/tmp/x")
    assert parse_address("ipc://@x") == (1, "\0x")
    with pytest.raises(ValueError, match="inproc"):
        parse_address("inproc://x")


class Pair:
    """A real edge between two ports of this process, through whatever the plan puts between."""

    def __init__(self, tmp_path, address, given, receiver, sender):
        self.play = Stage(tmp_path, given)
        self.frontend = self.play.ports(frontend(), RealPorts(frontend()))
        self.core = self.play.ports(core(), RealPorts(core()))
        self.bound = self.frontend.open_socket(receiver(address))
        self.connected = self.core.open_socket(sender(self.bound.address))

    def wait_for_fault(self):
        wait_for(lambda: self.play.board.fired() == ("f1",))

    def close(self):
        self.connected.close()
        self.core.close()
        self.bound.close()
        self.frontend.close()


@pytest.fixture(params=["ipc", "tcp"])
def pair(request, tmp_path):
    made = []

    def make(given, receiver=pull, sender=lambda address: push(address, linger_s=1.0)):
        address = f"ipc://{tmp_path}/edge" if request.param == "ipc" else "tcp://127.0.0.1:*"
        made.append(Pair(tmp_path, address, given, receiver, sender))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_without_a_cut_there_is_no_proxy(pair):
    ends = pair(plan(drop(OUTPUTS, nth=9)))
    assert ends.connected.inner.spec.address == ends.connected.address == ends.bound.address


def test_a_cut_loses_the_nth_message_and_none_before_it(pair):
    """A conversation of one message at a time; the third is on the wire when it is cut.

    What ZMQ writes to the connection until it notices is lost too; from then on every message comes, in order.
    """
    ends = pair(plan(cut(OUTPUTS, nth=3)))
    assert ends.connected.inner.spec.address != ends.bound.address
    for number in range(2):
        ends.connected.send([b"head", b"%d" % number])
        assert take(ends.bound, 1) == [b"%d" % number]
    ends.connected.send([b"head", b"2"])
    ends.wait_for_fault()
    number, arrived = 2, None
    while arrived is None:
        number += 1
        assert number < 1000
        ends.connected.send([b"head", b"%d" % number])
        time.sleep(0.005)
        arrived = ends.bound.try_receive()
    first = int(bytes(arrived[1][-1]))
    assert 2 < first <= number
    ends.connected.send([b"head", b"end"])
    assert take(ends.bound, number - first + 1) == [b"%d" % n for n in range(first + 1, number + 1)] + [b"end"]
    assert [r.nth for r in ends.play.records("core.0", Kind.RECEIPT)] == [3]


def test_messages_before_the_cut_are_delivered_even_in_a_burst(pair):
    ends = pair(plan(cut(OUTPUTS, nth=200)))
    for number in range(400):
        ends.connected.send([b"%d" % number, b"y" * 2000])
    ends.wait_for_fault()
    assert take(ends.bound, 199) == [b"y" * 2000] * 199


def test_a_cut_inside_of_a_message_hands_on_so_many_of_its_bytes():
    """Seen by a bare socket behind the proxy: greeting, handshake, and then 30 bytes of a message of 200."""
    fault = msgspec.structs.replace(cut(OUTPUTS, nth=1), id="f1", byte=30)
    listener = socket.create_server(("127.0.0.1", 0))
    counted = []

    def cross(site):
        counted.append(site)
        return fault, len(counted)

    proxy = WireProxy(f"tcp://127.0.0.1:{listener.getsockname()[1]}", up=f"{OUTPUTS}:wire", down=None, cross=cross,
                      is_over=lambda fault, since: True, on_release=lambda *released: None, now=time.monotonic)
    stream = bytes(GREETING_BYTES) + frame(b"READY", command=True)
    with listener, socket.create_connection(parse_address(proxy.address)[1]) as client:
        server, _ = listener.accept()
        for piece in (stream + frame(b"z" * 200)[:10], frame(b"z" * 200)[10:]):
            client.sendall(piece)  # the message comes in two pieces, and is cut in the second
            wait_for(lambda: counted)
        got = b""
        with server:
            server.settimeout(10)
            while data := server.recv(1000):
                got += data
    proxy.close()
    assert got == stream + frame(b"z" * 200)[:30]
    assert len(counted) == 1


def test_half_a_message_is_none(pair):
    """The first part of a message arrived before the cut: nobody is handed it, and those behind it are whole."""
    ends = pair(plan(msgspec.structs.replace(cut(OUTPUTS, nth=3), byte=500)))
    for number in range(3):
        ends.connected.send([b"head", b"%d" % number * 1000])
    ends.wait_for_fault()
    bodies = take(ends.bound, 2)
    number = 3
    while bodies[-1] != b"end":
        assert number < 1000
        ends.connected.send([b"head", b"end"])
        number += 1
        time.sleep(0.005)
        while (arrived := ends.bound.try_receive()) is not None:
            bodies.append(bytes(arrived[1][-1]))
    assert bodies[:2] == [b"0" * 1000, b"1" * 1000] and set(bodies[2:]) == {b"end"}


def test_connections_are_refused_until_the_cut_is_over(pair):
    """Messages wait in the sender and arrive once the plan lets it connect again."""
    ends = pair(plan(cut(OUTPUTS, nth=1, until=until("frontend.0/mark:idle"))),
                sender=lambda address: msgspec.structs.replace(push(address, linger_s=1.0), watched=True))
    ends.connected.send([b"lost"])
    ends.wait_for_fault()
    wait_for(ends.connected.was_cut)  # until the sender knows, it may still send into the old connection
    time_is_up = time.monotonic() + 0.3
    ends.connected.send([b"kept"])
    while time.monotonic() < time_is_up:
        assert ends.bound.try_receive() is None
        time.sleep(0.01)
    assert ends.play.board.released_at("f1") is None
    ends.play.board.seat("frontend.0").crossed("frontend.0/mark:idle", 1)
    assert take(ends.bound, 1) == [b"kept"]
    assert ends.play.board.released_at("f1") is not None
    assert [r.site for r in ends.play.records("core.0", Kind.RELEASE)] == ["f1"]


def test_the_wire_counts_each_direction_by_itself(pair):
    """Requests flow towards the process that connects: its proxy counts what it gets, not what it sends."""
    def router(address):
        return SocketSpec(name="r", kind="ROUTER", peer_kind=NodeKind.CORE, send_channel=Channel.REQUESTS,
                          receive_channel=Channel.REQUESTS, bind=True, address=address)

    def dealer(address):
        return SocketSpec(name="r", kind="DEALER", peer_kind=NodeKind.FRONTEND, send_channel=Channel.REQUESTS,
                          receive_channel=Channel.REQUESTS, bind=False, address=address, identity=b"\0\0",
                          linger_s=1.0)

    ends = pair(plan(cut(REQUESTS, nth=2)), router, dealer)
    for _ in range(5):
        ends.connected.send([b"hello"])
    assert take(ends.bound, 5) == [b"hello"] * 5
    ends.bound.send([b"1"], 0)
    assert take(ends.connected, 1) == [b"1"]
    assert ends.play.board.fired() == ()
    ends.bound.send([b"2"], 0)
    ends.wait_for_fault()
    assert ends.connected.try_receive() is None


def test_large_messages_pass_the_proxy_whole(pair):
    ends = pair(plan(cut(OUTPUTS, nth=100)))
    payloads = [os.urandom(3_000_000) for _ in range(3)]
    for payload in payloads:
        ends.connected.send([b"head", payload])
    assert take(ends.bound, 3) == payloads


def test_what_lingers_is_delivered_through_the_proxy(pair):
    ends = pair(plan(cut(OUTPUTS, nth=1000)))
    for _ in range(100):
        ends.connected.send([b"z" * 10_000])
    ends.connected.close()
    ends.core.close()
    assert take(ends.bound, 100) == [b"z" * 10_000] * 100


def test_nobody_is_connected_where_the_target_s_file_is_gone(tmp_path):
    """Or a socket that is closed would take the proxy for somebody who still reads, and linger for it."""
    path = tmp_path / "target"
    proxy = WireProxy(f"ipc://{path}", up="up", down=None, cross=lambda site: (None, 0), is_over=lambda *_: True,
                      on_release=lambda *_: None, now=time.monotonic)
    _, place = parse_address(proxy.address)

    def connected():
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(1.0)
        try:
            client.connect(place)
        except ConnectionRefusedError:
            return None
        return client

    try:
        for _ in range(2):  # also when it comes again
            wait_for(lambda: connected() is None)
            target = socket.socket(socket.AF_UNIX)
            target.bind(str(path))
            target.listen()
            target.settimeout(5.0)
            ours = wait_for(connected)
            theirs, _ = target.accept()
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"
            target.close()
            path.unlink()
            theirs.close()
            assert ours.recv(1) == b""
    finally:
        proxy.close()

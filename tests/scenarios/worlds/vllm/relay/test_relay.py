"""Real sockets of ZMQ's through the relay: what it passes, what it does to a message, and how a connection ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine.topology import Channel, Topology, data_parallel, tensor_parallel
from faults.journal import RELAYED, Kind, read_journal
from faults.plan import Plan, corrupt, cut, delay, drop, duplicate, kill, plan, reorder, until
from faults.real.board import create_board
from scenarios.worlds.vllm.relay.passage import Ends
from scenarios.worlds.vllm.relay.relay import Relay

REQUESTS, OUTPUTS = "frontend.0->core.0/requests", "core.0->frontend.0/outputs"
#: Until what is awaited must have come.
WAIT_S = 10.0
#: Nothing comes any more: so long nothing did.
QUIET_MS = 200


class Wake:
    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.calls: list[Callable[[], None]] = []
        self.is_over = False

    def fileno(self) -> int:
        return self.reads

    def on_readable(self) -> None:
        os.read(self.reads, 100)
        while self.calls:
            self.calls.pop(0)()


class Bench:
    """A relay in a thread, between a client's sockets and a core's."""

    def __init__(self, folder: Path, faults: Plan, topology: Topology) -> None:
        (folder / "journals").mkdir()
        self.folder, self.faults = folder, faults
        self.board = create_board(folder, faults, topology)
        self.relay = Relay(Ends(self.board, folder), self.board.topology)
        self.wake = Wake()
        self.context = zmq.Context()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.router, self.requests = self._bound(zmq.ROUTER, Channel.REQUESTS)
        self.pull, self.outputs = self._bound(zmq.PULL, Channel.OUTPUTS)

    def _run(self) -> None:
        while not self.wake.is_over:
            self.relay.turn(self.wake)
        self.relay.close()

    def _bound(self, kind: int, channel: Channel) -> tuple[zmq.Socket[bytes], str]:
        place = f"ipc://{self.folder}/{channel.value}"
        bound = self.socket(kind)
        bound.bind(place)
        return bound, self.before(channel, place)

    def before(self, channel: Channel, place: str) -> str:
        found: list[str] = []
        told = threading.Event()
        self.wake.calls.append(lambda: (found.append(self.relay.stand_before(channel, place, 0)), told.set()))
        os.write(self.wake.writes, b"x")
        assert told.wait(WAIT_S)
        return found[0]

    def socket(self, kind: int, **options: Any) -> zmq.Socket[bytes]:
        made = self.context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        made.setsockopt(zmq.RECONNECT_IVL, 10)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        return made

    def dealer(self) -> zmq.Socket[bytes]:
        """A core's, known to the router."""
        made = self.socket(zmq.DEALER, IDENTITY=bytes(2))
        made.connect(self.requests)
        made.send(b"hello")
        assert self.router.recv_multipart() == [bytes(2), b"hello"]
        return made

    def push(self) -> zmq.Socket[bytes]:
        made = self.socket(zmq.PUSH)
        made.connect(self.outputs)
        return made

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, "what was awaited has not come"
            time.sleep(0.002)

    def records(self, node: str) -> list[Any]:
        path = self.folder / "journals" / RELAYED / f"{node}@0.journal"
        return read_journal(path).records if path.exists() else []

    def crossed(self, node: str, site: str) -> int:
        return sum(record.kind is Kind.CROSSING and record.site == site for record in self.records(node))

    def close(self) -> None:
        self.wake.is_over = True
        os.write(self.wake.writes, b"x")
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        self.context.destroy(0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*faults: Any, topology: Topology = tensor_parallel(2)) -> Bench:  # noqa: B008
        made.append(Bench(tmp_path, plan(*faults), topology))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(bench: Bench, *words: bytes) -> None:
    for word in words:
        bench.router.send_multipart([bytes(2), word])


def told(end: zmq.Socket[bytes]) -> list[bytes]:
    """Everything that comes, until nothing comes."""
    found = []
    while end.poll(QUIET_MS):
        found.append(b"|".join(end.recv_multipart()))
    return found


def test_messages_pass_both_ways_and_are_on_record_at_both_ends(bench: Callable[..., Bench]) -> None:
    there = bench()
    dealer = there.dealer()
    there.router.send_multipart([bytes(2), b"\x00", b"a" * 300, b""])
    assert dealer.recv_multipart() == [b"\x00", b"a" * 300, b""]
    dealer.send(b"answer")
    assert there.router.recv_multipart() == [bytes(2), b"answer"]
    sent, got = there.records("frontend.0"), there.records("core.0")
    assert [record.site for record in sent] == ["core.0->frontend.0/requests:receive", f"{REQUESTS}:send",
                                                "core.0->frontend.0/requests:receive"]
    assert {record.digest for record in sent} == {record.digest for record in got} and len(got) == 3


def test_many_messages_that_come_at_once_keep_their_order(bench: Callable[..., Bench]) -> None:
    there = bench()
    push = there.push()
    for number in range(5000):
        push.send(b"%d" % number, copy=False)
    assert [there.pull.recv() for _ in range(5000)] == [b"%d" % number for number in range(5000)]
    assert there.crossed("frontend.0", f"{OUTPUTS}:receive") == 5000


def test_messages_of_one_segment_are_told_apart(bench: Callable[..., Bench]) -> None:
    there = bench(drop(OUTPUTS, nth=2))
    push = there.push()
    raw = b"".join(bytes([0, 1]) + word for word in (b"a", b"b", b"c"))
    push.send(b"0")
    assert there.pull.recv() == b"0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.connect("\0" + there.outputs.removeprefix("ipc://@"))
        plain.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
                      + b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH")
        plain.settimeout(WAIT_S)
        said = b""
        while b"PULL" not in said:  # who is not greeted yet may send no message
            said += plain.recv(1000)
        plain.sendall(raw)
        assert told(there.pull) == [b"b", b"c"]  # what came as the second of the edge is lost


def test_a_large_message_passes_whole_and_a_slow_reader_slows_its_writer(bench: Callable[..., Bench]) -> None:
    there = bench()
    push = there.push()
    body = os.urandom(1 << 20) * 64
    push.send_multipart([b"head", body], copy=False)
    head, tail = there.pull.recv_multipart()
    assert head == b"head" and tail == body

    slow = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    slow.bind(f"{there.folder}/slow")
    slow.listen()
    writer = there.socket(zmq.PUSH)
    writer.connect(there.before(Channel.OUTPUTS, f"ipc://{there.folder}/slow"))
    end, _ = slow.accept()
    end.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
                + b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL")
    for _ in range(640):  # 64 MiB, which nobody reads
        writer.send(bytes(100 << 10))
    way = next(post for post in there.relay._posts.values() if post.target.endswith("slow")).links[0].up
    there.until(lambda: len(way.pending) >= 256 << 10)
    taken = there.crossed("core.0", f"{OUTPUTS}:send")
    assert len(way.pending) < 2 << 20 and taken < 100
    got = 0
    while got < 640 * (100 << 10):
        got += len(end.recv(1 << 20))
    end.close()
    slow.close()


@pytest.mark.parametrize(("fault", "expected"), [
    (drop(REQUESTS, nth=2), [b"a", b"c", b"d"]), (duplicate(REQUESTS, nth=2), [b"a", b"b", b"b", b"c", b"d"]),
    (reorder(REQUESTS, nth=2), [b"a", b"c", b"b", b"d"]), (corrupt(REQUESTS, nth=2), [b"a", b"\x9d", b"c", b"d"]),
    (delay(REQUESTS, nth=2, until=until(REQUESTS, 4)), [b"a", b"c", b"d", b"b"])],
    ids=lambda value: value.fate.value if not isinstance(value, list) else "")
def test_a_fate_befalls_the_message_that_the_plan_names(bench: Callable[..., Bench], fault: Any,
                                                        expected: list[bytes]) -> None:
    there = bench(fault)
    dealer = there.dealer()
    ask(there, b"a", b"b", b"c", b"d")
    assert told(dealer) == expected
    receipts = [record for record in there.records("core.0") if record.kind is Kind.RECEIPT]
    assert [(record.site, record.nth, record.data["fate"]) for record in receipts] == [("f1", 2, fault.fate.value)]
    assert there.board.fired() == ("f1",)


def test_what_a_message_says_is_matched_in_vllms_words(bench: Callable[..., Bench]) -> None:
    there = bench(drop(REQUESTS, match={"type": "ABORT"}))
    dealer = there.dealer()
    for kind, body in ((b"\x03", [0, 1, "reset", []]), (b"\x01", ["r1"]), (b"\x01", ["r2"])):
        there.router.send_multipart([bytes(2), kind, msgspec.msgpack.encode(body)])
    assert [one[:1] for one in told(dealer)] == [b"\x03", b"\x01"]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_cut_connection_is_made_again_and_what_came_before_it_is_there(bench: Callable[..., Bench],
                                                                          busy: bool) -> None:
    there = bench(cut(OUTPUTS, nth=4))
    push = there.push()
    for number in range(3):
        push.send(b"%d" % number)
    if not busy:
        assert [there.pull.recv() for _ in range(3)] == [b"0", b"1", b"2"]
    push.send(b"lost")
    if busy:
        assert [there.pull.recv() for _ in range(3)] == [b"0", b"1", b"2"]
    there.until(lambda: bool(there.board.fired()))
    there.until(lambda: any(post.links for post in there.relay._posts.values() if post.channel is Channel.OUTPUTS))
    deadline = time.monotonic() + WAIT_S
    while not there.pull.poll(20):  # what is sent before it is connected again may be lost with the old one
        assert time.monotonic() < deadline
        push.send(b"again")
    assert there.pull.recv() == b"again"


def test_a_silent_cut_tells_nobody_and_ends_by_its_until(bench: Callable[..., Bench]) -> None:
    there = bench(cut(REQUESTS, nth=1, silent=True, until=until(seconds=0.4)))
    dealer = there.dealer()
    there.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    ask(there, b"a", b"b")  # both vanish, and nobody knows: the router has its peer
    assert not dealer.poll(QUIET_MS)
    there.until(lambda: there.board.released_at("f1") is not None)
    dealer.send(b"I am here")
    assert there.router.recv_multipart() == [bytes(2), b"I am here"]
    ask(there, b"c")
    assert dealer.recv() == b"c"


def test_a_stranger_reaches_nobody(bench: Callable[..., Bench]) -> None:
    there = bench()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect("\0" + there.requests.removeprefix("ipc://@"))
        stranger.settimeout(WAIT_S)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""  # nothing was answered, not even a greeting: nobody was connected to
    dealer = there.dealer()
    ask(there, b"a")
    assert dealer.recv() == b"a"


def test_a_peer_that_is_gone_is_gone_for_the_other_end(bench: Callable[..., Bench]) -> None:
    there = bench()
    dealer = there.dealer()
    there.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    dealer.close()

    def is_unroutable() -> bool:
        try:
            there.router.send_multipart([bytes(2), b"a"])
        except zmq.ZMQError as error:
            return error.errno == zmq.EHOSTUNREACH
        return False

    there.until(is_unroutable)


def test_a_process_is_struck_from_outside_and_what_it_sends_then_is_not_handed_on(bench: Callable[..., Bench]) -> None:
    there = bench(kill("core.0", at=f"{OUTPUTS}:send", nth=2))
    child = os.fork()
    if not child:
        while True:
            time.sleep(60)
    from faults.real.processes import start_ticks

    there.board.seat("core.0").enter(child, start_ticks(child))
    push = there.push()
    for word in (b"a", b"b", b"c"):
        push.send(word)
    assert told(there.pull) == [b"a"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def test_the_handshake_hands_out_posts(bench: Callable[..., Bench]) -> None:
    there = bench()
    greeter = there.socket(zmq.ROUTER)
    greeter.bind(f"ipc://{there.folder}/handshake")
    core = there.socket(zmq.DEALER, IDENTITY=bytes(2))
    core.connect(there.before(Channel.HANDSHAKE, f"ipc://{there.folder}/handshake"))
    core.send(msgspec.msgpack.encode({"status": "HELLO"}))
    identity, hello = greeter.recv_multipart()
    greeter.send_multipart([identity, msgspec.msgpack.encode({"addresses": {
        "inputs": [f"ipc://{there.folder}/requests"], "outputs": [f"ipc://{there.folder}/outputs"],
        "coordinator_input": None, "coordinator_output": None}, "parallel_config": {}})])
    told = msgspec.msgpack.decode(core.recv())
    assert told["addresses"]["inputs"] == [there.requests] and told["addresses"]["outputs"] == [there.outputs]
    assert [record.site.rpartition("/")[2] for record in there.records("core.0")] == [
        "handshake:send", "handshake:receive"]


def publishes(there: Bench, channel: Channel) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """An XPUB, and a SUB that hears it through the relay, as the publisher knows."""
    publisher, address = there._bound(zmq.XPUB, channel)
    hears = there.socket(zmq.SUB, SUBSCRIBE=b"")
    hears.connect(address)
    assert publisher.recv() == b"\x01"
    return publisher, hears


def test_counts_that_a_coordinator_tells_are_lost(bench: Callable[..., Bench]) -> None:
    edge = "coordinator.0->frontend.0/stats"
    there = bench(drop(edge, nth=2), topology=data_parallel(2, coordinated=True))
    publisher, client = publishes(there, Channel.STATS)
    for number in range(3):
        publisher.send(b"%d" % number)
    assert told(client) == [b"0", b"2"]
    assert there.crossed("coordinator.0", f"{edge}:send") == 3
    assert there.crossed("coordinator.0", "frontend.0->coordinator.0/stats:receive") == 1


def test_who_is_woken_is_known_by_its_process(bench: Callable[..., Bench]) -> None:
    """Such a socket tells nobody how it is called."""
    edge = "coordinator.0->core.1/wave"
    there = bench(drop(edge, nth=2), topology=data_parallel(2, lockstep=True))
    known = there.socket(zmq.DEALER, IDENTITY=b"\x01\x00")
    known.connect(there.requests)
    known.send(b"hello")
    assert there.router.recv_multipart() == [b"\x01\x00", b"hello"]
    publisher, core = publishes(there, Channel.WAVE)
    for number in range(3):
        publisher.send(b"%d" % number)
    assert told(core) == [b"0", b"2"]
    assert there.crossed("coordinator.0", "core.1->coordinator.0/wave:receive") == 1


def test_of_events_only_connections_end_here(bench: Callable[..., Bench]) -> None:
    edge = "core.0->subscriber.0/kv"
    there = bench(drop(edge, nth=1), cut(edge, nth=2), topology=tensor_parallel(2, subscribers=1))
    publisher, subscriber = publishes(there, Channel.KV)
    publisher.send(b"0")
    assert subscriber.recv() == b"0"  # its receive is the lab's own, which loses it
    publisher.send(b"1")
    assert publisher.recv() == b"\x00"  # its connection has ended
    there.until(lambda: not subscriber.poll(1) and bool(publisher.poll(0)))  # it subscribes again as it is read from
    assert publisher.recv() == b"\x01"
    publisher.send(b"2")
    assert subscriber.recv() == b"2"
    assert there.crossed("core.0", f"{edge}:wire") == 3 and there.crossed("core.0", f"{edge}:send") == 0

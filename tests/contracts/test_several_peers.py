"""One socket, several peers: who sent a message, and what a plan does to one of them, by the same loops in both worlds.

    core.0      hub: an XPUB that hears and publishes, or a PULL
    worker.K    XSUB: subscribes under its name, says a word, reads until the end; or a PUSH
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from engine.effects import Now, Receive, Send
from engine.ports import SocketSpec
from engine.topology import Channel, NodeKind, core, tensor_parallel, worker
from engine.wire.subscriptions import first_number_of, leaver_of, subscriber_of, subscriptions_of
from faults.journal import Kind, journal_path, parse_journal, read_journal
from faults.plan import Fate, Fault, cut, delay, drop, duplicate, plan, reorder, until
from sim.simulation import Simulation
from tests.faults.stage import Stage

TOPOLOGY = tensor_parallel(2)
END = b"\x02end"
UP, DOWN = "worker.{}->core.0/overflow", "core.0->worker.{}/overflow"
#: Who waits for longer than this has lost something.
PATIENCE_S = 1.0


def hub_spec(kind: str, address: str) -> SocketSpec:
    return SocketSpec(
        name="s", kind=kind, bind=True, address=address, peer_kind=NodeKind.WORKER, receive_channel=Channel.OVERFLOW,
        send_channel=Channel.OVERFLOW if kind == "XPUB" else None,
        sender_of=subscriber_of if kind == "XPUB" else first_number_of)


def peer_spec(kind: str, address: str) -> SocketSpec:
    return SocketSpec(
        name="s", kind=kind, bind=False, address=address, peer_kind=NodeKind.CORE, send_channel=Channel.OVERFLOW,
        receive_channel=Channel.OVERFLOW if kind == "XSUB" else None, linger_s=2.0,
        sender_of=subscriber_of if kind == "XSUB" else first_number_of)


def word(index: int, text: str) -> bytes:
    return msgspec.msgpack.encode((index, text))


# -- the loops -------------------------------------------------------------------------------------------------


def hear(found: list[Any], most: int, patience_s: float = PATIENCE_S):
    """Up to `most` messages, or what came within the patience. Into `found`: (peer, first frame)"""
    for _ in range(most):
        message = yield Receive(("s",), (yield Now()) + patience_s)
        if message is None:
            return
        found.append((message[1], bytes(message[2][0])))


def publishing_hub(heard: list[Any], most: int = 10):
    """Waits for both names, publishes, waits for their words, says that it is over. Hears `most` messages."""
    yield from hear(heard, 4)  # everything, and a name, of each
    for number in range(3):
        yield Send("s", [b"\x02%d" % number])
    yield from hear(heard, most - len(heard))
    yield Send("s", [END])


def subscriber(index: int, heard: list[Any]):
    for frame in subscriptions_of(index):
        yield Send("s", [frame])
    while not heard or heard[-1][1] != END:
        before = len(heard)
        yield from hear(heard, 1, 5 * PATIENCE_S)  # the hub may have to wait for others
        if len(heard) == before:
            return
        if heard[-1][1] == b"\x020":
            yield Send("s", [word(index, "hello")])
            yield Send("s", [b"\x05nobody's"])
            yield Send("s", [word(77, "a stranger's")])


def pulling_hub(heard: list[Any]):
    yield from hear(heard, 8)


def pusher(index: int, heard: list[Any]):
    for number in range(3):
        yield Send("s", [word(index, str(number)), bytes(10)])
    yield Send("s", [b"nobody's"])


# -- the worlds ------------------------------------------------------------------------------------------------

KINDS = {"XPUB": ("XSUB", publishing_hub, subscriber), "PULL": ("PUSH", pulling_hub, pusher)}


class Played:
    """What each heard, and the sites that each crossed, with how often."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Any]] = {"core.0": [], "worker.0": [], "worker.1": []}
        self.crossed: dict[str, Counter[str]] = {}
        self.fired: list[str] = []

    def read(self, records: dict[str, Any]) -> Played:
        for name, journal in records.items():
            self.crossed[name] = Counter(record.site for record in journal if record.kind is Kind.CROSSING)
            self.fired += [record.site for record in journal if record.kind is Kind.RECEIPT]
        return self


def play_sim(tmp_path: Any, kind: str, given: Any, hub: Any) -> Played:
    other, usual, peer = KINDS[kind]
    hub = hub or usual
    played, sim, address = Played(), Simulation(TOPOLOGY, given), "ipc:///run/s"

    def life(spec: SocketSpec, loop: Any):
        def main(process: Any):
            process.ports.open_socket(spec)
            yield from loop

        return main

    sim.start_process(core(), life(hub_spec(kind, address), hub(played.heard["core.0"])))
    for index in (0, 1):
        sim.start_process(worker(index), life(peer_spec(other, address), peer(index, played.heard[f"worker.{index}"])))
    sim.run()
    return played.read({name: parse_journal(sim.journals()[f"{name}@0.journal"], name, 0).records
                        for name in played.heard})


def play_real(tmp_path: Any, kind: str, given: Any, hub: Any) -> Played:
    pytest.importorskip("zmq", reason="plays libzmq's sockets")
    from engine.process.real_ports import RealPorts
    from engine.process.shell import Process

    other, usual, peer = KINDS[kind]
    hub = hub or usual
    played, stage, address = Played(), Stage(tmp_path, given, TOPOLOGY), f"ipc://{tmp_path}/s"[:107]
    processes, threads = [], []
    for node, spec, loop in [(core(), hub_spec(kind, address), hub(played.heard["core.0"])), *(
            (worker(k), peer_spec(other, address), peer(k, played.heard[f"worker.{k}"])) for k in (0, 1))]:
        process = Process(stage.ports(node, RealPorts(node)))
        process.sockets["s"] = process.ports.open_socket(spec)
        processes.append(process)
        threads.append(threading.Thread(target=process.run, args=(loop,), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    for process in reversed(processes):
        process.close()
        process.ports.close()
    return played.read({name: read_journal(journal_path(tmp_path / "journals", name, 0)).records
                        for name in played.heard})


@pytest.fixture(params=[play_sim, play_real], ids=["sim", "real"])
def play(request, tmp_path):
    return lambda kind, *faults, hub=None: request.param(tmp_path, kind, plan(*faults), hub)


def of(heard: list[Any], peer: Any) -> list[bytes]:
    return [frame for who, frame in heard if who == peer]


# -- what has to hold ------------------------------------------------------------------------------------------


def test_an_xpub_knows_its_peers_by_what_they_say(play) -> None:
    """Both subscriptions to everything are nobody's, as are foreign bytes; each name and word is its sender's."""
    played = play("XPUB")
    heard = played.heard["core.0"]
    for index in (0, 1):
        assert of(heard, index) == [subscriptions_of(index)[1], word(index, "hello")]
        assert of(played.heard[f"worker.{index}"], 0) == [b"\x020", b"\x021", b"\x022", END]
    assert Counter(of(heard, None)) == {b"\x01": 2, b"\x05nobody's": 2} and len(of(heard, 77)) == 2


def test_a_publication_is_a_crossing_for_each_peer_and_a_word_one_of_its_sender(play) -> None:
    """And what nobody can be told to have sent is none, at either end."""
    played = play("XPUB")
    assert played.crossed["core.0"] == {
        **{f"{DOWN.format(k)}:send": 4 for k in (0, 1)}, **{f"{UP.format(k)}:receive": 2 for k in (0, 1)}}
    for index in (0, 1):  # a worker's claim to be somebody else is told at its end: it is the one who sent it
        assert played.crossed[f"worker.{index}"] == {
            f"{UP.format(index)}:send": 3, f"{DOWN.format(index)}:receive": 4}


def test_a_publication_lost_to_one_peer_reaches_the_other(play) -> None:
    played = play("XPUB", drop(DOWN.format(1), nth=2))
    assert [frame for _, frame in played.heard["worker.1"]] == [b"\x020", b"\x022", END]
    assert [frame for _, frame in played.heard["worker.0"]] == [b"\x020", b"\x021", b"\x022", END]
    assert played.fired == ["f1"]


def test_a_word_lost_or_doubled_is_its_sender_s_alone(play) -> None:
    played = play("XPUB", duplicate(UP.format(0)), drop(UP.format(1), nth=2))
    heard = played.heard["core.0"]
    name = subscriptions_of(0)[1]
    assert of(heard, 0)[:2] == [name, name] and of(heard, 1) == [subscriptions_of(1)[1]]


def test_a_name_that_comes_late_holds_up_nobody_else(play) -> None:
    """The hub has not heard it when it publishes; the subscription stands all the same."""
    played = play("XPUB", delay(UP.format(1), until=until(DOWN.format(0))))
    heard = played.heard["core.0"]
    assert {who for who, _ in heard[:3]} == {0, None} and subscriptions_of(1)[1] in of(heard, 1)
    assert [frame for _, frame in played.heard["worker.1"]] == [b"\x020", b"\x021", b"\x022", END]


def test_a_hub_can_fail_at_one_peer_s_edge(play) -> None:
    """The publication that it was about to make is nobody's then."""
    fault = Fault(id="", site=f"{DOWN.format(1)}:send", fate=Fate.RAISE, nth=2)

    def failing(heard: list[Any]):
        try:
            yield from publishing_hub(heard)
        except RuntimeError:
            yield Send("s", [END])

    played = play("XPUB", fault, hub=failing)
    for index in (0, 1):
        assert [frame for _, frame in played.heard[f"worker.{index}"]] == [b"\x020", END]
        assert played.crossed["core.0"][f"{DOWN.format(index)}:send"] == 3


def test_a_cut_is_one_peer_s_and_the_hub_is_told_who_is_gone_and_who_is_back(play) -> None:
    """What a socket says by itself on a new connection is no message on the wire; at the hub its name arrives again."""
    never = cut(UP.format(1), nth=9)  # so that what goes up is counted, too
    played = play("XPUB", cut(DOWN.format(1)), never, hub=partial(publishing_hub, most=20))
    gone, back = b"\x00\x01\x00", subscriptions_of(1)[1]
    told = [frame for _, frame in played.heard["core.0"] if frame in (gone, back)]
    assert told == [back, gone, back] and leaver_of([gone]) == 1
    assert [frame for _, frame in played.heard["worker.0"]] == [b"\x020", b"\x021", b"\x022", END]
    assert [frame for _, frame in played.heard["worker.1"]] == [END]
    assert played.crossed["worker.1"] == {
        f"{UP.format(1)}:send": 1, f"{UP.format(1)}:wire": 2,
        f"{DOWN.format(1)}:wire": 2, f"{DOWN.format(1)}:receive": 1}
    assert played.crossed["core.0"][f"{UP.format(1)}:receive"] == 2


def test_a_pull_knows_each_pusher_s_messages(play) -> None:
    played = play("PULL")
    heard = played.heard["core.0"]
    for index in (0, 1):
        assert of(heard, index) == [word(index, str(number)) for number in range(3)]
        assert played.crossed[f"worker.{index}"] == {f"{UP.format(index)}:send": 3}
    assert of(heard, None) == [b"nobody's"] * 2
    assert played.crossed["core.0"] == {f"{UP.format(k)}:receive": 3 for k in (0, 1)}


def test_one_pusher_s_messages_change_places_and_the_other_s_do_not(play) -> None:
    played = play("PULL", reorder(UP.format(1)))
    heard = played.heard["core.0"]
    assert of(heard, 1) == [word(1, text) for text in "102"]
    assert of(heard, 0) == [word(0, text) for text in "012"]


# -- what names a sender ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 127, 128, 255, 256, 65_535, 65_536, 1 << 40])
@pytest.mark.parametrize("fields", [1, 2, 15])
def test_the_first_number_of_an_array_is_read(index, fields) -> None:
    assert first_number_of([msgspec.msgpack.encode([index] + [0] * (fields - 1)), b"more"]) == index


@pytest.mark.parametrize("frames", [
    [], [b""], [b"\x90"], [b"\x90\x05"], [b"\x91"], [b"\xdc"], [b"\xdc\x00\x00\x05"], [b"\xdc\x00\x10\x05"],
    [b"\x93\xcd\x01"],
    [b"\x91\xff"], [b"\x91\xa1a"], [b"\x81\x01\x02"], [b"READY"], [b"\x01\x00"], [b"\x01"], [b"\x01\x00\x00\x00"],
    [b"\x00\x01\x00"], [memoryview(b"\x91\xc0")]])
def test_what_names_nobody_is_nobodys(frames) -> None:
    assert subscriber_of(frames) is None and first_number_of(frames) is None


def test_any_bytes_are_read() -> None:
    for length in range(4):
        for first in range(256):
            for second in (0, 1, 2, 0x7f, 0xcc, 0xcd, 0xff):
                data = bytes((first, second, 3, 4))[:length]
                for read in (subscriber_of, leaver_of, first_number_of):
                    assert read([data]) is None or read([data]) >= 0


def test_the_end_of_a_name_tells_who_is_gone_and_is_nobodys_message() -> None:
    assert leaver_of([b"\x00\x05\x00"]) == 5 and subscriber_of([b"\x00\x05\x00"]) is None
    assert leaver_of([b"\x00"]) is leaver_of([b"\x01\x05\x00"]) is leaver_of([b"\x00\x05\x00", b"x"]) is None
    assert subscriber_of(list(subscriptions_of(5)[1:])) == 5 and subscriber_of([subscriptions_of(5)[0]]) is None

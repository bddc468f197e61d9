"""What holds for sockets of every kind: over IPv6, with several I/O threads, and with the system's buffers."""

from __future__ import annotations

import socket

import pytest

from engine.topology import core
from engine.wire.subscriptions import check_upward
from tests.contracts.makers import RealMaker, SimMaker

#: (who binds, who connects), with what each has beside its kind.
PAIRS = {
    "PULL-PUSH": (("PULL", {}), ("PUSH", {})),
    "PUSH-PULL": (("PUSH", {}), ("PULL", {})),
    "ROUTER-DEALER": (("ROUTER", {}), ("DEALER", {"identity": b"\x00\x00"})),
    "PUB-SUB": (("PUB", {}), ("SUB", {})),
    "XPUB-SUB": (("XPUB", {}), ("SUB", {})),
    "XPUB-XSUB": (("XPUB", {}), ("XSUB", {})),
}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def ends(maker, pair, address):
    """-> (who sends, who receives), which have met"""
    (bound_kind, bound_has), (kind, has) = PAIRS[pair]
    bound = maker.open(bound_kind, bind=True, address=address, **bound_has)
    connected = maker.open(kind, bind=False, address=bound.address, **has)
    if kind == "XSUB":
        connected.send([b"\x01"])
    if bound_kind == "XPUB":
        assert maker.receive(bound)[1] == [b"\x01"]
    if kind == "DEALER":
        connected.send([b"hello"])
        assert maker.receive(bound) == (0, [b"hello"])
    if bound_kind == "PUB":  # it is not told when the subscription is here
        for _ in range(1000):
            bound.send([b"anybody there?"])
            if maker.receive(connected, 0.02) is not None:
                break
        while maker.receive(connected, 0.1) is not None:
            pass
    if bound_kind == "PUSH":
        def comes() -> bool:
            try:
                bound.send([b"anybody there?"])
            except BlockingIOError:
                return False
            except Exception as error:
                if getattr(error, "errno", None) != 11:
                    raise
                return False
            return True

        maker.until(comes)
        assert maker.receive(connected)[1] == [b"anybody there?"]
    return (connected, bound) if bound_kind == "PULL" else (bound, connected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "tcp://[::1]:*"])
def test_a_pair_meets_at_an_address_of_either_family(maker, pair, address) -> None:
    """The port that the system chose is told in the form that others connect to."""
    if "[" in address and isinstance(maker, RealMaker) and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    sender, receiver = ends(maker, pair, address)
    bound = sender if sender.spec.bind else receiver
    assert bound.address.startswith(address.rstrip("*")) and bound.address.rpartition(":")[2].isdigit()
    for text in (b"first", bytes(100_000), b""):
        sender.send([text, b"more"])
    assert [[bytes(frame) for frame in maker.receive(receiver)[1]] for _ in range(3)] == [
        [b"first", b"more"], [bytes(100_000), b"more"], [b"", b"more"]]


@pytest.fixture(params=[SimMaker, RealMaker], ids=["sim", "real"])
def with_two_threads(request, tmp_path):
    made = request.param(tmp_path, 2)
    yield made
    made.close()


def test_each_socket_keeps_its_order_with_two_io_threads(with_two_threads) -> None:
    """All kinds at once, several of each: what one socket sent another one comes as it was sent, nothing twice."""
    maker, pairs = with_two_threads, []
    for number in range(3):
        for pair in PAIRS:
            pairs.append(ends(maker, pair, f"{pair}{number}"))
    if isinstance(maker, RealMaker):
        import zmq

        assert maker.context.get(zmq.IO_THREADS) == 2
    for number in range(300):
        for at, (sender, _) in enumerate(pairs):
            sender.send([b"%d:%d" % (at, number), bytes(70_000 if number % 50 == 0 else 10)])
    for at, (_, receiver) in enumerate(pairs):
        assert [bytes(maker.receive(receiver)[1][0]) for _ in range(300)] == [
            b"%d:%d" % (at, number) for number in range(300)]
        assert receiver.try_receive() is None


def test_a_process_has_as_many_io_threads_as_its_parent(tmp_path) -> None:
    """They are told in what a child is started with."""
    zmq = pytest.importorskip("zmq")
    import msgspec

    from engine.process.children import Bootstrap
    from engine.process.entry import open_ports
    from engine.process.real_ports import RealPorts
    from tests.faults.stage import push

    for count in (1, 2):
        ports = RealPorts(core(), io_threads=count)
        told = msgspec.msgpack.decode(ports._envelope(b""), type=Bootstrap).io_threads
        ports.close()
        child = open_ports(core(), "", b"", None, told)
        sender = child.open_socket(push(f"ipc://{tmp_path}/s"))
        assert child._context.get(zmq.IO_THREADS) == count
        sender.close(0)
        child.close()


def test_what_would_arrive_in_pieces_is_refused(maker) -> None:
    """libzmq takes a frame that begins as a subscription does out of the message of an XSUB that it stands in."""
    maker.open("XPUB", bind=True)
    subscriber = maker.open("XSUB", bind=False)
    for frames in ([b"\x01t", b"x"], [b"\x02", b"\x00"], [b"\x02", memoryview(b"\x01y")]):
        with pytest.raises(ValueError, match="begin"):
            subscriber.send(frames)
    check_upward([b"\x02", b"", b"\x03\x01"])


GIB = 1 << 30


@pytest.mark.parametrize("total, available, wanted", [
    (64 * GIB, 32 * GIB, 512 << 20), (32 * GIB + 1, 16 * GIB + 1, 512 << 20), (32 * GIB, 31 * GIB, 0),
    (64 * GIB, 16 * GIB, 0), (8 * GIB, 7 * GIB, 0), (0, 0, 0)])
def test_buffers_are_large_where_there_is_memory_to_spare(total, available, wanted) -> None:
    pytest.importorskip("zmq")
    from engine.wire.sockets import buffer_bytes_for

    assert buffer_bytes_for(total, available) == wanted


def test_memory_is_read_as_the_system_tells_it() -> None:
    pytest.importorskip("zmq")
    from engine.wire.sockets import memory_of

    told = "MemTotal:       65807596 kB\nMemFree:         1000 kB\nMemAvailable:   40000000 kB\nSwapTotal: 0 kB\n"
    assert memory_of(told) == (65_807_596 << 10, 40_000_000 << 10)
    assert memory_of("MemTotal: lots\n") == (0, 0)


@pytest.mark.parametrize("much", [True, False])
def test_a_socket_is_given_its_buffers_by_the_memory_of_the_machine(much, tmp_path, monkeypatch) -> None:
    """None asks for the rule, a number for itself, and nothing for what the system has."""
    zmq = pytest.importorskip("zmq")
    from engine.wire import sockets

    monkeypatch.setattr(sockets, "memory_of", lambda meminfo: (64 * GIB, 40 * GIB) if much else (8 * GIB, GIB))
    maker = RealMaker(tmp_path)
    found = [maker.open("PULL", bind=True, address=f"b{number}", buffer_bytes=asked)._socket.get(zmq.RCVBUF)
             for number, asked in enumerate((None, 4096, 0))]
    maker.close()
    assert found == [512 << 20 if much else -1, 4096, -1]

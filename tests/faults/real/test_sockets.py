"""The wrapped socket over fakes and over real ZMQ keeps one contract; held messages wake who waits."""

import select
import threading
import time

import msgspec
import pytest

from engine.process.real_ports import RealPorts
from engine.topology import Mark
from faults.plan import Plan, delay, plan, until
from tests.faults.stage import OUTPUTS, Stage, core, frontend, pull, push, wait_for, worker


@pytest.fixture(params=["fake", "ipc", "tcp"])
def ends(request, tmp_path):
    """make(plan) -> (play, the core's socket, the frontend's)"""
    opened = []

    def make(given=None):
        play = Stage(tmp_path, given or Plan())
        if request.param == "fake":
            ports = [play.ports(core()), play.ports(frontend())]
            address = "fake"
        else:
            ports = [play.ports(core(), RealPorts(core())), play.ports(frontend(), RealPorts(frontend()))]
            address = f"ipc://{tmp_path}/outputs" if request.param == "ipc" else "tcp://127.0.0.1:*"
        receiver = ports[1].open_socket(pull(address))
        sender = ports[0].open_socket(push(receiver.address, linger_s=1.0))
        opened.extend([sender, receiver, *ports])
        return play, sender, receiver

    yield make
    for thing in opened:
        thing.close()


def take(socket, count, timeout_s=5.0):
    """Wait on the descriptor as the engine does, taking all at each wake."""
    taken, deadline = [], time.monotonic() + timeout_s
    while len(taken) < count:
        message = socket.try_receive()
        if message is not None:
            taken.append(bytes(message[1][-1]))
            continue
        assert time.monotonic() < deadline, f"only {taken} came"
        select.select([socket.fileno()], [], [], 1.0)
    return taken


def test_messages_pass_whole_and_in_order(ends):
    _, sender, receiver = ends()
    sent = [b"%d" % n * 1000 for n in range(50)] + [b"x" * 200_000]
    for data in sent:
        sender.send([b"head", data])
    assert take(receiver, len(sent)) == sent
    assert receiver.try_receive() is None


def test_nothing_there_is_none_at_once(ends):
    _, _, receiver = ends()
    assert receiver.try_receive() is None


def test_a_released_message_makes_the_descriptor_readable(ends):
    """Nothing else arrives: the release alone wakes the waiting thread."""
    play, sender, receiver = ends(plan(delay(OUTPUTS, until=until("worker.1/mark:executing"))))
    sender.send([b"late"])
    wait_for(lambda: receiver.try_receive() is None and play.board.fired())
    other = play.ports(worker(1))
    release = threading.Thread(target=lambda: other.mark(Mark.EXECUTING))
    release.start()
    began = time.monotonic()
    assert take(receiver, 1) == [b"late"]
    release.join()
    assert time.monotonic() - began < 1.0


def test_without_anything_held_the_descriptor_stays_silent(ends):
    play, sender, receiver = ends(plan(delay(OUTPUTS, until=until("worker.1/mark:executing"))))
    play.ports(worker(1)).mark(Mark.EXECUTING)
    sender.send([b"x"])
    assert take(receiver, 1) == [b"x"]
    assert receiver.try_receive() is None
    wait_for(lambda: (receiver.try_receive(), not select.select([receiver.fileno()], [], [], 0.02)[0])[1])


def test_later_messages_overtake_a_delayed_one(ends):
    _, sender, receiver = ends(plan(delay(OUTPUTS, nth=2, times=2, until=until(OUTPUTS, 5))))
    for number in range(6):
        sender.send([b"%d" % number])
    taken = take(receiver, 6)
    assert taken[:3] == [b"0", b"3", b"4"]
    assert sorted(taken) == [b"%d" % number for number in range(6)]
    assert taken.index(b"1") < taken.index(b"2")


def test_an_end_is_not_over_while_a_message_of_it_is_held(tmp_path):
    """Somebody was connected and nobody is; the last word is delayed by the plan, and comes."""
    play = Stage(tmp_path, plan(delay(OUTPUTS, until=until("worker.1/mark:executing"))))
    ports = [play.ports(core(), RealPorts(core())), play.ports(frontend(), RealPorts(frontend()))]
    receiver = ports[1].open_socket(msgspec.structs.replace(pull(f"ipc://{tmp_path}/outputs"), watched=True))
    sender = ports[0].open_socket(push(receiver.address, linger_s=1.0))
    sender.send([b"late"])
    wait_for(lambda: receiver.try_receive() is None and play.board.fired())
    sender.close()
    wait_for(receiver.inner.is_over)
    assert not receiver.is_over()
    play.ports(worker(1)).mark(Mark.EXECUTING)
    assert take(receiver, 1) == [b"late"]
    assert receiver.is_over()
    for opened in (receiver, *ports):
        opened.close()

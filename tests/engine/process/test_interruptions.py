"""A SIGTERM that breaks off a start: nothing is half done, and it is never lost."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from engine.effects import Call, Close, Now, OnTerminate, OpenSocket, Receive, StartThread, Take
from engine.ports import SocketSpec
from engine.process.answers.threads import Interruption
from engine.process.real_ports import RealPorts
from engine.process.shell import Process
from engine.topology import NodeKind, core

LONG_S = 30.0
#: A function as pyzmq has them: where it looks for signals itself, what a handler raises ends the process.
_FOREIGN: dict = {"__name__": "zmq.backend", "os": os, "signal": signal, "done": []}
exec("def within_zmq():\n    os.kill(os.getpid(), signal.SIGTERM)\n    done.append('sent')", _FOREIGN)


@pytest.fixture
def process():
    before = signal.getsignal(signal.SIGTERM)
    made = Process(RealPorts(core()))
    yield made
    made.close()
    made.ports.close()
    signal.signal(signal.SIGTERM, before)
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def looks():
    """What a wait writes down of its looks. A signal of somebody else is handled meanwhile, and wakes it once."""
    before, found = signal.signal(signal.SIGUSR1, lambda number, frame: None), []
    yield found
    signal.signal(signal.SIGUSR1, before)
    assert 1 <= len(found) <= 3, "a processor is used up for a byte that nobody reads"


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def broken_off(process, *effects, before: str = "now") -> list:
    """A loop of these effects, the last of which is broken off. -> what the others were answered with"""
    answers = []

    def loop():
        with pytest.raises(SystemExit, match=before):
            yield OnTerminate(None, before)
            for effect in effects:
                answers.append((yield effect))
        yield OnTerminate("asked", "again")
        assert not (yield Take("asked", 0.0))
        terminate()
        assert (yield Take("asked", None)) == ["again"]

    process.run(loop())
    return answers


def worker(process, **methods) -> None:
    process.worker = type("W", (), {name: staticmethod(method) for name, method in methods.items()})()


def spec(tmp_path) -> SocketSpec:
    return SocketSpec(name="inbox", kind="PULL", peer_kind=NodeKind.FRONTEND, bind=True, address=f"ipc://{tmp_path}/s")


def test_what_is_opened_is_open_and_is_closed(process, tmp_path, monkeypatch) -> None:
    opens = process.ports.open_socket

    def and_then(asked):
        terminate()
        return opens(asked)

    monkeypatch.setattr(process.ports, "open_socket", and_then)
    assert broken_off(process, OpenSocket(spec(tmp_path)), Call("never", (), {})) == []
    assert process.sockets["inbox"].address
    process.run(iter_of(Close(None)))  # which waits for whatever is open


def iter_of(effect):
    yield effect


def test_a_thread_is_started_whole(process, monkeypatch) -> None:
    start, ran = threading.Thread.start, threading.Event()

    def loop():
        yield Now()
        ran.set()

    def and_then(thread) -> None:
        terminate()
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", and_then)
        assert broken_off(process, StartThread("one", loop()), Call("never", (), {})) == []
    assert ran.wait(LONG_S)


def test_what_takes_long_is_broken_off_in_its_midst(process) -> None:
    after = []

    def load() -> None:
        terminate()
        after.append("loaded")

    worker(process, load=load)
    assert broken_off(process, Call("load", (), {})) == [] and after == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_it_is_not_lost_where_its_exception_is(process) -> None:
    class Dies:
        def __del__(self) -> None:
            terminate()
            for _ in range(1):
                pass

    worker(process, load=lambda: Dies() and "loaded")
    assert broken_off(process, Call("load", (), {}), Call("never", (), {})) == []


def test_it_waits_until_pyzmq_is_done(process) -> None:
    worker(process, send=_FOREIGN["within_zmq"])
    assert broken_off(process, Call("send", (), {}), Call("never", (), {})) == [] and _FOREIGN["done"] == ["sent"]


def test_one_that_comes_amid_the_loop_itself_breaks_off_its_next_effect(process) -> None:
    def loop():
        seen = []
        try:
            yield OnTerminate(None, "amid")
            terminate()
            seen.append("on")
            yield Call("never", (), {})
        except SystemExit as error:
            seen.append(str(error))
        return seen

    assert process.run(loop()) == ["on", "amid"]


def test_a_wait_that_the_system_did_not_break_off_ends_all_the_same(process, tmp_path) -> None:
    """Another thread takes the signal, or it comes between the last look and the wait: then no wait is interrupted."""
    began = time.monotonic()

    def other() -> None:
        time.sleep(0.1)  # no condition tells that the main thread waits; sooner it would be told before
        terminate()

    thread = threading.Thread(target=other)
    thread.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        def loop():
            yield OnTerminate(None, "waits")
            yield OpenSocket(spec(tmp_path))
            try:
                yield Receive(("inbox",), began + LONG_S)
            except SystemExit:
                return time.monotonic() - began
            return LONG_S

        assert process.run(loop()) < 0.8  # whoever only looks up now and then does so once a second
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        thread.join()


def test_what_other_threads_do_is_not_broken_off() -> None:
    interruption, answers = Interruption("main"), []
    interruption.strike(None)
    thread = threading.Thread(target=lambda: answers.append(interruption.answered(lambda effect: 7, Now())))
    thread.start()
    thread.join()
    assert answers == [7]
    with pytest.raises(SystemExit, match="main"):
        interruption.answered(lambda effect: 7, Now())
    assert interruption.answered(lambda effect: 7, Now()) == 7


def test_a_signal_of_somebody_else_wakes_who_waits_once(process, looks, tmp_path, monkeypatch) -> None:
    def loop():
        yield OnTerminate(None, "asked")
        yield OpenSocket(spec(tmp_path))
        inner = process.sockets["inbox"].try_receive

        def look():
            looks.append(0)
            if len(looks) == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            return inner()

        monkeypatch.setattr(process.sockets["inbox"], "try_receive", look)
        assert (yield Receive(("inbox",), (yield Now()) + 0.3)) is None

    process.run(loop())


def test_it_wakes_who_waits_for_other_ranks_once(process, looks) -> None:
    """As one that introduces itself to other ranks does, or meets them: it looks whenever it is woken."""
    def until_late(until: float) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        while time.monotonic() < until:
            looks.append(0)
            process.await_any([], until - time.monotonic())

    worker(process, meet=until_late)

    def loop():
        yield OnTerminate(None, "asked")
        yield Call("meet", ((yield Now()) + 0.3,), {})

    process.run(loop())

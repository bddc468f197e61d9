"""A process and its children: recipes in, deaths told, nothing open behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from engine.ports import Ports
from engine.process.children import PipeParent, RealChild, end_processes, readable, start_child
from engine.process.identity import is_alive
from engine.process.real_ports import RealPorts
from engine.topology import core, frontend, worker
from tests.engine.engine_lab import descendants, gone_within, lingering, start_time, until

HERE = "tests.engine.process.test_children"


@pytest.fixture
def ports():
    opened = RealPorts(frontend())
    yield opened
    for child in opened._children:
        child.kill()
        child.join(5.0)
    opened.close()


# -- what the children run


def echo(ports: Ports, recipe: bytes) -> None:
    ports.parent.send(recipe + b" " + str(ports.node).encode())


def obeys(ports: Ports, recipe: bytes) -> None:
    """Lives until its parent is gone, then leaves a file."""
    ports.parent.send(b"here")
    ports.parent.wait_until_gone()
    with open(recipe.decode(), "w") as file:
        file.write("gone")


def stubborn(ports: Ports, recipe: bytes) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ports.parent.send(b"here")
    ports.parent.wait_until_gone()


def has_a_sibling_under_fork(ports: Ports, recipe: bytes) -> None:
    """Two children of its own, as a core has workers; the second inherits the pipe to the first unless it closes it."""
    first = ports.start_child(worker(0), f"{HERE}:obeys", "fork")
    second = ports.start_child(worker(1), f"{HERE}:stubborn", "fork")
    first.send_recipe(recipe)
    second.send_recipe(b"")
    for child in (first, second):
        until(child.try_receive)
    first.hang_up()
    left = first.join(5.0) and not second.ended()
    second.kill()
    second.join(5.0)
    ports.parent.send(b"left" if left else b"stayed")


def word(child) -> bytes:
    return until(child.try_receive, 20.0)


# --


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_child_gets_its_recipe_and_its_name(method: str, ports) -> None:
    child = ports.start_child(core(3), f"{HERE}:echo", method)
    assert not child.ended() and child.try_receive() is None
    child.send_recipe(b"recipe")
    assert word(child) == b"recipe core.3"
    assert child.join(10.0) and child.exitcode() == 0 and child.ended()
    with pytest.raises(EOFError):
        child.try_receive()


def test_a_child_that_never_got_a_recipe_leaves_when_its_parent_hangs_up(ports) -> None:
    child = ports.start_child(core(), f"{HERE}:echo", "fork")
    child.hang_up()
    assert child.join(10.0) and child.exitcode() == 0
    child.send_recipe  # noqa: B018 - a closed pipe is no error until it is used


def test_a_child_that_was_forgotten_still_tells_how_it_ended() -> None:
    """A thread that waits for its end may ask when the main thread has closed it."""
    child = start_child(core(), f"{HERE}:echo", "fork", bytes)
    child.hang_up()
    assert child.join(10.0)
    child.close()
    assert child.exitcode() == 0


def test_a_child_that_was_forgotten_is_gone_for_whoever_still_waits_for_it() -> None:
    child = start_child(core(), f"{HERE}:echo", "fork", bytes)
    child.hang_up()
    assert child.join(10.0)
    child.close()
    assert child.gone() and child.ended() and readable([child.sentinel], None)


def test_a_child_that_was_forgotten_is_sent_no_signal() -> None:
    """Whoever breaks off ends whatever it has started, also what it has given back by then."""
    child = start_child(core(), f"{HERE}:echo", "fork", bytes)
    child.hang_up()
    assert child.join(10.0)
    child.close()
    child.terminate()
    child.kill()


def test_a_child_sees_its_parent_hang_up(ports, tmp_path) -> None:
    child = ports.start_child(core(), f"{HERE}:obeys", "fork")
    child.send_recipe(str(tmp_path / "said").encode())
    assert word(child) == b"here"
    child.hang_up()
    assert child.join(10.0) and (tmp_path / "said").exists()


def test_a_sibling_forked_later_does_not_keep_a_childs_pipe_open(ports, tmp_path) -> None:
    child = ports.start_child(core(), f"{HERE}:has_a_sibling_under_fork", "fork")
    child.send_recipe(str(tmp_path / "said").encode())
    assert word(child) == b"left"
    assert child.join(10.0)


@pytest.mark.parametrize(("end", "code"), [("kill", -9), ("terminate", -15)])
def test_a_death_is_told_with_its_exit_code_and_later_signals_are_harmless(end: str, code, ports, tmp_path) -> None:
    child = ports.start_child(core(), f"{HERE}:obeys", "fork")
    child.send_recipe(str(tmp_path / "said").encode())
    assert word(child) == b"here"
    getattr(child, end)()
    assert child.join(10.0) and child.exitcode() == code
    child.kill()
    child.terminate()
    child.send_recipe(b"to nobody")
    assert child.ended() and not any(pid == child.pid for pid, _ in descendants())


def test_a_death_is_told_before_what_the_child_had_is_taken_from_it() -> None:
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    _, last = lingering(process.start)
    child = RealChild(core(), process, multiprocessing.Pipe()[0], bytes)
    assert not child.ended()
    child.kill()
    until(child.ended)
    assert child.exitcode() == -9 and not child.gone() and not child.join(0.0)
    last.wait(10.0)
    assert child.join(10.0) and child.gone() and child.exitcode() == -9
    child.close()


def test_one_whose_first_thread_has_ended_may_still_do_something() -> None:
    """That shows in /proc as a process that is dead."""
    first_thread_ends = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); " \
        "ctypes.CDLL(None).syscall(60, 0)" if os.uname().machine == "x86_64" else "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", first_thread_ends]) as process:
        identity = process.pid, start_time(process.pid) or 0
        if os.uname().machine == "x86_64":
            until(lambda: start_time(process.pid) is None)
        assert is_alive(identity)
        process.kill()
        until(lambda: not is_alive(identity))


def test_one_that_does_not_hear_is_killed_after_the_patience(ports) -> None:
    child = ports.start_child(core(), f"{HERE}:stubborn", "fork")
    child.send_recipe(b"")
    assert word(child) == b"here"
    child.terminate()
    assert not child.join(0.05)
    identity = (child.pid, start_time(child.pid))
    end_processes([identity], 0.05)
    assert gone_within([identity], 5.0) == []


def test_a_process_that_only_shares_the_number_of_one_that_is_gone_is_not_ended(ports) -> None:
    child = ports.start_child(core(), f"{HERE}:stubborn", "fork")
    child.send_recipe(b"")
    assert word(child) == b"here"
    end_processes([(child.pid, 1)], 0.0)
    assert not child.ended()


def test_a_parent_that_died_before_it_was_watched_is_gone_at_once() -> None:
    """The pid that a child was told is no longer its parent's."""
    import multiprocessing

    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        assert PipeParent(ours, os.getpid()).receive() is None


def test_ports_that_were_used_leave_no_descriptor(tmp_path) -> None:
    def use() -> None:
        ports = RealPorts(frontend())
        child = ports.start_child(core(), f"{HERE}:echo", "fork")
        child.send_recipe(b"x")
        word(child)
        child.join(10.0)
        ports.close()

    use()
    before = sorted(os.listdir("/proc/self/fd"))
    use()
    use()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_readable_takes_descriptors_beyond_the_reach_of_select() -> None:
    import fcntl

    read, write = os.pipe()
    try:
        high = fcntl.fcntl(read, fcntl.F_DUPFD, 1500)
    except OSError:
        pytest.skip("this machine allows too few open files")
    finally:
        os.close(read)
    assert readable([high], 0) == []
    os.write(write, b"x")
    assert readable([high], 1.0) == [high]
    os.close(high)
    os.close(write)

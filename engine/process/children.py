"""How a process of the engine starts another one.

Promises
- A child is started early, before its parent has a ZMQ context or a thread, and sleeps until its parent
  sends the recipe: names, addresses, config. What travels is data; the child opens everything itself.
- The pipe that carried the recipe is the child's death pipe: it reads EOF when its parent is gone. Under fork a
  child closes every pipe end it inherited, or its siblings would never see that EOF.
- `sentinel` is a pidfd: readable when that process is gone, however it died, whoever inherited what. The child
  watches its parent by a pidfd too: a program's own forks may hold the pipe open.
- A child has ended as soon as it does nothing more, which may be a while before it is gone (`identity`).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from engine.process.identity import exit_code, is_alive, start_time
from engine.process.recipes import named
from engine.topology import Node


class Bootstrap(msgspec.Struct, frozen=True):
    """What a child is sent: how to open its ports, and its recipe."""

    ports_factory: str
    ports_argument: bytes
    recipe: bytes
    io_threads: int = 1


#: So often at most it is looked whether a child is ending: who serves asks with each message.
_LOOK_S = 0.01


def readable(descriptors: Iterable[int], timeout_s: float | None) -> list[int]:
    """Wait until some of them are readable or closed by either end, at most `timeout_s`. -> those

    A negative one is of somebody who was forgotten meanwhile, by another thread: that is closed. `select` would refuse
    descriptors from 1024 on, which a server with many connections has.
    """
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor < 0:
            return [descriptor]
        poller.register(descriptor, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)]


#: What a child runs first. By its name: it starts children in turn, so an import would lead back here.
ENTRY = "engine.process.entry:child_main"
#: Pipe ends this process holds towards its children and its parent: a forked child closes them.
_own_ends: list[Connection] = []


def keep_end(end: Connection) -> None:
    """From now on a forked child closes this pipe end."""
    _own_ends.append(end)


def close_inherited_ends() -> None:
    """A forked child's first act."""
    for end in _own_ends:
        end.close()
    _own_ends.clear()


def _enter(*arguments: Any) -> None:
    named(ENTRY)(*arguments)


class RealChild:
    """A started process. See `ports.Child`."""

    def __init__(self, node: Node, process: Any, connection: Connection, wrap: Callable[[bytes], bytes]) -> None:
        self.node = node
        self.pid: int = process.pid
        self._process = process
        self._connection = connection
        self._wrap = wrap
        self.sentinel = os.pidfd_open(process.pid)
        self._identity = process.pid, start_time(process.pid) or 0
        self._ended, self._look_at = False, 0.0
        self._exitcode: int | None = None  # once it was forgotten

    def send_recipe(self, recipe: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is told by the sentinel
            self._connection.send_bytes(self._wrap(recipe))

    def try_receive(self) -> bytes | None:
        try:
            return self._connection.recv_bytes() if self._connection.poll() else None
        except ConnectionResetError:
            raise EOFError from None

    def fileno(self) -> int:
        return self._connection.fileno()

    def gone(self) -> bool:
        return bool(readable([self.sentinel], 0))

    def ended(self) -> bool:
        if not self._ended and self._look_at <= (now := time.monotonic()):
            self._look_at = now + _LOOK_S
            self._ended = not is_alive(self._identity)
        return self._ended or self.gone()

    def exitcode(self) -> int | None:
        try:
            self._process.join(0)
            code: int | None = self._process.exitcode
        except ValueError:  # a thread that waits for its end may be told when it was forgotten
            return self._exitcode
        return exit_code(self.pid) if code is None and self._ended else code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def join(self, timeout_s: float) -> bool:
        gone = bool(readable([self.sentinel], timeout_s))
        if gone:
            self._process.join(0)
        return gone

    def hang_up(self) -> None:
        """Close the pipe: the child reads that its parent is gone, and goes."""
        if self._connection in _own_ends:
            _own_ends.remove(self._connection)
        self._connection.close()

    def close(self) -> None:
        """Forget a child that is gone."""
        self.hang_up()
        sentinel, self.sentinel = self.sentinel, -1  # at once: a thread may wait for its end still
        if sentinel >= 0:
            os.close(sentinel)
        with contextlib.suppress(ValueError):  # it still runs: whoever owns it did not wait for it
            self._exitcode = self._process.exitcode
            self._process.close()

    def _signal(self, number: int) -> None:
        if self.sentinel >= 0:  # else it was gone, and is forgotten
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)


class PipeParent:
    """The pipe to the process that started this one, of process id `pid`. See `ports.Parent`."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self._sentinel = -1
        with contextlib.suppress(ProcessLookupError):
            self._sentinel = os.pidfd_open(pid)
        self._gone = self._sentinel < 0 or os.getppid() != pid  # it died before it could be watched

    def receive(self) -> bytes | None:
        """Wait for its next message; None when it is gone."""
        try:
            if not self._gone and self._connection.fileno() in readable(
                    [self._connection.fileno(), self._sentinel], None):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            pass
        self._gone = True
        return None

    def fileno(self) -> int:
        return self._connection.fileno()

    def is_gone(self) -> bool:
        """Whether its end is known, now."""
        while not self._gone and readable([self._connection.fileno(), self._sentinel], 0):
            self.receive()
        return self._gone

    def take(self, recipe: bytes) -> bytes | None:
        return recipe

    def send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(message)

    def wait_until_gone(self) -> None:
        while self.receive() is not None:
            pass


def start_child(node: Node, target: str, start_method: str, wrap: Callable[[bytes], bytes]) -> RealChild:
    """Start `target` ("module:function", called with (ports, recipe)) as a process named after its node."""
    context = multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe()
    keep_end(ours)
    process = context.Process(target=_enter, args=(str(node), target, theirs, os.getpid()),
                              name=process_name(node))
    try:
        process.start()
    except BaseException:
        _own_ends.remove(ours)
        ours.close()
        raise
    finally:
        theirs.close()
    return RealChild(node, process, ours, wrap)


def process_name(node: Node) -> str:
    """vLLM's names, as `ps` and logs show them."""
    return {"core": f"EngineCore_DP{node.index}", "worker": f"VllmWorker-{node.index}",
            "coordinator": "DPCoordinator"}.get(
        node.kind.value, f"{node.kind.value}-{node.index}")


def set_log_prefix(node: str) -> None:
    """Log lines of this process begin with its node."""
    logging.basicConfig(format=f"[{node}] %(levelname)s %(name)s: %(message)s", force=True)


def set_process_title(title: str) -> None:
    """The short name in `ps -o comm` and `top`; 15 bytes of it."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(title[:15])


def end_processes(identities: Iterable[tuple[int, int]], patience_s: float) -> None:
    """Wait until these processes (pid, start time) are gone; those that are not after `patience_s` are killed.

    For processes that are not this one's children: a child's children, whose parent may be dead.
    """
    deadline = time.monotonic() + patience_s
    for pid, started in identities:
        try:
            sentinel = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if start_time(pid) == started and not readable([sentinel], deadline - time.monotonic()):
                signal.pidfd_send_signal(sentinel, signal.SIGKILL)
                readable([sentinel], patience_s)
        except ProcessLookupError:
            pass
        finally:
            os.close(sentinel)

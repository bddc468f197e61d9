"""How a process of the engine starts another one.

Promises
- A child is started early, before its parent has a ZMQ context or a thread, and sleeps until its parent
  sends the recipe: names, addresses, config. What travels is data; the child opens everything itself.
- The pipe that carried the recipe is the child's death pipe: it reads EOF when its parent is gone. Under fork a
  child closes every pipe end it inherited, or its siblings would never see that EOF.
- `sentinel` is a pidfd: readable when that process is gone, however it died, whoever inherited what.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from engine.topology import Node

#: `module:function` that opens a process's ports: `function(node, argument, open_real) -> Ports`.
PLAIN_PORTS = ""


class Envelope(msgspec.Struct, frozen=True):
    """What a child is sent: how to open its ports, and its recipe."""

    ports_factory: str
    ports_argument: bytes
    recipe: bytes


#: Pipe ends this process holds towards its children and its parent: a forked child closes them.
_own_ends: list[Connection] = []


class RealChild:
    """A started process. See `ports.Child`."""

    def __init__(self, node: Node, process: Any, connection: Connection, wrap: Callable[[bytes], bytes]) -> None:
        self.node = node
        self.pid: int = process.pid
        self._process = process
        self._connection = connection
        self._wrap = wrap
        self.sentinel = os.pidfd_open(process.pid)

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

    def alive(self) -> bool:
        return not select.select([self.sentinel], [], [], 0)[0]

    def exitcode(self) -> int | None:
        self._process.join(0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def join(self, timeout_s: float) -> bool:
        gone = bool(select.select([self.sentinel], [], [], max(0.0, timeout_s))[0])
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
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, number)


class PipeParent:
    """The pipe to the process that started this one. See `ports.Parent`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(message)

    def watch(self, gone: Callable[[], None]) -> None:
        def wait() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._connection.recv_bytes()
            gone()

        threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def start_child(node: Node, target: str, start_method: str, wrap: Callable[[bytes], bytes]) -> RealChild:
    """Start `target` ("module:function", called with (ports, recipe)) as a process named after its node."""
    context = multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe()
    _own_ends.append(ours)
    process = context.Process(target=_child_main, args=(str(node), target, theirs), name=process_name(node))
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
    return {"core": f"EngineCore_DP{node.index}", "worker": f"VllmWorker-{node.index}"}.get(
        node.kind.value, f"{node.kind.value}-{node.index}")


def set_log_prefix(node: str) -> None:
    """Log lines of this process begin with its node."""
    logging.basicConfig(format=f"[{node}] %(levelname)s %(name)s: %(message)s", force=True)


def set_process_title(title: str) -> None:
    """The short name in `ps -o comm` and `top`; 15 bytes of it."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(title[:15])


def _child_main(name: str, target: str, connection: Connection) -> None:
    for end in _own_ends:
        end.close()
    _own_ends.clear()
    node = Node.parse(name)
    set_process_title(process_name(node))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the frontend's to handle; it ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _own_ends.append(connection)
    try:
        envelope = msgspec.msgpack.decode(connection.recv_bytes(), type=Envelope)
    except (EOFError, OSError):
        os._exit(0)  # the parent went away before this child had anything to do
    ports = open_ports(node, envelope.ports_factory, envelope.ports_argument, PipeParent(connection))
    resolve(target)(ports, envelope.recipe)
    sys.stdout.flush()
    sys.stderr.flush()


def open_ports(node: Node, factory: str, argument: bytes, parent: PipeParent | None = None) -> Any:
    """The ports of this process: plain, or wrapped by the named factory."""
    from engine.real_ports import RealPorts

    def open_real(node: Node) -> RealPorts:
        return RealPorts(node, factory, argument, parent)

    return resolve(factory)(node, argument, open_real) if factory else open_real(node)


def resolve(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)

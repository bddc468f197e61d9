"""Two worlds with one interface: nodes that open sockets, die, stop and return; in libzmq, and in the twin's model.

    world.open(node, key, kind=..., bind=..., address=..., ...)      world.send(node, key, count) -> (accepted, why)
    world.drain(node, key) -> [(peer, first frame)]                  world.await_event(node, key, "connected")
    world.kill(node)   world.stop(node)   world.go_on(node)          world.close(node, key, linger_s)
    world.leave(node)                                                world.say(node, key, frame, ...)
    world.bind(node, key, ...) -> address                            world.hear(node, key) -> [frames]

After `kill` or `leave` the node may open sockets again: it is its next life.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.ports import SocketSpec, Unroutable
from engine.topology import Node, NodeKind, tensor_parallel
from sim.kernel.choices import Choices, enumerate_choices
from sim.simulation import Simulation
from sim.transport.zmq_model import SimSocket, SocketFullError

#: How many of the model's outcomes of one situation are looked at.
BOUND = 24
NODES = {"a": NodeKind.FRONTEND, "b": NodeKind.CORE, "c": NodeKind.WORKER}


class RealWorld:
    """Each node is a process; `folder` holds the sockets of ipc, where `over` is not tcp."""

    def __init__(self, folder: Path, over: str = "ipc") -> None:
        self.folder, self._over = folder, over
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._stopped: set[str] = set()

    def address(self, name: str = "s") -> str:
        return f"ipc://{self.folder}/{name}"

    def _order(self, node: str, do: str, **what: Any) -> Any:
        child = self._children.get(node)
        if child is None:
            child = self._children[node] = subprocess.Popen(
                [sys.executable, "-m", "tests.contracts.zmq_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps({"do": do, **what}) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        if "error" in answer:
            raise OSError(answer["error"], os.strerror(answer["error"]))
        return answer["result"]

    def bind(self, node: str, key: str, **spec: Any) -> str:
        address = self.address(f"{node}.{key}") if self._over == "ipc" else "tcp://127.0.0.1:*"
        return self.open(node, key, bind=True, address=address, **spec)

    def say(self, node: str, key: str, *frames: bytes) -> None:
        self._order(node, "say", key=key, frames=[frame.decode("latin-1") for frame in frames])

    def hear(self, node: str, key: str, quiet_s: float = 0.1, most: int = 1 << 30) -> list[list[bytes]]:
        return [[frame.encode("latin-1") for frame in frames]
                for frames in self._order(node, "hear", key=key, quiet_s=quiet_s, most=most)]

    def open(self, node: str, key: str, **spec: Any) -> str:
        for name in ("identity", "topic"):
            if spec.get(name) is not None:
                spec[name] = spec[name].decode("latin-1")
        spec["more_topics"] = [topic.decode("latin-1") for topic in spec.get("more_topics", ())]
        return self._order(node, "open", key=key, spec=spec)

    def send(self, node: str, key: str, count: int = 1, first: int = 0, size: int = 2, peer: int = 0) -> Any:
        return tuple(self._order(node, "send", key=key, first=first, count=count, size=size, peer=peer))

    def drain(self, node: str, key: str, quiet_s: float = 0.1, most: int = 1 << 30) -> list[tuple[int, str]]:
        return [tuple(found) for found in self._order(node, "drain", key=key, quiet_s=quiet_s, most=most)]

    def await_event(self, node: str, key: str, event: str) -> bool:
        return self._order(node, "await_event", key=key, event=event, timeout_s=3.0)

    def close(self, node: str, key: str, linger_s: float | None = None) -> None:
        self._order(node, "close", key=key, linger_s=linger_s)

    def kill(self, node: str) -> None:
        child = self._children.pop(node)
        child.kill()
        self._reap(child)

    def leave(self, node: str) -> None:
        self._order(node, "exit")
        self._reap(self._children.pop(node))

    def stop(self, node: str) -> None:
        self._children[node].send_signal(signal.SIGSTOP)
        os.waitpid(self._children[node].pid, os.WUNTRACED)

    def go_on(self, node: str) -> None:
        self._children[node].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for node in list(self._children):
            self.kill(node)

    @staticmethod
    def _reap(child: subprocess.Popen[str]) -> None:
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


class SimWorld:
    """The same on the twin's model, for one sequence of choices."""

    def __init__(self, choices: Choices | None = None, over: str = "ipc") -> None:
        self._over = over
        self.sim = Simulation(tensor_parallel(2), None, 0, choices or Choices())
        self._keeps_up: bool | None = None
        self._known: dict[tuple[str, str], list[Any]] = {}  # connections whose handshake was told
        self._lives: dict[str, int] = {}
        self._processes: dict[str, Any] = {}
        self._sockets: dict[tuple[str, str], SimSocket] = {}

    def address(self, name: str = "s") -> str:
        return f"ipc:///run/{name}"

    def _process(self, node: str) -> Any:
        process = self._processes.get(node)
        if process is None or not process.alive:
            life = self._lives.get(node, -1) + 1
            self._lives[node] = life
            process = self._processes[node] = self.sim.start_process(Node(NODES[node], 0, life))
        return process

    def _advance(self, seconds: float, is_over: Any = None) -> bool:
        until = self.sim.now + seconds
        while is_over is None or not is_over():
            self.sim.after(min(0.001, until - self.sim.now), lambda: None)
            before = self.sim.now
            self.sim.kernel.time.advance(min(before + 0.001, until))
            if self.sim.now >= until:
                return is_over is None or is_over()
        return True

    def bind(self, node: str, key: str, **spec: Any) -> str:
        address = self.address(f"{node}.{key}") if self._over == "ipc" else "tcp://127.0.0.1:*"
        return self.open(node, key, bind=True, address=address, **spec)

    def say(self, node: str, key: str, *frames: bytes) -> None:
        self._sockets[node, key].send(frames)

    def hear(self, node: str, key: str, quiet_s: float = 0.1, most: int = 1 << 30) -> list[list[bytes]]:
        socket, found = self._sockets[node, key], []
        while len(found) < most:
            message = socket.try_receive()
            if message is not None:
                found.append(message[1])
            elif not self._advance(quiet_s, lambda: socket.arrived):
                break
        return found

    def open(self, node: str, key: str, **spec: Any) -> str:
        process = self._process(node)
        socket = self.sim.host.network.open(process, SocketSpec(name=key, peer_kind=NodeKind.CORE, **spec))
        self._known.pop((node, key), None)
        self._sockets[node, key] = socket
        return socket.address

    def send(self, node: str, key: str, count: int = 1, first: int = 0, size: int = 2, peer: int = 0) -> Any:
        socket = self._sockets[node, key]
        for number in range(first, first + count):
            if self._io_thread_keeps_up(socket, number - first):
                self._advance(0.001)
            try:
                socket.send([b"%08d" % number, b"-" * size], peer)
            except Unroutable:
                return number - first, "unroutable"
            except SocketFullError:
                return number - first, "full"
        return count, None

    def _io_thread_keeps_up(self, socket: SimSocket, sent: int) -> bool:
        """A burst in a real process may outrun its I/O thread, or not: both are played."""
        hwm = socket.spec.send_hwm
        if not hwm or sent % max(1, hwm // 2) or not sent:
            return False
        if self._keeps_up is None:
            self._keeps_up = self.sim.kernel.choose(2, "the I/O thread keeps up with the burst") == 1
        return self._keeps_up

    def drain(self, node: str, key: str, quiet_s: float = 0.1, most: int = 1 << 30) -> list[tuple[int, str]]:
        socket, found = self._sockets[node, key], []
        while len(found) < most:
            message = socket.try_receive()
            if message is not None:
                found.append((message[0], bytes(message[1][0]).decode("latin-1")))
            elif not self._advance(quiet_s, lambda: socket.arrived):
                break
        return found

    def await_event(self, node: str, key: str, event: str) -> bool:
        socket = self._sockets[node, key]
        if event == "disconnected" and self.sim.kernel.choose(
                2, "told by the I/O thread before the socket has noticed"):
            return self._advance(3.0, lambda: not all(connection.alive for connection in socket.connections))
        if event == "disconnected":
            return self._advance(3.0, lambda: not socket.connected())
        known = self._known.setdefault((node, key), [])

        def is_new() -> bool:
            return any(connection not in known for connection in socket.connections)

        happened = self._advance(3.0, is_new)
        known.extend(connection for connection in socket.connections if connection not in known)
        return happened

    def close(self, node: str, key: str, linger_s: float | None = None) -> None:
        self._sockets.pop((node, key)).close(linger_s)

    def kill(self, node: str) -> None:
        self._processes[node].kill()

    def leave(self, node: str) -> None:
        process = self._processes[node]
        for (owner, _), socket in list(self._sockets.items()):
            if owner == node and not socket.closed:
                socket.close()
        self._advance(10.0, lambda: not any(
            socket.lingering for (owner, _), socket in self._sockets.items() if owner == node))
        process.kill()

    def stop(self, node: str) -> None:
        self._processes[node].running = False

    def go_on(self, node: str) -> None:
        self._processes[node].running = True
        self.sim.host.network.thawed(self._processes[node])

    def end(self) -> None:
        pass


def outcomes(situation: Callable[[Any], Any], over: str = "ipc") -> list[Any]:
    """What the model allows."""
    def play(choices: Choices) -> Any:
        return situation(SimWorld(choices, over))

    return [outcome for _, outcome in enumerate_choices(play, BOUND)]

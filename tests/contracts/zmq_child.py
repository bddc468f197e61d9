"""A real node of the socket contracts: does what JSON lines on its standard input say, answers each with a line.

    {"do": "open", "key", "spec"} | send | say | drain | hear | await | close | exit  ->  {"result": ...} or {"error"}
"""

from __future__ import annotations

import json
import sys
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.ports import SocketSpec, Unroutable
from engine.topology import NodeKind
from engine.wire.sockets import ZmqSocket


class Watching(zmq.Context):
    """Each socket has its monitor from the start: one that is attached after the connect may miss the handshake."""

    def socket(self, socket_type: int = -1, *arguments: Any, **settings: Any) -> Any:
        socket = super().socket(socket_type, *arguments, **settings)
        if socket_type != zmq.PAIR:  # a monitor is one
            socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        return socket


class Child:
    def __init__(self) -> None:
        self.context = Watching()
        self.sockets: dict[str, ZmqSocket] = {}
        self.monitors: dict[str, zmq.Socket] = {}

    def open(self, key: str, spec: dict[str, Any]) -> str:
        for name in ("identity", "topic"):
            if spec.get(name) is not None:
                spec[name] = spec[name].encode("latin-1")
        spec["more_topics"] = tuple(topic.encode("latin-1") for topic in spec.get("more_topics", ()))
        socket = ZmqSocket(self.context, SocketSpec(name=key, peer_kind=NodeKind.CORE, **spec))
        self.sockets[key] = socket
        self.monitors[key] = socket._socket.get_monitor_socket()
        return socket.address

    def send(self, key: str, first: int, count: int, size: int, peer: int) -> tuple[int, str | None]:
        """-> (messages accepted, why no more were)"""
        socket = self.sockets[key]
        for number in range(first, first + count):
            try:
                socket.send([b"%08d" % number, b"-" * size], peer)
            except Unroutable:
                return number - first, "unroutable"
            except zmq.Again:
                return number - first, "full"
        return count, None

    def say(self, key: str, frames: list[str]) -> None:
        self.sockets[key].send([frame.encode("latin-1") for frame in frames])

    def hear(self, key: str, quiet_s: float, most: int) -> list[list[str]]:
        """As `drain`, all frames of each message."""
        socket, found = self.sockets[key], []
        while len(found) < most:
            message = socket.try_receive()
            if message is not None:
                found.append([bytes(frame).decode("latin-1") for frame in message[1]])
            elif not socket._socket.poll(quiet_s * 1000):
                break
        return found

    def drain(self, key: str, quiet_s: float, most: int) -> list[tuple[int, str]]:
        """All that comes until nothing came for `quiet_s`, or `most` are here. -> (peer, first frame)"""
        socket, found = self.sockets[key], []
        while len(found) < most:
            message = socket.try_receive()
            if message is not None:
                found.append((message[0], bytes(message[1][0]).decode("latin-1")))
            elif not socket._socket.poll(quiet_s * 1000):
                break
        return found

    def await_event(self, key: str, event: str, timeout_s: float) -> bool:
        wanted = zmq.EVENT_HANDSHAKE_SUCCEEDED if event == "connected" else zmq.EVENT_DISCONNECTED
        monitor = self.monitors[key]
        while monitor.poll(timeout_s * 1000):
            if recv_monitor_message(monitor)["event"] == wanted:
                return True
        return False

    def close(self, key: str, linger_s: float | None) -> None:
        socket = self.sockets.pop(key)
        socket._socket.disable_monitor()
        self.monitors.pop(key).close(0)
        socket.close(linger_s)


def main() -> None:
    child = Child()
    for line in sys.stdin:
        order = json.loads(line)
        do = order.pop("do")
        if do == "exit":
            for key in list(child.sockets):
                child.close(key, None)
            child.context.term()
            print(json.dumps({"result": None}), flush=True)
            return
        try:
            answer = {"result": getattr(child, do)(**order)}
        except zmq.ZMQError as error:
            answer = {"error": error.errno}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

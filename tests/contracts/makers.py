"""Makers of sockets with one interface: libzmq's, and the twin's.

    maker.open(kind, bind=..., address="s", ...)    maker.receive(socket)    maker.until(condition)    maker.close()
    maker.reserve(address) -> the address, with its port
"""

from __future__ import annotations

import time

import pytest

from engine.ports import SocketSpec
from engine.topology import NodeKind, core, frontend, tensor_parallel
from sim.simulation import Simulation


class RealMaker:
    """ZmqSockets of one process, over ipc in `folder`."""

    def __init__(self, folder, io_threads=1):
        zmq = pytest.importorskip("zmq")
        self.context, self._folder, self._sockets = zmq.Context(io_threads), folder, []
        self._reserved = []

    def open(self, kind, *, bind, address="s", **rest):
        from engine.wire.sockets import ZmqSocket

        if "://" not in address:
            address = f"ipc://{self._folder}/{address}"
        spec = SocketSpec(name=kind.lower(), kind=kind, peer_kind=NodeKind.CORE, bind=bind, address=address, **rest)
        self._sockets.append(ZmqSocket(self.context, spec))
        return self._sockets[-1]

    def reserve(self, address):
        from engine.wire.reserved import reserve

        taken, bound = reserve(address)
        self._reserved.append(taken)
        return bound

    def receive(self, socket, timeout_s=2.0):
        until = time.monotonic() + timeout_s
        while (found := socket.try_receive()) is None and (left_s := until - time.monotonic()) > 0:
            socket._socket.poll(left_s * 1000)  # what comes may be a stranger's, and dropped
        return found

    def until(self, comes_about):
        end = time.monotonic() + 5.0
        while not comes_about():
            assert time.monotonic() < end
            time.sleep(0.001)

    def connected(self, socket):
        socket.is_over()  # reads what its monitor says
        return socket._came - socket._went

    def close(self):
        for socket in self._sockets:
            socket.close(0)
        self.context.term()
        for taken in self._reserved:
            taken.close()


class SimMaker:
    """SimSockets of two processes."""

    def __init__(self, _folder, io_threads=1):
        self._sim = Simulation(tensor_parallel(2))
        self._binder, self._connector = (self._sim.start_process(node()) for node in (frontend, core))

    def open(self, kind, *, bind, address="s", **rest):
        if "://" not in address:
            address = f"ipc:///run/{address}"
        spec = SocketSpec(name=kind.lower(), kind=kind, peer_kind=NodeKind.CORE, bind=bind, address=address, **rest)
        return self._sim.host.network.open(self._binder if bind else self._connector, spec)

    def reserve(self, address):
        return self._sim.host.network.reserve(address)

    def receive(self, socket, timeout_s=2.0):
        until = self._sim.now + timeout_s
        while not socket.arrived and self._sim.now < until:
            self._sim.after(0.001, lambda: None)
            self._sim.kernel.time.advance(self._sim.now + 0.001)
        return socket.try_receive()

    def until(self, comes_about):
        end = self._sim.now + 5.0
        while not comes_about():
            assert self._sim.now < end
            self._sim.after(0.001, lambda: None)
            self._sim.kernel.time.advance(self._sim.now + 0.001)

    def connected(self, socket):
        return len(socket.connections)

    def close(self):
        pass

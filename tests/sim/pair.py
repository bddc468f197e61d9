"""Two nodes with hand-written loops: a frontend that asks over ROUTER/DEALER, a core that also writes a ring.

    frontend.0   asks `count` times, each as soon as the last answer is here or `patience_s` passed
    core.0       answers each request and publishes it on its rpc ring
    worker.0     reads the ring into `read`
"""

from __future__ import annotations

from engine.effects import Attempt, MarkPoint, Now, Observe, Receive, RingBell, RingCrossing, Send, WaitBell
from engine.ipc.ring import EMPTY, RingLayout, RingReader, RingWriter
from engine.ports import RingSpec, SocketSpec
from engine.topology import Channel, Mark, NodeKind, core, frontend, tensor_parallel, worker
from faults.journal import parse_journal
from faults.plan import Plan
from sim.simulation import Simulation

RING = RingSpec(channel=Channel.RPC, writer=core(), readers=(worker(0),), max_chunks=4, max_chunk_bytes=64)
LAYOUT = RingLayout(1, 64, 4)
REQUESTS, OUTPUTS = "frontend.0->core.0/requests", "core.0->frontend.0/requests"
ADDRESS = "ipc:///run/pair"


class Pair:
    """One play: `answers` the frontend got, messages the worker `read`, and the simulation.

    `buffer`: what the frontend sends with each request, and writes to as soon as it is sent.
    """

    def __init__(self, plan: Plan | None = None, *, count: int = 5, seed: int = 0, choices=(), patience_s: float = 0.5,
                 recheck_s: float = 0.05, buffer: bytearray | None = None) -> None:
        self.sim = Simulation(tensor_parallel(2), plan, seed, choices)
        self.count, self.patience_s, self.recheck_s = count, patience_s, recheck_s
        self.buffer = buffer
        self.answers: list[bytes] = []
        self.read: list[bytes] = []
        self.asked: list[float] = []
        self.sim.host.create_segment("ring", LAYOUT.total_bytes)
        self.frontend = self.sim.start_process(frontend(), self._frontend)
        self.core = self.sim.start_process(core(), self._core)
        self.worker = self.sim.start_process(worker(0), self._worker)

    def run(self, guard_s: float = 10.0) -> Pair:
        self.ended = self.sim.run(guard_s)
        return self

    def records(self, node: str):
        return parse_journal(self.sim.journals()[f"{node}@0.journal"], node, 0).records

    def _frontend(self, process):
        process.ports.open_socket(SocketSpec(
            name="requests", kind="ROUTER", peer_kind=NodeKind.CORE, send_channel=Channel.REQUESTS,
            receive_channel=Channel.REQUESTS, bind=True, address=ADDRESS))
        hello = yield Receive(("requests",), None)
        assert hello[1:] == (0, [b"hello"])
        for number in range(self.count):
            began = yield Now()
            yield Send("requests", [b"request %d" % number, bytes(70_000) if self.buffer is None else self.buffer], 0)
            if self.buffer is not None:
                self.buffer[0] += 1
            found = yield Receive(("requests",), began + self.patience_s)
            if found is not None:
                self.answers.append(found[2][0])
            self.asked.append((yield Now()) - began)
        yield Observe("bye", {"reason": "done"})

    def _core(self, process):
        process.ports.open_socket(SocketSpec(
            name="input", kind="DEALER", peer_kind=NodeKind.FRONTEND, send_channel=Channel.REQUESTS,
            receive_channel=Channel.REQUESTS, bind=False, address=ADDRESS, identity=b"\x00\x00"))
        ring = process.ports.attach_ring(RING, "ring")
        process.ports.add_ring("rpc", RING)
        process.ports.add_bell("rpc", "ring/readers", "core.0/rpc:doorbell")
        writer = RingWriter(LAYOUT, ring.memory, ring.fence)
        yield Send("input", [b"hello"])
        while True:
            _, _, frames = yield Receive(("input",), None)
            yield MarkPoint(Mark.STEP)
            message = bytes(frames[0]).replace(b"request", b"step")
            yield RingCrossing("rpc", "send", writer.position, [message])
            assert (yield Attempt("rpc", lambda message=message: writer.try_write([len(message).to_bytes(1, "big"),
                                                                                    message])))
            yield RingBell("rpc")
            yield Send("input", [bytes(frames[0]).replace(b"request", b"answer")])

    def _worker(self, process):
        ring = process.ports.attach_ring(RING, "ring")
        process.ports.add_ring("rpc", RING)
        process.ports.add_bell("rpc", "ring/readers")
        process.recheck_s = self.recheck_s
        reader = RingReader(LAYOUT, ring.memory, ring.fence, 0)
        while True:
            found = yield Attempt("rpc", lambda: reader.try_read(lambda view: bytes(view[1:1 + view[0]])))
            if found is EMPTY:
                if (yield WaitBell("rpc", 3.0)) is False and (yield Now()) >= 3.0:
                    return
                continue
            yield RingCrossing("rpc", "receive", reader.position - 1, [found])
            self.read.append(found)
